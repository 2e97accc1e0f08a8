//! The requests that are being carried out and are not answered yet: a task that waits for the core for each of them.
//!
//! It owns those tasks, which end with it, and what an answer and an audit entry need to know of each request. Invariants:
//! a request that was begun comes out once, settled with its [`Completion`] or unanswered at the end; [`UnderWay::next`]
//! may be dropped at any time and loses nothing.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Instant;

use hostler_core::{Process, ProcessId, Signalled, SpawnError, WriteError};
use tokio::task::{Id, JoinError, JoinSet};

use crate::encode::EventEncoder;
use crate::wire::{ProcId, ReqId};

/// A request that is being carried out, for its answer and its audit entry.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) req_id: ReqId,
    pub(super) correlation: String,
    pub(super) since: Instant,
    pub(super) input_bytes: u64,
}

/// What a task has waited for.
#[derive(Debug)]
pub(super) enum Completion {
    Spawned {
        encoder: Box<EventEncoder>,
        proc_id: ProcId,
        result: Result<Process, SpawnError>,
    },
    Written {
        proc_id: ProcId,
        pid: u32,
        result: Result<(), WriteError>,
    },
    Killed {
        process: Process,
        result: Signalled,
    },
    /// The output of this one may be read again.
    Readable(Process),
}

/// What has come of a task: what it was asked for by, unless it was nobody's request.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) asked: Option<Asked>,
    pub(super) completion: Completion,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Start,
    Kill,
    Write(ProcessId),
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct UnderWay {
    tasks: JoinSet<Completion>,
    open: HashMap<Id, (Asked, Kind)>,
    /// What a task that broke off leaves unanswered.
    broken: Vec<Asked>,
    starts: usize,
    kills: usize,
    /// How many, for each process that has any.
    writes: HashMap<ProcessId, usize>,
}

impl UnderWay {
    /// Waits for a start.
    pub(super) fn start(&mut self, asked: Asked, task: impl Future<Output = Completion> + Send + 'static) {
        self.starts += 1;
        let id = self.tasks.spawn(task).id();
        self.open.insert(id, (asked, Kind::Start));
    }

    /// Waits for a kill.
    pub(super) fn kill(&mut self, asked: Asked, task: impl Future<Output = Completion> + Send + 'static) {
        self.kills += 1;
        let id = self.tasks.spawn(task).id();
        self.open.insert(id, (asked, Kind::Kill));
    }

    /// Waits for a write to a process.
    pub(super) fn write(
        &mut self,
        asked: Asked,
        process: ProcessId,
        task: impl Future<Output = Completion> + Send + 'static,
    ) {
        *self.writes.entry(process).or_default() += 1;
        let id = self.tasks.spawn(task).id();
        self.open.insert(id, (asked, Kind::Write(process)));
    }

    /// Waits for what nobody has asked for.
    pub(super) fn chore(&mut self, task: impl Future<Output = Completion> + Send + 'static) {
        self.tasks.spawn(task);
    }

    /// How many starts and kills.
    pub(super) fn starts_and_kills(&self) -> usize {
        self.starts + self.kills
    }

    /// How many starts.
    pub(super) fn starts(&self) -> usize {
        self.starts
    }

    /// How many writes to all processes.
    pub(super) fn writes(&self) -> usize {
        self.open.len() - self.starts_and_kills()
    }

    /// How many writes to this process.
    pub(super) fn writes_to(&self, process: ProcessId) -> usize {
        self.writes.get(&process).copied().unwrap_or(0)
    }

    /// Whether a request waits for its answer.
    pub(super) fn has_requests(&self) -> bool {
        !self.open.is_empty()
    }

    /// Waits for the next that is done, in the order in which they are. Cancel-safe.
    pub(super) async fn next(&mut self) -> Done {
        loop {
            match self.tasks.join_next_with_id().await {
                Some(joined) => {
                    if let Some(done) = self.settle(joined) {
                        return done;
                    }
                }
                None => std::future::pending().await,
            }
        }
    }

    /// The same without waiting.
    pub(super) fn try_next(&mut self) -> Option<Done> {
        loop {
            let joined = self.tasks.try_join_next_with_id()?;
            if let Some(done) = self.settle(joined) {
                return Some(done);
            }
        }
    }

    /// What was never answered, in the order of its arrival.
    pub(super) fn unanswered(&mut self) -> Vec<Asked> {
        let open = self.open.drain().map(|(_, (asked, _))| asked);
        let mut left: Vec<Asked> = open.chain(self.broken.drain(..)).collect();
        left.sort_by_key(|asked| asked.since);
        left
    }

    fn settle(&mut self, joined: Result<(Id, Completion), JoinError>) -> Option<Done> {
        match joined {
            Ok((id, completion)) => Some(Done { asked: self.close(id), completion }),
            Err(error) => {
                tracing::error!(%error, "a request broke off and is not answered");
                let asked = self.close(error.id());
                self.broken.extend(asked);
                None
            }
        }
    }

    fn close(&mut self, id: Id) -> Option<Asked> {
        let (asked, kind) = self.open.remove(&id)?;
        match kind {
            Kind::Start => self.starts -= 1,
            Kind::Kill => self.kills -= 1,
            Kind::Write(process) => {
                if let Entry::Occupied(mut writes) = self.writes.entry(process) {
                    *writes.get_mut() -= 1;
                    if *writes.get() == 0 {
                        writes.remove();
                    }
                }
            }
        }
        Some(asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(req_id: &str) -> Asked {
        let since = hostler_core::sys::clock::now();
        Asked { req_id: ReqId::new(req_id), correlation: String::new(), since, input_bytes: 1 }
    }

    fn written() -> Completion {
        Completion::Written { proc_id: ProcId::new("p"), pid: 1, result: Ok(()) }
    }

    #[tokio::test]
    async fn what_is_done_is_settled_once_and_what_broke_off_or_hangs_is_left_unanswered() {
        let process: ProcessId = "0123456789abcdef0123456789abcdef".parse().unwrap();
        let mut under_way = UnderWay::default();
        under_way.start(asked("hangs"), std::future::pending());
        under_way.write(asked("breaks"), process, async { panic!("on purpose") });
        under_way.write(asked("done"), process, async { written() });
        assert_eq!((under_way.starts(), under_way.writes_to(process), under_way.writes()), (1, 2, 2));
        let done = under_way.next().await;
        assert_eq!(done.asked.map(|asked| asked.req_id), Some(ReqId::new("done")));
        assert_eq!(
            (under_way.starts_and_kills(), under_way.writes_to(process), under_way.writes()),
            (1, 0, 0)
        );
        assert!(under_way.try_next().is_none() && under_way.has_requests());
        let left: Vec<ReqId> = under_way.unanswered().into_iter().map(|asked| asked.req_id).collect();
        assert_eq!(left, [ReqId::new("hangs"), ReqId::new("breaks")]);
        assert!(under_way.unanswered().is_empty() && !under_way.has_requests());
    }
}
