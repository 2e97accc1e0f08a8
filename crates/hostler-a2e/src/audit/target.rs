//! What the audit is written to, open: a file that other hosts may write and rotate too, or a pipe or terminal.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

/// The open file.
#[derive(Debug)]
pub(super) struct Target {
    file: File,
    kind: TargetKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TargetKind {
    Regular,
    /// A pipe, a terminal: never locked or rotated, its mode is not ours.
    Other,
}

/// How long to wait for another host that is just writing, or for the reader of a pipe that is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// Half a second, which is a thousand times what a write takes: a host or reader that was stopped inside of its work
    /// must not stop this one for longer.
    Some,
    /// Not at all.
    None,
}

impl Target {
    /// Opens a file for appending and makes it private.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        const PRIVATE: u32 = 0o600;
        // Means nothing to a file. A pipe without a reader is an error, and a full one is not waited for.
        let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(PRIVATE).custom_flags(flags.bits().cast_signed());
        let file = options.open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Ok(Self { file, kind: TargetKind::Other });
        }
        if metadata.permissions().mode() & 0o777 != PRIVATE {
            file.set_permissions(Permissions::from_mode(PRIVATE))?;
        }
        Ok(Self { file, kind: TargetKind::Regular })
    }

    /// Keeps other hosts from writing and rotating until [`unlock`](Self::unlock) or drop.
    ///
    /// # Errors
    /// Another one holds the file for longer than this one waits, or the file system knows no locks.
    pub(super) fn lock(&self, patience: Patience) -> io::Result<()> {
        if self.kind == TargetKind::Other {
            return Ok(());
        }
        let tries = match patience {
            Patience::Some => 500,
            Patience::None => 1,
        };
        for tried in 1..=tries {
            match rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK | Errno::INTR) if tried < tries => nap(),
                locked => return Ok(locked?),
            }
        }
        Err(Errno::WOULDBLOCK.into())
    }

    pub(super) fn unlock(&self) {
        if self.kind == TargetKind::Regular {
            // What was locked can be unlocked, and what was not stays so.
            let _ = rustix::fs::flock(&self.file, FlockOperation::NonBlockingUnlock);
        }
    }

    /// Whether this file still stands at `path`: another host, or whoever rotates logs here, may have moved it.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        if self.kind == TargetKind::Other {
            return true;
        }
        match (fs::metadata(path), self.file.metadata()) {
            (Ok(there), Ok(here)) => (there.dev(), there.ino()) == (here.dev(), here.ino()),
            (Err(error), _) if error.kind() == io::ErrorKind::NotFound => false,
            // Nobody can look: what is open is all there is.
            (Err(_), _) | (_, Err(_)) => true,
        }
    }

    /// How many bytes are in the file, whoever wrote them; `None` where nothing is rotated.
    pub(super) fn length(&self) -> io::Result<Option<u64>> {
        match self.kind {
            TargetKind::Regular => Ok(Some(self.file.metadata()?.len())),
            TargetKind::Other => Ok(None),
        }
    }

    /// Writes `bytes` as far as it goes and says how far. A pipe or terminal that is full is given time each time.
    pub(super) fn write(&mut self, bytes: &[u8], patience: Patience) -> (usize, io::Result<()>) {
        let mut done = 0;
        while done < bytes.len() {
            match self.file.write(&bytes[done..]) {
                Ok(0) => return (done, Err(io::ErrorKind::WriteZero.into())),
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !self.has_room(patience) {
                        let full = io::Error::new(error.kind(), "the pipe is full, its reader is behind");
                        return (done, Err(full));
                    }
                }
                Err(error) => return (done, Err(error)),
            }
        }
        (done, Ok(()))
    }

    fn has_room(&self, patience: Patience) -> bool {
        const HALF_A_SECOND: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };
        let mut wanted = [PollFd::new(&self.file, PollFlags::OUT)];
        patience == Patience::Some && poll(&mut wanted, Some(&HALF_A_SECOND)).is_ok_and(|ready| ready > 0)
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the kernel tells nobody that a lock is free but who waits for it without end"
)]
fn nap() {
    std::thread::sleep(Duration::from_millis(1));
}
