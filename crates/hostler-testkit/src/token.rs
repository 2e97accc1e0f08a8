//! Finding every process that a test caused, and failing the test that leaves one behind.
//!
//! A token is a text that occurs nowhere else on the machine. A process bears it when its command line or its initial
//! environment contains it; both are inherited by fork, and by exec as far as the program passes them on.
//!
//! Only live processes count: a zombie's memory, and the token with it, is gone. The test's own process never counts.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::processes::{ProcessInfo, all_pids};

/// How long [`NoProcessLeft`] waits for processes to go by themselves.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// How long killing goes on while new bearers keep appearing.
const KILL_LIMIT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(2);

/// A text that marks the processes of one test.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Token(String);

impl Token {
    /// Name of the environment variable in [`Token::env`].
    pub const ENV_NAME: &'static str = "TESTKIT_TOKEN";

    /// A new token that no other call, in this or any other process, returns. The test's name stands in it for
    /// people to read; what is no ASCII letter or digit in it becomes `_`.
    pub fn new(test_name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock shows a time after 1970");
        let name = test_name.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
        let pid = std::process::id();
        // Delimited on both sides, so that no token is a part of another one.
        Self(format!("tok-{:x}-{pid}-{number}-{name}-end", now.as_nanos()))
    }

    /// The text, for an argument.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Name and value, for an environment variable.
    pub fn env(&self) -> (&'static str, &str) {
        (Self::ENV_NAME, &self.0)
    }

    /// Live processes that bear the token, lowest pid first. One pass over `/proc`, so a process that forks and exits
    /// faster than that can be missed: an empty answer counts only when it comes twice.
    ///
    /// Environments of other users' processes are only visible to root.
    pub fn pids(&self) -> Vec<i32> {
        self.processes().iter().map(|process| process.pid).collect()
    }

    /// [`Token::pids`] with what a failure message shows.
    pub fn processes(&self) -> Vec<ProcessInfo> {
        let mut pids: Vec<i32> = all_pids().into_iter().filter(|&pid| self.is_borne_by(pid)).collect();
        pids.sort_unstable();
        pids.into_iter().filter_map(ProcessInfo::of).filter(ProcessInfo::is_alive).collect()
    }

    /// Waits until two passes in a row, a pause apart, found no live bearer.
    ///
    /// # Errors
    /// After `max`: the bearers that the last pass with any of them saw.
    pub fn wait_until_gone(&self, max: Duration) -> Result<(), Vec<ProcessInfo>> {
        let start = Instant::now();
        let mut seen_last = Vec::new();
        let mut empty_passes = 0;
        loop {
            let found = self.processes();
            if found.is_empty() {
                empty_passes += 1;
            } else {
                empty_passes = 0;
                seen_last = found;
            }
            if empty_passes == 2 {
                return Ok(());
            }
            if start.elapsed() >= max && empty_passes == 0 {
                return Err(seen_last);
            }
            thread::sleep(PAUSE);
        }
    }

    /// Sends SIGKILL to the bearers until two passes in a row find none, 5 s at most, and returns all pids that
    /// were killed. Each is signalled through a pidfd, and only if it bears the token after the pidfd was opened:
    /// a reused pid is never hit.
    ///
    /// A process that forks and exits all the time is not reliably caught; see
    /// [`SharedCounter::stop`](crate::SharedCounter::stop).
    pub fn kill_all(&self) -> BTreeSet<i32> {
        let start = Instant::now();
        let mut killed = BTreeSet::new();
        let mut empty_passes = 0;
        while empty_passes < 2 && start.elapsed() < KILL_LIMIT {
            let pids = self.pids();
            empty_passes = if pids.is_empty() { empty_passes + 1 } else { 0 };
            killed.extend(pids.into_iter().filter(|&pid| self.kill(pid)));
            thread::sleep(PAUSE);
        }
        killed
    }

    fn kill(&self, pid: i32) -> bool {
        let Some(raw) = Pid::from_raw(pid) else { return false };
        let Ok(pidfd) = pidfd_open(raw, PidfdFlags::empty()) else { return false };
        self.is_borne_by(pid) && pidfd_send_signal(pidfd, Signal::KILL).is_ok()
    }

    fn is_borne_by(&self, pid: i32) -> bool {
        if u32::try_from(pid) == Ok(std::process::id()) {
            return false;
        }
        let has_token = |text: Vec<u8>| String::from_utf8_lossy(&text).contains(&self.0);
        let read = |file| fs::read(format!("/proc/{pid}/{file}"));
        read("cmdline").is_ok_and(has_token) || read("environ").is_ok_and(has_token)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Fails the test that leaves a process with its token behind, and ends that process.
///
/// Make it before whatever starts processes, so that it is dropped after it. The check waits for the processes to
/// go by themselves ([`PATIENCE`] unless said otherwise), then sends SIGKILL to exactly those that are left and
/// panics with their pids, states and command lines. While the test is panicking already, the list goes to
/// standard error instead.
#[derive(Debug)]
#[must_use = "the check runs when the guard is dropped"]
pub struct NoProcessLeft {
    token: Token,
    patience: Duration,
}

impl NoProcessLeft {
    /// A guard over the bearers of `token`.
    pub fn new(token: &Token) -> Self {
        Self::within(token, PATIENCE)
    }

    /// A guard with its own patience.
    pub fn within(token: &Token, patience: Duration) -> Self {
        Self { token: token.clone(), patience }
    }

    /// Checks now; the guard stays and checks again when it is dropped.
    ///
    /// # Panics
    /// When a process was left after the patience.
    #[track_caller]
    pub fn check(&self) {
        if let Err(complaint) = self.ensure() {
            panic!("{complaint}");
        }
    }

    fn ensure(&self) -> Result<(), String> {
        let Err(left) = self.token.wait_until_gone(self.patience) else { return Ok(()) };
        self.token.kill_all();
        let list: String = left.iter().map(|process| format!("\n  {process}")).collect();
        Err(format!("{} process(es) left after {:?} (killed now):{list}", left.len(), self.patience))
    }
}

impl Drop for NoProcessLeft {
    #[expect(clippy::print_stderr, reason = "a second panic would abort the test run and hide the first")]
    fn drop(&mut self) {
        match self.ensure() {
            Ok(()) => {}
            Err(complaint) if thread::panicking() => eprintln!("{complaint}"),
            Err(complaint) => panic!("{complaint}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::wait_until;

    const MAX: Duration = Duration::from_secs(10);

    fn shell_with_argument(token: &Token) -> Child {
        let mut shell = Command::new("sh");
        shell.args(["-c", "read line", token.as_str()]).stdin(Stdio::piped()).spawn().unwrap()
    }

    fn wait_for_one(token: &Token) -> i32 {
        wait_until("one bearer", MAX, || match token.pids().as_slice() {
            [pid] => Ok(*pid),
            other => Err(other.to_vec()),
        })
    }

    #[test]
    fn tokens_differ_and_none_contains_another() {
        let tokens: Vec<Token> = (0..100).map(|_| Token::new("a/b c")).collect();
        for (index, token) in tokens.iter().enumerate() {
            assert!(token.as_str().contains("-a_b_c-"));
            let containing = tokens.iter().filter(|other| other.as_str().contains(token.as_str()));
            assert_eq!(containing.count(), 1, "token {index}");
        }
    }

    #[test]
    fn a_process_is_found_by_its_arguments() {
        let token = Token::new("by argv");
        assert_eq!(token.pids(), []);
        let mut child = shell_with_argument(&token);
        let pid = wait_for_one(&token);
        assert_eq!(u32::try_from(pid), Ok(child.id()));
        assert!(token.processes()[0].to_string().contains("sh -c read line tok-"));
        drop(child.stdin.take());
        child.wait().unwrap();
        token.wait_until_gone(MAX).unwrap();
    }

    #[test]
    fn a_process_is_found_by_its_environment_and_no_longer_as_a_zombie() {
        let token = Token::new("by env");
        let (name, value) = token.env();
        let mut child = Command::new("cat").env(name, value).stdin(Stdio::piped()).spawn().unwrap();
        let pid = wait_for_one(&token);
        assert_eq!(u32::try_from(pid), Ok(child.id()));
        drop(child.stdin.take());
        token.wait_until_gone(MAX).unwrap();
        assert_eq!(ProcessInfo::of(pid).unwrap().state, 'Z', "it was not reaped yet");
        child.wait().unwrap();
    }

    #[test]
    fn kill_all_ends_the_bearers_and_nobody_else() {
        let (token, other) = (Token::new("victim"), Token::new("innocent"));
        let (mut victim, mut innocent) = (shell_with_argument(&token), shell_with_argument(&other));
        let (pid, _) = (wait_for_one(&token), wait_for_one(&other));
        assert_eq!(token.kill_all(), BTreeSet::from([pid]));
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&victim.wait().unwrap()),
            Some(libc::SIGKILL)
        );
        assert_eq!(other.pids().len(), 1);
        drop(innocent.stdin.take());
        assert_eq!(innocent.wait().unwrap().code(), Some(1), "read found the end of its input");
    }

    #[test]
    fn the_guard_waits_for_processes_that_go_by_themselves() {
        let token = Token::new("leaves in time");
        let guard = NoProcessLeft::new(&token);
        let mut child = shell_with_argument(&token);
        wait_for_one(&token);
        let end = thread::spawn(move || {
            drop(child.stdin.take());
            child.wait()
        });
        guard.check();
        end.join().unwrap().unwrap();
    }

    #[test]
    fn the_guard_panics_with_the_list_and_ends_what_was_left() {
        let token = Token::new("stays");
        let mut child = shell_with_argument(&token);
        let pid = wait_for_one(&token);
        let guard = NoProcessLeft::within(&token, Duration::from_millis(50));
        let panic = catch_unwind(AssertUnwindSafe(|| drop(guard))).unwrap_err();
        let text = panic.downcast_ref::<String>().unwrap();
        assert!(text.starts_with("1 process(es) left after 50ms"), "{text}");
        assert!(text.contains(&format!("pid {pid} state S")) && text.contains(token.as_str()), "{text}");
        child.wait().unwrap();
        assert_eq!(token.pids(), []);
    }

    #[test]
    fn the_guard_adds_no_second_panic_but_still_ends_what_was_left() {
        let token = Token::new("stays in a failing test");
        let mut child = shell_with_argument(&token);
        wait_for_one(&token);
        let panic = catch_unwind(|| {
            let _guard = NoProcessLeft::within(&token, Duration::from_millis(50));
            panic!("the first");
        });
        assert_eq!(panic.unwrap_err().downcast_ref::<&str>(), Some(&"the first"));
        child.wait().unwrap();
        assert_eq!(token.pids(), []);
    }
}
