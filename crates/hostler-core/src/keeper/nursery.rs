//! The nursery: starts keepers, and kills what a lost keeper leaves behind.
//!
//! Everything below the nursery is the host's: its children are keepers, and descendants of a keeper that ended
//! before its tree was empty. The latter are killed. It ends when the host is gone and it has no children left.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::CString;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};

use super::KEEPER_ARGUMENT;
use super::protocol::{NurseryEvent, StartKeeper};
use crate::sys::clone::{self, Attempt, ChildStack, ExecPlan};
use crate::sys::packet::{self, Fds, Wait};
use crate::sys::procfs::OwnChildren;
use crate::sys::signal;
use crate::sys::wait::{self, Ended};

/// Between two passes over what is left of a lost keeper: at first, and when the same ones take their time to die or
/// cannot be looked at.
const FIRST_SWEEP_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_SWEEP_PAUSE: Duration = Duration::from_millis(50);

/// Between two wake-up calls to keepers that may have been stopped, once the host is gone.
const WAKE_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

pub(super) struct Nursery {
    host: OwnedFd,
    host_process: Option<OwnedFd>,
    host_alive: bool,
    child_signal: OwnedFd,
    stack: ChildStack,
    children: OwnChildren,
    keepers: BTreeSet<i32>,
    /// Keepers that have ended and whose orphans are being killed.
    lost: Vec<i32>,
    killed: BTreeSet<i32>,
    sweep_pause: Duration,
    outbox: VecDeque<Vec<u8>>,
}

impl Nursery {
    pub(super) fn new(host: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            host,
            host_process: host_process(),
            host_alive: true,
            child_signal: signal::child_signal_fd()?,
            stack: ChildStack::new()?,
            children: OwnChildren::open(),
            keepers: BTreeSet::new(),
            lost: Vec::new(),
            killed: BTreeSet::new(),
            sweep_pause: FIRST_SWEEP_PAUSE,
            outbox: VecDeque::new(),
        })
    }

    pub(super) fn run(mut self) {
        self.outbox.push_back(NurseryEvent::Ready.encode());
        self.flush();
        while self.host_alive || wait::peek_any() != Ended::NoChildren {
            self.wait();
            self.reap_all();
            self.wake_keepers();
            self.sweep();
            self.flush();
        }
    }

    fn wait(&mut self) {
        let pause = Timespec { tv_sec: 0, tv_nsec: self.sweep_pause.subsec_nanos().into() };
        let idle = self.lost.is_empty() && (self.outbox.is_empty() || !self.host_alive);
        let timeout = match (idle, self.host_alive) {
            (false, _) => Some(&pause),
            (true, false) => Some(&WAKE_PAUSE),
            (true, true) => None,
        };
        let mut fds = vec![PollFd::new(&self.child_signal, PollFlags::IN)];
        if self.host_alive {
            fds.push(PollFd::new(&self.host, PollFlags::IN));
            fds.extend(self.host_process.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
        }
        let (child, request, gone) = match poll(&mut fds, timeout) {
            Ok(_) => {
                let ready =
                    |index: usize| fds.get(index).is_some_and(|fd: &PollFd<'_>| !fd.revents().is_empty());
                (ready(0), ready(1), ready(2))
            }
            Err(Errno::INTR) => return,
            // No memory, or a limit of open files below three: it is seen by looking then, with pauses.
            Err(_) => {
                let _ = rustix::thread::nanosleep(&WAKE_PAUSE);
                (true, self.host_alive, false)
            }
        };
        if child {
            signal::drain_signal_fd(self.child_signal.as_fd());
        }
        if request {
            self.serve();
        }
        if gone {
            self.host_alive = false;
        }
    }

    fn serve(&mut self) {
        let mut buffer = [0_u8; 64];
        loop {
            match packet::receive(self.host.as_fd(), &mut buffer, Wait::Never) {
                Ok(Some((len, fds))) => match StartKeeper::decode(&buffer[..len]) {
                    Ok(StartKeeper { serial }) => self.start_keeper(serial, fds),
                    Err(_) => return self.host_alive = false,
                },
                Ok(None) => return self.host_alive = false,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => return self.host_alive = false,
            }
        }
    }

    fn start_keeper(&mut self, serial: u64, mut fds: Fds) {
        let (Some(spawn), Some(control), Some(host)) = (fds.take(), fds.take(), fds.take()) else {
            // They came with the packet, and the kernel found no room for them here.
            let failed = NurseryEvent::KeeperFailed { serial, errno: libc::EMFILE };
            return self.outbox.push_back(failed.encode());
        };
        let argv = [c"hostler-keeper", &CString::new(KEEPER_ARGUMENT).unwrap_or_default()].map(CString::from);
        let argv = [argv[0].as_ptr(), argv[1].as_ptr(), std::ptr::null()];
        let plan = ExecPlan {
            candidates: &[CString::from(c"/proc/self/exe")],
            argv: &argv,
            envp: &[std::ptr::null()],
            cwd: None,
            stdio: [spawn.as_fd(), control.as_fd(), host.as_fd()],
            nofile: None,
            oom_score: None,
            cgroup: None,
        };
        let attempt = Attempt::default();
        match clone::start(&plan, &mut self.stack, &attempt) {
            Ok(started) => {
                self.keepers.insert(started.pid);
                let event = NurseryEvent::KeeperStarted { serial, pid: started.pid }.encode();
                let pidfd = [started.pidfd.as_fd()];
                // With its descriptor it cannot wait in the outbox; the host reads this socket whatever else it does.
                match packet::send(self.host.as_fd(), &[IoSlice::new(&event)], &pidfd, Wait::Block) {
                    Ok(()) => {}
                    // The host can do without the descriptor, but not without the word.
                    Err(error) if packet::may_pass(&error) => self.outbox.push_back(event),
                    Err(_) => self.host_alive = false,
                }
            }
            Err(failed) => {
                failed.zombie.map(wait::reap);
                let errno = failed.failure.errno;
                self.outbox.push_back(NurseryEvent::KeeperFailed { serial, errno }.encode());
            }
        }
    }

    fn reap_all(&mut self) {
        while let Ended::Child(pid) = wait::peek_any() {
            if self.keepers.remove(&pid) {
                self.lost.push(pid);
            }
            wait::reap(pid);
        }
    }

    /// A keeper that was stopped, by whoever may signal this user's processes, would answer nothing, and not see that the
    /// host is gone. Its stop is told to its parent as its end is.
    fn wake_keepers(&self) {
        while let Some(stopped) = wait::stopped_child() {
            // What is no keeper may have been stopped on purpose.
            if self.keepers.contains(&stopped) {
                let _ = signal::send_child(stopped, libc::SIGCONT);
            }
        }
        // One that was stopped before anybody looked, or is stopped again and again.
        if !self.host_alive {
            for keeper in &self.keepers {
                let _ = signal::send_child(*keeper, libc::SIGCONT);
            }
        }
    }

    /// Kills every child that is no keeper; when there is none, the lost keepers are dealt with, but not when who is there
    /// could not be read. Direct children that only we reap cannot have given their pids away.
    fn sweep(&mut self) {
        if self.lost.is_empty() && self.host_alive {
            return;
        }
        let before = self.killed.len();
        let mut orphans = match self.children.pids() {
            Ok(children) => children,
            Err(_) => return self.sweep_pause = longer(self.sweep_pause),
        };
        orphans.retain(|pid| !self.keepers.contains(pid));
        if orphans.is_empty() {
            self.sweep_pause = FIRST_SWEEP_PAUSE;
            let killed = self.killed.len() as u32;
            let swept = std::mem::take(&mut self.lost);
            self.outbox.extend(swept.into_iter().map(|pid| NurseryEvent::Swept { pid, killed }.encode()));
            self.killed.clear();
            return;
        }
        for pid in orphans {
            if signal::send_child(pid, libc::SIGKILL).is_ok() {
                self.killed.insert(pid);
            }
        }
        self.sweep_pause =
            if self.killed.len() > before { FIRST_SWEEP_PAUSE } else { longer(self.sweep_pause) };
    }

    fn flush(&mut self) {
        while let Some(bytes) = self.outbox.front().filter(|_| self.host_alive) {
            match packet::send(self.host.as_fd(), &[IoSlice::new(bytes)], &[], Wait::Never) {
                Ok(()) => {
                    self.outbox.pop_front();
                }
                // What waits in the outbox is tried again after a pause.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock || packet::may_pass(&error) => return,
                Err(_) => return self.host_alive = false,
            }
        }
    }
}

fn longer(pause: Duration) -> Duration {
    (pause * 2).min(LONGEST_SWEEP_PAUSE)
}

/// The host, as long as it is still the parent: a parent that ended before this looks like the end of the socket.
fn host_process() -> Option<OwnedFd> {
    let parent: Pid = getppid()?;
    let pidfd = pidfd_open(parent, PidfdFlags::empty()).ok()?;
    (getppid() == Some(parent)).then_some(pidfd)
}
