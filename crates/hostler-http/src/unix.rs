//! A socket in the file system, for its owner alone.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

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
    // Clients could not say it, however it is made.
    if path.as_os_str().len() > LONGEST_PATH {
        return Err(fail(Errno::NAMETOOLONG.into()));
    }
    // Two that find the same dead socket must not replace each other's.
    let _lock = lock(folder).map_err(fail)?;
    look(path)?;
    // Made where nobody else can reach it, and moved when its mode is right.
    let nursery =
        folder.join(format!(".{}.{}", std::process::id(), fs::metadata(folder).map_err(fail)?.ino()));
    DirBuilder::new().mode(0o700).create(&nursery).map_err(fail)?;
    let made = make(&nursery.join("s"), path);
    let removed = fs::remove_dir_all(&nursery);
    let made = made.map_err(fail)?;
    removed.map_err(fail)?;
    Ok(made)
}

fn make(first: &Path, path: &Path) -> io::Result<(UnixListener, Place)> {
    let listener = UnixListener::bind(first)?;
    fs::set_permissions(first, Permissions::from_mode(0o600))?;
    let metadata = fs::symlink_metadata(first)?;
    fs::rename(first, path)?;
    listener.set_nonblocking(true)?;
    Ok((listener, Place { path: path.to_owned(), device: metadata.dev(), inode: metadata.ino() }))
}

/// Whether something stands in the way.
fn look(path: &Path) -> Result<(), SocketError> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(SocketError::Make { path: path.to_owned(), source }),
        Ok(found) if !found.file_type().is_socket() => Err(SocketError::NoSocket(path.to_owned())),
        Ok(_) => match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            // Also one that does not let us in, or has too many waiting: it lives.
            Ok(_) | Err(_) => Err(SocketError::InUse(path.to_owned())),
        },
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
    fn a_folder_that_is_not_there_and_a_path_that_is_too_long_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        for path in ["none/x".to_owned(), "y".repeat(200)] {
            assert!(matches!(listen(&folder.path().join(path)), Err(SocketError::Make { .. })));
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
    }
}
