//! The folder on disk of one running host: spool files, artifacts, scratch folders of sessions.
//!
//! Each host process makes one folder of its own, `host-<pid>-<boot id>-<random>`, below a base folder of the user,
//! and holds a lock (flock) on a file in it for as long as it lives; the kernel drops the lock with the host,
//! however that ends. A later host sweeps: it removes the folders whose lock is free.
//!
//! Invariants, each with a test of the same wording:
//! - a folder that cannot be locked is never removed, nor is one without a lock file unless it is empty;
//! - two hosts that start at once do not remove each other's folders: a host whose new folder was swept before it
//!   held the lock makes another one;
//! - removing never follows a symbolic link and never enters another mount;
//! - a base folder that is a link, belongs to somebody else or can be written by others is refused;
//! - a folder that somebody has removed under a living host is made and locked again when it is next needed.

mod forecast;
mod remove;
mod session;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use parking_lot::Mutex;

pub(crate) use session::SessionDir;

pub use forecast::StateForecast;

const LOCK: &str = "lock";
const PREFIX: &str = "host-";
const PRIVATE: Mode = Mode::RWXU;
const FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::RDONLY);
/// How often a host tries again whose new folder a sweeper took for an abandoned one.
const ATTEMPTS: usize = 16;

/// The environment variables that name places, as the caller has found them. Relative and empty ones are ignored.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// `XDG_STATE_HOME`
    pub xdg_state_home: Option<PathBuf>,
    /// `HOME`
    pub home: Option<PathBuf>,
    /// `TMPDIR`; /tmp when it is not set.
    pub tmpdir: Option<PathBuf>,
}

impl Places {
    /// Reads the variables by `var`, for instance [`std::env::var_os`].
    pub fn of(var: impl Fn(&str) -> Option<std::ffi::OsString>) -> Self {
        let path = |name| var(name).map(PathBuf::from);
        Self { xdg_state_home: path("XDG_STATE_HOME"), home: path("HOME"), tmpdir: path("TMPDIR") }
    }
}

/// Why a place cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateDirError {
    /// The base folder cannot be made.
    #[error("failed to make {path}")]
    Make {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The base folder cannot be opened as a folder; a symbolic link is refused here too.
    #[error("failed to open {path} as a folder (a symbolic link is refused)")]
    Open {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The base folder belongs to somebody else.
    #[error("{path} belongs to uid {owner}")]
    Foreign {
        /// Which.
        path: PathBuf,
        /// Whose.
        owner: u32,
    },
    /// The base folder can be written by others.
    #[error("{path} can be written by others (mode {mode:04o})")]
    Exposed {
        /// Which.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// This host's folder below it cannot be made and locked.
    #[error("failed to make and lock a folder in {path}")]
    Claim {
        /// The base folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A session's folder cannot be made.
    #[error("failed to make the session folder {path}")]
    Session {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// What a host keeps on disk, if it can.
#[derive(Debug)]
pub enum StateHome {
    /// This folder.
    Folder(StateDir),
    /// Nothing: no place can be written. Captures say so.
    RingOnly {
        /// What was tried, and why each place was refused.
        refused: Vec<StateDirError>,
    },
}

impl StateHome {
    /// Makes this host's folder: below `configured` when that is given, and there only; otherwise in
    /// `$XDG_STATE_HOME/hostler`, `$HOME/.local/state/hostler` or `$TMPDIR/hostler-<uid>`, the first that works.
    pub fn open(configured: Option<&Path>, places: &Places) -> Self {
        let mut refused = Vec::new();
        for base in candidates(configured, places) {
            match StateDir::below(&base) {
                Ok(folder) => return Self::Folder(folder),
                Err(error) => refused.push(error),
            }
        }
        Self::RingOnly { refused }
    }
}

fn candidates(configured: Option<&Path>, places: &Places) -> Vec<PathBuf> {
    if let Some(path) = configured {
        return vec![path.to_owned()];
    }
    let absolute = |path: &Option<PathBuf>| path.clone().filter(|path| path.is_absolute());
    let uid = rustix::process::geteuid().as_raw();
    let temporary = absolute(&places.tmpdir).unwrap_or_else(|| PathBuf::from("/tmp"));
    [
        absolute(&places.xdg_state_home).map(|path| path.join("hostler")),
        absolute(&places.home).map(|path| path.join(".local/state/hostler")),
        Some(temporary.join(format!("hostler-{uid}"))),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The folder of this host. Dropping it removes it; [`remove`](Self::remove) does so and says what failed.
#[derive(Debug)]
pub struct StateDir {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    base: PathBuf,
    name: String,
    path: PathBuf,
    place: Mutex<Place>,
}

/// The folders as they were last made.
#[derive(Debug)]
struct Place {
    base: Arc<OwnedFd>,
    folder: Arc<OwnedFd>,
    /// Held for its flock.
    _lock: OwnedFd,
    /// The host is done with them: nothing is made again.
    removed: bool,
}

impl Place {
    fn new(base: OwnedFd, folder: OwnedFd, lock: OwnedFd) -> Self {
        Self { base: Arc::new(base), folder: Arc::new(folder), _lock: lock, removed: false }
    }
}

impl StateDir {
    /// Makes and locks a folder for this host below `base`, which is made when it is missing.
    ///
    /// # Errors
    /// When the base folder is refused or cannot be written.
    pub fn below(base: &Path) -> Result<Self, StateDirError> {
        let base_fd = open_base(base)?;
        let claim_error = |source: io::Error| StateDirError::Claim { path: base.to_owned(), source };
        for _ in 0..ATTEMPTS {
            let name = new_name().map_err(claim_error)?;
            if let Some((folder, lock)) = claim(base_fd.as_fd(), &name).map_err(claim_error)? {
                let path = base.join(&name);
                let place = Mutex::new(Place::new(base_fd, folder, lock));
                let inner = Inner { base: base.to_owned(), name, path, place };
                return Ok(Self { inner: Arc::new(inner) });
            }
        }
        Err(claim_error(io::ErrorKind::ResourceBusy.into()))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Makes the folder of a session. `name` is one path component.
    ///
    /// # Errors
    /// When it is there already, when the name is none, or when the disk says no.
    pub fn session(&self, name: &str) -> Result<SessionDir, StateDirError> {
        let path = self.inner.path.join(name);
        let is_name = !name.is_empty() && !name.contains(['/', '\0']) && !matches!(name, "." | ".." | LOCK);
        let made = if is_name {
            match rustix::fs::mkdirat(&*self.inner.folder(), name, PRIVATE) {
                Err(Errno::NOENT) => self.inner.make_again(name, || true),
                made => made.map_err(io::Error::from),
            }
        } else {
            Err(io::ErrorKind::InvalidInput.into())
        };
        match made {
            Ok(()) => Ok(SessionDir::new(Arc::clone(&self.inner), name.to_owned(), path)),
            Err(source) => Err(StateDirError::Session { path, source }),
        }
    }

    /// Removes the folders beside this one whose hosts are gone. May take long when they were large: for a thread
    /// of its own, see [`sweeper`](Self::sweeper).
    pub fn sweep(&self) -> Swept {
        sweep(&self.inner)
    }

    /// The same as a function that can be sent to another thread. It keeps this host's folder locked meanwhile.
    pub fn sweeper(&self) -> impl FnOnce() -> Swept + Send + 'static {
        let inner = Arc::clone(&self.inner);
        move || sweep(&inner)
    }

    /// Removes this host's folder and all that is in it.
    ///
    /// # Errors
    /// The first thing that could not be removed; the next host tries again.
    pub fn remove(self) -> io::Result<()> {
        self.inner.remove()
    }
}

impl Drop for StateDir {
    fn drop(&mut self) {
        if let Err(error) = self.inner.remove() {
            tracing::warn!(folder = %self.inner.path.display(), %error, "failed to remove the state folder");
        }
    }
}

impl Inner {
    fn base(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.place.lock().base)
    }

    fn folder(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.place.lock().folder)
    }

    /// Makes the folder of a session, and this host's if that is gone too, at the paths at which they were. `is_wanted` is
    /// asked once nobody else can make or give up anything.
    fn make_again(&self, session: &str, is_wanted: impl FnOnce() -> bool) -> io::Result<()> {
        let mut place = self.place.lock();
        if place.removed || !is_wanted() {
            return Err(io::ErrorKind::NotFound.into());
        }
        // By its path, with all checks: what was opened before may have been moved, and somebody else be where it was.
        let base = open_base(&self.base).map_err(io::Error::other)?;
        if !is_linked(base.as_fd(), &self.name, place.folder.as_fd())? {
            let claimed = claim(base.as_fd(), &self.name)?;
            let (folder, lock) = claimed.ok_or(io::ErrorKind::AlreadyExists)?;
            tracing::warn!(folder = %self.path.display(), "the state folder was removed; it is made again");
            *place = Place::new(base, folder, lock);
        }
        match rustix::fs::mkdirat(&*place.folder, session, PRIVATE) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn remove(&self) -> io::Result<()> {
        let mut place = self.place.lock();
        place.removed = true;
        match remove_host(place.base.as_fd(), &self.name, place.folder.as_fd()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }
}

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Folders removed whole.
    pub removed: usize,
    /// Folders whose hosts live.
    pub alive: usize,
    /// Folders that could not be locked for another reason, or not be removed.
    pub failed: usize,
}

fn open_base(path: &Path) -> Result<OwnedFd, StateDirError> {
    let make_error = |source: io::Error| StateDirError::Make { path: path.to_owned(), source };
    if !path.is_absolute() {
        return Err(make_error(io::ErrorKind::InvalidInput.into()));
    }
    let mut builder = std::fs::DirBuilder::new();
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match builder.recursive(true).create(path) {
        Ok(()) => {}
        // Something else of this name is there: opening it says what.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(make_error(error)),
    }
    let open_error = |errno: Errno| StateDirError::Open { path: path.to_owned(), source: errno.into() };
    let base = rustix::fs::open(path, FOLDER, Mode::empty()).map_err(open_error)?;
    let stat = rustix::fs::fstat(&base).map_err(open_error)?;
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(StateDirError::Foreign { path: path.to_owned(), owner: stat.st_uid });
    }
    let mode = Mode::from_raw_mode(stat.st_mode);
    if mode.intersects(Mode::WGRP | Mode::WOTH) {
        return Err(StateDirError::Exposed { path: path.to_owned(), mode: mode.as_raw_mode() & 0o7777 });
    }
    Ok(base)
}

fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map_or_else(|_| "unknown".to_owned(), |id| id.trim().to_owned())
}

fn new_name() -> io::Result<String> {
    let mut random = [0; 8];
    getrandom(&mut random, GetRandomFlags::empty())?;
    let boot: String = boot_id().chars().filter(char::is_ascii_alphanumeric).take(8).collect();
    let mut name = format!("{PREFIX}{}-{boot}-", std::process::id());
    for byte in random {
        // Writing to a string does not fail.
        let _ = write!(name, "{byte:02x}");
    }
    Ok(name)
}

/// Makes a folder and its lock. `None`: a sweeper was quicker, and the folder is gone or going.
fn claim(base: BorrowedFd<'_>, name: &str) -> io::Result<Option<(OwnedFd, OwnedFd)>> {
    match rustix::fs::mkdirat(base, name, PRIVATE) {
        Err(Errno::EXIST) => return Ok(None),
        made => made?,
    }
    match lock_new(base, name) {
        Ok(claimed) => Ok(claimed),
        Err(error) => {
            // A disk that makes folders but no files, or no locks: leave nothing behind.
            let _ = remove::tree(base, name);
            Err(error)
        }
    }
}

fn lock_new(base: BorrowedFd<'_>, name: &str) -> io::Result<Option<(OwnedFd, OwnedFd)>> {
    let folder = match rustix::fs::openat(base, name, FOLDER, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        opened => opened?,
    };
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let lock = match rustix::fs::openat(&folder, LOCK, flags, Mode::RUSR | Mode::WUSR) {
        Err(Errno::NOENT) => return Ok(None),
        opened => opened?,
    };
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => return Ok(None),
        locked => locked?,
    }
    if !is_linked(folder.as_fd(), LOCK, lock.as_fd())? || !is_linked(base, name, folder.as_fd())? {
        return Ok(None);
    }
    let mark = format!("pid {}\nboot {}\n", std::process::id(), boot_id());
    if rustix::io::write(&lock, mark.as_bytes())? < mark.len() {
        return Err(io::ErrorKind::StorageFull.into());
    }
    Ok(Some((folder, lock)))
}

/// Whether this name still stands for this file.
fn is_linked(folder: BorrowedFd<'_>, name: &str, file: BorrowedFd<'_>) -> io::Result<bool> {
    let here = rustix::fs::fstat(file)?;
    match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(there) => Ok((here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn sweep(own: &Inner) -> Swept {
    let mut swept = Swept::default();
    let base = own.base();
    let names = match remove::names(base.as_fd()) {
        Ok(names) => names,
        Err(error) => {
            tracing::warn!(%error, "failed to list the folders of earlier hosts");
            return swept;
        }
    };
    for name in names.iter().filter_map(|name| name.to_str().ok()) {
        if !name.starts_with(PREFIX) || name == own.name {
            continue;
        }
        match sweep_one(base.as_fd(), name) {
            Ok(Fate::Removed) => swept.removed += 1,
            Ok(Fate::Alive) => swept.alive += 1,
            Err(error) => {
                swept.failed += 1;
                tracing::warn!(folder = name, %error, "failed to sweep the folder of an earlier host");
            }
        }
    }
    swept
}

enum Fate {
    Removed,
    Alive,
}

fn sweep_one(base: BorrowedFd<'_>, name: &str) -> io::Result<Fate> {
    let folder = match rustix::fs::openat(base, name, FOLDER, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(Fate::Removed),
        opened => opened?,
    };
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let lock = match rustix::fs::openat(&folder, LOCK, flags, Mode::empty()) {
        // Its host died before it made the lock, or is about to make it and will then find its folder gone.
        Err(Errno::NOENT) => {
            return match rustix::fs::unlinkat(base, name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => Ok(Fate::Removed),
                Err(error) => Err(error.into()),
            };
        }
        opened => opened?,
    };
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(Fate::Alive),
        Err(error) => return Err(error.into()),
    }
    // Another sweeper may have removed it between the two calls; a name is never used again, so nothing is amiss.
    match remove_host(base, name, folder.as_fd()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(Fate::Removed),
    }
}

/// Removes a host's folder whose lock the caller holds; the lock file last, so that it is never half there and free.
fn remove_host(base: BorrowedFd<'_>, name: &str, folder: BorrowedFd<'_>) -> io::Result<()> {
    remove::content(folder, Some(LOCK))?;
    match rustix::fs::unlinkat(folder, LOCK, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(rustix::fs::unlinkat(base, name, AtFlags::REMOVEDIR)?)
}
