//! A socket in the file system, for its owner alone.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Why there is no socket at a path.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another program listens there.
    #[error("another program listens at {}: end it, or name another path", .0.display())]
    InUse(PathBuf),
    /// Something else is there.
    #[error("{} is there and no socket: remove it, or name another path", .0.display())]
    NoSocket(PathBuf),
    /// It cannot be made.
    #[error("failed to make the socket {}", .path.display())]
    Make {
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Bytes of the path of a socket (`unix(7)`), without the NUL at its end.
const LONGEST_PATH: usize = 107;

/// Connections that may wait to be accepted; the system may allow fewer.
const BACKLOG: i32 = 1024;

/// The place of a socket; it is removed when this is dropped, if it is still the same one.
#[derive(Debug)]
pub(crate) struct Place {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        let is_ours = |found: &fs::Metadata| (found.dev(), found.ino()) == (self.device, self.inode);
        if fs::symlink_metadata(&self.path).is_ok_and(|found| is_ours(&found))
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "failed to remove a socket");
        }
    }
}

/// Listens at a path, with mode 0600 from its first moment on. What a program that is gone has left there is replaced.
pub(crate) fn listen(path: &Path) -> Result<(UnixListener, Place), SocketError> {
    let fail = |source| SocketError::Make { path: path.to_owned(), source };
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    };
    // One byte more would fit without the NUL behind it, which most clients cannot do without.
    if path.as_os_str().len() > LONGEST_PATH {
        return Err(fail(Errno::NAMETOOLONG.into()));
    }
    let address = SocketAddrUnix::new(path).map_err(|error| fail(error.into()))?;
    // Two that find the same dead socket must not replace each other's. Until this one listens, it looks dead, too.
    let _lock = lock(folder).map_err(fail)?;
    make_way(path, &address)?;
    let socket = socket().map_err(fail)?;
    // The file gets the mode of the socket that is bound to it, so that nobody ever sees it with another one.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(|error| fail(error.into()))?;
    rustix::net::bind(&socket, &address).map_err(|error| match error {
        // By a program that does not know the lock.
        Errno::ADDRINUSE => SocketError::InUse(path.to_owned()),
        error => fail(error.into()),
    })?;
    let made = fs::symlink_metadata(path).map_err(fail)?;
    let place = Place { path: path.to_owned(), device: made.dev(), inode: made.ino() };
    if made.mode() & 0o077 != 0 {
        return Err(fail(io::Error::new(io::ErrorKind::Unsupported, "others could reach it")));
    }
    rustix::net::listen(&socket, BACKLOG).map_err(|error| fail(error.into()))?;
    Ok((socket.into(), place))
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// Removes a dead socket; anything else that stands in the way stays.
fn make_way(path: &Path, address: &SocketAddrUnix) -> Result<(), SocketError> {
    let fail = |source| SocketError::Make { path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(fail(source)),
        Ok(found) if !found.file_type().is_socket() => return Err(SocketError::NoSocket(path.to_owned())),
        Ok(_) => {}
    }
    // This does not wait for a program that accepts nobody.
    match rustix::net::connect(socket().map_err(fail)?, address) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path).map_err(fail),
        Err(Errno::NOENT) => Ok(()),
        // Also one that does not let us in, or has too many waiting: it lives.
        Ok(()) | Err(_) => Err(SocketError::InUse(path.to_owned())),
    }
}

fn lock(folder: &Path) -> io::Result<File> {
    const TRIES: u32 = 200;
    let folder = File::open(folder)?;
    for tried in 1..=TRIES {
        match rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK | Errno::INTR) if tried < TRIES => nap(),
            locked => return locked.map(|()| folder).map_err(io::Error::from),
        }
    }
    Err(Errno::WOULDBLOCK.into())
}

#[expect(
    clippy::disallowed_methods,
    reason = "before anything is served, and nobody tells when a lock is free"
)]
fn nap() {
    std::thread::sleep(Duration::from_millis(10));
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_socket_is_its_owner_s_replaces_a_dead_one_and_goes_with_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("door.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "a dead one");
        let (listener, place) = listen(&path).unwrap();
        assert_eq!(mode(&path), 0o600);
        assert!(UnixStream::connect(&path).is_ok());
        assert!(matches!(listen(&path), Err(SocketError::InUse(_))));
        drop((listener, place));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
    }

    #[test]
    fn what_is_no_socket_stays_and_one_that_took_the_place_does_too() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        fs::write(&path, "mine").unwrap();
        assert!(matches!(listen(&path), Err(SocketError::NoSocket(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
        fs::remove_file(&path).unwrap();
        let (_listener, place) = listen(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "another").unwrap();
        drop(place);
        assert_eq!(fs::read_to_string(&path).unwrap(), "another");
    }

    #[test]
    fn of_many_that_replace_a_dead_socket_one_succeeds() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("door.sock");
        drop(UnixListener::bind(&path).unwrap());
        let made: Vec<_> = std::thread::scope(|scope| {
            let tries: Vec<_> = (0..8).map(|_| scope.spawn(|| listen(&path))).collect();
            tries.into_iter().map(|made| made.join().unwrap()).collect()
        });
        assert_eq!(made.iter().filter(|made| made.is_ok()).count(), 1);
        assert!(UnixStream::connect(&path).is_ok());
    }

    #[test]
    fn a_program_that_accepts_nobody_lives_and_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("door.sock");
        let address = SocketAddrUnix::new(&path).unwrap();
        let stuck = socket().unwrap();
        rustix::net::bind(&stuck, &address).unwrap();
        rustix::net::listen(&stuck, 0).unwrap();
        let mut waiting = Vec::new();
        loop {
            let one_more = socket().unwrap();
            match rustix::net::connect(&one_more, &address) {
                Ok(()) => waiting.push(one_more),
                Err(error) => break assert_eq!(error, Errno::AGAIN),
            }
        }
        assert!(matches!(listen(&path), Err(SocketError::InUse(_))));
    }

    #[test]
    fn a_path_may_be_as_long_as_the_system_has_it() {
        let folder = tempfile::tempdir().unwrap();
        // A long folder and a short name: whatever else is made there must not be what is too long.
        let room = LONGEST_PATH - folder.path().as_os_str().len() - "//x".len();
        let deep = folder.path().join("d".repeat(room));
        fs::create_dir(&deep).unwrap();
        let (_listener, _place) = listen(&deep.join("x")).unwrap();
        assert!(matches!(listen(&deep.join("xy")), Err(SocketError::Make { .. })));
        assert_eq!(fs::read_dir(&deep).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn a_folder_that_is_not_there_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(listen(&folder.path().join("none/x")), Err(SocketError::Make { .. })));
    }
}
