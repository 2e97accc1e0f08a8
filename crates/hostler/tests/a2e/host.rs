//! The host under test: how it is started, and that nothing of it is left behind.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use hostler_testkit::{
    NoProcessLeft, ProcessInfo, PublicCopy, TestEnv, Token, as_nobody, descendants, evil, fd_count,
    public_copy, read_line, rss_kib, wait_until,
};
use rustix::process::{Pid, Signal, kill_process};

use crate::client::Client;

/// Longer than anything here takes, also on a machine that is busy with something else.
pub(crate) const LONG: Duration = Duration::from_secs(90);

/// What a host is started with.
pub(crate) struct Setup {
    env: TestEnv,
    token: Token,
    program: PathBuf,
    evil: PathBuf,
    user: User,
    allowed: Vec<String>,
    transport: Vec<OsString>,
    flags: Vec<OsString>,
    variables: Vec<(OsString, OsString)>,
    before: Vec<String>,
}

/// Who the host runs as.
enum User {
    Own,
    /// Uid 65534, with programs that it can reach.
    Nobody {
        _programs: [PublicCopy; 2],
    },
}

impl Setup {
    /// An environment of its own and the default configuration; the helper child may be started.
    pub(crate) fn new(test: &str) -> Self {
        Self::with(test, TestEnv::new(), env!("CARGO_BIN_EXE_hostler").into(), evil(), User::Own)
    }

    /// The same as uid 65534, if the tests run as root.
    pub(crate) fn nobody(test: &str) -> Self {
        let copies = [public_copy(Path::new(env!("CARGO_BIN_EXE_hostler"))), public_copy(&evil())];
        let [program, evil] = copies.each_ref().map(|copy| copy.to_path_buf());
        Self::with(test, TestEnv::for_nobody(), program, evil, User::Nobody { _programs: copies })
    }

    fn with(test: &str, env: TestEnv, program: PathBuf, evil: PathBuf, user: User) -> Self {
        let allowed = ["python3", "bash", "ls", evil.to_str().unwrap()].map(str::to_owned).to_vec();
        let token = Token::new(test);
        let (flags, variables) = (Vec::new(), Vec::new());
        let transport = vec!["--stdio".into()];
        Self { env, token, program, evil, user, allowed, transport, flags, variables, before: Vec::new() }
    }

    /// Allows one more command.
    pub(crate) fn allow(mut self, command: impl Into<String>) -> Self {
        self.allowed.push(command.into());
        self
    }

    pub(crate) fn flag(mut self, flag: impl Into<OsString>) -> Self {
        self.flags.push(flag.into());
        self
    }

    /// Listens on this address instead of talking over its standard streams.
    pub(crate) fn http_at(mut self, address: &str) -> Self {
        self.transport = vec!["--http".into(), address.into()];
        self
    }

    /// Takes the place of a host of the Python SDK: its configuration says how it is reached, and what may be started.
    pub(crate) fn sdk_config(mut self, file: &Path) -> Self {
        self.transport = vec!["--sdk-config".into(), file.into()];
        self.allowed = Vec::new();
        self
    }

    pub(crate) fn variable(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// Soft and hard limit of open files.
    pub(crate) fn open_files(self, limit: u32) -> Self {
        self.shell(&format!("ulimit -n {limit}"))
    }

    /// Soft and hard limit of processes and threads of the user. It means nothing to root.
    pub(crate) fn user_processes(self, limit: u32) -> Self {
        self.shell(&format!("ulimit -u {limit}"))
    }

    /// What a shell does before it becomes the host.
    pub(crate) fn shell(mut self, before: &str) -> Self {
        self.before.push(before.to_owned());
        self
    }

    pub(crate) fn env(&self) -> &TestEnv {
        &self.env
    }

    fn command(&self) -> Command {
        let mut command = if self.before.is_empty() {
            self.env.command(&self.program)
        } else {
            let mut command = self.env.command(Path::new("/bin/bash"));
            let before = self.before.join(" && ");
            command.args(["-c", &format!("{before} && exec \"$0\" \"$@\"")]).arg(&self.program);
            command
        };
        command.arg("a2e").args(&self.transport);
        if !self.allowed.is_empty() {
            command.args(["--allow", &self.allowed.join(",")]);
        }
        command.args(&self.flags);
        let (name, value) = self.token.env();
        command.env(name, value).envs(self.variables.iter().cloned());
        match self.user {
            User::Own => command,
            User::Nobody { .. } => as_nobody(command),
        }
    }

    /// Starts the host with a pipe for each direction.
    pub(crate) fn start(self) -> (Host, Client) {
        let (theirs_in, ours_in) = std::io::pipe().unwrap();
        let (ours_out, theirs_out) = std::io::pipe().unwrap();
        let host = self.start_on(OwnedFd::from(theirs_in), OwnedFd::from(theirs_out));
        (host, Client::new(ours_in.into(), ours_out.into()))
    }

    /// Starts the host on a free port of this machine; where that is.
    pub(crate) fn start_http(self) -> (Host, String) {
        self.http_at("127.0.0.1:0").start_listening()
    }

    /// Starts a host that listens; its URL.
    pub(crate) fn start_listening(self) -> (Host, String) {
        let (ours, theirs) = std::io::pipe().unwrap();
        let host = self.start_on(Stdio::null(), OwnedFd::from(theirs));
        let line = read_line(ours, LONG);
        let url = line.strip_prefix("listening on ").unwrap_or_else(|| panic!("{line:?}: {}", host.log()));
        (host, url.trim_end().to_owned())
    }

    /// The same, and a good handshake.
    pub(crate) fn start_greeted(self) -> (Host, Client) {
        let (host, mut client) = self.start();
        client.greet();
        (host, client)
    }

    /// Starts the host on these ends.
    pub(crate) fn start_on(self, stdin: impl Into<Stdio>, stdout: impl Into<Stdio>) -> Host {
        let left = NoProcessLeft::new(&self.token);
        let log = self.env.root().join("stderr");
        let mut command = self.command();
        command.stdin(stdin).stdout(stdout).stderr(File::create(&log).unwrap());
        let child = command.spawn().unwrap();
        Host { child, log, helpers: Vec::new(), setup: self, left }
    }
}

/// A host that runs, or has ended. On drop it is killed if it runs, and nothing that it started may be left.
pub(crate) struct Host {
    child: Child,
    log: PathBuf,
    /// Nursery and keepers that were seen.
    helpers: Vec<ProcessInfo>,
    setup: Setup,
    left: NoProcessLeft,
}

impl Host {
    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    pub(crate) fn env(&self) -> &TestEnv {
        &self.setup.env
    }

    /// The helper child's path, as the host allows it.
    pub(crate) fn evil(&self) -> &str {
        self.setup.evil.to_str().unwrap()
    }

    /// A command of the helper child, with the test's token.
    pub(crate) fn evil_command(&self, arguments: &[&str]) -> Vec<String> {
        let all = [&[self.evil()], arguments, &[self.setup.token.as_str()]].concat();
        all.into_iter().map(str::to_owned).collect()
    }

    pub(crate) fn token(&self) -> &Token {
        &self.setup.token
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid()).unwrap(), signal).unwrap();
    }

    /// Nursery and keepers that run now.
    pub(crate) fn helpers(&self) -> Vec<ProcessInfo> {
        let below = descendants(self.pid()).into_iter().filter_map(ProcessInfo::of);
        below.filter(|process| process.cmdline.contains("__hostler-")).collect()
    }

    /// Resident memory in KiB.
    pub(crate) fn rss_kib(&self) -> u64 {
        rss_kib(self.pid()).unwrap()
    }

    pub(crate) fn fd_count(&self) -> usize {
        fd_count(self.pid()).unwrap()
    }

    /// What it has written to standard error so far.
    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap()).into_owned()
    }

    /// Keeps in mind which helpers run: they must be gone when the host is.
    pub(crate) fn note_helpers(&mut self) {
        self.helpers.extend(self.helpers());
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let child = &mut self.child;
        let status = wait_until("the end of the host", LONG, || child.try_wait().unwrap());
        for helper in std::mem::take(&mut self.helpers) {
            wait_until("the end of nursery and keepers", LONG, || match ProcessInfo::of(helper.pid) {
                Some(now) if now.is_alive() && now.cmdline == helper.cmdline => Err(now),
                Some(_) | None => Ok(()),
            });
        }
        status
    }

    /// Waits for its end and that it was an orderly one, with nothing left.
    pub(crate) fn ends_well(self) {
        self.ends_well_then(|| ());
    }

    /// The same, and looks at what it has left in its environment before that is removed.
    pub(crate) fn ends_well_then<T>(mut self, look: impl FnOnce() -> T) -> T {
        let status = self.wait();
        assert_eq!((status.code(), status.signal()), (Some(0), None));
        self.left.check();
        look()
    }

    /// Waits for an end with exit status 1, with nothing left, and returns what it has said about it.
    pub(crate) fn ends_badly(mut self) -> String {
        let status = self.wait();
        assert_eq!((status.code(), status.signal()), (Some(1), None));
        self.left.check();
        self.log()
    }

    /// The client goes, and with it everything.
    pub(crate) fn end(self, client: Client) {
        self.ends_after(client, || ());
    }

    /// The same, and looks at something in its environment before that is removed.
    pub(crate) fn ends_after<T>(mut self, client: Client, look: impl FnOnce() -> T) -> T {
        self.note_helpers();
        drop(client);
        self.ends_well_then(look)
    }
}

impl Drop for Host {
    #[expect(clippy::print_stderr, reason = "what the host said belongs to the report of a failed test")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the host: {:?}; its standard error:\n{}", self.child.try_wait(), self.log());
        }
        // Both fail when it has ended, which is as well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
