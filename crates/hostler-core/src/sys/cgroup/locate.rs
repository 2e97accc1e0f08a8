//! Finding our own cgroup v2 folder, and finding out whether leaves can be made in it.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::files::{DIRECTORY, read_all};
use crate::sys::procfs;

/// The magic number of the cgroup v2 file system, from statfs(2).
const CGROUP2_SUPER_MAGIC: u64 = 0x6367_7270;

/// Why this machine offers no cgroup leaves.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// /proc does not say.
    #[error("failed to read {path}")]
    Proc {
        /// The file.
        path: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// There is no line for version 2 in /proc/self/cgroup.
    #[error("this process is in no cgroup of version 2")]
    NoGroup,
    /// No mount of version 2 is listed in /proc/self/mountinfo.
    #[error("no cgroup file system of version 2 is mounted")]
    NoMount,
    /// Mounts there are, but they show another part of the tree.
    #[error("no mounted cgroup file system shows our own cgroup {group}")]
    OutsideMounts {
        /// Our own cgroup, as /proc/self/cgroup has it.
        group: PathBuf,
    },
    /// The folder cannot be opened.
    #[error("failed to open {path}")]
    Open {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: Errno,
    },
    /// Another file system is mounted over it.
    #[error("{path} is hidden by another mount")]
    Hidden {
        /// The folder.
        path: PathBuf,
    },
    /// The folder does not list this process: names and mounts do not belong together.
    #[error("{path} is not the cgroup of this process")]
    NotOurs {
        /// The folder.
        path: PathBuf,
    },
    /// No folder can be made in it: no rights, mounted read-only, or a limit is reached.
    #[error("failed to make a cgroup in {path}")]
    Create {
        /// The folder in which it would be.
        path: PathBuf,
        /// Why.
        source: Errno,
    },
    /// The kernel is older than 5.14.
    #[error("this kernel has no cgroup.kill")]
    NoKill,
    /// A process can only be moved by who may write `cgroup.procs` at both ends.
    #[error("failed to open cgroup.procs of {path} for writing")]
    Procs {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: Errno,
    },
    /// Our own cgroup is threaded, so processes cannot be put into one below.
    #[error("a cgroup in {path} cannot hold processes: the one above is threaded")]
    Threaded {
        /// The folder in which it would be.
        path: PathBuf,
    },
    /// The one that was made for the probe stays behind.
    #[error("failed to remove the cgroup of the probe from {path}")]
    Remove {
        /// The folder in which it is.
        path: PathBuf,
        /// Why.
        source: Errno,
    },
}

/// One cgroup v2 mount: which part of the tree is seen where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    pub(super) root: PathBuf,
    pub(super) point: PathBuf,
}

/// Opens the folder of our own cgroup.
pub(super) fn own_group() -> Result<(OwnedFd, PathBuf), Unusable> {
    let read = |path| std::fs::read(path).map_err(|source| Unusable::Proc { path, source });
    let group = parse_group(&read("/proc/self/cgroup")?).ok_or(Unusable::NoGroup)?;
    let mounts = parse_mounts(&read("/proc/self/mountinfo")?);
    if mounts.is_empty() {
        return Err(Unusable::NoMount);
    }
    let mut refusal = Unusable::OutsideMounts { group: group.clone() };
    // The latest mount is the one on top.
    for path in mounts.iter().rev().filter_map(|mount| folder(mount, &group)) {
        match open_own(&path) {
            Ok(dir) => return Ok((dir, path)),
            Err(reason) => refusal = reason,
        }
    }
    Err(refusal)
}

/// Our path in version 2, from /proc/self/cgroup: the line without a hierarchy number and controllers.
pub(super) fn parse_group(text: &[u8]) -> Option<PathBuf> {
    let line = text.split(|b| *b == b'\n').find_map(|line| line.strip_prefix(b"0::"))?;
    line.starts_with(b"/").then(|| to_path(line.to_vec()))
}

/// The mounts of version 2 in /proc/self/mountinfo, in its order.
pub(super) fn parse_mounts(text: &[u8]) -> Vec<Mount> {
    text.split(|b| *b == b'\n').filter_map(parse_mount).collect()
}

/// `id parent major:minor root point options optional* - type source options`
fn parse_mount(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|b| *b == b' ');
    let root = unescape(fields.nth(3)?);
    let point = unescape(fields.next()?);
    fields.find(|field| *field == b"-")?;
    (fields.next()? == b"cgroup2").then(|| Mount { root: to_path(root), point: to_path(point) })
}

/// Spaces and the like are written as a backslash and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let code = (*first == b'\\').then(|| octal(tail.get(..3)?)).flatten();
        plain.push(code.unwrap_or(*first));
        rest = if code.is_some() { &tail[3..] } else { tail };
    }
    plain
}

fn octal(digits: &[u8]) -> Option<u8> {
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()
}

fn to_path(bytes: Vec<u8>) -> PathBuf {
    OsString::from_vec(bytes).into()
}

/// Where a mount shows a group, if it does. Names that lead upwards belong to a cgroup namespace that is not ours:
/// what they stand for cannot be told from here.
pub(super) fn folder(mount: &Mount, group: &Path) -> Option<PathBuf> {
    let leads_up = |path: &Path| path.components().any(|part| part == Component::ParentDir);
    if leads_up(group) || leads_up(&mount.root) {
        return None;
    }
    let below = group.strip_prefix(&mount.root).ok()?;
    Some(if below.as_os_str().is_empty() { mount.point.clone() } else { mount.point.join(below) })
}

pub(super) fn open_own(path: &Path) -> Result<OwnedFd, Unusable> {
    let failed = |source| Unusable::Open { path: path.to_owned(), source };
    let dir = rustix::fs::open(path, DIRECTORY, Mode::empty()).map_err(failed)?;
    // A listed mount may lie under another one; making folders there would litter somebody's file system.
    if rustix::fs::fstatfs(&dir).map_err(failed)?.f_type as u64 != CGROUP2_SUPER_MAGIC {
        return Err(Unusable::Hidden { path: path.to_owned() });
    }
    let procs = rustix::fs::openat(&dir, "cgroup.procs", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(failed)?;
    let listed = match read_all(&procs) {
        Err(Errno::OPNOTSUPP) => return Err(Unusable::Threaded { path: path.to_owned() }),
        listed => procfs::parse_pids(&listed.map_err(failed)?),
    };
    if !listed.contains(&rustix::process::getpid().as_raw_nonzero().get()) {
        return Err(Unusable::NotOurs { path: path.to_owned() });
    }
    Ok(dir)
}

/// Makes a folder of this name, looks whether processes can be put into it and killed there, and removes it.
pub(super) fn try_out(own: &OwnedFd, path: &Path, name: &str) -> Result<(), Unusable> {
    let to_create = |source| Unusable::Create { path: path.to_owned(), source };
    rustix::fs::mkdirat(own, name, Mode::from_raw_mode(0o755)).map_err(to_create)?;
    let verdict = inspect(own, path, name);
    match rustix::fs::unlinkat(own, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => verdict,
        Err(source) => verdict.and(Err(Unusable::Remove { path: path.to_owned(), source })),
    }
}

fn inspect(own: &OwnedFd, path: &Path, name: &str) -> Result<(), Unusable> {
    let to_open = |source| Unusable::Open { path: path.join(name), source };
    let probe = rustix::fs::openat(own, name, DIRECTORY, Mode::empty()).map_err(to_open)?;
    let open = |dir, file, access| rustix::fs::openat(dir, file, access | OFlags::CLOEXEC, Mode::empty());
    match open(&probe, "cgroup.kill", OFlags::WRONLY) {
        Ok(_) => {}
        Err(Errno::NOENT) => return Err(Unusable::NoKill),
        Err(source) => return Err(to_open(source)),
    }
    // The kernel asks for both when a process is moved or cloned from one into the other.
    for (dir, path) in [(&probe, path.join(name)), (own, path.to_owned())] {
        open(dir, "cgroup.procs", OFlags::WRONLY).map_err(|source| Unusable::Procs { path, source })?;
    }
    let kind =
        open(&probe, "cgroup.type", OFlags::RDONLY).and_then(|file| read_all(&file)).map_err(to_open)?;
    if kind.trim_ascii() == b"domain" { Ok(()) } else { Err(Unusable::Threaded { path: path.to_owned() }) }
}
