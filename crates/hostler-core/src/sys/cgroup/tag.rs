//! Whose folder is it: the name of one host process.

use std::fmt;
use std::str::FromStr;

use crate::sys::procfs;

/// Names one host for ever, on this machine: shown as `<boot>-<pid>-<start>-<nonce>`. In a pid namespace of its own a host
/// may have the pid and the start time of another, so a random number tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostTag {
    /// The first 32 bits of the kernel's boot id.
    pub boot: u32,
    /// The host's pid.
    pub pid: i32,
    /// Its start time in clock ticks since boot.
    pub start_time: u64,
    /// Another one for each host.
    pub nonce: u32,
}

impl HostTag {
    /// The tag of a live process; `None` when there is no such process or no /proc.
    pub fn of_process(pid: i32) -> Option<Self> {
        let stat = procfs::stat(pid).ok()??;
        let mut nonce = [0; 4];
        rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty()).ok()?;
        let nonce = u32::from_ne_bytes(nonce);
        Some(Self { boot: boot_id()?, pid, start_time: stat.start_time, nonce })
    }

    /// A new tag of this process; `None` without /proc.
    pub fn own() -> Option<Self> {
        Self::of_process(rustix::process::getpid().as_raw_nonzero().get())
    }

    /// Whether the process has ended, as far as can be seen from this pid namespace.
    pub(super) fn is_dead(&self) -> bool {
        match boot_id() {
            None => false,
            Some(boot) if boot != self.boot => true,
            // One that cannot be looked at lives.
            Some(_) => procfs::stat(self.pid).is_ok_and(|stat| {
                stat.is_none_or(|stat| stat.is_dead() || stat.start_time != self.start_time)
            }),
        }
    }

    pub(super) fn folder(&self) -> String {
        format!("hostler-{self}")
    }

    /// Reads the tag from the name of a host's or a probe's folder.
    pub(super) fn from_folder(name: &str) -> Option<Self> {
        let tag = name.strip_prefix("hostler-")?;
        tag.split_once(".probe-").map_or(tag, |(tag, _)| tag).parse().ok()
    }
}

fn boot_id() -> Option<u32> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    u32::from_str_radix(text.get(..8)?, 16).ok()
}

impl fmt::Display for HostTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}-{}-{}-{:08x}", self.boot, self.pid, self.start_time, self.nonce)
    }
}

/// Text that is no host tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a host tag is <boot id, 8 hexadecimal digits>-<pid>-<start time>-<nonce, 8 hexadecimal digits>")]
pub struct ParseTagError;

impl FromStr for HostTag {
    type Err = ParseTagError;

    fn from_str(text: &str) -> Result<Self, ParseTagError> {
        let mut parts = text.split('-');
        let (Some(boot), Some(pid), Some(start), Some(nonce), None) =
            (parts.next(), parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(ParseTagError);
        };
        let boot = u32::from_str_radix(boot, 16).map_err(|_| ParseTagError)?;
        let pid = pid.parse().map_err(|_| ParseTagError)?;
        let start_time = start.parse().map_err(|_| ParseTagError)?;
        let nonce = u32::from_str_radix(nonce, 16).map_err(|_| ParseTagError)?;
        let tag = Self { boot, pid, start_time, nonce };
        // One spelling each: folders that only look like ours are left alone.
        if tag.to_string() == text { Ok(tag) } else { Err(ParseTagError) }
    }
}
