//! The session's own reader: one consumer for the output of all processes of a session.
//!
//! Processes with something new stand in a queue, each at most once; the consumer takes one, pulls what it wants by
//! [`Process::pull`](crate::Process::pull) and puts it back when it left something. Memory is one queue entry a
//! process, whatever they print.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::capture::Stream;
use crate::id::ProcessId;
use crate::process::{Inner, Process};

/// The queue of processes with news. A process has its queue, and the queue has processes: it holds them no longer than
/// the [`Outputs`] lives, or neither would ever go.
#[derive(Debug)]
pub(crate) struct ReadyQueue {
    /// `None` once nobody takes anything from it any more.
    queue: Mutex<Option<VecDeque<Process>>>,
    news: Notify,
}

impl ReadyQueue {
    pub(crate) fn push(&self, process: Process) {
        if let Some(queue) = self.queue.lock().as_mut() {
            queue.push_back(process);
        }
        self.news.notify_one();
    }

    fn pop(&self) -> Option<Process> {
        self.queue.lock().as_mut()?.pop_front()
    }

    fn close(&self) {
        let queued = self.queue.lock().take();
        // The last handles of processes may be among them, and these go without the lock.
        drop(queued);
    }
}

/// Whoever may still read the processes of a session: the session, up to its end, and its readers. When the last of
/// them has gone, a process without a reader will never have one.
#[derive(Debug, Default)]
pub(crate) struct Readership {
    processes: Mutex<BTreeMap<ProcessId, Weak<Inner>>>,
}

impl Readership {
    pub(crate) fn enter(&self, process: &Process) {
        self.processes.lock().insert(process.id(), Arc::downgrade(&process.0));
    }

    pub(crate) fn forget(&self, id: ProcessId) {
        self.processes.lock().remove(&id);
    }

    fn processes(&self) -> Vec<Arc<Inner>> {
        self.processes.lock().values().filter_map(Weak::upgrade).collect()
    }
}

impl Drop for Readership {
    fn drop(&mut self) {
        // Told, not closed here: this may happen while a log is locked, when its waker held the session for a moment.
        self.processes().iter().for_each(|process| process.nobody_will_read());
    }
}

/// The output of all processes of a session, for one consumer that takes it as it comes.
///
/// Dropping it means that nobody will read its processes. What a relay holds of them, and what they still print, is
/// dropped and counted; they run on and are held back no more. To hand a process over, attach it to the other reader
/// first.
///
/// A process with something new stands in a queue, once. Whoever takes it from there pulls until nothing is left, or
/// puts it back with [`Process::requeue`](crate::Process::requeue):
///
/// ```no_run
/// # async fn read(session: hostler_core::Session) -> Result<(), Box<dyn std::error::Error>> {
/// use hostler_core::{Flush, Pulled, SpawnSpec};
///
/// let outputs = session.outputs();
/// outputs.attach(&session.spawn(SpawnSpec::new(["ls", "-l"])).await?);
/// let (turn, longest_line, mut scratch) = (64 << 10, 1 << 20, Vec::new());
/// loop {
///     let process = outputs.ready().await;
///     // How many bytes are taken is the consumer's choice: here whole lines, while more may come.
///     let pulled = process.pull(turn, longest_line, &mut scratch, |chunk| {
///         let taken = match chunk.flush {
///             Flush::Lines => chunk.bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1),
///             Flush::Piece | Flush::End => chunk.bytes.len(),
///         };
///         println!("{:?}: {}", chunk.stream, String::from_utf8_lossy(&chunk.bytes[..taken]));
///         taken
///     })?;
///     match pulled {
///         // Others get their turn first.
///         Pulled::More => process.requeue(),
///         Pulled::Idle => {}
///         Pulled::Lost { stream, bytes } => {
///             println!("{stream:?}: the disk has lost {bytes} bytes here");
///             process.requeue();
///         }
///         Pulled::Finished => break,
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Outputs {
    ready: Arc<ReadyQueue>,
    readership: Arc<Readership>,
}

impl Outputs {
    pub(crate) fn new(readership: Arc<Readership>) -> Self {
        let queue = ReadyQueue { queue: Mutex::new(Some(VecDeque::new())), news: Notify::new() };
        Self { ready: Arc::new(queue), readership }
    }

    /// Subscribes a process: from here on its output waits for this consumer, and for no other that it had.
    pub fn attach(&self, process: &Process) {
        self.readership.enter(process);
        process.attach(&self.ready);
    }

    /// A process with news, without waiting.
    pub fn try_ready(&self) -> Option<Process> {
        loop {
            let process = self.ready.pop()?;
            // One that another reader has taken over is that one's.
            if process.news_taken(&self.ready) {
                return Some(process);
            }
        }
    }

    /// A process with news. Cancel-safe: a dropped wait loses none.
    pub async fn ready(&self) -> Process {
        loop {
            if let Some(process) = self.try_ready() {
                return process;
            }
            self.ready.news.notified().await;
        }
    }
}

impl Drop for Outputs {
    fn drop(&mut self) {
        self.ready.close();
        self.readership.processes().iter().for_each(|process| process.reader_has_gone(&self.ready));
    }
}

/// How much of a stream's unfinished end the consumer must take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// Nothing: more may come, and there is room for it.
    Lines,
    /// As much as can stand alone: there is no room for more until something is taken.
    Piece,
    /// Everything: the stream has ended.
    End,
}

/// Output to take.
#[derive(Debug)]
pub struct Chunk<'a> {
    /// Which stream it is of.
    pub stream: Stream,
    /// The bytes, oldest first, with an unfinished line at the end if there is one.
    pub bytes: &'a [u8],
    /// What to do with the end of it.
    pub flush: Flush,
}

/// What is left after a pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pulled {
    /// More lies there, and the process is in no queue: pull again, or put it back.
    More,
    /// Everything that can be taken now was taken.
    Idle,
    /// Behind what was taken, bytes are missing that waited on a disk, which does not give them back: somebody has cut the
    /// file, or the disk fails. Said at the place where they are missing; pull again for what is behind it.
    Lost {
        /// Which stream they are of.
        stream: Stream,
        /// How many.
        bytes: u64,
    },
    /// All output was taken and the process has ended; said once.
    Finished,
}
