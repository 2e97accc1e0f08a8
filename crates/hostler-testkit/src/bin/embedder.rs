//! A program that embeds hostler-core, driven by lines on its stdin: for tests that end a whole host.
//!
//! A request is one line of tab-separated fields, an answer is one line that begins with `ok` or `error`; both are
//! shown beside each arm of `Embedder::answer`. It ends at the end of its stdin, which closes all sessions, and on SIGTERM the
//! same way.
//!
//! Options: `--no-cgroup`; `--stop-grace-ms=N`, between SIGTERM and SIGKILL at a timeout.
#![expect(clippy::expect_used, reason = "a test program: a failure must be loud")]

use std::collections::HashMap;
use std::time::Duration;

use hostler_core::sys::signal::Signal;
use hostler_core::{
    CgroupUse, CursorRead, Host, HostOptions, Nursery, Process, Receipt, Session, SessionOptions, Signalled,
    SpawnSpec, StopCause, Stream,
};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

fn main() {
    hostler_core::run_if_helper();
    let nursery = Nursery::start(hostler_core::HelperProgram::CurrentExe).expect("the nursery starts");
    let cgroup = if std::env::args().any(|a| a == "--no-cgroup") { CgroupUse::Off } else { CgroupUse::Auto };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let stop_grace = std::env::args().find_map(|a| Some(millis(a.strip_prefix("--stop-grace-ms=")?)));
        let defaults = HostOptions::default();
        let stop_grace = stop_grace.unwrap_or(defaults.stop_grace);
        let host =
            Host::start(nursery, HostOptions { cgroup, stop_grace, ..defaults }).expect("the host starts");
        let embedder = Embedder { host, sessions: HashMap::new(), processes: HashMap::new() };
        embedder.run().await;
    });
    // A thread of the runtime may still be reading standard input; only that would be waited for.
    runtime.shutdown_background();
}

struct Embedder {
    host: Host,
    sessions: HashMap<String, Session>,
    processes: HashMap<String, Process>,
}

impl Embedder {
    async fn run(mut self) {
        let mut term =
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).expect("a handler");
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        let mut stdout = tokio::io::stdout();
        loop {
            let line = tokio::select! {
                line = lines.next_line() => line.expect("readable stdin"),
                _ = term.recv() => None,
            };
            let Some(line) = line else { break };
            let answer = self.answer(&line.split('\t').collect::<Vec<_>>()).await;
            stdout.write_all(format!("{answer}\n").as_bytes()).await.expect("writable stdout");
            stdout.flush().await.expect("writable stdout");
        }
        for session in self.sessions.values() {
            session.close(Duration::from_millis(200)).await;
        }
    }

    async fn answer(&mut self, fields: &[&str]) -> String {
        match fields {
            // session NAME -> ok
            ["session", name] => {
                self.sessions.insert((*name).to_owned(), self.host.open_session(SessionOptions::record()));
                "ok".to_owned()
            }
            // keeper SESSION -> ok PID
            ["keeper", session] => match self.sessions[*session].keeper_pid() {
                Some(pid) => format!("ok {pid}"),
                None => "error no keeper".to_owned(),
            },
            // spawn SESSION NAME TIMEOUT_MS ARG... -> ok PID ID
            ["spawn", session, name, timeout, argv @ ..] => self.spawn(session, name, timeout, argv).await,
            // signal NAME INT|TERM|KILL -> ok ended|alive|already SURVIVORS UNATTRIBUTED
            ["signal", name, signal] => self.signal(name, signal).await,
            // stop NAME GRACE_MS -> ok stopped SURVIVORS UNATTRIBUTED
            ["stop", name, grace] => {
                let receipt = self.processes[*name].stop(StopCause::Request, millis(grace)).await;
                format!("ok stopped {}", counts(&receipt))
            }
            // close SESSION GRACE_MS -> ok closed SURVIVORS UNATTRIBUTED
            ["close", session, grace] => {
                let receipt = self.sessions[*session].close(millis(grace)).await;
                format!("ok closed {}", counts(&receipt))
            }
            // finished NAME -> ok END
            ["finished", name] => format!("ok {:?}", self.processes[*name].finished().await),
            // state NAME -> ok STATE
            ["state", name] => format!("ok {:?}", self.processes[*name].state()),
            // first-line NAME -> ok LINE
            ["first-line", name] => self.first_line(name).await,
            // output NAME -> ok TEXT, lines joined by |, once it has ended
            ["output", name] => self.output(name).await,
            // fork-holder TOKEN -> ok PID of a child of the host's own that holds all its descriptors open
            ["fork-holder", token] => fork_holder(token),
            // child ARG... -> ok PID of a child of the embedder's own, without standard streams
            ["child", program, args @ ..] => own_child(program, args),
            // live -> ok COUNT
            ["live"] => format!("ok {}", self.host.live()),
            // nurseries -> ok COUNT
            ["nurseries"] => format!("ok {}", self.host.nursery_replacements()),
            _ => "error unknown request".to_owned(),
        }
    }

    async fn spawn(&mut self, session: &str, name: &str, timeout: &str, argv: &[&str]) -> String {
        let timeout = millis(timeout);
        let spec = SpawnSpec {
            timeout: (!timeout.is_zero()).then_some(timeout),
            ..SpawnSpec::new(argv.iter().map(|arg| (*arg).to_owned()))
        };
        match self.sessions[session].spawn(spec).await {
            Ok(process) => {
                let answer = format!("ok {} {}", process.pid().unwrap_or(0), process.id());
                self.processes.insert(name.to_owned(), process);
                answer
            }
            Err(error) => format!("error {error}"),
        }
    }

    /// The first line of standard output, once it is whole.
    async fn first_line(&self, name: &str) -> String {
        let mut cursor = self.processes[name].cursor(Stream::Stdout).expect("always there");
        let (mut line, mut byte) = (Vec::new(), [0]);
        while let CursorRead::Chunk(_) = cursor.next(&mut byte).await.expect("readable output") {
            if byte == *b"\n" {
                return format!("ok {}", String::from_utf8_lossy(&line));
            }
            line.extend(byte);
        }
        format!("error output ended after {:?}", String::from_utf8_lossy(&line))
    }

    async fn output(&self, name: &str) -> String {
        let mut cursor = self.processes[name].cursor(Stream::Stdout).expect("always there");
        let (mut text, mut buffer) = (Vec::new(), [0; 4096]);
        while let CursorRead::Chunk(n) = cursor.next(&mut buffer).await.expect("readable output") {
            text.extend_from_slice(&buffer[..n]);
        }
        format!("ok {}", String::from_utf8_lossy(&text).trim_end().replace('\n', "|"))
    }

    async fn signal(&self, name: &str, signal: &str) -> String {
        let signal = match signal {
            "INT" => Signal::Int,
            "TERM" => Signal::Term,
            _ => Signal::Kill,
        };
        match self.processes[name].signal(signal, Duration::from_secs(2)).await {
            Signalled::Ended { receipt, .. } => format!("ok ended {}", counts(&receipt)),
            Signalled::Alive { receipt } => format!("ok alive {}", counts(&receipt)),
            Signalled::AlreadyEnded { .. } => "ok already 0 0".to_owned(),
        }
    }
}

/// What an embedder may do that knows nothing of sockets: start a program that keeps everything open.
#[expect(clippy::disallowed_methods, reason = "the child is the embedder's own, not the host's")]
fn fork_holder(token: &str) -> String {
    let entries = std::fs::read_dir("/proc/self/fd").expect("/proc is mounted").flatten();
    let fds: Vec<i32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for fd in fds.into_iter().filter(|fd| *fd > 2) {
        let path = format!("/proc/self/fd/{fd}");
        let is_socket = std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"));
        if is_socket {
            hostler_testkit::keep_on_exec(fd);
        }
    }
    let holder = std::process::Command::new("sleep").arg("900").env("TESTKIT_TOKEN", token).spawn();
    format!("ok {}", holder.expect("sleep starts").id())
}

/// Starts a program without the host. Nobody waits for it, as nobody does for a child that a library has started.
#[expect(clippy::disallowed_methods, reason = "the child is the embedder's own, not the host's")]
fn own_child(program: &str, args: &[&str]) -> String {
    use std::process::{Command, Stdio};
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match command.spawn() {
        Ok(child) => format!("ok {}", child.id()),
        Err(error) => format!("error {program}: {error}"),
    }
}

fn millis(text: &str) -> Duration {
    Duration::from_millis(text.parse().expect("milliseconds"))
}

fn counts(receipt: &Receipt) -> String {
    format!("{} {}", receipt.survivors.total, receipt.unattributed.total)
}
