//! Modes that show what the host gave to its child.

use std::os::unix::ffi::OsStrExt as _;
use std::{env, fs, io};

use rustix::process::{Resource, getpid, getrlimit};

use crate::{Failure, Outcome, sys};

/// Prints what `look` sees. It looks before anything is printed, and prints all at once.
pub(crate) fn print(look: fn() -> io::Result<Vec<u8>>) -> Outcome {
    let text = look().map_err(Failure::of("look at itself"))?;
    sys::say_ready()?;
    sys::write_all(1, &text)?;
    Ok(0)
}

pub(crate) fn environment() -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    for (name, value) in env::vars_os() {
        text.extend([name.as_bytes(), b"=", value.as_bytes(), b"\n"].concat());
    }
    Ok(text)
}

pub(crate) fn descriptors() -> io::Result<Vec<u8>> {
    // The listing itself opens a descriptor; it is closed again, and its link gone, when the targets are read.
    let names = fs::read_dir("/proc/self/fd")?.map(|entry| entry.map(|entry| entry.file_name()));
    let names: Vec<_> = names.collect::<io::Result<_>>()?;
    let mut numbers: Vec<u32> = names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    let mut text = Vec::new();
    for number in numbers {
        if let Ok(target) = fs::read_link(format!("/proc/self/fd/{number}")) {
            text.extend([number.to_string().as_bytes(), b" ", target.as_os_str().as_bytes(), b"\n"].concat());
        }
    }
    Ok(text)
}

pub(crate) fn signals() -> io::Result<Vec<u8>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let mut text = String::new();
    for name in ["SigBlk", "SigIgn", "SigCgt"] {
        let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let value = value.ok_or_else(|| io::Error::other("/proc/self/status has no signal sets"))?;
        text += &format!("{name} {}\n", value.trim());
    }
    Ok(text.into_bytes())
}

pub(crate) fn limits() -> io::Result<Vec<u8>> {
    let limit = getrlimit(Resource::Nofile);
    let show = |value: Option<u64>| value.map_or_else(|| "unlimited".to_owned(), |value| value.to_string());
    Ok(format!("nofile {} {}\n", show(limit.current), show(limit.maximum)).into_bytes())
}

pub(crate) fn ids() -> io::Result<Vec<u8>> {
    let (pid, group, session) = (getpid(), sys::own_group(), sys::own_session());
    let score = fs::read_to_string("/proc/self/oom_score_adj")?;
    let score = score.trim();
    Ok(format!("pid {pid}\npgid {group}\nsid {session}\noom_score_adj {score}\n").into_bytes())
}
