//! The folder of one session, and the disk that it is to the session's logs.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Inner, remove};
use crate::capture::{Disk, DiskFile, FolderDisk};

/// The folder of one session in its host's folder. Dropping it removes it.
#[derive(Debug)]
pub struct SessionDir(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    host: Arc<Inner>,
    name: String,
    path: PathBuf,
    /// The session is over. A log of it may live on, and must not make the folder again.
    over: AtomicBool,
}

impl SessionDir {
    pub(super) fn new(host: Arc<Inner>, name: String, path: PathBuf) -> Self {
        Self(Arc::new(Shared { host, name, path, over: AtomicBool::new(false) }))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The folder as a place for spool files. While the session lives, a folder that was removed is made again for the
    /// next file.
    pub fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(SessionDisk { folder: FolderDisk::new(self.path()), session: Arc::clone(&self.0) })
    }
}

impl Drop for SessionDir {
    fn drop(&mut self) {
        let Shared { host, name, path, over } = &*self.0;
        // Before the folder is asked for, under whose lock `make_again` looks at it.
        over.store(true, Ordering::Release);
        match remove::tree(host.folder().as_fd(), name) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::warn!(folder = %path.display(), %error, "failed to remove a session folder");
            }
        }
    }
}

#[derive(Debug)]
struct SessionDisk {
    folder: FolderDisk,
    session: Arc<Shared>,
}

impl Disk for SessionDisk {
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        match self.folder.create(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let Shared { host, name: session, over, .. } = &*self.session;
                host.make_again(session, || !over.load(Ordering::Acquire))?;
                self.folder.create(name)
            }
            created => created,
        }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.folder.remove(name)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path(name)
    }
}
