//! An A2E host as a child: started, greeted, driven over its pipes, and gone at the end whatever happened.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::{Value, json};

use super::Bench;
use super::http::HttpWire;
use super::lines::Lines;
use super::messages::{self, Message, Process};
use super::process;

/// How a host is started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup<'a> {
    /// Commands that it may start.
    pub(crate) allow: &'a [&'a str],
    /// Processes of a session, and of the host.
    pub(crate) max_processes: u32,
    /// The limit of open files, soft and hard; what we have ourselves when not said.
    pub(crate) open_files: Option<u64>,
    /// After this the host is killed.
    pub(crate) limit: Duration,
}

/// A running host with a session that may start processes.
#[derive(Debug)]
pub(crate) struct Host {
    child: Child,
    wire: Wire,
    sent: u64,
    /// Pids of what it started, to be ended should the host fail to.
    started: Vec<u32>,
    home: PathBuf,
    programs: PathBuf,
    watchdog: Watchdog,
}

/// How messages come and go.
#[derive(Debug)]
enum Wire {
    Stdio { stdin: Option<ChildStdin>, lines: Lines<ChildStdout> },
    Http(HttpWire),
}

impl Wire {
    fn next(&mut self) -> std::io::Result<Option<&[u8]>> {
        match self {
            Self::Stdio { lines, .. } => lines.next(),
            Self::Http(wire) => wire.next(),
        }
    }
}

impl Host {
    /// Starts the benched binary in an empty home, with its standard streams as the wire, and shakes hands.
    pub(crate) fn start(bench: &Bench, setup: &Setup<'_>) -> Result<Self> {
        Self::start_with(bench, setup, &["--stdio"], |child| {
            let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
            let lines = Lines::new(stdout.context("a host without stdout")?);
            Ok(Wire::Stdio { stdin, lines })
        })
    }

    /// The same over HTTP, on a free port of this machine.
    pub(crate) fn start_http(bench: &Bench, setup: &Setup<'_>) -> Result<Self> {
        Self::start_with(bench, setup, &["--http", "127.0.0.1:0"], |child| {
            let mut announced = String::new();
            let stdout = child.stdout.as_mut().context("a host without stdout")?;
            BufReader::new(stdout)
                .read_line(&mut announced)
                .context("failed to read where the host listens")?;
            let address = announced.trim_end().strip_prefix("listening on http://");
            Ok(Wire::Http(HttpWire::open(address.with_context(|| format!("no address in {announced:?}"))?)?))
        })
    }

    fn start_with(
        bench: &Bench,
        setup: &Setup<'_>,
        transport: &[&str],
        connect: impl FnOnce(&mut Child) -> Result<Wire>,
    ) -> Result<Self> {
        let home = bench.programs.home()?;
        let log = File::create(home.join("host.log")).context("failed to make the host's log")?;
        let mut command = command(&bench.binary, setup, &home);
        command.args(transport).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut child =
            command.spawn().with_context(|| format!("failed to start {}", bench.binary.display()))?;
        let watchdog = Watchdog::over(child.id(), setup.limit);
        let wire = connect(&mut child);
        if wire.is_err() {
            // There is no host yet that would do it.
            child.kill().context("failed to end the host")?;
            child.wait().context("failed to wait for the host")?;
        }
        let programs = bench.programs.path("");
        let (started, wire) = (Vec::new(), wire?);
        let mut host = Self { child, wire, sent: 0, started, home, programs, watchdog: watchdog? };
        host.greet()?;
        Ok(host)
    }

    fn greet(&mut self) -> Result<()> {
        self.send("handshake/req", json!({"agent_id": "bench", "agent_caps": ["proc"], "auth_token": ""}))?;
        match self.next()? {
            Message::Handshake { ok: true, .. } => Ok(()),
            other => bail!("no handshake but {other:?}"),
        }
    }

    /// The host's own processes: host, nursery, keepers.
    pub(crate) fn own(&self) -> Result<Vec<u32>> {
        process::own_processes(self.pid())
    }

    /// The pid of the host itself.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The folder below which it keeps its spools.
    pub(crate) fn state(&self) -> PathBuf {
        self.home.join("state")
    }

    /// Sends a request and returns its id.
    pub(crate) fn send(&mut self, kind: &str, fields: Value) -> Result<String> {
        self.sent += 1;
        let id = format!("b{}", self.sent);
        let line = messages::request(kind, &id, fields) + "\n";
        self.send_line(line.as_bytes())?;
        Ok(id)
    }

    /// Sends a line that is complete already.
    pub(crate) fn send_line(&mut self, line: &[u8]) -> Result<()> {
        match &mut self.wire {
            Wire::Stdio { stdin, .. } => {
                let stdin = stdin.as_mut().context("the host's stdin is closed")?;
                stdin.write_all(line).context("failed to write to the host")
            }
            Wire::Http(wire) => wire.send(line),
        }
    }

    /// The next line of the host.
    pub(crate) fn line(&mut self) -> Result<&[u8]> {
        let home = &self.home;
        let gone = || format!("the host closed its output; its log: {}", home.join("host.log").display());
        self.wire.next().context("failed to read from the host")?.with_context(gone)
    }

    /// The next message of the host.
    pub(crate) fn next(&mut self) -> Result<Message> {
        let message = messages::parse(self.line()?)?;
        if let Message::Spawned { outcome: Ok(process), .. } = &message {
            self.started.push(process.pid);
        }
        Ok(message)
    }

    /// Asks for a process and returns the request's id.
    pub(crate) fn ask_to_spawn(&mut self, cmd: &[&str]) -> Result<String> {
        self.send("proc/spawn/req", json!({"cmd": cmd}))
    }

    /// Starts a process while nothing else is going on; also the id of the request.
    pub(crate) fn spawn(&mut self, cmd: &[&str]) -> Result<(String, Process)> {
        let asked = self.ask_to_spawn(cmd)?;
        match self.next()? {
            Message::Spawned { req_id, outcome: Ok(process) } if req_id == asked => Ok((req_id, process)),
            other => bail!("asked for {cmd:?} and got {other:?}"),
        }
    }

    /// Sends SIGKILL to a process through the host.
    pub(crate) fn ask_to_kill(&mut self, process: &Process) -> Result<String> {
        self.send("proc/kill/req", json!({"proc_id": process.proc_id, "signal": "SIGKILL"}))
    }

    /// Asks whether anything else is coming: every line until the answer goes to `check`.
    pub(crate) fn settle(&mut self, mut check: impl FnMut(&Message) -> Result<()>) -> Result<()> {
        let asked = self.send("ping", json!({}))?;
        loop {
            match self.next()? {
                Message::Pong { req_id } if req_id == asked => return Ok(()),
                other => check(&other)?,
            }
        }
    }

    /// Ends the session by closing stdin, or by SIGTERM to a host that is reached over HTTP, reads what is still said, and waits until the host and everything that it
    /// started are gone. The time that took.
    pub(crate) fn end(mut self) -> Result<Duration> {
        let before = Instant::now();
        match &mut self.wire {
            Wire::Stdio { stdin, .. } => drop(stdin.take()),
            Wire::Http(_) => {
                let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("no pid")?;
                // A child of ours that nobody has waited for.
                rustix::process::kill_process(pid, Signal::TERM).context("failed to end the host")?;
            }
        }
        while self.wire.next().context("failed to read from the host")?.is_some() {}
        let status = self.child.wait().context("failed to wait for the host")?;
        while let Some(pid) = self.started.iter().find(|pid| runs(&self.programs, **pid)) {
            ensure!(before.elapsed() < Duration::from_secs(30), "pid {pid} outlived its host");
            thread::yield_now();
        }
        let took = before.elapsed();
        self.watchdog.call_off()?;
        ensure!(status.success(), "the host ended with {status}");
        Ok(took)
    }
}

fn runs(programs: &Path, pid: u32) -> bool {
    process::program(pid).is_some_and(|program| program.starts_with(programs))
}

/// The host's command line. A shell lowers the limit of open files first where that is asked for; it is the one thing
/// that cannot be said to a child without code between fork and exec.
fn command(binary: &Path, setup: &Setup<'_>, home: &Path) -> Command {
    let mut command = match setup.open_files {
        Some(files) => {
            let mut shell = Command::new("sh");
            shell.args(["-c", r#"ulimit -n "$0" && exec "$@""#, &files.to_string()]).arg(binary);
            shell
        }
        None => Command::new(binary),
    };
    let most = setup.max_processes.to_string();
    command.args(["a2e", "--allow", &setup.allow.join(","), "--max-processes", &most]);
    // Nobody's settings, and spools where they can be measured.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"HOSTLER_"))
    {
        command.env_remove(name);
    }
    command.env("HOSTLER_A2E_MAX_PROCESSES_TOTAL", most);
    command
        .env("HOME", home)
        .env("XDG_CONFIG_HOME", home.join("config"))
        .env("XDG_STATE_HOME", home.join("state"));
    command
}

impl Drop for Host {
    fn drop(&mut self) {
        // After a good end both are no-ops; after an error nothing may stay behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
        for pid in self.started.drain(..) {
            process::kill_if_of(&self.programs, pid);
        }
        // The spools of an endless writer are large; the log stays for whoever wants to know.
        let _ = fs::remove_dir_all(self.home.join("state"));
    }
}

/// Kills a process after a time unless called off, so that reading from it never lasts for ever.
#[derive(Debug)]
struct Watchdog {
    /// Dropped to call it off.
    bell: Option<Sender<()>>,
    thread: Option<JoinHandle<bool>>,
}

impl Watchdog {
    fn over(pid: u32, limit: Duration) -> Result<Self> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("no pid")?;
        let target = pidfd_open(pid, PidfdFlags::empty()).context("failed to open a pidfd of the host")?;
        let (bell, called_off) = mpsc::channel::<()>();
        let watch = move || match called_off.recv_timeout(limit) {
            Err(mpsc::RecvTimeoutError::Timeout) => kill(&target),
            Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => false,
        };
        Ok(Self { bell: Some(bell), thread: Some(thread::spawn(watch)) })
    }

    /// Ends the watch; an error when it has bitten.
    fn call_off(&mut self) -> Result<()> {
        drop(self.bell.take());
        let bitten = self.thread.take().is_some_and(|thread| thread.join().unwrap_or(true));
        ensure!(!bitten, "the host took too long and was killed");
        Ok(())
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        let _ = self.call_off();
    }
}

fn kill(target: &OwnedFd) -> bool {
    pidfd_send_signal(target, Signal::KILL).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_ends_what_takes_too_long() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat starts");
        // Waiting for a child closes its stdin, and then cat would end by itself.
        let _open = child.stdin.take();
        let mut watchdog = Watchdog::over(child.id(), Duration::from_millis(1)).expect("a pidfd");
        let status = child.wait().expect("it is killed");
        assert!(!status.success());
        assert!(watchdog.call_off().is_err());
    }

    #[test]
    fn a_watchdog_that_is_called_off_bites_nobody() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat starts");
        let mut watchdog = Watchdog::over(child.id(), Duration::from_secs(60)).expect("a pidfd");
        watchdog.call_off().expect("called off in time");
        drop(child.stdin.take());
        assert!(child.wait().expect("it ends").success());
    }
}
