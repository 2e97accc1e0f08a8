//! The audit: one JSON line for each `proc/*` request that was handled, in a file that is rotated by size.
//!
//! It writes with plain calls of a few KiB and reads no clock; who calls it decides on which thread, and calls
//! [`AuditLog::flush`] when there is nothing else to do. A pipe or terminal whose reader is behind is not waited for: what
//! finds no room there is lost, as on a full disk.
//!
//! Invariants:
//! - Entries stand in the order in which they were appended, each whole on a line.
//! - Several hosts may write one file: who looks at its size, rotates it and writes holds its lock (flock), and whoever
//!   gets the lock of a file that was moved away opens the new one. A file that something else moves away is found out too.
//! - Nobody waits long for that lock: entries of a host that does not get it are appended all the same, and nothing is
//!   rotated then.
//! - Files are readable by their owner alone (0600).
//! - An audit that cannot be written at all is an error of its own, before anything is to be noted ([`AuditLog::open`]).
//! - A later error is reported once, until writing works again; entries that could not be written are counted, and the
//!   memory held never exceeds one buffer and one entry. The host goes on in any case.

mod target;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Serialize, Serializer};

use self::target::{Patience, Target};

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
    /// What ties it to other requests: the process that it is about. Empty for a start that failed, for a question about
    /// all processes, and for a request that was refused as it stands.
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
    /// Another program holds the file's lock; entries go on into it, and it is not rotated.
    #[error("failed to lock the audit file {}", .path.display())]
    Lock {
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
    /// Whether the file can be locked and rotated.
    limiting: Health,
    lost: u64,
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
            limiting: Health::Fine,
            lost: 0,
        })
    }

    /// Notes a request.
    pub fn append(&mut self, entry: &AuditEntry<'_>) -> Option<AuditNews> {
        let mut line = Vec::new();
        push_json(&mut line, entry);
        line.push(b'\n');
        self.buffer.extend_from_slice(&line);
        if self.buffer.len() < BUFFER_BYTES {
            return None;
        }
        self.flush()
    }

    /// Writes what is buffered.
    pub fn flush(&mut self) -> Option<AuditNews> {
        if self.buffer.is_empty() {
            return None;
        }
        let (written, limited) = self.write_out();
        let limited = self.limiting.tell(limited);
        match (self.writing.tell(written), limited) {
            (Some(Change::Failed(error)), _) => Some(AuditNews::Trouble(error)),
            (Some(Change::Works), _) => Some(AuditNews::Recovered { lost: self.lost }),
            (None, Some(Change::Failed(error))) => Some(AuditNews::Trouble(error)),
            // Nothing was lost.
            (None, Some(Change::Works) | None) => None,
        }
    }

    /// How many entries could not be written so far.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Writes the buffer and empties it, also when that fails: memory is bounded, and what was lost is counted. Says how
    /// the writing went, and how the locking and rotating.
    fn write_out(&mut self) -> (Result<(), AuditError>, Result<(), AuditError>) {
        let buffer = std::mem::take(&mut self.buffer);
        let (mut rest, mut limited) = (&buffer[..], Ok(()));
        let written = loop {
            if rest.is_empty() {
                break Ok(());
            }
            let (target, locked) = match self.acquire() {
                Ok(acquired) => acquired,
                Err(source) => break Err(AuditError::Open { path: self.options.path.clone(), source }),
            };
            limited = limited.and(locked);
            let fitting = if limited.is_ok() { self.fitting(&target, rest) } else { rest };
            if fitting.is_empty() {
                limited = self.rotate();
                // The lock is given up with the file, which is another one by then if all went well.
                continue;
            }
            let (done, result) = self.write_and_release(target, fitting);
            rest = &rest[done..];
            if let Err(source) = result {
                break Err(AuditError::Write { path: self.options.path.clone(), source });
            }
        };
        self.lost += memchr::memchr_iter(b'\n', rest).count() as u64;
        (written, limited)
    }

    /// The file that is at the path now, and whether it is locked.
    fn acquire(&mut self) -> io::Result<(Target, Result<(), AuditError>)> {
        // Each time round, somebody else has rotated the file meanwhile.
        const ATTEMPTS: usize = 100;
        let path = self.options.path.clone();
        let patience = match self.limiting {
            Health::Fine => Patience::Some,
            Health::Failing => Patience::None,
        };
        let mut target = self.target.take().map_or_else(|| Target::open(&path), Ok)?;
        let mut locked = target.lock(patience);
        for _ in 0..ATTEMPTS {
            if target.is_at(&path) {
                break;
            }
            target = Target::open(&path)?;
            self.line_end = LineEnd::Whole;
            locked = target.lock(patience);
        }
        Ok((target, locked.map_err(|source| AuditError::Lock { path, source })))
    }

    /// As many of the lines as the file takes, at least one if it is empty.
    fn fitting<'l>(&self, target: &Target, lines: &'l [u8]) -> &'l [u8] {
        // What cannot be asked for its length is written, and says then what is wrong.
        let Ok(Some(length)) = target.length() else { return lines };
        let torn = u64::from(self.line_end == LineEnd::Torn);
        let room = self.options.max_bytes.saturating_sub(length + torn);
        if self.options.max_bytes == 0 || lines.len() as u64 <= room {
            return lines;
        }
        // Less than the lines have, which is a usize.
        match memchr::memrchr(b'\n', &lines[..room as usize]) {
            Some(end) => &lines[..=end],
            None if length == 0 => &lines[..=memchr::memchr(b'\n', lines).unwrap_or(lines.len() - 1)],
            None => &[],
        }
    }

    /// Writes lines as far as it goes and says how far; begins a new line first where the last one is torn.
    fn write_and_release(&mut self, mut target: Target, lines: &[u8]) -> (usize, io::Result<()>) {
        if self.line_end == LineEnd::Torn
            && let (_, Err(error)) = target.write(b"\n")
        {
            return (0, Err(error));
        }
        let (done, result) = target.write(lines);
        if let Some(last) = lines[..done].last() {
            self.line_end = if *last == b'\n' { LineEnd::Whole } else { LineEnd::Torn };
        }
        if result.is_ok() {
            target.unlock();
            // A file that refused a write is opened anew: it may have been replaced by then.
            self.target = Some(target);
        }
        (done, result)
    }

    /// Moves the files on by one number, and the current one, whose lock the caller holds, to `path.1`. That comes last:
    /// from then on its lock keeps nobody off.
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
