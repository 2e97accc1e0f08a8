//! The audit file: whole lines in, locked and rotated as they are written.
//!
//! It writes with plain calls and reads no clock. A pipe or terminal whose reader is behind is waited for half a second: what
//! finds no room there by then is lost, as on a full disk.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::target::{Patience, Target};
use super::{AuditError, AuditOptions, entries};

/// What the log of the host should say of the audit.
#[derive(Debug)]
#[must_use]
pub(super) enum AuditNews {
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
pub(super) struct AuditFile {
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

impl AuditFile {
    /// A file that is there and open.
    ///
    /// # Errors
    /// [`AuditError::Open`].
    pub(super) fn open(options: AuditOptions) -> Result<Self, AuditError> {
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

    /// Takes whole lines.
    pub(super) fn append(&mut self, lines: &[u8]) -> Option<AuditNews> {
        self.buffer.extend_from_slice(lines);
        if self.buffer.len() < BUFFER_BYTES {
            return None;
        }
        self.flush()
    }

    /// Writes what is buffered.
    pub(super) fn flush(&mut self) -> Option<AuditNews> {
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
    pub(super) fn lost(&self) -> u64 {
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
        self.lost += entries(rest);
        (written, limited)
    }

    /// The file that is at the path now, and whether it is locked.
    fn acquire(&mut self) -> io::Result<(Target, Result<(), AuditError>)> {
        // Each time round, somebody else has rotated the file meanwhile.
        const ATTEMPTS: usize = 100;
        let path = self.options.path.clone();
        let patience = self.limiting.patience();
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
        let patience = self.writing.patience();
        let begun = match self.line_end {
            LineEnd::Torn => target.write(b"\n", patience).1,
            LineEnd::Whole => Ok(()),
        };
        let (done, result) = match begun {
            Ok(()) => target.write(lines, patience),
            Err(error) => (0, Err(error)),
        };
        if let Some(last) = lines[..done].last() {
            self.line_end = if *last == b'\n' { LineEnd::Whole } else { LineEnd::Torn };
        }
        let is_full = result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        if result.is_ok() || is_full {
            target.unlock();
            // A file that refused a write is opened anew: it may have been replaced by then. A pipe that is full is kept open,
            // or its reader would see an end.
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

impl Drop for AuditFile {
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
    /// What has failed is tried again, and not waited for.
    fn patience(self) -> Patience {
        match self {
            Self::Fine => Patience::Some,
            Self::Failing => Patience::None,
        }
    }

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
