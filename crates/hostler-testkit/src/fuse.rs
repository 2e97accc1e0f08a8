//! A file system on which every system call hangs: what executes a program from it stands still in the kernel.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::TempDir;

use crate::privilege::private_folder;

/// A FUSE mount whose server never answers. Whoever waits for it can be killed, and gets an error after the drop.
#[derive(Debug)]
pub struct DeadFuse {
    folder: TempDir,
    /// The server's end. The file system is aborted when it is closed.
    _device: OwnedFd,
}

impl DeadFuse {
    /// Mounts one.
    ///
    /// # Errors
    /// Of open(2) on /dev/fuse and mount(2): for everybody but root, and where there is no FUSE.
    pub fn mount() -> io::Result<Self> {
        let folder = private_folder("hostler-fuse-")?;
        let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let options = CString::new(options).expect("no NUL in it");
        mount("hostler-testkit", folder.path(), "fuse", MountFlags::NOSUID, options.as_c_str())?;
        Ok(Self { folder, _device: device })
    }

    /// A program that never comes to run. Only its name is known; nothing has looked at it.
    pub fn program(&self) -> PathBuf {
        self.folder.path().join("program")
    }
}

impl Drop for DeadFuse {
    #[expect(clippy::print_stderr, reason = "a panic here would hide the test's own")]
    fn drop(&mut self) {
        if let Err(error) = unmount(self.folder.path(), UnmountFlags::DETACH) {
            eprintln!("failed to unmount {}: {error}", self.folder.path().display());
        }
    }
}
