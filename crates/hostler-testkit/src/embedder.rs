//! Drives the program `embedder`: a whole host in a process of its own, which a test may end in any way.
//!
//! Requests and answers are lines; the program's source lists them. Each call here waits for its answer, so what a
//! test asks for happens in its order. Two mean ends are covered: an embedder that does not answer in time fails the test with the
//! request that it hangs in, and one that is dropped is killed and reaped.

use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::{children_of, read_line, wait_until};

/// How long an answer may take: longer than any limit of the core that a request can run into.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// A running host.
#[derive(Debug)]
pub struct Embedder {
    child: Child,
    stdin: Option<ChildStdin>,
    answers: ChildStdout,
}

/// A process that the embedder started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spawned {
    /// The root's pid.
    pub pid: i32,
    /// Its id, as it stands in its environment.
    pub id: String,
}

/// The counts of a receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Those that a kill did not end.
    pub survivors: u32,
    /// Those of the session that nothing ties to one of its processes.
    pub unattributed: u32,
}

impl Embedder {
    /// Starts the program. The command is [`bin("embedder")`](crate::bin), or a copy of it, with whatever arguments and wrappers
    /// the test needs; its standard streams are set here (errors go to the test's).
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child =
            command.spawn().unwrap_or_else(|error| panic!("failed to start {command:?}: {error}"));
        let stdin = child.stdin.take();
        let answers = child.stdout.take().expect("its standard output is a pipe");
        Self { child, stdin, answers }
    }

    /// The host's pid.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a pid is an i32")
    }

    /// Sends a request and returns the rest of the answer after its first word; `Err` if that is `error`.
    ///
    /// # Panics
    /// When there is no answer, with the request.
    #[track_caller]
    pub fn request(&mut self, fields: &[&str]) -> Result<String, String> {
        self.send(fields);
        self.answer(fields)
    }

    /// Sends a request whose answer is read later, by [`Embedder::answer`].
    ///
    /// # Panics
    /// When the program is gone.
    #[track_caller]
    pub fn send(&mut self, fields: &[&str]) {
        let line = fields.join("\t") + "\n";
        let stdin = self.stdin.as_mut().expect("its standard input is open");
        if let Err(error) = stdin.write_all(line.as_bytes()) {
            panic!("failed to ask the embedder for {fields:?}: {error}");
        }
    }

    /// The answer to the oldest request without one; `fields` is for the complaint.
    ///
    /// # Panics
    /// As [`Embedder::request`].
    #[track_caller]
    pub fn answer(&mut self, fields: &[&str]) -> Result<String, String> {
        let line = read_line(&self.answers, ANSWER_MAX);
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match word {
            "ok" => Ok(rest.to_owned()),
            "error" => Err(rest.to_owned()),
            _ => panic!("no answer to {fields:?}: {line:?}"),
        }
    }

    /// [`Embedder::request`] that must succeed.
    ///
    /// # Panics
    /// When it does not, with the answer.
    #[track_caller]
    pub fn ask(&mut self, fields: &[&str]) -> String {
        self.request(fields).unwrap_or_else(|error| panic!("{fields:?} failed: {error}"))
    }

    /// Opens a session.
    ///
    /// # Panics
    /// As [`Embedder::ask`]; so do the others below.
    #[track_caller]
    pub fn session(&mut self, name: &str) {
        self.ask(&["session", name]);
    }

    /// The pid of the session's keeper. It has one from its first process on; the host hears of the pid a little later.
    #[track_caller]
    pub fn keeper(&mut self, session: &str) -> i32 {
        let pid = wait_until("the keeper's pid", ANSWER_MAX, || self.request(&["keeper", session]));
        number(&pid)
    }

    /// Starts a program without a timeout.
    #[track_caller]
    pub fn spawn(&mut self, session: &str, name: &str, argv: &[&str]) -> Spawned {
        self.spawn_for(session, name, Duration::ZERO, argv)
    }

    /// Starts a program that is stopped after `timeout`; zero is none.
    #[track_caller]
    pub fn spawn_for(&mut self, session: &str, name: &str, timeout: Duration, argv: &[&str]) -> Spawned {
        let timeout = timeout.as_millis().to_string();
        let answer = self.ask(&[&["spawn", session, name, &timeout], argv].concat());
        let (pid, id) =
            answer.split_once(' ').unwrap_or_else(|| panic!("no pid and id to {argv:?}: {answer:?}"));
        Spawned { pid: number(pid), id: id.to_owned() }
    }

    /// The first line that the process has written to standard output, once it is whole.
    #[track_caller]
    pub fn first_line(&mut self, name: &str) -> String {
        self.ask(&["first-line", name])
    }

    /// Sends `INT`, `TERM` or `KILL` and waits up to 2 s for the end. The first word says what came of it: `ended`,
    /// `alive`, `already`.
    #[track_caller]
    pub fn signal(&mut self, name: &str, signal: &str) -> (String, Counts) {
        counts(&self.ask(&["signal", name, signal]))
    }

    /// Stops the tree: SIGTERM, and SIGKILL after the grace.
    #[track_caller]
    pub fn stop(&mut self, name: &str, grace: Duration) -> Counts {
        counts(&self.ask(&["stop", name, &grace.as_millis().to_string()])).1
    }

    /// Ends a session.
    #[track_caller]
    pub fn close(&mut self, session: &str, grace: Duration) -> Counts {
        counts(&self.ask(&["close", session, &grace.as_millis().to_string()])).1
    }

    /// The pid of the nursery, the only child that a host has of itself.
    ///
    /// # Panics
    /// When there is not exactly one child.
    pub fn nursery(&self) -> i32 {
        wait_until("the nursery as only child", ANSWER_MAX, || match children_of(self.pid()).as_slice() {
            &[nursery] => Ok(nursery),
            other => Err(other.to_vec()),
        })
    }

    /// The pids of nursery and keepers, the spare one included. Ask when a process runs: wrappers around the program are through by
    /// then.
    ///
    /// # Panics
    /// As [`Embedder::nursery`].
    pub fn helpers(&self) -> Vec<i32> {
        let nursery = self.nursery();
        [vec![nursery], children_of(nursery)].concat()
    }

    /// Sends SIGTERM to the host alone.
    pub fn terminate(&self) {
        self.send_signal(Signal::TERM);
    }

    /// Sends SIGKILL to the host alone, and waits until it is dead.
    pub fn kill(&mut self) {
        self.send_signal(Signal::KILL);
        let status = self.child.wait().expect("our own child");
        assert_eq!(status.signal(), Some(Signal::KILL.as_raw()), "the host had ended before: {status}");
    }

    /// Ends its standard input, upon which it closes all sessions and exits.
    pub fn hang_up(&mut self) {
        self.stdin = None;
    }

    /// Waits for the host's exit.
    ///
    /// # Panics
    /// After `max`.
    #[track_caller]
    pub fn wait(&mut self, max: Duration) -> ExitStatus {
        wait_until("the host's exit", max, || self.child.try_wait().expect("our own child"))
    }

    fn send_signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid()).expect("a child has a pid");
        // Not reaped before `wait`: the pid is still its own.
        kill_process(pid, signal).expect("our own child");
    }
}

impl Drop for Embedder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn number<T: std::str::FromStr>(text: &str) -> T {
    text.parse().unwrap_or_else(|_| panic!("no number: {text:?}"))
}

fn counts(answer: &str) -> (String, Counts) {
    match answer.split(' ').collect::<Vec<_>>().as_slice() {
        [word, survivors, unattributed] => {
            let counts = Counts { survivors: number(survivors), unattributed: number(unattributed) };
            ((*word).to_owned(), counts)
        }
        _ => panic!("no receipt: {answer:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NoProcessLeft, TestEnv, Token, bin, evil, is_alive};

    const MAX: Duration = Duration::from_secs(10);

    #[test]
    fn a_host_is_asked_and_ends_with_everything_that_it_started() {
        let (env, token) = (TestEnv::new(), Token::new("embedder"));
        let _left = NoProcessLeft::new(&token);
        let mut host = Embedder::start(env.command(bin("embedder")));
        host.session("a");
        let evil = evil();
        let evil = evil.to_str().unwrap();
        let spawned = host.spawn("a", "p", &[evil, "pause", token.as_str()]);
        assert_eq!(host.first_line("p"), "ready");
        assert_eq!(token.pids(), [spawned.pid]);
        let helpers = host.helpers();
        assert!(helpers.contains(&host.keeper("a")) && helpers[0] == host.nursery(), "{helpers:?}");
        let refused = host.request(&["spawn", "a", "q", "0", "/no/such/program"]).unwrap_err();
        assert!(refused.contains("/no/such/program"), "{refused}");
        assert_eq!(host.signal("p", "KILL"), ("ended".to_owned(), Counts { survivors: 0, unattributed: 0 }));
        host.hang_up();
        assert!(host.wait(MAX).success());
        wait_until("the end of the helpers", MAX, || !helpers.iter().any(|pid| is_alive(*pid)));
    }

    #[test]
    #[should_panic(expected = "[\"no-such-request\"] failed: unknown request")]
    fn a_request_that_must_succeed_panics_with_the_answer() {
        let env = TestEnv::new();
        Embedder::start(env.command(bin("embedder"))).ask(&["no-such-request"]);
    }
}
