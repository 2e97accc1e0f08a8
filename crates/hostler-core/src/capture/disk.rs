//! Where spool files lie. The only file of the module that knows a real disk.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::sys::signal::block_sigxfsz;

/// A folder that takes spool files. Names have no slashes.
pub trait Disk: fmt::Debug + Send + Sync {
    /// Makes a file that is not there yet. It is opened this once: who has bytes in it keeps it, so that nothing that
    /// happens to its name or its folder can take them away.
    ///
    /// # Errors
    /// Whatever open(2) says.
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;

    /// Removes such a file.
    ///
    /// # Errors
    /// Whatever unlink(2) says.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Where the file is, for those who open it by themselves.
    fn path(&self, name: &str) -> PathBuf;
}

/// An open spool file.
pub trait DiskFile: fmt::Debug + Send + Sync {
    /// Writes at an offset; may be short.
    ///
    /// # Errors
    /// Whatever pwrite(2) says; `Interrupted` means: again.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;

    /// Reads at an offset; may be short; 0 is the end of the file.
    ///
    /// # Errors
    /// Whatever pread(2) says; `Interrupted` means: again.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;

    /// How long the file is, by its own account.
    ///
    /// # Errors
    /// Whatever fstat(2) says.
    fn size(&self) -> io::Result<u64>;
}

/// A real folder.
#[derive(Debug)]
pub struct FolderDisk {
    folder: PathBuf,
}

impl FolderDisk {
    /// The folder must exist and belong to this host alone: 0700.
    pub fn new(folder: impl AsRef<Path>) -> Self {
        Self { folder: folder.as_ref().to_owned() }
    }
}

impl Disk for FolderDisk {
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let flags = flags | OFlags::NOFOLLOW | OFlags::NOCTTY;
        let file = rustix::fs::open(self.path(name), flags, Mode::RUSR | Mode::WUSR)?;
        Ok(Box::new(RealFile(file)))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match rustix::fs::unlink(self.path(name)) {
            // The session's folder may have gone first.
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(OsStr::new(name))
    }
}

#[derive(Debug)]
struct RealFile(OwnedFd);

impl DiskFile for RealFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        // Past RLIMIT_FSIZE the kernel sends SIGXFSZ to the writing thread; blocked, the write fails with EFBIG.
        block_sigxfsz();
        Ok(rustix::io::pwrite(&self.0, bytes, offset)?)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(rustix::io::pread(&self.0, &mut *bytes, offset)?)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(u64::try_from(rustix::fs::fstat(&self.0)?.st_size).unwrap_or(0))
    }
}

/// Writes everything, or as much as goes. Returns how much went, and what stopped it.
pub(super) fn write_all(
    file: &dyn DiskFile,
    mut bytes: &[u8],
    mut offset: u64,
) -> (usize, Option<io::Error>) {
    let mut written = 0;
    while !bytes.is_empty() {
        match file.write_at(bytes, offset) {
            Ok(0) => return (written, Some(io::ErrorKind::WriteZero.into())),
            Ok(n) => {
                written += n;
                offset += n as u64;
                bytes = &bytes[n..];
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (written, Some(error)),
        }
    }
    (written, None)
}

/// Reads as much as goes into `bytes`. An error or the end of the file counts only when nothing was read before it.
pub(super) fn read_some(file: &dyn DiskFile, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < bytes.len() {
        match file.read_at(&mut bytes[read..], offset + read as u64) {
            Ok(0) if read == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(0) => break,
            Ok(n) => read += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if read == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(read)
}

/// Whether somebody has cut off the end of a file that holds `len` bytes. What is written behind a cut would be read
/// back with zeros before it, so nothing is.
pub(super) fn is_cut(file: &dyn DiskFile, len: u64) -> bool {
    file.size().is_ok_and(|size| size < len)
}

/// Whether a failed read may work later without anybody mending the disk: the machine was short of memory.
pub(super) fn is_passing(error: &io::Error) -> bool {
    let passing = [libc::ENOMEM, libc::EAGAIN];
    error.raw_os_error().is_some_and(|number| passing.contains(&number))
}
