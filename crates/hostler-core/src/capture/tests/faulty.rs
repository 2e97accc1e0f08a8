//! A disk in memory that fails on purpose.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::capture::{Disk, DiskFile};

/// A disk in memory with faults.
#[derive(Debug, Default)]
pub(super) struct FaultyDisk(pub(super) Mutex<Platter>);

#[derive(Debug)]
pub(super) struct Platter {
    /// What the folder shows.
    pub(super) files: BTreeMap<String, Arc<Mutex<Vec<u8>>>>,
    /// Bytes that still fit.
    pub(super) space: u64,
    /// Most bytes that one call moves; every second call is interrupted.
    pub(super) most: usize,
    calls: usize,
    pub(super) read_error: Option<i32>,
    pub(super) open_error: Option<i32>,
    pub(super) writes: usize,
}

impl Default for Platter {
    fn default() -> Self {
        Self {
            files: BTreeMap::new(),
            space: u64::MAX,
            most: usize::MAX,
            calls: 0,
            read_error: None,
            open_error: None,
            writes: 0,
        }
    }
}

impl FaultyDisk {
    pub(super) fn used(&self) -> u64 {
        self.0.lock().files.values().map(|file| file.lock().len() as u64).sum()
    }

    /// Somebody removes all files; who has them open keeps them.
    pub(super) fn unlink_all(&self) {
        self.0.lock().files.clear();
    }

    /// Somebody cuts all files to at most this length.
    pub(super) fn cut_all(&self, len: usize) {
        self.0.lock().files.values().for_each(|file| file.lock().truncate(len));
    }

    pub(super) fn set_space(&self, space: u64) {
        self.0.lock().space = space;
    }
}

#[derive(Debug)]
struct FaultyFile {
    disk: Arc<FaultyDisk>,
    bytes: Arc<Mutex<Vec<u8>>>,
}

#[derive(Debug)]
pub(super) struct Mounted(pub(super) Arc<FaultyDisk>);

impl Disk for Mounted {
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut platter = self.0.0.lock();
        if let Some(error) = platter.open_error {
            return Err(io::Error::from_raw_os_error(error));
        }
        let bytes = Arc::default();
        let old = platter.files.insert(name.to_owned(), Arc::clone(&bytes));
        assert!(old.is_none(), "{name} was there already");
        Ok(Box::new(FaultyFile { disk: Arc::clone(&self.0), bytes }))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut platter = self.0.0.lock();
        // It may have been unlinked already; the real disk says nothing then either.
        if let Some(file) = platter.files.remove(name) {
            let freed = file.lock().len() as u64;
            platter.space = platter.space.saturating_add(freed);
        }
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from("/faulty").join(name)
    }
}

impl DiskFile for FaultyFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let mut platter = self.disk.0.lock();
        platter.calls += 1;
        if platter.most < usize::MAX && platter.calls.is_multiple_of(2) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let mut file = self.bytes.lock();
        let offset = offset as usize;
        assert!(offset <= file.len(), "files are written without gaps");
        // What is written over needs no room.
        let there = (file.len() - offset).min(bytes.len());
        let room = there.saturating_add(usize::try_from(platter.space).unwrap_or(usize::MAX));
        let n = bytes.len().min(platter.most).min(room);
        if n == 0 {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        platter.writes += 1;
        platter.space -= n.saturating_sub(there) as u64;
        let end = file.len().max(offset + n);
        file.resize(end, 0);
        file[offset..offset + n].copy_from_slice(&bytes[..n]);
        Ok(n)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut platter = self.disk.0.lock();
        platter.calls += 1;
        if platter.most < usize::MAX && platter.calls.is_multiple_of(2) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        if let Some(error) = platter.read_error {
            return Err(io::Error::from_raw_os_error(error));
        }
        let file = self.bytes.lock();
        let rest = &file[(offset as usize).min(file.len())..];
        let n = rest.len().min(bytes.len()).min(platter.most);
        bytes[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.bytes.lock().len() as u64)
    }
}
