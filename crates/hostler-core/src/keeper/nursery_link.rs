//! The host's end of the nursery: asks for keepers, hears of their ends, starts a new nursery when it dies.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::net::Shutdown;
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use super::NURSERY_ARGUMENT;
use super::link::KeeperLink;
use super::protocol::{NurseryEvent, StartKeeper};
use crate::sys::packet::{self, Wait};
use crate::sys::reactor;

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
}

/// A running nursery, not yet in use: start it before the program has threads.
#[derive(Debug)]
pub struct Nursery {
    program: HelperProgram,
    socket: OwnedFd,
    child: Child,
}

impl Nursery {
    /// Starts it.
    ///
    /// # Errors
    /// [`NurseryError`] when sockets or processes cannot be made, or the helper binary cannot be executed.
    pub fn start(program: HelperProgram) -> Result<Self, NurseryError> {
        let (ours, theirs) = packet::pair().map_err(NurseryError::Socket)?;
        let path = program.path();
        #[expect(clippy::disallowed_methods, reason = "the one process that the host starts itself")]
        let mut command = Command::new(&path);
        command.arg0("hostler-nursery").arg(NURSERY_ARGUMENT).env_clear();
        command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|source| NurseryError::Start { program: path, source })?;
        Ok(Self { program, socket: ours, child })
    }
}

/// How often one request may meet a nursery that has just died.
const ASK_ATTEMPTS: usize = 3;

#[derive(Debug)]
struct Pending {
    /// Which nursery the socket belongs to: one that has died is replaced once.
    generation: u64,
    socket: Arc<AsyncFd<OwnedFd>>,
    serial: u64,
    /// Keepers that were asked for, until the nursery has answered.
    asked: HashMap<u64, Weak<KeeperLink>>,
    /// Keepers that run, by pid, until the nursery has swept up after them.
    running: HashMap<i32, Weak<KeeperLink>>,
    spare: Option<Arc<KeeperLink>>,
    /// Held by the listening tasks too: closed when the last has ended.
    listening: Arc<watch::Sender<()>>,
}

/// Where keepers come from.
#[derive(Debug)]
pub(crate) struct NurseryLink {
    program: HelperProgram,
    host: OwnedFd,
    pending: Mutex<Pending>,
    /// For the listening tasks, which must not keep the link alive.
    this: Weak<Self>,
}

impl NurseryLink {
    /// Takes a nursery into use; needs a tokio runtime.
    pub(crate) fn open(nursery: Nursery) -> io::Result<Arc<Self>> {
        let host = pidfd_open(getpid(), PidfdFlags::empty())?;
        let socket = Arc::new(async_socket(nursery.socket)?);
        let pending = Pending {
            generation: 0,
            socket: Arc::clone(&socket),
            serial: 0,
            asked: HashMap::new(),
            running: HashMap::new(),
            spare: None,
            listening: Arc::new(watch::Sender::new(())),
        };
        let listening = Arc::clone(&pending.listening);
        let link = Arc::new_cyclic(|this| Self {
            program: nursery.program,
            host,
            pending: Mutex::new(pending),
            this: Weak::clone(this),
        });
        tokio::spawn(listen(Arc::downgrade(&link), 0, socket, nursery.child, listening));
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
    pub(crate) fn keeper(&self) -> io::Result<Arc<KeeperLink>> {
        let spare = self.pending.lock().spare.take().filter(|link| !link.is_lost());
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

    fn ask(&self) -> io::Result<Arc<KeeperLink>> {
        for _ in 0..ASK_ATTEMPTS {
            let (link, spawn, control) = KeeperLink::open()?;
            let mut pending = self.pending.lock();
            let (serial, generation) = (pending.serial + 1, pending.generation);
            let fds = [spawn.as_fd(), control.as_fd(), self.host.as_fd()];
            let bytes = StartKeeper { serial }.encode();
            match packet::send(pending.socket.as_fd(), &[IoSlice::new(&bytes)], &fds, Wait::Never) {
                Ok(()) => {
                    pending.serial = serial;
                    pending.asked.insert(serial, Arc::downgrade(&link));
                    return Ok(link);
                }
                Err(error) if is_gone(&error) => {}
                Err(error) => {
                    link.hang_up();
                    return Err(error);
                }
            }
            drop(pending);
            // Nobody will ever be at the other end.
            link.hang_up();
            self.replace(generation)?;
        }
        Err(io::Error::other("the nursery ends as soon as it is started"))
    }

    /// Starts another nursery in place of one that has died. Running keepers are left to themselves: they watch the
    /// host on their own, but nobody would sweep up after them.
    fn replace(&self, generation: u64) -> io::Result<()> {
        let mut pending = self.pending.lock();
        if pending.generation != generation {
            return Ok(());
        }
        tracing::warn!("the nursery has died, starting another one");
        let nursery = Nursery::start(self.program.clone()).map_err(io::Error::other)?;
        let socket = Arc::new(async_socket(nursery.socket)?);
        pending.generation += 1;
        pending.socket = Arc::clone(&socket);
        let listening = Arc::clone(&pending.listening);
        tokio::spawn(listen(Weak::clone(&self.this), pending.generation, socket, nursery.child, listening));
        let asked: Vec<_> = pending.asked.drain().map(|(_, link)| link).collect();
        let running: Vec<_> = pending.running.drain().map(|(_, link)| link).collect();
        drop(pending);
        asked.iter().filter_map(Weak::upgrade).for_each(|link| link.never_heard_of());
        running.iter().filter_map(Weak::upgrade).for_each(|link| link.without_nursery());
        self.keep_spare();
        Ok(())
    }

    fn handle(&self, event: NurseryEvent, mut fds: packet::Fds) {
        match event {
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
        let _ = rustix::net::shutdown(pending.socket.get_ref(), Shutdown::Both);
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
    socket: Arc<AsyncFd<OwnedFd>>,
    mut child: Child,
    listening: Arc<watch::Sender<()>>,
) {
    let mut buffer = [0_u8; 64];
    loop {
        let received =
            socket.async_io(Interest::READABLE, |fd| packet::receive(fd.as_fd(), &mut buffer, Wait::Never));
        let Ok(Some((len, fds))) = received.await else { break };
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
    let _ = tokio::task::spawn_blocking(move || child.wait()).await;
    drop(listening);
    if let Some(link) = link.upgrade()
        && let Err(error) = link.replace(generation)
    {
        tracing::error!(%error, "cannot start another nursery: new sessions will fail");
    }
}

fn async_socket(socket: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    reactor::register(socket, Interest::READABLE)
}

fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::NotConnected
    )
}
