//! The host's end of the nursery: asks for keepers, hears of their ends, starts a new nursery when it dies and
//! [`Respawn`] lets it.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};
use tokio::sync::watch;

use super::link::KeeperLink;
use super::nursery_socket::{NurserySocket, Request};
use super::protocol::{NurseryEvent, ProtocolError};
use super::respawn::{NoKeeper, NurseryEnd, Respawn};
use super::{NURSERY_ARGUMENT, is_meant_as_helper};
use crate::sys::clock;
use crate::sys::packet::{self, Wait};

/// The binary that nursery and keepers run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HelperProgram {
    /// This process's own, whose `main` begins with [`run_if_helper`](crate::run_if_helper).
    #[default]
    CurrentExe,
    /// Another one whose `main` does, for instance the installed `hostler`.
    Path(PathBuf),
}

impl HelperProgram {
    fn path(&self) -> PathBuf {
        match self {
            Self::CurrentExe => PathBuf::from("/proc/self/exe"),
            Self::Path(path) => path.clone(),
        }
    }
}

/// A nursery that could not be started.
#[derive(Debug, thiserror::Error)]
pub enum NurseryError {
    /// No socket for it.
    #[error("failed to make the nursery's socket")]
    Socket(#[source] io::Error),
    /// The helper did not start.
    #[error("failed to start the nursery from {program}")]
    Start {
        /// The helper binary.
        program: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// What was started is no nursery.
    #[error(
        "{program} does not do as hostler's helper: it must be the hostler binary, or a program whose main begins with \
         hostler_core::run_if_helper()"
    )]
    NoHelper {
        /// The helper binary.
        program: PathBuf,
        /// What it did instead.
        #[source]
        source: NotReady,
    },
    /// This process is itself a copy that was started to be the nursery: starting another one would never end.
    #[error(
        "this process was started as hostler's helper and did not become it: call hostler_core::run_if_helper() first \
         thing in main"
    )]
    NoHook,
}

/// What a program that should be a nursery did instead of saying that it is ready.
#[derive(Debug, thiserror::Error)]
pub enum NotReady {
    /// It ended.
    #[error("it ended ({0})")]
    Ended(ExitStatus),
    /// It closed its standard input and went on.
    #[error("it closed its standard input")]
    HungUp,
    /// It did nothing.
    #[error("it said nothing for {} s", READY_LIMIT.as_secs())]
    Silent,
    /// It said something else.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// Its socket could not be read.
    #[error(transparent)]
    Socket(#[from] io::Error),
}

/// How long a nursery may take to come up. It takes some milliseconds; a machine that is starved takes longer.
const READY_LIMIT: Duration = Duration::from_secs(10);

/// A running nursery, not yet in use: start it before the program has threads.
#[derive(Debug)]
pub struct Nursery {
    program: HelperProgram,
    socket: OwnedFd,
    child: Child,
}

impl Nursery {
    /// Starts it, and waits until it is up.
    ///
    /// # Errors
    /// [`NurseryError`] when sockets or processes cannot be made, when the helper binary cannot be executed, and when it is
    /// none.
    pub fn start(program: HelperProgram) -> Result<Self, NurseryError> {
        if is_meant_as_helper() {
            return Err(NurseryError::NoHook);
        }
        let (ours, theirs) = packet::pair().map_err(NurseryError::Socket)?;
        let path = program.path();
        #[expect(clippy::disallowed_methods, reason = "the one process that the host starts itself")]
        let mut command = Command::new(&path);
        command.arg0("hostler-nursery").arg(NURSERY_ARGUMENT).env_clear();
        command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
        let spawned = command.spawn();
        // The command holds the nursery's end open, and its end must be seen.
        drop(command);
        let child = match spawned {
            Ok(child) => child,
            Err(source) => return Err(NurseryError::Start { program: path, source }),
        };
        let mut nursery = Self { program, socket: ours, child };
        match nursery.wait_until_ready() {
            Ok(()) => Ok(nursery),
            Err(source) => {
                // One that has ended is not there to be killed.
                let _ = nursery.child.kill();
                let _ = nursery.child.wait();
                Err(NurseryError::NoHelper { program: path, source })
            }
        }
    }

    fn wait_until_ready(&mut self) -> Result<(), NotReady> {
        let deadline = clock::now() + READY_LIMIT;
        let mut buffer = [0; 64];
        loop {
            let left = deadline.saturating_duration_since(clock::now());
            let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
            match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&timeout)) {
                Ok(0) => return Err(NotReady::Silent),
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(io::Error::from(error).into()),
            }
            return match packet::receive(self.socket.as_fd(), &mut buffer, Wait::Never)? {
                Some((len, _)) => match NurseryEvent::decode(&buffer[..len])? {
                    NurseryEvent::Ready => Ok(()),
                    NurseryEvent::KeeperStarted { .. }
                    | NurseryEvent::KeeperFailed { .. }
                    | NurseryEvent::Swept { .. } => Err(ProtocolError::Malformed.into()),
                },
                None => Err(self.end_of_a_silent_one()?),
            };
        }
    }

    /// Its socket is closed: mostly because it ended, which is known a moment later.
    fn end_of_a_silent_one(&mut self) -> io::Result<NotReady> {
        let pid = Pid::from_child(&self.child);
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        let moment = Timespec { tv_sec: 1, tv_nsec: 0 };
        let _ = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&moment));
        Ok(self.child.try_wait()?.map_or(NotReady::HungUp, NotReady::Ended))
    }

    /// Lets it go unused.
    pub(crate) fn dismiss(mut self) {
        // Upon which it ends.
        drop(self.socket);
        let _ = self.child.wait();
    }

    fn take_into_use(mut self, host: Arc<OwnedFd>) -> Result<(Arc<NurserySocket>, Child), NurseryError> {
        let nursery = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty()).ok();
        match NurserySocket::register(self.socket, host, nursery) {
            Ok(socket) => Ok((Arc::new(socket), self.child)),
            Err(error) => {
                // Its socket is closed by now, upon which it ends.
                let _ = self.child.wait();
                Err(NurseryError::Socket(error))
            }
        }
    }
}

/// How often one request may meet a nursery that has just died.
const ASK_ATTEMPTS: usize = 3;

/// Why there is no keeper.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    /// No socket, or no way to send the request.
    #[error("failed to ask the nursery for a keeper")]
    Request(#[from] io::Error),
    /// Nobody to ask.
    #[error(transparent)]
    NoKeeper(#[from] NoKeeper),
}

#[derive(Debug)]
struct Pending {
    /// Which nursery the socket belongs to: one that has died is replaced once.
    generation: u64,
    /// `None` while there is no nursery.
    socket: Option<Arc<NurserySocket>>,
    respawn: Respawn,
    serial: u64,
    /// Keepers that were asked for, until the nursery has answered.
    asked: HashMap<u64, Weak<KeeperLink>>,
    /// Keepers that run, by pid, until the nursery has swept up after them.
    running: HashMap<i32, Weak<KeeperLink>>,
    spare: Option<Arc<KeeperLink>>,
    /// Held by the listening tasks too: closed when the last has ended.
    listening: Arc<watch::Sender<()>>,
}

impl Pending {
    /// There is no nursery any more. Running keepers are left to themselves: they watch the host on their own, but nobody
    /// would sweep up after them.
    fn died(&mut self, how: NurseryEnd) {
        self.socket = None;
        self.respawn.ended(clock::now(), how);
        self.asked.drain().filter_map(|(_, link)| link.upgrade()).for_each(|link| link.never_heard_of());
        self.running.drain().filter_map(|(_, link)| link.upgrade()).for_each(|link| link.without_nursery());
    }
}

/// Where keepers come from.
#[derive(Debug)]
pub(crate) struct NurseryLink {
    program: HelperProgram,
    host: Arc<OwnedFd>,
    pending: Mutex<Pending>,
    /// For the listening tasks, which must not keep the link alive.
    this: Weak<Self>,
}

impl NurseryLink {
    /// Takes a nursery into use; needs a tokio runtime.
    pub(crate) fn open(nursery: Nursery) -> io::Result<Arc<Self>> {
        let host = match pidfd_open(getpid(), PidfdFlags::empty()) {
            Ok(host) => Arc::new(host),
            Err(error) => {
                nursery.dismiss();
                return Err(error.into());
            }
        };
        let program = nursery.program.clone();
        let (socket, child) = nursery.take_into_use(Arc::clone(&host)).map_err(io::Error::other)?;
        let pending = Pending {
            generation: 0,
            socket: Some(Arc::clone(&socket)),
            respawn: Respawn::new(clock::now()),
            serial: 0,
            asked: HashMap::new(),
            running: HashMap::new(),
            spare: None,
            listening: Arc::new(watch::Sender::new(())),
        };
        let listening = Arc::clone(&pending.listening);
        let link = Arc::new_cyclic(|this| Self {
            program,
            host,
            pending: Mutex::new(pending),
            this: Weak::clone(this),
        });
        tokio::spawn(listen(Arc::downgrade(&link), 0, socket, child, listening));
        link.keep_spare();
        Ok(link)
    }

    /// Completes when the nursery has ended and been reaped, after this link was dropped.
    pub(crate) fn ended(&self) -> impl Future<Output = ()> + use<> {
        let mut listening = self.pending.lock().listening.subscribe();
        async move {
            // The sender goes with the last listening task.
            while listening.changed().await.is_ok() {}
        }
    }

    /// The nursery's pid changes when it is replaced; this tells how often that happened.
    pub(crate) fn generation(&self) -> u64 {
        self.pending.lock().generation
    }

    /// A keeper to use at once: its sockets take requests before the process has come up.
    pub(crate) fn keeper(&self) -> Result<Arc<KeeperLink>, AskError> {
        let spare = self.pending.lock().spare.take().filter(|link| link.can_be_asked());
        let link = match spare {
            Some(link) => link,
            None => self.ask()?,
        };
        self.keep_spare();
        Ok(link)
    }

    fn keep_spare(&self) {
        if self.pending.lock().spare.is_some() {
            return;
        }
        // Without a spare the next session merely waits for its keeper to come up; the error will be met there.
        if let Ok(link) = self.ask() {
            let surplus = self.pending.lock().spare.replace(link);
            // Two threads may have found none at the same time.
            if let Some(surplus) = surplus {
                surplus.hang_up();
            }
        }
    }

    fn ask(&self) -> Result<Arc<KeeperLink>, AskError> {
        for _ in 0..ASK_ATTEMPTS {
            let mut pending = self.pending.lock();
            let socket = self.socket(&mut pending)?;
            let (link, spawn, control) = KeeperLink::open()?;
            let serial = pending.serial + 1;
            let Err(error) = socket.ask(Request { serial, spawn, control }) else {
                pending.serial = serial;
                pending.asked.insert(serial, Arc::downgrade(&link));
                return Ok(link);
            };
            // Nobody will ever be at the other end.
            link.hang_up();
            if !packet::means_gone(&error) {
                return Err(error.into());
            }
            pending.died(NurseryEnd::HungUp);
        }
        let pending = self.pending.lock();
        Err(pending.respawn.may_start(clock::now()).err().map_or_else(
            || io::Error::other("the nursery ends as soon as it is started").into(),
            AskError::NoKeeper,
        ))
    }

    /// The way to the nursery; starts another one if there is none and it may be tried.
    fn socket(&self, pending: &mut Pending) -> Result<Arc<NurserySocket>, NoKeeper> {
        if let Some(socket) = &pending.socket {
            return Ok(Arc::clone(socket));
        }
        pending.respawn.may_start(clock::now())?;
        tracing::warn!("there is no nursery, starting another one");
        pending.respawn.starting(clock::now());
        let started = Nursery::start(self.program.clone());
        let (socket, child) = match started.and_then(|nursery| nursery.take_into_use(Arc::clone(&self.host)))
        {
            Ok(in_use) => in_use,
            Err(error) => {
                let cause = NurseryEnd::NotStarted(Arc::new(error));
                pending.respawn.ended(clock::now(), cause.clone());
                let wait = pending.respawn.may_start(clock::now()).err();
                return Err(wait.unwrap_or(NoKeeper::NoNursery { cause, wait: Duration::ZERO }));
            }
        };
        pending.generation += 1;
        pending.socket = Some(Arc::clone(&socket));
        let listening = Arc::clone(&pending.listening);
        let ours = Arc::clone(&socket);
        tokio::spawn(listen(Weak::clone(&self.this), pending.generation, ours, child, listening));
        Ok(socket)
    }

    /// A nursery has ended and was reaped.
    fn has_ended(&self, generation: u64, how: NurseryEnd) {
        let mut pending = self.pending.lock();
        if pending.generation != generation {
            return;
        }
        match pending.socket {
            Some(_) => pending.died(how),
            None => pending.respawn.explain(how),
        }
    }

    /// How long to wait before a nursery is started that nobody has asked for; `None` if none is to be.
    fn next_unasked(&self) -> Option<Duration> {
        let pending = self.pending.lock();
        if pending.socket.is_some() { None } else { pending.respawn.next_unasked(clock::now()) }
    }

    fn handle(&self, event: NurseryEvent, mut fds: packet::Fds) {
        match event {
            // Heard before it was taken into use.
            NurseryEvent::Ready => {}
            NurseryEvent::KeeperStarted { serial, pid } => {
                let mut pending = self.pending.lock();
                let link = pending.asked.remove(&serial);
                if let Some(link) = &link {
                    pending.running.insert(pid, Weak::clone(link));
                }
                drop(pending);
                if let Some(link) = link.and_then(|link| link.upgrade()) {
                    link.started(pid, fds.take());
                }
            }
            NurseryEvent::KeeperFailed { serial, errno } => {
                let link = self.pending.lock().asked.remove(&serial);
                if let Some(link) = link.and_then(|link| link.upgrade()) {
                    link.failed_to_start(errno);
                }
            }
            NurseryEvent::Swept { pid, killed } => {
                tracing::debug!(keeper = pid, killed, "the nursery has swept up after a keeper");
                let link = self.pending.lock().running.remove(&pid);
                if let Some(link) = link.and_then(|link| link.upgrade()) {
                    link.swept();
                }
            }
        }
    }
}

impl Drop for NurseryLink {
    /// The listening tasks hold the sockets as well, so closing them is not enough to be heard.
    fn drop(&mut self) {
        let pending = self.pending.get_mut();
        if let Some(socket) = &pending.socket {
            socket.shut_down();
        }
        if let Some(spare) = pending.spare.take() {
            spare.hang_up();
        }
        // From here on nobody would say that they were swept up after.
        let links = pending.asked.values().chain(pending.running.values());
        links.filter_map(Weak::upgrade).for_each(|link| link.without_nursery());
    }
}

/// Hears the nursery until it dies, reaps it and has it replaced.
async fn listen(
    link: Weak<NurseryLink>,
    generation: u64,
    socket: Arc<NurserySocket>,
    mut child: Child,
    listening: Arc<watch::Sender<()>>,
) {
    let mut buffer = [0_u8; 64];
    loop {
        let Ok(Some((len, fds))) = socket.receive(&mut buffer).await else { break };
        let Some(link) = link.upgrade() else { break };
        match NurseryEvent::decode(&buffer[..len]) {
            Ok(event) => link.handle(event, fds),
            Err(error) => {
                tracing::error!(%error, "cannot understand the nursery");
                break;
            }
        }
    }
    drop(socket);
    if link.strong_count() > 0 {
        // A nursery in use that closes its socket has ended; one that was not understood is ended here.
        let _ = child.kill();
    }
    // A nursery that was let go waits for its keepers, and they for what is below them: off the event loop.
    let reaped = tokio::task::spawn_blocking(move || child.wait()).await;
    drop(listening);
    let how = reaped.ok().and_then(Result::ok).map_or(NurseryEnd::HungUp, NurseryEnd::Ended);
    if let Some(link) = link.upgrade() {
        tracing::warn!(%how, "the nursery is not there any more");
        link.has_ended(generation, how);
    }
    revive(link).await;
}

/// Has another nursery started as soon as that may be tried, and a few times more while it fails. The next one has a
/// listening task of its own, which does the same when that dies.
async fn revive(link: Weak<NurseryLink>) {
    while let Some(wait) = link.upgrade().and_then(|link| link.next_unasked()) {
        tokio::time::sleep_until((clock::now() + wait).into()).await;
        let Some(link) = link.upgrade() else { return };
        let started = link.socket(&mut link.pending.lock());
        match started {
            Ok(_) => return link.keep_spare(),
            Err(error) => tracing::error!(%error, "cannot start another nursery"),
        }
    }
}
