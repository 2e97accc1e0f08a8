//! What kernel, seccomp filter and container allow, found out by trying, and what is used in consequence.
//!
//! A probe changes nothing that outlives it: calls are made with arguments that do nothing, the one child process (in
//! the control group probe) ends at once and is reaped, its group is removed. Nothing here is remembered.
//!
//! Sources: clone(2), pidfd_open(2), pidfd_send_signal(2), waitid(2), close_range(2), memfd_create(2),
//! proc_pid_oom_score_adj(5), prctl(2).

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::MemfdFlags;
use rustix::process::{PidfdFlags, Resource, WaitId, WaitIdOptions};

use super::cgroup::{Base, HostTag, SessionGroup};
use crate::id::ProcessIds;
use crate::state_dir::StateForecast;

/// All probes, in the order in which they are shown.
#[derive(Clone, Debug)]
pub struct Probes {
    /// One for each feature.
    pub all: Vec<Probe>,
}

/// One thing that may be there or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// What was asked for.
    pub feature: Feature,
    /// What was found.
    pub finding: Finding,
}

/// The answer of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// It is there; with what is worth knowing of it, which may be nothing.
    Available(String),
    /// It is not; with the reason, as a rule the error of the kernel.
    Missing(String),
}

/// Whether hostler can do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// It cannot.
    Required,
    /// It can, by another way or with less.
    Optional,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Feature {
    /// The kernel's release.
    Kernel,
    /// clone3(2), Linux 5.3.
    Clone3,
    /// pidfd_open(2), Linux 5.3.
    PidfdOpen,
    /// pidfd_send_signal(2), Linux 5.1.
    PidfdSendSignal,
    /// waitid(2) with `P_PIDFD`, Linux 5.4.
    WaitidPidfd,
    /// `PIDFD_SIGNAL_PROCESS_GROUP`, Linux 6.9.
    PidfdProcessGroup,
    /// `PR_SET_CHILD_SUBREAPER`, Linux 3.4.
    Subreaper,
    /// /proc is the kernel's.
    Proc,
    /// `/proc/PID/task/TID/children`.
    ProcChildren,
    /// memfd_create(2), Linux 3.17.
    Memfd,
    /// close_range(2), Linux 5.9.
    CloseRange,
    /// A version 2 control group of our own below this process's, that a process can be born into and that can be
    /// killed as a whole, Linux 5.14.
    Cgroup,
    /// The limit of open files.
    OpenFiles,
    /// The largest number of processes of the machine.
    PidMax,
    /// The own `oom_score_adj` may be written.
    OomScore,
    /// The folder for state on disk.
    StateFolder,
}

impl Feature {
    /// A short name for people and programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Clone3 => "clone3",
            Self::PidfdOpen => "pidfd_open",
            Self::PidfdSendSignal => "pidfd_send_signal",
            Self::WaitidPidfd => "waitid_pidfd",
            Self::PidfdProcessGroup => "pidfd_signal_process_group",
            Self::Subreaper => "child_subreaper",
            Self::Proc => "proc",
            Self::ProcChildren => "proc_children",
            Self::Memfd => "memfd_create",
            Self::CloseRange => "close_range",
            Self::Cgroup => "cgroup_v2",
            Self::OpenFiles => "open_files",
            Self::PidMax => "pid_max",
            Self::OomScore => "oom_score_adj",
            Self::StateFolder => "state_folder",
        }
    }

    /// Whether hostler can do without.
    pub fn need(self) -> Need {
        match self {
            Self::PidfdOpen | Self::PidfdSendSignal | Self::Subreaper | Self::Proc => Need::Required,
            Self::Kernel
            | Self::Clone3
            | Self::WaitidPidfd
            | Self::PidfdProcessGroup
            | Self::ProcChildren
            | Self::Memfd
            | Self::CloseRange
            | Self::Cgroup
            | Self::OpenFiles
            | Self::PidMax
            | Self::OomScore
            | Self::StateFolder => Need::Optional,
        }
    }

    fn used_when_available(self) -> &'static str {
        match self {
            Self::Kernel => "features are probed one by one, whatever the release says",
            Self::Clone3 => "a process is started together with its pidfd, in its control group",
            Self::PidfdOpen => "host, nursery and keepers watch each other",
            Self::PidfdSendSignal => "a signal cannot reach a process that took over a pid",
            Self::WaitidPidfd => "not needed: a keeper waits by pid for children that only it can reap",
            Self::PidfdProcessGroup => {
                "not needed: a group is signalled by the keeper that has not reaped its leader"
            }
            Self::Subreaper => "what a session starts stays below its keeper and ends with the session",
            Self::Proc => "descendants are found in /proc",
            Self::ProcChildren => "only descendants are read, not all processes",
            Self::Memfd => "requests with large arguments or environments go by memory file",
            Self::CloseRange => "nursery and keepers close at once what the host was started with",
            Self::Cgroup => "each process gets a group, which is killed as a whole",
            Self::OpenFiles => {
                "host and keepers raise theirs to the hard limit; processes get the soft one back"
            }
            Self::PidMax => "all processes of the machine share this number",
            Self::OomScore => "short of memory, the kernel ends processes before their host",
            Self::StateFolder => "output that a reader is behind with goes to disk",
        }
    }

    fn used_when_missing(self) -> &'static str {
        match self {
            Self::Kernel => "features are probed one by one",
            Self::Clone3 => "processes are started by clone(2), without control groups",
            Self::PidfdOpen | Self::PidfdSendSignal => {
                "no processes can be hosted: Linux 5.3 or later is needed"
            }
            Self::WaitidPidfd => "not needed: a keeper waits by pid for children that only it can reap",
            Self::PidfdProcessGroup => {
                "not needed: a group is signalled by the keeper that has not reaped its leader"
            }
            Self::Subreaper => "no processes can be hosted: what they start could leave",
            Self::Proc => "no processes can be hosted: descendants cannot be found",
            Self::ProcChildren => "all processes of the machine are read to find descendants",
            Self::Memfd => "requests with more than about 200 KB of arguments and environment fail",
            Self::CloseRange => "nursery and keepers close one by one what the host was started with",
            Self::Cgroup => "trees are killed by walking descendants",
            Self::OpenFiles | Self::PidMax => "the limit shows only when it is reached",
            Self::OomScore => "short of memory, the kernel may end the host before its processes",
            Self::StateFolder => "output is kept in memory only: a small buffer for each stream",
        }
    }
}

impl Probe {
    /// What follows for hostler.
    pub fn used(&self) -> &'static str {
        match self.finding {
            Finding::Available(_) => self.feature.used_when_available(),
            Finding::Missing(_) => self.feature.used_when_missing(),
        }
    }

    /// Whether something is missing that hostler cannot do without.
    pub fn is_fatal(&self) -> bool {
        match self.finding {
            Finding::Available(_) => false,
            Finding::Missing(_) => self.feature.need() == Need::Required,
        }
    }
}

impl Probes {
    /// Asks for everything. `state` tells where state would go.
    ///
    /// Takes some milliseconds and forks once, so it is for the start and for people, not for a loop.
    pub fn run(state: &StateForecast) -> Self {
        let all = vec![
            probe(Feature::Kernel, Ok(rustix::system::uname().release().to_string_lossy().into_owned())),
            probe(Feature::Clone3, clone3()),
            probe(Feature::PidfdOpen, quiet(own_pidfd())),
            probe(Feature::PidfdSendSignal, signal_self(0)),
            probe(Feature::WaitidPidfd, waitid_pidfd()),
            probe(Feature::PidfdProcessGroup, signal_self(PIDFD_SIGNAL_PROCESS_GROUP)),
            probe(Feature::Subreaper, quiet(rustix::process::child_subreaper())),
            probe(Feature::Proc, proc_mounted()),
            probe(Feature::ProcChildren, quiet(fs::read("/proc/thread-self/children"))),
            probe(Feature::Memfd, quiet(rustix::fs::memfd_create("hostler-probe", MemfdFlags::CLOEXEC))),
            probe(Feature::CloseRange, close_range()),
            probe(Feature::Cgroup, cgroup()),
            probe(Feature::OpenFiles, Ok(open_files())),
            probe(
                Feature::PidMax,
                said(fs::read_to_string("/proc/sys/kernel/pid_max")).map(|t| t.trim().to_owned()),
            ),
            probe(
                Feature::OomScore,
                quiet(fs::OpenOptions::new().write(true).open("/proc/self/oom_score_adj")),
            ),
            probe(Feature::StateFolder, state_folder(state)),
        ];
        Self { all }
    }

    /// The probe of a feature.
    pub fn get(&self, feature: Feature) -> Option<&Probe> {
        self.all.iter().find(|probe| probe.feature == feature)
    }
}

/// What is worth knowing, or why it is not there.
type Answer = Result<String, String>;

fn probe(feature: Feature, answer: Answer) -> Probe {
    let finding = match answer {
        Ok(detail) => Finding::Available(detail),
        Err(reason) => Finding::Missing(reason),
    };
    Probe { feature, finding }
}

fn said<T>(result: Result<T, impl Into<io::Error>>) -> Result<T, String> {
    result.map_err(|error| error.into().to_string())
}

/// An answer that has nothing to add when it is good.
fn quiet<T>(result: Result<T, impl Into<io::Error>>) -> Answer {
    said(result).map(|_| String::new())
}

/// The answer of a call that was made to fail: with this error the kernel knows the call.
fn known_by(result: io::Result<()>, expected: i32) -> Answer {
    match result {
        Err(error) if error.raw_os_error() == Some(expected) => Ok(String::new()),
        other => quiet(other),
    }
}

fn clone3() -> Answer {
    // SAFETY: a size of 0 is refused with EINVAL before the pointer is looked at, so nothing is made.
    let ret = unsafe { libc::syscall(libc::SYS_clone3, ptr::null::<libc::clone_args>(), 0_usize) };
    known_by(if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }, libc::EINVAL)
}

fn own_pidfd() -> io::Result<OwnedFd> {
    Ok(rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())?)
}

/// See `linux/pidfd.h`.
const PIDFD_SIGNAL_PROCESS_GROUP: libc::c_uint = 1 << 2;

/// Sends signal 0, which is none, to this process or its group.
fn signal_self(flags: libc::c_uint) -> Answer {
    let pidfd = said(own_pidfd())?;
    // SAFETY: a plain system call on an open descriptor; no siginfo is passed, and signal 0 is never delivered.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            0_i32,
            ptr::null::<libc::siginfo_t>(),
            flags,
        )
    };
    // A process that leads no group is told so by a kernel that knows the flag.
    known_by(if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }, libc::ESRCH)
}

fn waitid_pidfd() -> Answer {
    let pidfd = said(own_pidfd())?;
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    let waited = rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), options).map(|_| ());
    // This process is no child of itself; a kernel that does not know the kind of id says EINVAL.
    known_by(waited.map_err(Into::into), libc::ECHILD)
}

fn close_range() -> Answer {
    // SAFETY: no descriptor can have the largest number, so nothing is closed.
    let ret = unsafe { libc::syscall(libc::SYS_close_range, u32::MAX, u32::MAX, 0_u32) };
    quiet(if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(()) })
}

fn proc_mounted() -> Answer {
    let found = said(rustix::fs::statfs("/proc"))?;
    if found.f_type == rustix::fs::PROC_SUPER_MAGIC {
        Ok(String::new())
    } else {
        Err("/proc is not mounted".into())
    }
}

fn open_files() -> String {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let show = |n: Option<u64>| n.map_or("unlimited".to_owned(), |n| n.to_string());
    format!("soft {}, hard {}", show(limit.current), show(limit.maximum))
}

/// The folder that will be used, how much room there is, and why the places before it were passed over.
fn state_folder(state: &StateForecast) -> Answer {
    let refused: Vec<String> = state.refused.iter().map(|error| chain(error)).collect();
    let Some(chosen) = &state.chosen else { return Err(refused.join("; ")) };
    let space = chosen.ancestors().find_map(|folder| rustix::fs::statvfs(folder).ok());
    let free = space.map_or("an unknown number of".to_owned(), |space| {
        space.f_bavail.saturating_mul(space.f_frsize).to_string()
    });
    let passed_over = refused.iter().map(|reason| format!("; not used: {reason}"));
    Ok(format!("{}, {free} bytes free{}", chosen.display(), passed_over.collect::<String>()))
}

/// Makes a group for a process below our own, lets one be born into it, and removes it. Says where.
fn cgroup() -> Answer {
    static PROBES: AtomicU64 = AtomicU64::new(0);
    let tag = HostTag::own().ok_or("/proc does not tell who this process is")?;
    let base = Base::probe(tag).map_err(|error| chain(&error))?;
    // A host counts its sessions from below.
    let number = u64::MAX - PROBES.fetch_add(1, Ordering::Relaxed);
    let session = base.session(number).map_err(|error| chain(&error))?;
    let tried = try_leaf(&session);
    let removed = session.remove().map_err(|error| chain(&error));
    tried.and(removed).map(|()| base.path().display().to_string())
}

fn try_leaf(session: &SessionGroup) -> Result<(), String> {
    let leaf = session.leaf(ProcessIds::new().next()).map_err(|error| chain(&error))?;
    let born =
        born_and_gone(leaf.dir()).map_err(|error| format!("failed to start a process in a group: {error}"));
    // A group counts as in use until a moment after its last process was waited for.
    let emptied = leaf.wait_empty(Duration::from_secs(1)).map(|_| ()).map_err(|error| chain(&error));
    born.and(emptied)
}

fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Starts a process in the group that ends at once, and reaps it.
fn born_and_gone(group: BorrowedFd<'_>) -> io::Result<()> {
    let mut pidfd: RawFd = -1;
    // No signal at its end: whoever handles SIGCHLD in this process must not meet a child that is not theirs.
    let args = libc::clone_args {
        flags: (libc::CLONE_PIDFD as u64) | CLONE_INTO_CGROUP,
        pidfd: ptr::from_mut(&mut pidfd) as u64,
        child_tid: 0,
        parent_tid: 0,
        exit_signal: 0,
        stack: 0,
        stack_size: 0,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: group.as_raw_fd() as u64,
    };
    // SAFETY: the arguments ask for a copy of this process, as fork(2) does; the child makes one system call, which
    // ends it, so locks that other threads held in the copied memory do not matter.
    let pid = unsafe {
        let pid = libc::syscall(libc::SYS_clone3, ptr::from_ref(&args), size_of::<libc::clone_args>());
        if pid == 0 {
            libc::syscall(libc::SYS_exit_group, 0);
        }
        pid
    };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has made this descriptor for us, and nobody else owns it.
    reap(unsafe { OwnedFd::from_raw_fd(pidfd) }.as_fd())
}

const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

fn reap(pidfd: BorrowedFd<'_>) -> io::Result<()> {
    loop {
        let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
        // A child without a signal at its end is waited for only with __WALL.
        let options = libc::WEXITED | libc::__WALL;
        // SAFETY: `info` is valid for writing, and the descriptor is open.
        let ret = unsafe {
            libc::waitid(libc::P_PIDFD, pidfd.as_raw_fd() as libc::id_t, info.as_mut_ptr(), options)
        };
        if ret == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINTR) {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::state_dir::Places;

    #[test]
    fn probing_answers_each_feature_once_and_leaves_neither_children_nor_groups() {
        let probes = Probes::run(&StateForecast { chosen: None, refused: Vec::new() });
        let names: std::collections::HashSet<_> =
            probes.all.iter().map(|probe| probe.feature.name()).collect();
        assert_eq!(names.len(), probes.all.len());
        assert_eq!(fs::read_to_string("/proc/thread-self/children").unwrap_or_default(), "");
        if let Some(Finding::Available(path)) = probes.get(Feature::Cgroup).map(|probe| &probe.finding) {
            // Other tests of this process may have folders there, but no session of such a number.
            let own = HostTag::own().unwrap();
            let prefix = format!("hostler-{:08x}-{}-{}-", own.boot, own.pid, own.start_time);
            let hosts = fs::read_dir(path).unwrap().flatten().map(|entry| entry.path());
            let ours = hosts.filter(|path| path.to_str().is_some_and(|path| path.contains(&prefix)));
            let left: Vec<_> =
                ours.flat_map(fs::read_dir).flatten().flatten().map(|e| e.file_name()).collect();
            assert!(!format!("{left:?}").contains("s1844674407370955"), "{left:?}");
        }
    }

    #[test]
    fn a_call_that_fails_as_foreseen_is_known_to_the_kernel() {
        let error = |n| Err(io::Error::from_raw_os_error(n));
        assert_eq!(known_by(error(libc::EINVAL), libc::EINVAL), Ok(String::new()));
        assert_eq!(known_by(Ok(()), libc::EINVAL), Ok(String::new()));
        assert_eq!(
            known_by(error(libc::ENOSYS), libc::EINVAL),
            Err("Function not implemented (os error 38)".into())
        );
    }

    #[test]
    fn the_state_folder_is_shown_with_its_room_and_with_what_was_refused_before_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let places = Places {
            xdg_state_home: Some(file.clone()),
            home: Some(folder.path().into()),
            tmpdir: Some(file.clone()),
        };
        let answer = state_folder(&StateForecast::of(None, &places)).unwrap();
        let (chosen, refused) = answer.split_once(" bytes free").unwrap();
        let expected = folder.path().join(".local/state/hostler, ");
        assert!(chosen.starts_with(expected.to_str().unwrap()), "{answer}");
        let reason = format!(
            "; not used: failed to make {}: Not a directory (os error 20)",
            file.join("hostler").display()
        );
        assert_eq!(refused, reason);

        let nowhere = StateForecast::of(Some(&file), &places);
        let reason = format!(
            "failed to open {} as a folder (a symbolic link is refused): Not a directory (os error 20)",
            file.display()
        );
        assert_eq!(state_folder(&nowhere), Err(reason));
    }

    #[test]
    fn only_what_is_required_is_fatal() {
        let missing = |feature| probe(feature, Err("no".into())).is_fatal();
        assert!(missing(Feature::Subreaper) && missing(Feature::Proc));
        assert!(!missing(Feature::Cgroup) && !missing(Feature::Clone3));
        assert!(!probe(Feature::Proc, Ok(String::new())).is_fatal());
    }
}
