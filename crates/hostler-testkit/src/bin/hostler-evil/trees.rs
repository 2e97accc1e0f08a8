//! Process trees: the ways in which programs escape from whoever started them.
//!
//! Every descendant holds the write end of one pipe until it is set up, and writes a byte into it as it closes it. So
//! the root knows at end of file that all are set up, and by the number of bytes that none has failed.

use std::io::Read as _;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use hostler_testkit::numbered::{LINGER_LINES, late_line, line};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{set_parent_process_death_signal, setpgid, setsid};

use crate::sys::{self, Environment, Fork, Fuse, Shared};
use crate::{Failure, Outcome, number};

/// Lines in one write: less than PIPE_BUF, so that the lines of two writers never mix.
const LINES_PER_WRITE: u64 = 50;

/// What becomes of the child.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Plain,
    Group,
    Session,
    Daemon,
    HardDaemon,
    Orphan,
    /// Not a child at all, but one of the root's own parent.
    Sibling,
}

impl Shape {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "plain" | "ignore-term" => Self::Plain,
            "pgid" => Self::Group,
            "setsid" => Self::Session,
            "double-fork" | "exit-after-double-fork" => Self::Daemon,
            "hard-daemon" => Self::HardDaemon,
            "orphan" => Self::Orphan,
            "clone-parent" => Self::Sibling,
            _ => return None,
        })
    }

    /// Whether a process stands between root and descendant, which exits.
    fn has_middle(self) -> bool {
        match self {
            Self::Plain | Self::Group | Self::Session | Self::Sibling => false,
            Self::Daemon | Self::HardDaemon | Self::Orphan => true,
        }
    }
}

/// Runs a mode of this module; `None` if it is of another one.
pub(crate) fn run(mode: &str, arguments: &[&str], token: &str) -> Option<Outcome> {
    Some(match (mode, arguments) {
        ("fork-chain", [counter]) => fork_chains(1, Pace::Random, counter),
        ("fork-chains", [count, counter]) => number(count).and_then(|n| fork_chains(n, Pace::Full, counter)),
        ("fork-bomb", [limit]) => Shared::anonymous().and_then(|shared| fork_bomb(limit, shared)),
        ("fork-bomb", [limit, counter]) => {
            Shared::of_file(counter).and_then(|shared| fork_bomb(limit, shared))
        }
        ("linger", [manner, seconds]) => linger(manner, seconds, token),
        ("member", [shape, report]) => member(shape, report),
        ("linger-member", [manner, seconds, report, go]) => linger_member(manner, seconds, report, go),
        (_, []) => grow(Shape::named(mode)?, mode, token),
        _ => return None,
    })
}

fn grow(shape: Shape, mode: &str, token: &str) -> Outcome {
    if mode == "ignore-term" {
        // The child inherits this through fork and exec.
        [libc::SIGTERM, libc::SIGINT, libc::SIGHUP].into_iter().for_each(sys::ignore);
    }
    let (reports, report) = pipe_for_reports()?;
    let forked = if shape == Shape::Sibling { sys::fork_sibling()? } else { sys::fork()? };
    match forked {
        Fork::Child => {
            drop(reports);
            return Err(become_member(shape, mode, &report, token));
        }
        Fork::Parent(child) if shape.has_middle() => sys::reap(child),
        Fork::Parent(_) => {}
    }
    drop(report);
    wait_for_reports(reports, 1)?;
    sys::say_ready()?;
    Ok(if mode == "exit-after-double-fork" { 0 } else { sys::stay() })
}

/// What the child does until it executes this program again; returns only on failure.
fn become_member(shape: Shape, mode: &str, report: &OwnedFd, token: &str) -> Failure {
    if let Err(failure) = leave_the_root(shape) {
        return failure;
    }
    let environment = if shape == Shape::HardDaemon { Environment::Empty } else { Environment::Inherited };
    let report = report.as_raw_fd().to_string();
    sys::exec_self(&["member", mode, &report, token], environment)
}

fn leave_the_root(shape: Shape) -> Result<(), Failure> {
    match shape {
        Shape::Plain | Shape::Orphan | Shape::Sibling => {}
        Shape::Group => setpgid(None, None).map_err(Failure::of("make a process group"))?,
        Shape::Session | Shape::Daemon | Shape::HardDaemon => {
            setsid().map_err(Failure::of("make a session"))?;
        }
    }
    if shape.has_middle()
        && let Fork::Parent(_) = sys::fork()?
    {
        sys::exit_now(0);
    }
    Ok(())
}

/// The descendant, after it executed this program.
fn member(mode: &str, report: &str) -> Outcome {
    let report = sys::adopt(number(report)?);
    if Shape::named(mode) == Some(Shape::HardDaemon) {
        env::set_current_dir("/").map_err(Failure::of("go to /"))?;
        set_parent_process_death_signal(None).map_err(Failure::of("clear the parent-death signal"))?;
        sys::write_all(report.as_raw_fd(), b"+")?;
        sys::close_all(report);
    } else {
        sys::write_all(report.as_raw_fd(), b"+")?;
        drop(report);
    }
    Ok(sys::stay())
}

/// How long a link lives before it forks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// Up to a millisecond.
    Random,
    /// As short as can be.
    Full,
}

fn fork_chains(count: usize, pace: Pace, counter: &str) -> Outcome {
    let (reports, report) = pipe_for_reports()?;
    let mut firsts = Vec::new();
    for _ in 0..count {
        let shared = Shared::of_file(counter)?;
        match sys::fork()? {
            Fork::Child => {
                drop(reports);
                chain(shared, pace, report)
            }
            Fork::Parent(first) => firsts.push(first),
        }
    }
    drop(report);
    wait_for_reports(reports, count)?;
    firsts.into_iter().for_each(sys::reap);
    sys::say_ready()?;
    Ok(sys::stay())
}

/// The life of all links: a loop that each goes through once, as its successor goes on in it.
fn chain(shared: Shared, pace: Pace, report: OwnedFd) -> ! {
    let fuse = Fuse::lit();
    let mut report = Some(report);
    loop {
        // Fails only in a link that could not fork and comes round again.
        let _ = setsid();
        let count = shared.count();
        if let Some(report) = report.take() {
            drop(sys::write_all(report.as_raw_fd(), b"+"));
        }
        if shared.is_stopped() || fuse.is_burnt() {
            sys::exit_now(0);
        }
        // Multiplied by a large odd constant, the high bits of a count look random.
        let pause = (count.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % 1001;
        if pace == Pace::Random {
            thread::sleep(Duration::from_micros(pause));
        }
        match sys::fork() {
            Ok(Fork::Parent(_)) => sys::exit_now(0),
            Ok(Fork::Child) | Err(_) => {}
        }
    }
}

fn fork_bomb(limit: &str, shared: Shared) -> Outcome {
    let limit: u64 = number(limit)?;
    let (reports, report) = pipe_for_reports()?;
    shared.count();
    let mut is_root = true;
    let mut failure = None;
    while failure.is_none() {
        if shared.count() > limit {
            shared.uncount();
            break;
        }
        match sys::fork() {
            Ok(Fork::Child) => is_root = false,
            Ok(Fork::Parent(_)) => {}
            Err(error) => {
                shared.uncount();
                failure = Some(error);
            }
        }
    }
    drop(report);
    if is_root {
        wait_for_reports(reports, 0)?;
        if let Some(Failure::Call { what, source }) = failure {
            sys::complain(&format!("failed to {what} at {} of {limit} processes: {source}", shared.value()));
        }
        sys::say_ready()?;
    } else {
        drop(reports);
    }
    Ok(sys::stay())
}

fn linger(manner: &str, seconds: &str, token: &str) -> Outcome {
    let (reports, report) = pipe_for_reports()?;
    let (wait, go) = pipe_for_reports()?;
    if let Fork::Child = sys::fork()? {
        drop((reports, go));
        fcntl_setfd(&wait, FdFlags::empty()).map_err(Failure::of("pass a descriptor on"))?;
        let (report, wait) = (report.as_raw_fd().to_string(), wait.as_raw_fd().to_string());
        let arguments = ["linger-member", manner, seconds, &report, &wait, token];
        return Err(sys::exec_self(&arguments, Environment::Inherited));
    }
    drop((report, wait));
    wait_for_reports(reports, 1)?;
    sys::say_ready()?;
    for first in (0..LINGER_LINES).step_by(usize::try_from(LINES_PER_WRITE).unwrap_or(1)) {
        let block: Vec<u8> = (first..first + LINES_PER_WRITE).flat_map(line).collect();
        sys::write_all(1, &block)?;
        sys::write_all(2, &block)?;
    }
    sys::write_all(go.as_raw_fd(), b"+")?;
    sys::exit_now(3)
}

/// Holds the pipes; a flood begins when the root has written all of its own, as it exits.
fn linger_member(manner: &str, seconds: &str, report: &str, go: &str) -> Outcome {
    let end = Instant::now() + Duration::try_from_secs_f64(number(seconds)?).map_err(|_| Failure::Usage)?;
    let floods = match manner {
        "silent" => false,
        "flood" => true,
        _ => return Err(Failure::Usage),
    };
    let (report, go) = (sys::adopt(number(report)?), sys::adopt(number(go)?));
    sys::write_all(report.as_raw_fd(), b"+")?;
    drop(report);
    // A byte, or end of file if somebody killed the root.
    let _ = rustix::io::read(go, &mut [0]).map_err(Failure::of("wait for the root"))?;
    if floods { flood_until(end) } else { Ok(sleep_until(end)) }
}

fn sleep_until(end: Instant) -> i32 {
    thread::sleep(end.saturating_duration_since(Instant::now()));
    0
}

/// Writes where there is room, so that it can end in time though nobody reads.
fn flood_until(end: Instant) -> Outcome {
    let mut next = [0, 0];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(0);
        }
        let timeout = Timespec::try_from(left).ok();
        let (stdout, stderr) = (rustix::stdio::stdout(), rustix::stdio::stderr());
        let mut ready = [PollFd::new(&stdout, PollFlags::OUT), PollFd::new(&stderr, PollFlags::OUT)];
        poll(&mut ready, timeout.as_ref()).map_err(Failure::of("wait for room"))?;
        let is_ready = ready.map(|fd| !fd.revents().is_empty());
        for (index, fd) in [1, 2].into_iter().enumerate().filter(|(index, _)| is_ready[*index]) {
            let block: Vec<u8> = (next[index]..next[index] + LINES_PER_WRITE).flat_map(late_line).collect();
            sys::write_all(fd, &block)?;
            next[index] += LINES_PER_WRITE;
        }
    }
}

/// Read end, closed on exec, and write end, kept open by it.
fn pipe_for_reports() -> Result<(OwnedFd, OwnedFd), Failure> {
    let (read, write) = rustix::pipe::pipe().map_err(Failure::of("make a pipe"))?;
    fcntl_setfd(read.as_fd(), FdFlags::CLOEXEC).map_err(Failure::of("make a pipe"))?;
    Ok((read, write))
}

fn wait_for_reports(reports: OwnedFd, expected: usize) -> Result<(), Failure> {
    let found = read_to_end(reports)?;
    if found == expected {
        return Ok(());
    }
    let source = std::io::Error::other(format!("{found} of {expected} descendants reported"));
    Err(Failure::Call { what: "set up the tree", source })
}

fn read_to_end(pipe: OwnedFd) -> Result<usize, Failure> {
    let mut bytes = Vec::new();
    fs::File::from(pipe).read_to_end(&mut bytes).map_err(Failure::of("read a pipe"))
}
