//! The helper child does what its modes say: otherwise a test that uses it proves nothing.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::numbered::{LATE_PREFIX, LINE_BYTES, LINGER_LINES, number_of};
use crate::{
    NoProcessLeft, ProcessInfo, SharedCounter, TestEnv, Token, children_of, evil, fd_count, is_alive,
    read_line,
};

const MAX: Duration = Duration::from_secs(10);

/// A running helper child that has said `ready`.
struct Running {
    child: Child,
    token: Token,
    _left: NoProcessLeft,
    _env: TestEnv,
}

impl Running {
    fn start(arguments: &[&str]) -> Self {
        let running = Self::start_silent(arguments);
        assert_eq!(read_line(running.stdout(), MAX), "ready", "{arguments:?}");
        running
    }

    fn start_silent(arguments: &[&str]) -> Self {
        let env = TestEnv::new();
        let mut command = env.command(evil());
        let token = Token::new(arguments[0]);
        command.args(arguments).arg(token.as_str());
        Self::spawn(command, token, env)
    }

    fn spawn(mut command: Command, token: Token, env: TestEnv) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let left = NoProcessLeft::new(&token);
        let child = command.spawn().unwrap();
        Self { child, token, _left: left, _env: env }
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    fn stdout(&self) -> &ChildStdout {
        self.child.stdout.as_ref().unwrap()
    }

    /// The one process with the token beside the root.
    fn member(&self) -> ProcessInfo {
        let others = self.token.processes().into_iter().filter(|process| process.pid != self.pid());
        let others: Vec<_> = others.collect();
        assert_eq!(others.len(), 1, "{others:?}");
        others[0].clone()
    }

    /// Reads both streams to their ends, which closes stdin first.
    fn finish(mut self) -> (ExitStatus, Vec<u8>, Vec<u8>) {
        drop(self.child.stdin.take());
        let mut stderr = self.child.stderr.take().unwrap();
        let reader = std::thread::spawn(move || {
            let mut text = Vec::new();
            stderr.read_to_end(&mut text).unwrap();
            text
        });
        let mut text = Vec::new();
        self.child.stdout.take().unwrap().read_to_end(&mut text).unwrap();
        (self.child.wait().unwrap(), text, reader.join().unwrap())
    }

    /// Status and text after `ready` of a mode that writes nothing to stderr.
    fn finish_with_text(self) -> (Option<i32>, String) {
        let (status, stdout, stderr) = self.finish();
        assert_eq!(String::from_utf8_lossy(&stderr), "");
        (status.code(), String::from_utf8(stdout).unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.token.kill_all();
        self.child.wait().unwrap();
    }
}

fn assert_numbered(text: &[u8], from: u64, to: u64) {
    let numbers: Vec<_> = text.chunks(LINE_BYTES).map(number_of).collect();
    assert!(numbers.into_iter().eq((from..to).map(Some)), "lines {from} to {to} are not whole and in order");
}

#[test]
fn every_tree_is_complete_at_ready_and_wholly_killed_by_its_token() {
    for mode in ["plain", "pgid", "setsid", "double-fork", "hard-daemon", "orphan", "ignore-term"] {
        let running = Running::start(&[mode]);
        let bearers = running.token.pids();
        assert_eq!(bearers.len(), 2, "{mode}: {bearers:?}");
        assert!(bearers.contains(&running.pid()), "{mode}: the root stays alive");
        let member = running.member();
        assert!(member.cmdline.starts_with(&format!("hostler-evil member {mode} ")), "{member}");
        assert_eq!(running.token.kill_all().into_iter().collect::<Vec<_>>(), bearers, "{mode}");
        running.token.wait_until_gone(MAX).unwrap();
    }
}

#[test]
fn each_member_stands_where_its_mode_says() {
    #[derive(Debug, PartialEq)]
    struct Place {
        is_child: bool,
        in_group: bool,
        in_session: bool,
        leads_group: bool,
    }
    let place =
        |is_child, in_group, in_session, leads_group| Place { is_child, in_group, in_session, leads_group };
    for (mode, expected) in [
        ("plain", place(true, true, true, false)),
        ("ignore-term", place(true, true, true, false)),
        ("pgid", place(true, false, true, true)),
        ("setsid", place(true, false, false, true)),
        ("double-fork", place(false, false, false, false)),
        ("hard-daemon", place(false, false, false, false)),
        ("orphan", place(false, true, true, false)),
    ] {
        let running = Running::start(&[mode]);
        let (root, member) = (ProcessInfo::of(running.pid()).unwrap(), running.member());
        let found = place(
            member.parent == root.pid,
            member.group == root.group,
            member.session == root.session,
            member.group == member.pid,
        );
        assert_eq!(found, expected, "{mode}");
        let expected = if found.is_child { vec![member.pid] } else { vec![] };
        assert_eq!(children_of(root.pid), expected, "{mode}: no zombie in between is left");
    }
}

#[test]
fn a_hard_daemon_has_shed_every_mark_but_its_arguments() {
    let read = |pid, file| fs::read(format!("/proc/{pid}/{file}")).unwrap();
    let folder = |pid| fs::read_link(format!("/proc/{pid}/cwd")).unwrap();
    let running = Running::start(&["hard-daemon"]);
    let daemon = running.member().pid;
    assert_eq!((read(daemon, "environ").len(), fd_count(daemon)), (0, Some(0)));
    assert_eq!(folder(daemon), Path::new("/"));
    let running = Running::start(&["double-fork"]);
    let daemon = running.member().pid;
    assert_eq!(read(daemon, "environ"), read(running.pid(), "environ"));
    assert_eq!(fd_count(daemon), fd_count(running.pid()), "no pipe of the set-up is left open");
    assert_eq!(folder(daemon), folder(running.pid()));
}

#[test]
fn both_processes_of_ignore_term_ignore_term_int_and_hup() {
    let running = Running::start(&["ignore-term"]);
    for pid in running.token.pids() {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:\t")).unwrap();
        // Bits 14, 1 and 0: signals 15, 2 and 1.
        assert_eq!(u64::from_str_radix(ignored, 16).unwrap() & 0x4003, 0x4003, "pid {pid}");
    }
}

#[test]
fn the_root_exits_with_0_after_a_double_fork_and_leaves_the_daemon() {
    let mut running = Running::start(&["exit-after-double-fork"]);
    assert_eq!(running.child.wait().unwrap().code(), Some(0));
    let daemon = running.member();
    assert!(daemon.cmdline.contains("member exit-after-double-fork"), "{daemon}");
    assert!(is_alive(daemon.pid));
}

#[test]
fn a_fork_chain_outlives_its_root_until_it_is_stopped() {
    let env = TestEnv::new();
    let counter = SharedCounter::create(env.root(), "counter");
    let mut running = Running::start(&["fork-chain", counter.path().to_str().unwrap()]);
    assert!(counter.value() >= 1, "it counts before ready");
    counter.wait_for_life(MAX);
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    for _ in 0..5 {
        counter.wait_for_life(MAX);
    }
    counter.stop();
    counter.wait_for_silence(Duration::from_millis(300), MAX);
    running.token.wait_until_gone(MAX).unwrap();
}

#[test]
fn a_fork_bomb_stops_at_its_number() {
    let env = TestEnv::new();
    let counter = SharedCounter::create(env.root(), "counter");
    for number in [1, 2, 33] {
        let running = Running::start(&["fork-bomb", &number.to_string()]);
        assert_eq!(running.token.pids().len(), number);
    }
    let running = Running::start(&["fork-bomb", "20", counter.path().to_str().unwrap()]);
    assert_eq!((running.token.pids().len(), counter.value()), (20, 20));
}

#[test]
fn a_lingering_root_exits_at_once_though_nobody_reads() {
    for manner in ["silent", "flood"] {
        let mut running = Running::start_silent(&["linger", manner, "600"]);
        assert_eq!(running.child.wait().unwrap().code(), Some(3), "{manner}");
        let member = running.member();
        assert!(member.cmdline.contains(&format!("linger-member {manner} 600")), "{member}");
    }
}

#[test]
fn a_silent_lingerer_holds_both_pipes_and_adds_nothing() {
    let running = Running::start(&["linger", "silent", "0.3"]);
    let pipe = fs::read_link(format!("/proc/{}/fd/1", running.member().pid)).unwrap();
    assert!(pipe.to_str().unwrap().starts_with("pipe:"));
    let (status, stdout, stderr) = running.finish();
    assert_eq!(status.code(), Some(3));
    assert_numbered(&stdout, 0, LINGER_LINES);
    assert_numbered(&stderr, 0, LINGER_LINES);
}

#[test]
fn a_flooding_lingerer_adds_whole_lines_and_ends_in_time() {
    let (status, stdout, stderr) = Running::start(&["linger", "flood", "0.3"]).finish();
    assert_eq!(status.code(), Some(3));
    for text in [stdout, stderr] {
        let (late, own): (Vec<&[u8]>, Vec<&[u8]>) =
            text.chunks(LINE_BYTES).partition(|line| line[0] == LATE_PREFIX);
        assert_numbered(&own.concat(), 0, LINGER_LINES);
        assert!(!late.is_empty());
        let digits: Vec<u8> = late.iter().flat_map(|line| [b"0", &line[1..]].concat()).collect();
        assert_numbered(&digits, 0, late.len() as u64);
    }
}

#[test]
fn a_flooding_lingerer_ends_in_time_though_nobody_reads() {
    let running = Running::start_silent(&["linger", "flood", "0.2"]);
    running.token.wait_until_gone(MAX).unwrap();
}

#[test]
fn echo_copies_bytes_as_they_are() {
    let mut running = Running::start(&["echo"]);
    let bytes: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let mut stdin = running.child.stdin.take().unwrap();
    let copy = bytes.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&copy));
    let (status, stdout, _) = running.finish();
    writer.join().unwrap().unwrap();
    assert_eq!(status.code(), Some(0));
    assert!(stdout == bytes);
}

#[test]
fn lines_and_floods_have_exactly_their_length() {
    for count in [0, 1, 819, 820, 25_000] {
        let (status, stdout, _) = Running::start(&["lines", &count.to_string()]).finish();
        assert_eq!(status.code(), Some(0));
        assert_numbered(&stdout, 0, count);
    }
    let (status, stdout, _) = Running::start(&["flood", "1600040"]).finish();
    assert_eq!((status.code(), stdout.len()), (Some(0), 1_600_040));
    assert_numbered(&stdout[..1_600_000], 0, 20_000);
    let (status, stdout, _) = Running::start(&["long-line", "200001"]).finish();
    let expected: Vec<u8> = (b'a'..=b'z').cycle().take(200_001).chain([b'\n']).collect();
    assert_eq!(status.code(), Some(0));
    assert!(stdout == expected);
}

#[test]
fn an_endless_flood_ends_by_sigpipe_when_its_reader_goes() {
    let mut running = Running::start(&["flood"]);
    let mut stdout = running.child.stdout.take().unwrap();
    let mut text = vec![0; 50_000 * LINE_BYTES];
    stdout.read_exact(&mut text).unwrap();
    assert_numbered(&text, 0, 50_000);
    drop(stdout);
    assert_eq!(running.child.wait().unwrap().signal(), Some(libc::SIGPIPE));
}

#[test]
fn the_root_exits_as_it_was_told() {
    for (arguments, code, signal) in [
        (["exit", "0"], Some(0), None),
        (["exit", "77"], Some(77), None),
        (["signal-self", "KILL"], None, Some(libc::SIGKILL)),
        (["signal-self", "SIGTERM"], None, Some(libc::SIGTERM)),
        (["signal-self", "34"], None, Some(34)),
        (["signal-self", "CHLD"], Some(0), None),
    ] {
        let (status, _, _) = Running::start(&arguments).finish();
        assert_eq!((status.code(), status.signal()), (code, signal), "{arguments:?}");
    }
}

#[test]
fn wrong_arguments_are_told_and_refused() {
    for arguments in [&["no-such-mode"][..], &["exit"], &["exit", "x"], &["lines", "-1"], &["plain", "more"]]
    {
        let (status, stdout, stderr) = Running::start_silent(arguments).finish();
        assert_eq!((status.code(), stdout.len()), (Some(64), 0), "{arguments:?}");
        assert!(String::from_utf8_lossy(&stderr).contains(arguments[0]), "{arguments:?}");
    }
}

#[test]
fn streams_are_closed_while_the_process_stays() {
    let running = Running::start(&["close-stdin"]);
    assert!(!fs::exists(format!("/proc/{}/fd/0", running.pid())).unwrap());
    assert!(is_alive(running.pid()));
    let mut running = Running::start(&["close-all-out"]);
    for mut stream in [
        Box::new(running.child.stdout.take().unwrap()) as Box<dyn std::io::Read>,
        Box::new(running.child.stderr.take().unwrap()),
    ] {
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
    assert!(is_alive(running.pid()));
    let running = Running::start(&["pause"]);
    assert!(is_alive(running.pid()));
}

/// Runs a print mode behind a shell that sets something up, and returns its words by the first of each line.
fn printed(mode: &str, set_up: &str) -> BTreeMap<String, String> {
    let env = TestEnv::new();
    let token = Token::new(mode);
    let mut command = env.command("sh");
    command.args(["-c", &format!(r#"{set_up}; exec "$@""#), "sh"]);
    command.arg(evil()).args([mode, token.as_str()]);
    let running = Running::spawn(command, token, env);
    assert_eq!(read_line(running.stdout().as_fd(), MAX), "ready");
    let (status, text) = running.finish_with_text();
    assert_eq!(status, Some(0));
    text.lines().filter_map(|line| line.split_once([' ', '='])).map(|(k, v)| (k.into(), v.into())).collect()
}

#[test]
fn print_modes_show_what_the_parent_gave() {
    assert_eq!(printed("print-env", "export MARK='a b'")["MARK"], "a b");
    let descriptors = printed("print-fds", "exec 7</dev/null 8</etc");
    assert_eq!((&*descriptors["7"], &*descriptors["8"]), ("/dev/null", "/etc"));
    assert!(
        ["0", "1", "2"].iter().all(|number| descriptors[*number].starts_with("pipe:[")),
        "{descriptors:?}"
    );
    let closed = printed("print-fds", "exec 0<&-");
    assert!(!closed.contains_key("0"), "no runtime has put /dev/null in its place: {closed:?}");
    for (set_up, expected) in [("trap '' USR1 PIPE", 0x1200), (":", 0)] {
        let signals = printed("print-signals", set_up);
        assert_eq!(signals.keys().collect::<Vec<_>>(), ["SigBlk", "SigCgt", "SigIgn"]);
        assert_eq!(signals["SigCgt"], "0000000000000000", "no runtime has set a handler");
        // Whoever runs the tests may ignore others: look at USR1 and PIPE alone.
        assert_eq!(u64::from_str_radix(&signals["SigIgn"], 16).unwrap() & 0x1200, expected, "{set_up}");
    }
    assert_eq!(printed("print-limits", "ulimit -Sn 64; ulimit -Hn 128")["nofile"], "64 128");
}

#[test]
fn print_ids_shows_the_ids_of_the_process_itself() {
    let running = Running::start(&["print-ids"]);
    let pid = running.pid();
    let own = ProcessInfo::of(i32::try_from(std::process::id()).unwrap()).unwrap();
    let score = fs::read_to_string("/proc/self/oom_score_adj").unwrap();
    let (group, session) = (own.group, own.session);
    let expected = format!("pid {pid}\npgid {group}\nsid {session}\noom_score_adj {}\n", score.trim());
    assert_eq!(running.finish_with_text(), (Some(0), expected));
}
