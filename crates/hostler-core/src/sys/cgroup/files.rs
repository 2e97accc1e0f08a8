//! The files of a cgroup's folder: small reads and writes, and walks through the folders below it.
//!
//! A folder may vanish at any time, by the keeper, a sweeper or a child that made it: gone counts as empty.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::CgroupError;
use crate::sys::procfs;

/// How deep a child may nest groups of its own below its leaf and have them removed.
pub(super) const MAX_DEPTH: u32 = 16;
/// How many of them that cannot be removed at once.
pub(super) const MAX_GROUPS: u32 = 4096;

pub(super) const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);
pub(super) const PATH_ONLY: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// What an existing folder means to who wants to make it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Existing {
    Fine,
    Refused,
}

/// What may still be visited of a tree that somebody else has made.
pub(super) struct Bounds {
    depth: u32,
    groups: u32,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { depth: MAX_DEPTH, groups: MAX_GROUPS }
    }
}

impl Bounds {
    fn enter(&mut self, group: &str) -> Result<(), CgroupError> {
        if self.depth == 0 || self.groups == 0 {
            return Err(CgroupError::TooMany { group: group.to_owned() });
        }
        self.depth -= 1;
        self.groups -= 1;
        Ok(())
    }

    fn leave(&mut self) {
        self.depth += 1;
    }
}

pub(super) fn make(parent: BorrowedFd<'_>, name: &str, existing: Existing) -> Result<(), CgroupError> {
    match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755)) {
        Ok(()) => Ok(()),
        Err(Errno::EXIST) if existing == Existing::Fine => Ok(()),
        Err(source) => Err(CgroupError::Create { group: name.to_owned(), source }),
    }
}

pub(super) fn open_group(parent: BorrowedFd<'_>, name: &str, flags: OFlags) -> Result<OwnedFd, CgroupError> {
    rustix::fs::openat(parent, name, flags, Mode::empty()).map_err(|source| CgroupError::Open {
        group: name.to_owned(),
        file: ".",
        source,
    })
}

pub(super) fn lock(dir: &OwnedFd, name: &str, operation: FlockOperation) -> Result<(), CgroupError> {
    loop {
        match rustix::fs::flock(dir, operation) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) => return Err(CgroupError::Busy { group: name.to_owned() }),
            Err(source) => return Err(CgroupError::Open { group: name.to_owned(), file: ".", source }),
        }
    }
}

/// Opens a file of a group; `None` when the group is gone.
pub(super) fn open_file(
    dir: BorrowedFd<'_>,
    group: &str,
    file: &'static str,
    access: OFlags,
) -> Result<Option<OwnedFd>, CgroupError> {
    match rustix::fs::openat(dir, file, access | OFlags::CLOEXEC, Mode::empty()) {
        Ok(opened) => Ok(Some(opened)),
        Err(Errno::NOENT | Errno::NODEV) => Ok(None),
        Err(source) => Err(CgroupError::Open { group: group.to_owned(), file, source }),
    }
}

pub(super) fn read_all(file: &OwnedFd) -> Result<Vec<u8>, Errno> {
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match rustix::io::read(file, &mut buffer) {
            Ok(0) => return Ok(text),
            Ok(n) => text.extend_from_slice(&buffer[..n]),
            Err(Errno::INTR) => {}
            // The group was removed after the file was opened.
            Err(Errno::NODEV) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        }
    }
}

pub(super) fn kill(dir: BorrowedFd<'_>, group: &str) -> Result<(), CgroupError> {
    let write = |file, text: &[u8]| -> Result<Result<(), Errno>, CgroupError> {
        let Some(opened) = open_file(dir, group, file, OFlags::WRONLY)? else { return Ok(Ok(())) };
        Ok(match rustix::io::write(&opened, text) {
            Ok(_) | Err(Errno::NODEV) => Ok(()),
            Err(error) => Err(error),
        })
    };
    write("cgroup.kill", b"1")?.map_err(|source| CgroupError::Kill { group: group.to_owned(), source })?;
    write("cgroup.freeze", b"0")?.map_err(|source| CgroupError::Thaw { group: group.to_owned(), source })
}

pub(super) fn open_events(dir: BorrowedFd<'_>, group: &str) -> Result<Option<OwnedFd>, CgroupError> {
    open_file(dir, group, "cgroup.events", OFlags::RDONLY)
}

pub(super) fn read_populated(events: &OwnedFd, group: &str) -> Result<bool, CgroupError> {
    let failed = |source| CgroupError::Read { group: group.to_owned(), file: "cgroup.events", source };
    rustix::fs::seek(events, rustix::fs::SeekFrom::Start(0)).map_err(failed)?;
    let text = read_all(events).map_err(failed)?;
    Ok(text.split(|b| *b == b'\n').any(|line| line == b"populated 1"))
}

pub(super) fn wait_empty(dir: BorrowedFd<'_>, group: &str, patience: Duration) -> Result<bool, CgroupError> {
    let Some(events) = open_events(dir, group)? else { return Ok(true) };
    let timeout = Timespec::try_from(patience).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
    loop {
        if !read_populated(&events, group)? {
            return Ok(true);
        }
        // A change of the file is an exceptional condition. It changes with `populated` and `frozen` alone, so this
        // goes round twice at most, unless somebody keeps moving processes in and out.
        match poll(&mut [PollFd::new(&events, PollFlags::PRI)], Some(&timeout)) {
            Ok(0) => return Ok(!read_populated(&events, group)?),
            Ok(_) | Err(Errno::INTR) => {}
            Err(source) => {
                return Err(CgroupError::Read { group: group.to_owned(), file: "cgroup.events", source });
            }
        }
    }
}

/// The names of the folders in a group.
pub(super) fn subgroups(dir: BorrowedFd<'_>, group: &str) -> Result<Vec<String>, CgroupError> {
    let failed = |source| CgroupError::Read { group: group.to_owned(), file: ".", source };
    let mut names = Vec::new();
    for entry in Dir::read_from(dir).map_err(failed)? {
        let entry = match entry {
            Ok(entry) => entry,
            // Removed while it is read.
            Err(Errno::NOENT | Errno::NODEV) => break,
            Err(error) => return Err(failed(error)),
        };
        if entry.file_type() != FileType::Directory {
            continue;
        }
        match entry.file_name().to_str() {
            Ok("." | "..") | Err(_) => {}
            Ok(name) => names.push(name.to_owned()),
        }
    }
    Ok(names)
}

/// Adds the processes of a group and of those below; what cannot be read is left out.
pub(super) fn collect_pids(dir: BorrowedFd<'_>, group: &str, bounds: &mut Bounds, pids: &mut Vec<i32>) {
    if bounds.enter(group).is_err() {
        return;
    }
    if let Ok(Some(file)) = open_file(dir, group, "cgroup.procs", OFlags::RDONLY) {
        // 0 stands for a process of another pid namespace.
        let listed = procfs::parse_pids(&read_all(&file).unwrap_or_default());
        pids.extend(listed.into_iter().filter(|pid| *pid > 0));
    }
    // The descriptor may be O_PATH, which cannot be listed.
    if let Ok(Some(listing)) = open_file(dir, group, ".", DIRECTORY) {
        for name in subgroups(listing.as_fd(), group).unwrap_or_default() {
            if let Ok(below) = open_group(dir, &name, DIRECTORY) {
                collect_pids(below.as_fd(), &name, bounds, pids);
            }
        }
    }
    bounds.leave();
}

/// Removes a group, and those below it first if there are any.
pub(super) fn remove_tree(parent: BorrowedFd<'_>, name: &str) -> Result<(), CgroupError> {
    remove_below(parent, name, &mut Bounds::default())
}

fn remove_below(parent: BorrowedFd<'_>, name: &str, bounds: &mut Bounds) -> Result<(), CgroupError> {
    let failed = |source| match source {
        Errno::BUSY => CgroupError::Busy { group: name.to_owned() },
        source => CgroupError::Remove { group: name.to_owned(), source },
    };
    let remove = || match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error),
    };
    match remove() {
        Ok(()) => return Ok(()),
        Err(Errno::BUSY) => {}
        Err(error) => return Err(failed(error)),
    }
    bounds.enter(name)?;
    let dir = match open_group(parent, name, DIRECTORY) {
        Err(CgroupError::Open { source: Errno::NOENT, .. }) => return Ok(()),
        opened => opened?,
    };
    // One that is in use must not keep its neighbours.
    let mut first_failure = Ok(());
    for below in subgroups(dir.as_fd(), name)? {
        let removed = remove_below(dir.as_fd(), &below, bounds);
        first_failure = first_failure.and(removed);
    }
    bounds.leave();
    first_failure?;
    remove().map_err(failed)
}
