//! Removing folders that strangers may have filled: no links followed, no mounts entered, any depth.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// Folders deeper than this are moved up before they are emptied: neither descriptors nor stack grow with the depth.
const DEEPEST: usize = 32;

/// The names in a folder.
pub(super) fn names(folder: BorrowedFd<'_>) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
    }
    Ok(names)
}

/// Removes a folder, or whatever else has this name, with all that is in it.
pub(super) fn tree(parent: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let name = CString::new(name)?;
    match rustix::fs::unlinkat(parent, &name, AtFlags::empty()) {
        Err(Errno::ISDIR) => {}
        removed => return Ok(removed?),
    }
    let folder = open_folder(parent, &name)?;
    content(folder.as_fd(), None)?;
    Ok(rustix::fs::unlinkat(parent, &name, AtFlags::REMOVEDIR)?)
}

/// Removes what is in a folder, but for one name. Goes on after an error and returns the first one.
pub(super) fn content(folder: BorrowedFd<'_>, except: Option<&str>) -> io::Result<()> {
    let mut moved = 0;
    loop {
        let mut pass = Pass { top: folder, moved, first_error: None };
        for name in names(folder)? {
            if except.is_none_or(|except| name.to_bytes() != except.as_bytes()) {
                pass.remove(folder, &name, 0);
            }
        }
        if pass.moved == moved {
            return pass.first_error.map_or(Ok(()), Err);
        }
        // What was moved up is emptied by the next pass.
        moved = pass.moved;
    }
}

struct Pass<'a> {
    top: BorrowedFd<'a>,
    moved: u64,
    first_error: Option<io::Error>,
}

impl Pass<'_> {
    fn remove(&mut self, folder: BorrowedFd<'_>, name: &CStr, depth: usize) {
        if let Err(error) = self.try_remove(folder, name, depth) {
            self.first_error.get_or_insert(error);
        }
    }

    fn try_remove(&mut self, folder: BorrowedFd<'_>, name: &CStr, depth: usize) -> io::Result<()> {
        match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::ISDIR) => {}
            Err(error) => return Err(error.into()),
        }
        let inner = open_folder(folder, name)?;
        if depth >= DEEPEST {
            return self.move_up(folder, name);
        }
        for name in names(inner.as_fd())? {
            self.remove(inner.as_fd(), &name, depth + 1);
        }
        Ok(rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR)?)
    }

    fn move_up(&mut self, folder: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
        loop {
            self.moved += 1;
            match rustix::fs::renameat(folder, name, self.top, format!("deep-{}", self.moved)) {
                // The name is taken, by what was there or by an earlier pass.
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
                renamed => return Ok(renamed?),
            }
        }
    }
}

/// Opens a folder in a folder, as long as it is on the same mount and no link, with permission to empty it.
fn open_folder(folder: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    let inner = match open_beneath(folder, name, OFlags::RDONLY) {
        Err(Errno::ACCESS) => {
            let handle = open_beneath(folder, name, OFlags::PATH)?;
            // The descriptor cannot be changed to another file meanwhile, as the name could.
            rustix::fs::chmod(format!("/proc/self/fd/{}", handle.as_raw_fd()), Mode::RWXU)?;
            open_beneath(folder, name, OFlags::RDONLY)?
        }
        opened => opened?,
    };
    let mode = Mode::from_raw_mode(rustix::fs::fstat(&inner)?.st_mode);
    if !mode.contains(Mode::RWXU) {
        rustix::fs::fchmod(&inner, Mode::RWXU)?;
    }
    Ok(inner)
}

fn open_beneath(folder: BorrowedFd<'_>, name: &CStr, access: OFlags) -> Result<OwnedFd, Errno> {
    let flags = access | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    match rustix::fs::openat2(folder, name, flags, Mode::empty(), resolve) {
        // Older kernels and some sandboxes do not have this call.
        Err(Errno::NOSYS | Errno::PERM) => {}
        opened => return opened,
    }
    let inner = rustix::fs::openat(folder, name, flags, Mode::empty())?;
    let (outside, inside) = (rustix::fs::fstat(folder)?, rustix::fs::fstat(&inner)?);
    if outside.st_dev == inside.st_dev { Ok(inner) } else { Err(Errno::XDEV) }
}
