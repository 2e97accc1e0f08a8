//! One A2E session: carries out what the protocol asks for with the core, and turns what comes back into messages.
//!
//! It knows no transport: items go in, lines come out into a buffer that the transport owns, and [`A2eSession::next`]
//! waits for what the core has to say. Requests are begun in the order of [`A2eSession::handle`]; what takes longer (a
//! start, a blocked write, a kill that waits) is answered when it is done and holds up nothing else.
//!
//! Invariants: the answer to a spawn request comes before the first event of its process; the terminal event of a
//! process is its last; `next` may be dropped at any time and loses nothing.

mod under_way;
mod words;

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use crate::audit::{AuditEntry, AuditLog};
use crate::codec::Item;
use crate::encode::{EventEncoder, Flush, MAX_EVENT_BYTES, Stream};
use crate::protocol::{Connection, KillSignal, SpawnRequest, StdinSource, Step};
use crate::wire::{
    MessageIds, Outcome, ProcId, ProcStatus, Reply, ReqId, SessionId, Timestamp, WriteRefusal, command_share,
};
use hostler_core::sys::clock;
use hostler_core::sys::signal::Signal;
use hostler_core::{
    Chunk, Outputs, Process, ProcessId, Pulled, Session, SpawnSpec, Spool, State, Status, StderrMode,
    StdinMode, Then, WriteError,
};
use under_way::{Asked, Completion, Done, UnderWay};
use words::{fate, kill_reply, pid_of, proc_id, process_id, write_refusal};

/// How long the answer to a kill waits for the end of the process.
const KILL_PATIENCE: Duration = Duration::from_secs(2);
/// How long the end of a process may stay unknown after its pipes were closed by it.
const LAST_BREATH: Duration = Duration::from_millis(200);
/// The most bytes of output that one turn of a process encodes, before others get theirs.
const TURN_BYTES: usize = 64 * 1024;
/// Requests that may be under way at once beyond one start for each process that the session may have: a start may
/// hang for as long as its program's file system likes, and those that do must not keep a kill from being read. A kill is
/// done after two seconds, and whatever is refused at once, so that there is room again without the client's doing.
const MAX_UNDER_WAY: usize = 1024;
/// Writes to one process that may wait at once. What waits for a process may do so for ever, so more are refused, and not
/// left unread: a kill may stand behind them.
const MAX_WAITING_WRITES: usize = 16 * 1024;
/// What the audit says of a request that was still under way when its session was gone.
const UNANSWERED: Outcome = Outcome::Failure(Some("session_ended"));
/// The same for all processes of the session together.
const MAX_WAITING_WRITES_IN_SESSION: usize = 64 * 1024;
/// Between two tries to read back output that the disk would not give.
const READ_RETRY: Duration = Duration::from_millis(200);

/// What a transport has to do after a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Flow {
    /// Go on.
    Continue,
    /// End the session: SIGTERM, SIGKILL after this time.
    Shutdown(Duration),
}

/// What a transport has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Answers and output.
    Everything,
    /// Answers alone, while the client does not read.
    Answers,
}

/// Something that the core has to say.
#[derive(Debug)]
pub struct Event(Inner);

impl Event {
    /// Whether somebody waits for what it has to say.
    pub(crate) fn is_answer(&self) -> bool {
        match self.0 {
            Inner::Done(_) => true,
            Inner::Ready(_) => false,
        }
    }
}

#[derive(Debug)]
enum Inner {
    Done(Box<Done>),
    Ready(Process),
}

#[derive(Debug)]
struct Watched {
    encoder: Box<EventEncoder>,
    reading: Reading,
}

/// Whether the output of a process could be read the last time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    Fine,
    /// It could not, and that has been said.
    Failing,
}

/// See the module.
#[derive(Debug)]
pub struct A2eSession {
    connection: Connection,
    session: Session,
    session_id: SessionId,
    outputs: Outputs,
    ids: MessageIds,
    watched: HashMap<ProcessId, Watched>,
    under_way: UnderWay,
    audit: Option<AuditLog>,
    started: Instant,
    scratch: Vec<u8>,
    max_processes: usize,
}

pub(crate) fn now() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_unix(since_epoch)
}

impl A2eSession {
    /// A session on which nothing was said yet. `seed` is 128 random bits for the ids of messages.
    pub fn new(
        connection: Connection,
        session: Session,
        session_id: SessionId,
        max_processes: usize,
        seed: u128,
        audit: Option<AuditLog>,
    ) -> Self {
        Self {
            connection,
            outputs: session.outputs(),
            session,
            session_id,
            ids: MessageIds::new(seed),
            watched: HashMap::new(),
            under_way: UnderWay::default(),
            audit,
            started: clock::now(),
            scratch: Vec::new(),
            max_processes,
        }
    }

    /// Takes one line of the client's, `bytes` long, and appends what can be answered at once to `out`.
    pub fn handle(&mut self, item: Item<'_>, bytes: usize, out: &mut Vec<u8>) -> Flow {
        let since = clock::now();
        let asked = |req_id: &ReqId, correlation: &str| Asked {
            req_id: req_id.clone(),
            correlation: correlation.to_owned(),
            since,
            input_bytes: bytes as u64,
        };
        match self.connection.handle(item, since - self.started) {
            Step::Reply(reply) => self.answer(&reply, &asked(reply.req_id(), ""), out),
            Step::Spawn(request) => {
                let asked = asked(&request.req_id, "");
                self.spawn(request, asked);
            }
            Step::Write { req_id, proc_id, data, eof } => {
                let asked = asked(&req_id, proc_id.as_str());
                let then = if eof { Then::Close } else { Then::KeepOpen };
                self.write(asked, proc_id, &data, then, out);
            }
            Step::Kill { req_id, proc_id, signal } => {
                let asked = asked(&req_id, proc_id.as_str());
                self.kill(asked, &proc_id, signal, out);
            }
            Step::StatusOne { req_id, proc_id } => {
                let asked = asked(&req_id, proc_id.as_str());
                let reply = match self.find(&proc_id) {
                    Some(process) => Reply::status(req_id, proc_id, fate(&process)),
                    None => Reply::status_unknown(req_id, proc_id),
                };
                self.answer(&reply, &asked, out);
            }
            Step::StatusAll { req_id } => {
                let asked = asked(&req_id, "");
                let reply = Reply::status_all(req_id, self.list(), self.under_way.starts());
                self.answer(&reply, &asked, out);
            }
            Step::Shutdown { grace } => return Flow::Shutdown(grace),
        }
        Flow::Continue
    }

    /// Waits for something to do: answers first, then output if it is wanted. Cancel-safe.
    pub async fn next(&mut self, wanted: Wanted) -> Event {
        tokio::select! {
            biased;
            done = self.under_way.next() => Event(Inner::Done(Box::new(done))),
            process = self.outputs.ready(), if wanted == Wanted::Everything => Event(Inner::Ready(process)),
        }
    }

    /// The same without waiting.
    pub fn try_next(&mut self) -> Option<Event> {
        match self.under_way.try_next() {
            Some(done) => Some(Event(Inner::Done(Box::new(done)))),
            None => self.outputs.try_ready().map(|process| Event(Inner::Ready(process))),
        }
    }

    /// Appends what an event has to say to `out`.
    pub fn take(&mut self, event: Event, out: &mut Vec<u8>) {
        match event.0 {
            Inner::Done(done) => match *done {
                Done { asked: Some(asked), completion } => self.complete(asked, completion, out),
                Done { asked: None, completion: Completion::Readable(process) } => process.requeue(),
                Done { asked: None, completion: _ } => {}
            },
            Inner::Ready(process) => self.pull(&process, out),
        }
    }

    /// Whether requests are not answered yet, or processes are known whose terminal event is not out.
    pub fn has_something_to_say(&self) -> bool {
        self.has_requests_under_way() || !self.watched.is_empty()
    }

    /// Whether requests are not answered yet. All are in the end, once the session is closed.
    pub fn has_requests_under_way(&self) -> bool {
        self.under_way.has_requests()
    }

    /// Whether one more request may be handled now. It becomes true again by itself.
    pub fn has_room(&self) -> bool {
        self.under_way.starts_and_kills() < self.max_processes.saturating_add(MAX_UNDER_WAY)
    }

    /// Its id.
    pub fn id(&self) -> &SessionId {
        &self.session_id
    }

    /// Whether a good handshake was made.
    pub fn is_welcome(&self) -> bool {
        self.connection.is_welcome()
    }

    /// How many processes live, with those that have left something alive behind.
    pub fn live_processes(&self) -> usize {
        self.session.live()
    }

    /// Ids for messages that somebody else says in this session.
    pub(crate) fn lane(&mut self) -> MessageIds {
        self.ids.lane()
    }

    /// A place for what is said, in the session's folder.
    pub(crate) fn spool(&self, capacity: u64) -> Spool {
        self.session.spool("said", capacity)
    }

    /// Ends the session, now; the future waits until nothing of it is left.
    pub fn close(&self, grace: Duration) -> impl Future<Output = ()> + use<> {
        let closing = self.session.close(grace);
        async move {
            let receipt = closing.await;
            if receipt.survivors.total > 0 {
                tracing::error!(pids = ?receipt.survivors.pids, "processes have survived the end of their session");
            }
            if let Some(doubt) = receipt.doubt {
                tracing::error!(%doubt, "the end of a session is not confirmed");
            }
        }
    }

    fn find(&self, proc_id: &ProcId) -> Option<Process> {
        let process = self.session.process(process_id(proc_id)?)?;
        // A program that is being started, or was not, has no id on the wire yet.
        (process.pid().is_some()).then_some(process)
    }

    fn list(&self) -> Vec<ProcStatus> {
        let processes = self.session.processes();
        let share = command_share(processes.len());
        let entry = |process: Process| {
            let Status { id, command, started_at, pid, state, .. } = process.status();
            let pid = u32::try_from(pid?).ok()?;
            let since_epoch = started_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            let started_at = Timestamp::from_unix(since_epoch);
            let command = words::command(&command, share);
            let entry = ProcStatus::new(proc_id(id), command, pid, fate(&process), started_at);
            Some(if matches!(state, State::Lingering(_)) { entry.lingering() } else { entry })
        };
        processes.into_iter().filter_map(entry).collect()
    }

    fn spawn(&mut self, request: SpawnRequest, asked: Asked) {
        let spec = SpawnSpec {
            argv: request.argv.into_iter().map(Into::into).collect(),
            cwd: request.cwd,
            env: request.env.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
            stdin: match request.stdin {
                StdinSource::Pipe => StdinMode::Pipe,
                StdinSource::Null => StdinMode::Null,
            },
            stderr: StderrMode::Separate,
            timeout: request.timeout,
        };
        let spawning = self.session.spawn(spec);
        let lane = self.ids.lane();
        let (events, req_id) = (request.events, request.req_id);
        self.under_way.start(asked, async move {
            let result = spawning.await;
            let proc_id = result.as_ref().map_or(ProcId::new(""), |process| proc_id(process.id()));
            let encoder = Box::new(EventEncoder::new(&proc_id, &req_id, &lane, events));
            Completion::Spawned { encoder, proc_id, result }
        });
    }

    fn write(&mut self, asked: Asked, proc_id: ProcId, data: &str, then: Then, out: &mut Vec<u8>) {
        let Some(process) = self.find(&proc_id) else {
            let reply = Reply::write_refused(asked.req_id.clone(), proc_id, &WriteRefusal::UnknownProc);
            return self.answer(&reply, &asked, out);
        };
        let (pid, id) = (pid_of(&process), process.id());
        if self.under_way.writes_to(id) >= MAX_WAITING_WRITES {
            let refusal = WriteRefusal::TooMany { limit: MAX_WAITING_WRITES };
            return self.answer(&Reply::write_refused(asked.req_id.clone(), proc_id, &refusal), &asked, out);
        }
        if self.under_way.writes() >= MAX_WAITING_WRITES_IN_SESSION {
            let refusal = WriteRefusal::TooManyInSession { limit: MAX_WAITING_WRITES_IN_SESSION };
            return self.answer(&Reply::write_refused(asked.req_id.clone(), proc_id, &refusal), &asked, out);
        }
        let writing = process.write(data.as_bytes(), then);
        if let Some(result) = writing.now().filter(|result| *result != Err(WriteError::ClosedByProcess)) {
            return self.complete(asked, Completion::Written { proc_id, pid, result }, out);
        }
        self.under_way.write(asked, id, async move {
            let mut result = writing.done().await;
            // A process that dies closes its pipes before anybody can hear of its end.
            if result == Err(WriteError::ClosedByProcess)
                && tokio::time::timeout(LAST_BREATH, process.ended()).await.is_ok()
            {
                result = Err(WriteError::Ended);
            }
            Completion::Written { proc_id, pid, result }
        });
    }

    fn kill(&mut self, asked: Asked, proc_id: &ProcId, signal: KillSignal, out: &mut Vec<u8>) {
        let Some(process) = self.find(proc_id) else {
            let reply = Reply::kill_unknown(asked.req_id.clone());
            return self.answer(&reply, &asked, out);
        };
        let signal = match signal {
            KillSignal::Term => Signal::Term,
            KillSignal::Kill => Signal::Kill,
            KillSignal::Int => Signal::Int,
        };
        let signalling = process.signal(signal, KILL_PATIENCE);
        self.under_way.kill(asked, async move { Completion::Killed { process, result: signalling.await } });
    }

    fn complete(&mut self, mut asked: Asked, done: Completion, out: &mut Vec<u8>) {
        match done {
            Completion::Spawned { encoder, proc_id, result } => {
                let req_id = asked.req_id.clone();
                match result {
                    Ok(process) => {
                        asked.correlation = proc_id.as_str().to_owned();
                        self.answer(&Reply::spawned(req_id, proc_id, pid_of(&process)), &asked, out);
                        self.watched.insert(process.id(), Watched { encoder, reading: Reading::Fine });
                        self.outputs.attach(&process);
                    }
                    Err(error) => {
                        let refusal = words::spawn_refusal(error);
                        self.answer(&Reply::spawn_refused(req_id, &refusal), &asked, out);
                    }
                }
            }
            Completion::Written { proc_id, pid, result } => {
                let req_id = asked.req_id.clone();
                let reply = match result {
                    Ok(()) => Reply::written(req_id, proc_id, pid),
                    Err(error) => Reply::write_refused(req_id, proc_id, &write_refusal(error)),
                };
                self.answer(&reply, &asked, out);
            }
            Completion::Killed { process, result } => {
                let reply = kill_reply(asked.req_id.clone(), &process, result);
                self.answer(&reply, &asked, out);
            }
            // Nobody's request.
            Completion::Readable(process) => process.requeue(),
        }
    }

    fn pull(&mut self, process: &Process, out: &mut Vec<u8>) {
        let Some(Watched { encoder, reading }) = self.watched.get_mut(&process.id()) else { return };
        encoder.set_time(now());
        let pulled =
            process.pull(TURN_BYTES, MAX_EVENT_BYTES, &mut self.scratch, |Chunk { stream, bytes, flush }| {
                let stream = match stream {
                    hostler_core::Stream::Stdout => Stream::Stdout,
                    hostler_core::Stream::Stderr => Stream::Stderr,
                };
                let flush = match flush {
                    hostler_core::Flush::Lines => Flush::None,
                    hostler_core::Flush::Piece => Flush::Piece,
                    hostler_core::Flush::End => Flush::End,
                };
                encoder.lines(stream, bytes, flush, out)
            });
        let before =
            std::mem::replace(reading, if pulled.is_ok() { Reading::Fine } else { Reading::Failing });
        if before == Reading::Failing && pulled.is_ok() {
            tracing::warn!("captured output can be read again");
        }
        match pulled {
            Ok(Pulled::More) => process.requeue(),
            Ok(Pulled::Idle) => {}
            Ok(Pulled::Lost { stream, bytes }) => {
                Reply::output_lost(proc_id(process.id()), words::stream_type(stream), bytes).push_line(
                    &mut self.ids,
                    now(),
                    out,
                );
                process.requeue();
            }
            Ok(Pulled::Finished) => {
                if let Some(terminal) = fate(process).terminal() {
                    encoder.terminal(terminal, out);
                }
                self.watched.remove(&process.id());
            }
            Err(error) => {
                // Once, however long it lasts: it is tried again five times a second.
                if before == Reading::Fine {
                    tracing::error!(%error, "captured output cannot be read now, trying again");
                }
                let process = process.clone();
                self.under_way.chore(async move {
                    tokio::time::sleep_until((clock::now() + READ_RETRY).into()).await;
                    Completion::Readable(process)
                });
            }
        }
    }

    fn answer(&mut self, reply: &Reply, asked: &Asked, out: &mut Vec<u8>) {
        let before = out.len();
        let ts = now();
        reply.push_line(&mut self.ids, ts, out);
        if reply.is_about_processes() {
            self.note(asked, reply.outcome(), ts, out.len() - before);
        }
    }

    fn note(&mut self, asked: &Asked, outcome: Outcome, ts: Timestamp, output_bytes: usize) {
        tracing::debug!(
            session = %self.session_id,
            request = %asked.req_id,
            process = asked.correlation.as_str(),
            ?outcome,
            bytes = output_bytes,
            "a request was answered"
        );
        let Some(audit) = &self.audit else { return };
        let entry = AuditEntry {
            ts,
            session_id: &self.session_id,
            req_id: &asked.req_id,
            correlation_id: &asked.correlation,
            outcome,
            duration: clock::now() - asked.since,
            input_bytes: asked.input_bytes,
            output_bytes: output_bytes as u64,
        };
        audit.append(&entry);
    }
}

impl Drop for A2eSession {
    fn drop(&mut self) {
        for asked in self.under_way.unanswered() {
            self.note(&asked, UNANSWERED, now(), 0);
        }
    }
}
