//! The audit: one JSON line for each `proc/*` request that was handled, in a file that is rotated by size.
//!
//! All sessions of a host share one: an [`AuditLog`] is a handle. Noting a request puts its line into a queue and waits for
//! nothing; a thread writes what is in it (`file`), for locks and disks may be slow.
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
//!   memory held is bounded: 4 MiB of entries wait at most. The host goes on in any case.
//! - What was noted is written when the last handle goes, if that takes no longer than two seconds.

mod file;
mod target;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use file::{AuditFile, AuditNews};
use parking_lot::{Condvar, Mutex};
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
    /// There is no thread that would write.
    #[error("failed to start the thread that writes the audit")]
    Thread(#[source] io::Error),
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

/// Bytes of entries that may wait to be written. More are lost, and counted.
const QUEUE_BYTES: usize = 4 << 20;
/// How long the end of the host waits for what was noted last.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The audit of a host; a handle.
#[derive(Clone, Debug)]
pub struct AuditLog(Arc<Handle>);

/// What the handles share: the last one ends the thread.
#[derive(Debug)]
struct Handle(Arc<Channel>);

/// What lies between those who note and the thread that writes.
#[derive(Debug, Default)]
struct Channel {
    queue: Mutex<Queue>,
    /// There is something in the queue, or it was closed.
    news: Condvar,
    /// Everything is written, and the thread has ended.
    done: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    lines: Vec<u8>,
    /// Entries that were taken from it and are being written.
    in_hand: u64,
    /// Entries that found no room.
    refused: u64,
    end: End,
}

/// How far the end has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum End {
    #[default]
    Open,
    /// Nothing more will be noted.
    Closed,
    /// Everything is written that could be.
    Done,
}

impl AuditLog {
    /// An audit whose file is there and open.
    ///
    /// # Errors
    /// [`AuditError::Open`], or [`AuditError::Thread`].
    pub fn open(options: AuditOptions) -> Result<Self, AuditError> {
        let file = AuditFile::open(options)?;
        let channel = Arc::new(Channel::default());
        let writer = Arc::clone(&channel);
        let thread = std::thread::Builder::new().name("audit".to_owned());
        thread.spawn(move || writer.write_to(file)).map_err(AuditError::Thread)?;
        Ok(Self(Arc::new(Handle(channel))))
    }

    /// Notes a request.
    pub fn append(&self, entry: &AuditEntry<'_>) {
        let line = line_of(entry);
        let channel = &self.0.0;
        let mut queue = channel.queue.lock();
        if queue.lines.len() + line.len() > QUEUE_BYTES {
            queue.refused += 1;
            return;
        }
        queue.lines.extend_from_slice(&line);
        drop(queue);
        channel.news.notify_one();
    }
}

fn entries(lines: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', lines).count() as u64
}

fn line_of(entry: &AuditEntry<'_>) -> Vec<u8> {
    let mut line = Vec::new();
    push_json(&mut line, entry);
    line.push(b'\n');
    line
}

impl Channel {
    /// Writes until nothing more will come.
    fn write_to(&self, mut file: AuditFile) {
        let mut refused = 0;
        loop {
            let mut queue = self.queue.lock();
            while queue.lines.is_empty() && queue.end == End::Open {
                self.news.wait(&mut queue);
            }
            let lines = std::mem::take(&mut queue.lines);
            queue.in_hand = entries(&lines);
            let before = std::mem::replace(&mut refused, queue.refused);
            let is_last = queue.end != End::Open;
            drop(queue);
            if refused > before {
                tracing::error!(
                    lost = refused - before,
                    "the audit is written too slowly; entries are missing"
                );
            }
            report(file.append(&lines));
            report(file.flush());
            if is_last {
                break;
            }
        }
        let lost = file.lost() + refused;
        drop(file);
        if lost > 0 {
            tracing::error!(lost, "the audit has ended; entries are missing");
        }
        self.queue.lock().end = End::Done;
        self.done.notify_all();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        queue.end = End::Closed;
        self.0.news.notify_one();
        let has_ended = |queue: &mut Queue| queue.end != End::Done;
        if self.0.done.wait_while_for(&mut queue, has_ended, LAST_WORDS).timed_out() {
            let missing = entries(&queue.lines) + queue.in_hand + queue.refused;
            tracing::error!(
                missing,
                "the audit could not be written to its end in time; so many entries may be missing"
            );
        }
    }
}

fn report(news: Option<AuditNews>) {
    match news {
        None => {}
        Some(AuditNews::Trouble(error)) => {
            tracing::error!(error = &error as &dyn std::error::Error, "the audit is incomplete");
        }
        Some(AuditNews::Recovered { lost }) => {
            tracing::warn!(lost, "the audit is written again; entries are missing");
        }
    }
}

#[cfg(test)]
mod tests;
