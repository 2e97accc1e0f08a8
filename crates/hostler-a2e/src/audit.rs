//! The audit: one JSON line for each `proc/*` request that was handled, in a file that is rotated by size.
//!
//! It writes with plain calls of a few KiB and reads no clock; who calls it decides on which thread, and calls
//! [`AuditLog::flush`] when there is nothing else to do. A pipe or terminal whose reader is behind is not waited for: what
//! finds no room there is lost, as on a full disk.
//!
//! Invariants:
//! - Entries stand in the order in which they were appended, each whole on a line.
//! - Files are readable by their owner alone (0600).
//! - An audit that cannot be written at all is an error of its own, before anything is to be noted ([`AuditLog::open`]).
//! - A later error is reported once, until writing works again; entries that could not be written are counted, and the
//!   memory held never exceeds one buffer and one entry. The host goes on in any case.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use serde::{Serialize, Serializer};

use crate::wire::{Outcome, ReqId, SessionId, Timestamp, push_json};

/// What is noted of a request.
#[derive(Clone, Copy, Debug)]
pub struct AuditEntry<'a> {
    /// When it was answered.
    pub ts: Timestamp,
    /// The session that sent it.
    pub session_id: &'a SessionId,
    /// Its id.
    pub req_id: &'a ReqId,
    /// What ties it to other requests: the process that it is about, or the id of the spawn request.
    pub correlation_id: &'a str,
    /// How it went.
    pub outcome: Outcome,
    /// From its arrival to its answer; written in whole milliseconds.
    pub duration: Duration,
    /// Length of the request's line in bytes.
    pub input_bytes: u64,
    /// Length of the reply's line in bytes.
    pub output_bytes: u64,
}

impl Serialize for AuditEntry<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (success, error_code) = match self.outcome {
            Outcome::Success => (true, None),
            Outcome::Failure(code) => (false, code),
        };
        WireEntry {
            ts: self.ts,
            session_id: self.session_id,
            req_id: self.req_id,
            correlation_id: self.correlation_id,
            success,
            duration_ms: u64::try_from(self.duration.as_millis()).unwrap_or(u64::MAX),
            error_code,
            input_bytes: self.input_bytes,
            output_bytes: self.output_bytes,
        }
        .serialize(serializer)
    }
}

#[derive(Serialize)]
struct WireEntry<'a> {
    ts: Timestamp,
    session_id: &'a SessionId,
    req_id: &'a ReqId,
    correlation_id: &'a str,
    success: bool,
    duration_ms: u64,
    error_code: Option<&'a str>,
    input_bytes: u64,
    output_bytes: u64,
}

/// Where the audit goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditOptions {
    /// The file; older ones are beside it as `path.1` (the newest) to `path.N`.
    pub path: PathBuf,
    /// A file is rotated before it grows beyond this; 0 = never.
    pub max_bytes: u64,
    /// How many older files are kept.
    pub backup_count: u32,
}

/// Why something could not be noted.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The file cannot be opened or made private.
    #[error("failed to open the audit file {}", .path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// An entry cannot be written.
    #[error("failed to write to the audit file {}", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A full file cannot be moved away; entries go on into it.
    #[error("failed to rotate the audit file {}", .path.display())]
    Rotate {
        /// The file that could not be moved.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// What the log of the host should say of the audit.
#[derive(Debug)]
#[must_use]
pub enum AuditNews {
    /// The first error of its kind since it last worked.
    Trouble(AuditError),
    /// Entries can be written again.
    Recovered {
        /// How many could not be written so far.
        lost: u64,
    },
}

/// The audit file. What is buffered is written at the latest on drop.
#[derive(Debug)]
pub struct AuditLog {
    options: AuditOptions,
    target: Option<Target>,
    buffer: Vec<u8>,
    line_end: LineEnd,
    writing: Health,
    rotating: Health,
    lost: u64,
}

#[derive(Debug)]
struct Target {
    file: File,
    kind: TargetKind,
}

#[derive(Clone, Copy, Debug)]
enum TargetKind {
    /// A file of ours, with its length in bytes.
    Regular(u64),
    /// A pipe, a terminal: never rotated, its mode is not ours.
    Other,
}

/// How the file ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineEnd {
    Whole,
    /// A write broke off inside an entry.
    Torn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Fine,
    /// The last try failed, and that has been said.
    Failing,
}

const BUFFER_BYTES: usize = 8 << 10;

impl AuditLog {
    /// A log whose file is there and open.
    ///
    /// # Errors
    /// [`AuditError::Open`].
    pub fn open(options: AuditOptions) -> Result<Self, AuditError> {
        let target = Target::open(&options.path)
            .map_err(|source| AuditError::Open { path: options.path.clone(), source })?;
        Ok(Self {
            options,
            target: Some(target),
            buffer: Vec::new(),
            line_end: LineEnd::Whole,
            writing: Health::Fine,
            rotating: Health::Fine,
            lost: 0,
        })
    }

    /// Notes a request.
    pub fn append(&mut self, entry: &AuditEntry<'_>) -> Option<AuditNews> {
        let mut line = Vec::new();
        push_json(&mut line, entry);
        line.push(b'\n');
        let mut news = None;
        if self.is_full_with(line.len()) {
            news = self.flush();
            let rotated = self.rotate();
            // That it works again is no news: nothing was lost.
            if let Some(Change::Failed(error)) = self.rotating.tell(rotated) {
                news = news.or(Some(AuditNews::Trouble(error)));
            }
        }
        self.buffer.extend_from_slice(&line);
        if self.buffer.len() >= BUFFER_BYTES {
            news = news.or(self.flush());
        }
        news
    }

    /// Writes what is buffered.
    pub fn flush(&mut self) -> Option<AuditNews> {
        if self.buffer.is_empty() {
            return None;
        }
        let written = self.write_out();
        Some(match self.writing.tell(written)? {
            Change::Failed(error) => AuditNews::Trouble(error),
            Change::Works => AuditNews::Recovered { lost: self.lost },
        })
    }

    /// How many entries could not be written so far.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    fn is_full_with(&mut self, more: usize) -> bool {
        let (max, buffered) = (self.options.max_bytes, self.buffer.len() as u64);
        match self.target() {
            Ok(Target { kind: TargetKind::Regular(length), .. }) => {
                let length = *length + buffered;
                max > 0 && length > 0 && length + more as u64 > max
            }
            Ok(Target { kind: TargetKind::Other, .. }) => false,
            // Reported by the write that follows.
            Err(_) => false,
        }
    }

    fn target(&mut self) -> io::Result<&mut Target> {
        let target = match self.target.take() {
            Some(target) => target,
            None => Target::open(&self.options.path)?,
        };
        Ok(self.target.insert(target))
    }

    /// Writes the buffer and empties it, also when that fails: memory is bounded, and what was lost is counted.
    fn write_out(&mut self) -> Result<(), AuditError> {
        let buffer = std::mem::take(&mut self.buffer);
        let path = || self.options.path.clone();
        let (done, result) =
            match (self.line_end, self.target.take().map_or_else(|| Target::open(&path()), Ok)) {
                (_, Err(source)) => (0, Err(AuditError::Open { path: path(), source })),
                (line_end, Ok(mut target)) => {
                    let (done, result) = target.write_after(line_end, &buffer);
                    // A file that refused a write is opened anew: it may have been replaced by then.
                    self.target = result.is_ok().then_some(target);
                    (done, result.map_err(|source| AuditError::Write { path: path(), source }))
                }
            };
        if let Some(last) = buffer[..done].last() {
            self.line_end = if *last == b'\n' { LineEnd::Whole } else { LineEnd::Torn };
        }
        self.lost += memchr::memchr_iter(b'\n', &buffer[done..]).count() as u64;
        result
    }

    /// Moves the files on by one number, and the current one to `path.1`.
    fn rotate(&mut self) -> Result<(), AuditError> {
        let path = self.options.path.clone();
        match self.options.backup_count {
            0 => if_there(fs::remove_file(&path), &path)?,
            keep => {
                for number in (1..keep).rev() {
                    let older = numbered(&path, number);
                    if_there(fs::rename(&older, numbered(&path, number + 1)), &older)?;
                }
                if_there(fs::rename(&path, numbered(&path, 1)), &path)?;
            }
        }
        self.target = None;
        self.line_end = LineEnd::Whole;
        Ok(())
    }
}

impl Drop for AuditLog {
    fn drop(&mut self) {
        // Nobody is left to be told of an error.
        let _ = self.flush();
    }
}

impl Target {
    /// Opens a file for appending and makes it private.
    fn open(path: &Path) -> io::Result<Self> {
        const PRIVATE: u32 = 0o600;
        // Means nothing to a file. A pipe without a reader is an error, and a full one is not waited for.
        let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(PRIVATE).custom_flags(flags.bits().cast_signed());
        let file = options.open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Ok(Self { file, kind: TargetKind::Other });
        }
        if metadata.permissions().mode() & 0o777 != PRIVATE {
            file.set_permissions(Permissions::from_mode(PRIVATE))?;
        }
        Ok(Self { file, kind: TargetKind::Regular(metadata.len()) })
    }

    /// Writes `bytes` as far as it goes and says how far; begins a new line first where the last one is torn.
    fn write_after(&mut self, line_end: LineEnd, bytes: &[u8]) -> (usize, io::Result<()>) {
        if line_end == LineEnd::Torn
            && let (_, Err(error)) = self.write(b"\n")
        {
            return (0, Err(error));
        }
        self.write(bytes)
    }

    fn write(&mut self, bytes: &[u8]) -> (usize, io::Result<()>) {
        let mut done = 0;
        while done < bytes.len() {
            match self.file.write(&bytes[done..]) {
                Ok(0) => return (done, Err(io::ErrorKind::WriteZero.into())),
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return (done, Err(error)),
            }
        }
        if let TargetKind::Regular(length) = &mut self.kind {
            *length += done as u64;
        }
        (done, Ok(()))
    }
}

/// A result that is news.
#[derive(Debug)]
enum Change {
    Failed(AuditError),
    Works,
}

impl Health {
    /// Keeps the result in mind, and says whether it is another one than before.
    fn tell(&mut self, result: Result<(), AuditError>) -> Option<Change> {
        let before = std::mem::replace(self, if result.is_ok() { Self::Fine } else { Self::Failing });
        match (before, result) {
            (Self::Fine, Err(error)) => Some(Change::Failed(error)),
            (Self::Failing, Ok(())) => Some(Change::Works),
            (Self::Fine, Ok(())) | (Self::Failing, Err(_)) => None,
        }
    }
}

/// The name of an older file.
fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    PathBuf::from(name)
}

/// A file that is not there needs no moving.
fn if_there(result: io::Result<()>, path: &Path) -> Result<(), AuditError> {
    match result {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(AuditError::Rotate { path: path.to_owned(), source })
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests;
