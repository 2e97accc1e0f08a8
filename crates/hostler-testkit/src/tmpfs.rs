//! A small file system of its own, for tests of full disks.

use std::ffi::CString;
use std::io;
use std::path::Path;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::TempDir;

use crate::privilege::private_folder;

/// A tmpfs with a fixed size, mounted in a private folder (0700); unmounted and removed on drop.
#[derive(Debug)]
pub struct Tmpfs {
    folder: TempDir,
}

impl Tmpfs {
    /// Mounts one that holds about `size_bytes` (rounded up to whole pages).
    ///
    /// # Errors
    /// Of mount(2): `PermissionDenied` for everybody but root, and where mounting is forbidden.
    pub fn mount(size_bytes: u64) -> io::Result<Self> {
        let folder = private_folder("hostler-tmpfs-")?;
        let options = CString::new(format!("size={size_bytes},mode=0700")).expect("no NUL in it");
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("hostler-testkit", folder.path(), "tmpfs", flags, options.as_c_str())?;
        Ok(Self { folder })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Tmpfs {
    #[expect(clippy::print_stderr, reason = "a panic here would hide the test's own")]
    fn drop(&mut self) {
        // Detached at once even if somebody still has a file open there.
        if let Err(error) = unmount(self.path(), UnmountFlags::DETACH) {
            eprintln!("failed to unmount {}: {error}", self.path().display());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::ErrorKind;

    use super::*;

    #[test]
    fn it_holds_its_size_and_no_more_and_is_gone_after_the_drop() {
        let mounted = match Tmpfs::mount(256 * 1024) {
            Ok(mounted) => mounted,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
                println!("skipped: mounting is forbidden here");
                return;
            }
        };
        let path = mounted.path().to_owned();
        fs::write(path.join("fits"), vec![1; 128 * 1024]).unwrap();
        let error = fs::write(path.join("too much"), vec![1; 256 * 1024]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        drop(mounted);
        assert!(!path.exists());
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(path.to_str().unwrap()));
    }
}
