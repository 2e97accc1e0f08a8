//! Leaves in the cgroup v2 tree: one folder per process, so that the kernel itself knows who belongs to it.
//!
//! Layout, below the cgroup that this process is in: `hostler-<boot>-<pid>-<start>-<nonce>/s<session>/p<process>`, where the
//! first part names a host ([`HostTag`]). Owns making, killing and removing these folders, and sweeping those of
//! dead hosts. It leaves to the keeper putting processes in (CLONE_INTO_CGROUP with [`Leaf::dir`]) and the search for
//! descendants that were moved out: a program with our rights can do that, so an empty leaf is no proof.
//!
//! - Nothing here needs a controller: `cgroup.kill` (Linux 5.14), `cgroup.procs` and `cgroup.events` are core files.
//! - Whether it works is found out by trying ([`Base::probe`]); mounts are often read-only or hidden by another.
//! - A leaf that is left as it was made is kept for the next process: making and removing one costs the kernel more than
//!   starting a small program does. It keeps the name of its first process.
//! - A session's folder is locked (flock) by whoever has it open. A host's folder is swept only when its host is
//!   dead by name *and* nobody holds the lock: a host in another pid namespace looks dead by name.
//!
//! Sources: the kernel's cgroup-v2 document, cgroups(7), proc_pid_mountinfo(5), clone3(2).

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::fs::{AtFlags, FlockOperation, Mode};
use rustix::io::Errno;

use super::procfs;
use crate::id::ProcessId;

mod files;
mod leaf;
mod locate;
mod tag;

use files::{DIRECTORY, Existing, MAX_DEPTH, MAX_GROUPS};
pub use leaf::Leaf;
use leaf::Spares;
pub use locate::Unusable;
pub use tag::{HostTag, ParseTagError};

/// Failures with a folder that is known to be usable.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// The path does not end in the name of a host's folder.
    #[error("{path} is not named as the cgroup of a host")]
    Name {
        /// The path.
        path: PathBuf,
    },
    /// The folder could not be made.
    #[error("failed to make the cgroup {group}")]
    Create {
        /// Name of the folder.
        group: String,
        /// Why.
        source: Errno,
    },
    /// The folder, or a file in it, could not be opened.
    #[error("failed to open {file} of the cgroup {group}")]
    Open {
        /// Name of the folder.
        group: String,
        /// Name of the file in it, `.` for the folder.
        file: &'static str,
        /// Why.
        source: Errno,
    },
    /// A file in the folder could not be read.
    #[error("failed to read {file} of the cgroup {group}")]
    Read {
        /// Name of the folder.
        group: String,
        /// Name of the file in it, `.` for the folder.
        file: &'static str,
        /// Why.
        source: Errno,
    },
    /// The processes in it could not be killed by the kernel.
    #[error("failed to kill the cgroup {group}")]
    Kill {
        /// Name of the folder.
        group: String,
        /// Why.
        source: Errno,
    },
    /// The processes in it were killed, but it could not be thawed.
    #[error("failed to thaw the cgroup {group}")]
    Thaw {
        /// Name of the folder.
        group: String,
        /// Why.
        source: Errno,
    },
    /// Processes are in it, or just leave it: try again when it is empty.
    #[error("the cgroup {group} is still in use")]
    Busy {
        /// Name of the folder.
        group: String,
    },
    /// The folder could not be removed.
    #[error("failed to remove the cgroup {group}")]
    Remove {
        /// Name of the folder.
        group: String,
        /// Why.
        source: Errno,
    },
    /// Somebody has put more groups, or deeper ones, into it than are removed for them.
    #[error("the cgroup {group} holds more than {MAX_GROUPS} groups, or some {MAX_DEPTH} levels deep")]
    TooMany {
        /// Name of the folder.
        group: String,
    },
}

impl CgroupError {
    /// Whether the folder, or the one that it would be in, has been removed.
    fn is_gone(&self) -> bool {
        match self {
            Self::Create { source, .. } | Self::Open { source, .. } => {
                matches!(*source, Errno::NOENT | Errno::NODEV)
            }
            Self::Name { .. }
            | Self::Read { .. }
            | Self::Kill { .. }
            | Self::Thaw { .. }
            | Self::Busy { .. }
            | Self::Remove { .. }
            | Self::TooMany { .. } => false,
        }
    }
}

/// The cgroup that this process is in, where hosts have their folders.
#[derive(Debug)]
pub struct Base {
    dir: Arc<OwnedFd>,
    path: PathBuf,
    tag: HostTag,
}

impl Base {
    /// Finds our own cgroup and whether leaves work in it, by making and removing one.
    ///
    /// # Errors
    /// Why this machine offers no leaves. A driver goes on without; it still has to expect that a clone into a leaf
    /// fails, for a limit or a security module cannot be seen from here.
    pub fn probe(tag: HostTag) -> Result<Self, Unusable> {
        static PROBES: AtomicU32 = AtomicU32::new(0);
        let (dir, path) = locate::own_group()?;
        let serial = PROBES.fetch_add(1, Ordering::Relaxed);
        let pid = rustix::process::getpid().as_raw_nonzero();
        locate::try_out(&dir, &path, &format!("{}.probe-{pid}-{serial}", tag.folder()))?;
        Ok(Self { dir: Arc::new(dir), path, tag })
    }

    /// Opens a cgroup that was probed by another process of the same host.
    ///
    /// # Errors
    /// [`CgroupError::Open`].
    pub fn at(path: &Path, tag: HostTag) -> Result<Self, CgroupError> {
        let group = || path.display().to_string();
        let dir = rustix::fs::open(path, DIRECTORY, Mode::empty()).map_err(|source| CgroupError::Open {
            group: group(),
            file: ".",
            source,
        })?;
        Ok(Self { dir: Arc::new(dir), path: path.to_owned(), tag })
    }

    /// Its absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder of this host, which may not exist yet, for [`SessionGroup::create`] in another process.
    pub fn host_folder(&self) -> PathBuf {
        self.path.join(self.tag.folder())
    }

    /// Opens the folder of a session of this host, making it if need be.
    ///
    /// # Errors
    /// [`CgroupError::Create`], [`CgroupError::Open`].
    pub fn session(&self, session: u64) -> Result<SessionGroup, CgroupError> {
        let host_name = self.tag.folder();
        let name = format!("s{session}");
        let mut tries = 0;
        let (host, dir) = loop {
            match self.try_session(&host_name, &name) {
                Ok(opened) => break opened,
                // The host's folder was removed between two steps, at the end of its then last session.
                Err(error) if error.is_gone() && tries < 16 => tries += 1,
                Err(error) => return Err(error),
            }
        };
        let (base, dir, spares) = (Arc::clone(&self.dir), Arc::new(dir), Arc::default());
        Ok(SessionGroup { base, host_name, host, name, dir, spares })
    }

    /// Whether there is a folder of that session of this host.
    pub fn has_session(&self, session: u64) -> bool {
        let path = Path::new(&self.tag.folder()).join(format!("s{session}"));
        rustix::fs::statat(&*self.dir, path, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    fn try_session(&self, host_name: &str, name: &str) -> Result<(OwnedFd, OwnedFd), CgroupError> {
        files::make(self.dir.as_fd(), host_name, Existing::Fine)?;
        let host = files::open_group(self.dir.as_fd(), host_name, DIRECTORY)?;
        files::lock(&host, host_name, FlockOperation::LockShared)?;
        files::make(host.as_fd(), name, Existing::Fine)?;
        let dir = files::open_group(host.as_fd(), name, DIRECTORY)?;
        Ok((host, dir))
    }

    /// Kills and removes what dead hosts have left behind, waiting up to `patience` for each host's processes to go.
    /// Folders of live hosts, and all that are not ours, stay.
    ///
    /// # Errors
    /// [`CgroupError::Open`] or [`CgroupError::Read`] when our own cgroup cannot be listed.
    pub fn sweep(&self, patience: Duration) -> Result<Swept, CgroupError> {
        let mut swept = Swept::default();
        let own_name = self.path.display().to_string();
        for name in files::subgroups(self.dir.as_fd(), &own_name)? {
            let Some(tag) = HostTag::from_folder(&name) else { continue };
            if tag == self.tag || !tag.is_dead() {
                continue;
            }
            match self.sweep_host(&name, patience) {
                Ok(()) => swept.removed += 1,
                Err(error) => swept.failed.push(error),
            }
        }
        Ok(swept)
    }

    fn sweep_host(&self, name: &str, patience: Duration) -> Result<(), CgroupError> {
        let dir = files::open_group(self.dir.as_fd(), name, DIRECTORY)?;
        files::lock(&dir, name, FlockOperation::NonBlockingLockExclusive)?;
        files::kill(dir.as_fd(), name)?;
        files::wait_empty(dir.as_fd(), name, patience)?;
        files::remove_tree(self.dir.as_fd(), name)
    }
}

/// What a sweep has done.
#[derive(Debug, Default)]
pub struct Swept {
    /// How many hosts' folders are gone.
    pub removed: u32,
    /// What could not be removed; [`CgroupError::Busy`] where somebody still uses it.
    pub failed: Vec<CgroupError>,
}

/// The folder of one session.
#[derive(Debug)]
pub struct SessionGroup {
    base: Arc<OwnedFd>,
    host_name: String,
    /// Holds the lock that keeps sweepers away.
    host: OwnedFd,
    name: String,
    dir: Arc<OwnedFd>,
    spares: Arc<Spares>,
}

impl SessionGroup {
    /// Opens the folder of a session, making it if need be, from the path that [`Base::host_folder`] gave another
    /// process of the same host.
    ///
    /// # Errors
    /// [`CgroupError::Name`], [`CgroupError::Create`], [`CgroupError::Open`].
    pub fn create(host_folder: &[u8], session: u64) -> Result<Self, CgroupError> {
        let path = Path::new(OsStr::from_bytes(host_folder));
        let tag = path.file_name().and_then(OsStr::to_str).and_then(HostTag::from_folder);
        match (path.parent(), tag) {
            (Some(base), Some(tag)) => Base::at(base, tag)?.session(session),
            (None, _) | (_, None) => Err(CgroupError::Name { path: path.to_owned() }),
        }
    }

    /// The leaf of one process: a spare one, or a new one by its name.
    ///
    /// # Errors
    /// [`CgroupError::Create`], also when the leaf exists; [`CgroupError::Open`].
    pub fn leaf(&self, process: ProcessId) -> Result<Arc<Leaf>, CgroupError> {
        match self.spares.take() {
            Some(spare) => Ok(spare),
            None => Ok(Arc::new(Leaf::create(&self.dir, process, &self.spares)?)),
        }
    }

    /// Kills everything in the session, see [`Leaf::kill`].
    ///
    /// # Errors
    /// [`CgroupError::Open`], [`CgroupError::Kill`], [`CgroupError::Thaw`].
    pub fn kill(&self) -> Result<(), CgroupError> {
        files::kill(self.dir.as_fd(), &self.name)
    }

    /// Removes the session's folder with all leaves, and the host's folder after its last session.
    ///
    /// # Errors
    /// As [`Leaf::remove`].
    pub fn remove(&self) -> Result<(), CgroupError> {
        files::remove_tree(self.host.as_fd(), &self.name)?;
        match rustix::fs::unlinkat(&*self.base, &self.host_name, AtFlags::REMOVEDIR) {
            // Other sessions are in there.
            Ok(()) | Err(Errno::BUSY | Errno::NOTEMPTY | Errno::NOENT) => Ok(()),
            Err(source) => Err(CgroupError::Remove { group: self.host_name.clone(), source }),
        }
    }
}

/// The first process of the leaf that a pid is in, if it is one of those that `owner` knows, mapped to whoever has that
/// leaf now. A child can nest groups and hosts of its own below its leaf, so any part of the path may be the one.
///
/// # Errors
/// When it cannot be read, unless the process is gone or keeps it to itself.
pub fn owner_of<T>(pid: i32, owner: impl Fn(ProcessId) -> Option<T>) -> io::Result<Option<T>> {
    let text = procfs::unless_withheld(std::fs::read(format!("/proc/{pid}/cgroup")))?;
    let Some(group) = text.and_then(|text| locate::parse_group(&text)) else { return Ok(None) };
    Ok(group.iter().filter_map(|part| part.to_str()?.strip_prefix('p')?.parse().ok()).find_map(owner))
}

#[cfg(test)]
mod tests;
