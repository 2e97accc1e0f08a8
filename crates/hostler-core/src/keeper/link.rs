//! The host's end of one keeper: sends requests, hands answers to the processes and requests they belong to, and
//! notices when the keeper is lost.
//!
//! Requests never wait: what the sockets do not take at once is sent by the link's own task. A lost keeper is
//! declared so once: by its pidfd (its sockets may be held open by a child that hangs in exec), by the end of the
//! control socket, or because it did not answer in time and was killed. Its processes, and whoever waits for an answer,
//! are told when the nursery has killed what was left; when it does not say that it has, they are told of the doubt.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::Shutdown;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, oneshot};

use super::outgoing::Packet;
use super::protocol::{Control, KeeperEvent, MAX_PIDS, Pids, SpawnRequest};
use super::receipt::{Doubt, Receipt};
use super::respawn::NoKeeper;
use crate::id::ProcessId;
use crate::lifecycle::ExitStatus;
use crate::sys::clock;
use crate::sys::clone::{StartFailure, Step};
use crate::sys::packet::{self, Fds, Wait};
use crate::sys::reactor;
use crate::sys::signal;
use crate::sys::wait::Usage;

/// How long the nursery may take to sweep up after a lost keeper before its processes are told all the same.
const SWEEP_LIMIT: Duration = Duration::from_secs(5);

/// How long the link's own task may take beyond that.
const LOSS_SLACK: Duration = Duration::from_secs(1);

/// Until what waits is tried again, when descriptors or memory were wanting.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Waits over an error of sending that may pass by itself.
pub(super) async fn unless_it_may_pass(sent: io::Result<()>) -> io::Result<()> {
    match sent {
        Err(error) if packet::may_pass(&error) => {
            tokio::time::sleep_until(clock::after(RETRY_PAUSE).into()).await;
            Ok(())
        }
        sent => sent,
    }
}

/// What a keeper tells one process.
pub(crate) trait KeeperClient: Send + Sync + std::fmt::Debug {
    /// The program executes.
    fn spawned(&self, pid: i32, pidfd: Option<OwnedFd>);
    /// There is no process.
    fn spawn_failed(&self, failure: StartFailure);
    /// The root has ended.
    fn exited(&self, status: ExitStatus, usage: Usage, lingerers: Pids);
    /// The last lingerer has ended.
    fn gone(&self);
    /// There is no keeper, and so no process.
    fn no_keeper(&self, reason: NoKeeper);
    /// The keeper is lost. Everything of the process is dead, unless there is a doubt.
    fn keeper_lost(&self, doubt: Option<Doubt>);
    /// Kills the root by whatever the host holds of it, when there is nobody else who could.
    fn kill_root(&self);
}

#[derive(Debug, Default)]
enum Phase {
    /// In use.
    #[default]
    Up,
    /// The session was closed: once that was answered, the keeper's end is no loss.
    Closing,
    /// Not there any more; what it left behind is being killed, and nobody has been told yet.
    Lost,
    /// Everybody has been told, with this doubt.
    Told(Option<Doubt>),
}

#[derive(Debug)]
struct Sockets {
    spawn: OwnedFd,
    /// Registered for reading alone: a socket that is also watched for room would wake the host for every request
    /// that the keeper takes.
    control: Arc<AsyncFd<OwnedFd>>,
}

#[derive(Debug, Default)]
struct State {
    phase: Phase,
    /// Gone with the keeper: a process that is remembered keeps this link, but no descriptors.
    sockets: Option<Sockets>,
    pid: Option<i32>,
    pidfd: Option<Arc<AsyncFd<OwnedFd>>>,
    spawns: VecDeque<Packet>,
    controls: VecDeque<Packet>,
    clients: HashMap<ProcessId, Arc<dyn KeeperClient>>,
    next_ticket: u64,
    tickets: HashMap<u64, oneshot::Sender<Receipt>>,
    swept: bool,
    /// Why there never was a keeper.
    not_started: Option<NoKeeper>,
    has_nursery: bool,
}

impl State {
    /// Declares the end. Of a session that was closed it is a loss as well: in order it would have been answered first.
    fn lose(&mut self) {
        match self.phase {
            Phase::Up | Phase::Closing => self.phase = Phase::Lost,
            Phase::Lost | Phase::Told(_) => {}
        }
    }

    /// Tells the keeper that there is nothing more to come.
    fn shut_down(&self) {
        if let Some(sockets) = &self.sockets {
            let _ = rustix::net::shutdown(&sockets.spawn, Shutdown::Both);
            let _ = rustix::net::shutdown(sockets.control.get_ref(), Shutdown::Both);
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct KeeperLink {
    state: Mutex<State>,
    /// Something for the task: a queue is no longer empty, the pidfd has come, the end was declared.
    nudge: Notify,
    swept: Notify,
}

/// Stands for the answer to a signal or a stop, see [`KeeperLink::answer`]; dropping it does not take the request back.
#[derive(Debug)]
pub(crate) struct Ticket(oneshot::Receiver<Receipt>);

impl KeeperLink {
    /// Makes the sockets: the link, and the keeper's ends of the spawn and the control socket.
    pub(crate) fn open() -> io::Result<(Arc<Self>, OwnedFd, OwnedFd)> {
        let (spawn, keeper_spawn) = packet::pair()?;
        let (control, keeper_control) = packet::pair()?;
        let control = Arc::new(reactor::register(control, Interest::READABLE)?);
        let sockets = Some(Sockets { spawn, control: Arc::clone(&control) });
        let link = Arc::new(Self {
            state: Mutex::new(State { sockets, has_nursery: true, ..State::default() }),
            nudge: Notify::new(),
            swept: Notify::new(),
        });
        tokio::spawn(Arc::clone(&link).run(control));
        Ok((link, keeper_spawn, keeper_control))
    }

    /// Whether it is worth asking: the kernel knows of an end before the event loop does.
    pub(crate) fn can_be_asked(&self) -> bool {
        let state = self.state.lock();
        let Some(sockets) = &state.sockets else { return false };
        let mut look = [PollFd::new(&sockets.spawn, PollFlags::empty())];
        let has_hung_up = poll(&mut look, Some(&Timespec::default())).is_ok_and(|count| count > 0);
        !has_hung_up && !matches!(state.phase, Phase::Lost | Phase::Told(_))
    }

    /// The keeper's pid, once the nursery has said so.
    pub(crate) fn pid(&self) -> Option<i32> {
        self.state.lock().pid
    }

    /// Sends a request that has no answer of its own.
    pub(crate) fn request(&self, request: &SpawnRequest<'_>) -> io::Result<()> {
        self.push_spawn(Packet::spawn(request, Vec::new())?, None)
    }

    /// Asks for a program; the answers go to `client`, which is known here before the keeper is.
    pub(crate) fn start(
        &self,
        id: ProcessId,
        client: Arc<dyn KeeperClient>,
        request: &SpawnRequest<'_>,
        stdio: [OwnedFd; 3],
    ) -> io::Result<()> {
        self.push_spawn(Packet::spawn(request, stdio.into())?, Some((id, client)))
    }

    /// `BrokenPipe` when the keeper is lost.
    fn push_spawn(
        &self,
        mut packet: Packet,
        client: Option<(ProcessId, Arc<dyn KeeperClient>)>,
    ) -> io::Result<()> {
        let lost = || io::Error::from(io::ErrorKind::BrokenPipe);
        let mut state = self.state.lock();
        if !matches!(state.phase, Phase::Up) {
            return Err(lost());
        }
        if state.spawns.is_empty() {
            let Some(sockets) = &state.sockets else { return Err(lost()) };
            match packet.send(sockets.spawn.as_fd()) {
                Ok(()) => {
                    state.clients.extend(client);
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if packet::means_gone(&error) => return Err(lost()),
                Err(error) => return Err(error),
            }
        }
        state.clients.extend(client);
        state.spawns.push_back(packet);
        drop(state);
        self.nudge.notify_one();
        Ok(())
    }

    /// Sends a control request that is made from its ticket.
    pub(crate) fn ask(&self, request: impl FnOnce(u64) -> Control) -> Ticket {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.state.lock();
        if let Phase::Told(doubt) = state.phase {
            let _ = sender.send(Receipt::after_loss(doubt));
            return Ticket(receiver);
        }
        state.next_ticket += 1;
        let ticket = state.next_ticket;
        if matches!(state.phase, Phase::Lost) {
            state.tickets.insert(ticket, sender);
            return Ticket(receiver);
        }
        let request = request(ticket);
        if matches!(request, Control::Close { .. }) {
            state.phase = Phase::Closing;
        }
        state.tickets.insert(ticket, sender);
        let mut packet = Packet::control(&request);
        let sockets = state.sockets.as_ref().filter(|_| state.controls.is_empty());
        let sent = sockets.is_some_and(|sockets| packet.send(sockets.control.as_fd()).is_ok());
        if !sent {
            // A socket that is broken is found to be so by the task.
            state.controls.push_back(packet);
            drop(state);
            self.nudge.notify_one();
        }
        Ticket(receiver)
    }

    /// The answer, in any case: a keeper that takes longer than `patience` is given up, and the answer is then what is
    /// known of those that it leaves behind.
    pub(crate) async fn answer(&self, ticket: Ticket, patience: Duration) -> Receipt {
        let Ticket(mut answer) = ticket;
        let answered = match tokio::time::timeout(patience, &mut answer).await {
            Ok(answered) => answered,
            Err(_) => {
                self.abandon();
                match tokio::time::timeout(SWEEP_LIMIT + LOSS_SLACK, answer).await {
                    Ok(answered) => answered,
                    Err(_) => return Receipt::after_loss(Some(Doubt::KeeperLost)),
                }
            }
        };
        // Only a runtime that is being shut down drops the link's task, and the sender with it.
        answered.unwrap_or_else(|_| Receipt::after_loss(Some(Doubt::KeeperLost)))
    }

    /// Kills a keeper that does not answer; the nursery then kills what is below it.
    fn abandon(&self) {
        tracing::error!("a keeper does not answer and is given up");
        self.state.lock().lose();
        // The task goes on from there: it kills the keeper, and waits for the nursery to sweep up.
        self.nudge.notify_one();
    }

    /// Lets a keeper go that has no session.
    pub(crate) fn hang_up(&self) {
        let mut state = self.state.lock();
        if matches!(state.phase, Phase::Up) {
            state.phase = Phase::Closing;
        }
        state.shut_down();
    }

    pub(super) fn started(&self, pid: i32, pidfd: Option<OwnedFd>) {
        let pidfd = pidfd.and_then(|fd| reactor::register(fd, Interest::READABLE).ok()).map(Arc::new);
        let mut state = self.state.lock();
        state.pid = Some(pid);
        state.pidfd = pidfd;
        drop(state);
        self.nudge.notify_one();
    }

    pub(super) fn failed_to_start(&self, errno: i32) {
        tracing::error!(error = %io::Error::from_raw_os_error(errno), "a keeper could not be started");
        let mut state = self.state.lock();
        state.lose();
        state.swept = true;
        state.not_started = Some(NoKeeper::NotStarted { errno });
        drop(state);
        self.nudge.notify_one();
        self.swept.notify_one();
    }

    pub(super) fn swept(&self) {
        self.state.lock().swept = true;
        self.swept.notify_one();
    }

    /// The nursery has died with the request for this keeper. Whether it had started one nobody knows; that one ends by
    /// itself.
    pub(super) fn never_heard_of(&self) {
        let mut state = self.state.lock();
        state.lose();
        state.has_nursery = false;
        drop(state);
        self.nudge.notify_one();
        self.swept.notify_one();
    }

    pub(super) fn without_nursery(&self) {
        self.state.lock().has_nursery = false;
        self.swept.notify_one();
    }

    /// The link's task: until the keeper is gone.
    async fn run(self: Arc<Self>, control: Arc<AsyncFd<OwnedFd>>) {
        let mut buffer = vec![0_u8; 3 * (MAX_PIDS * 4 + 64)];
        loop {
            let (pidfd, spawns, controls) = {
                let state = self.state.lock();
                if matches!(state.phase, Phase::Lost | Phase::Told(_)) {
                    break;
                }
                (state.pidfd.clone(), !state.spawns.is_empty(), !state.controls.is_empty())
            };
            let ended = tokio::select! {
                biased;
                received = control.async_io(Interest::READABLE, |fd| {
                    packet::receive(fd.as_fd(), &mut buffer, Wait::Never)
                }) => match received {
                    Ok(Some((len, fds))) => self.hear(&buffer[..len], fds),
                    Ok(None) | Err(_) => true,
                },
                () = ended(pidfd.as_deref()) => true,
                sent = self.drain(Queue::Spawn), if spawns => sent.is_err(),
                sent = self.drain(Queue::Control), if controls => sent.is_err(),
                () = self.nudge.notified() => false,
            };
            if ended {
                break;
            }
        }
        self.hear_the_rest(&control, &mut buffer);
        self.lose().await;
    }

    /// What the keeper said before it ended is still true.
    fn hear_the_rest(&self, control: &AsyncFd<OwnedFd>, buffer: &mut [u8]) {
        while let Ok(Some((len, fds))) = packet::receive(control.as_fd(), buffer, Wait::Never) {
            self.hear(&buffer[..len], fds);
        }
    }

    /// Sends what a full socket had left waiting. What keeps it from that and may pass is no loss.
    async fn drain(&self, queue: Queue) -> io::Result<()> {
        unless_it_may_pass(self.send_waiting(queue).await).await
    }

    /// The socket's descriptor is in the reactor only meanwhile.
    async fn send_waiting(&self, queue: Queue) -> io::Result<()> {
        let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
        let socket = {
            let state = self.state.lock();
            let sockets = state.sockets.as_ref().ok_or_else(gone)?;
            match queue {
                Queue::Spawn => sockets.spawn.try_clone()?,
                Queue::Control => sockets.control.get_ref().try_clone()?,
            }
        };
        let socket = reactor::register(socket, Interest::WRITABLE)?;
        socket
            .async_io(Interest::WRITABLE, |fd| {
                while let Some((id, failure)) = self.send_queued(queue, fd.as_fd())? {
                    if let Some(client) = id.and_then(|id| self.forget(id)) {
                        client.spawn_failed(failure);
                    }
                }
                Ok(())
            })
            .await
    }

    /// Until nothing waits. A packet that cannot be sent, whatever the socket's state, is taken out and returned.
    fn send_queued(
        &self,
        queue: Queue,
        socket: BorrowedFd<'_>,
    ) -> io::Result<Option<(Option<ProcessId>, StartFailure)>> {
        let mut state = self.state.lock();
        let packets = match queue {
            Queue::Spawn => &mut state.spawns,
            Queue::Control => &mut state.controls,
        };
        while let Some(packet) = packets.front_mut() {
            match packet.send(socket) {
                Ok(()) => {
                    packets.pop_front();
                }
                Err(error) => match error.raw_os_error() {
                    Some(errno @ (libc::EMSGSIZE | libc::E2BIG | libc::EINVAL)) => {
                        let id = packets.pop_front().and_then(|packet| packet.id());
                        return Ok(Some((id, StartFailure { step: Step::Clone, errno })));
                    }
                    _ => return Err(error),
                },
            }
        }
        Ok(None)
    }

    /// Says whether the link is beyond use.
    fn hear(&self, packet: &[u8], mut fds: Fds) -> bool {
        match KeeperEvent::decode(packet) {
            Ok(event) => {
                self.dispatch(event, &mut fds);
                false
            }
            Err(error) => {
                tracing::error!(%error, "cannot understand a keeper");
                self.state.lock().lose();
                true
            }
        }
    }

    fn client(&self, id: ProcessId) -> Option<Arc<dyn KeeperClient>> {
        self.state.lock().clients.get(&id).cloned()
    }

    fn forget(&self, id: ProcessId) -> Option<Arc<dyn KeeperClient>> {
        self.state.lock().clients.remove(&id)
    }

    fn dispatch(&self, event: KeeperEvent, fds: &mut Fds) {
        match event {
            KeeperEvent::Spawned { id, pid } => {
                if let Some(client) = self.client(id) {
                    client.spawned(pid, fds.take());
                }
            }
            KeeperEvent::SpawnFailed { id, failure } => {
                if let Some(client) = self.forget(id) {
                    client.spawn_failed(failure);
                }
            }
            KeeperEvent::Exited { id, status, usage, lingerers } => {
                let client = if lingerers.total == 0 { self.forget(id) } else { self.client(id) };
                if let Some(client) = client {
                    client.exited(status, usage, lingerers);
                }
            }
            KeeperEvent::Gone { id } => {
                if let Some(client) = self.forget(id) {
                    client.gone();
                }
            }
            KeeperEvent::Done { ticket, signalled, survivors, unattributed, unseen } => {
                let sender = self.state.lock().tickets.remove(&ticket);
                if let Some(sender) = sender {
                    // Whoever asked may have stopped waiting.
                    let doubt = unseen.map(|errno| Doubt::Unseen { errno });
                    let _ = sender.send(Receipt { signalled, survivors, unattributed, doubt });
                }
            }
        }
    }

    /// Tells everybody, once nothing of the processes can be alive, or nobody can say any more whether it is.
    async fn lose(&self) {
        let nothing_left = {
            let mut state = self.state.lock();
            let closed = matches!(state.phase, Phase::Closing);
            state.lose();
            closed && state.tickets.is_empty() && state.clients.is_empty()
        };
        if !nothing_left {
            self.end_remains();
            // The limit is for a nursery that was stopped or starved; its death ends the wait as well.
            let _ = tokio::time::timeout(SWEEP_LIMIT, self.wait_until_swept()).await;
        }
        let (clients, tickets, not_started, doubt) = {
            let mut state = self.state.lock();
            let doubt = (!nothing_left && !state.swept).then_some(Doubt::KeeperLost);
            state.phase = Phase::Told(doubt);
            state.spawns.clear();
            state.controls.clear();
            state.sockets = None;
            state.pidfd = None;
            let (clients, tickets) = (std::mem::take(&mut state.clients), std::mem::take(&mut state.tickets));
            (clients, tickets, state.not_started.take(), doubt)
        };
        for client in clients.values() {
            if let Some(reason) = &not_started {
                client.no_keeper(reason.clone());
                continue;
            }
            if doubt.is_some() {
                client.kill_root();
            }
            client.keeper_lost(doubt);
        }
        for ticket in tickets.into_values() {
            let _ = ticket.send(Receipt::after_loss(doubt));
        }
    }

    /// A keeper that is lost for another reason than its death must not live on beside its replacement. One that cannot
    /// be killed, since there is no descriptor of it, ends the session by itself.
    fn end_remains(&self) {
        let state = self.state.lock();
        if let Some(pidfd) = &state.pidfd {
            let _ = signal::send_pidfd(pidfd.as_fd(), libc::SIGKILL);
        }
        state.shut_down();
    }

    async fn wait_until_swept(&self) {
        loop {
            {
                let state = self.state.lock();
                if state.swept || !state.has_nursery {
                    return;
                }
            }
            self.swept.notified().await;
        }
    }
}

#[derive(Clone, Copy)]
enum Queue {
    Spawn,
    Control,
}

/// Until the process that the pidfd stands for has ended; never without one.
async fn ended(pidfd: Option<&AsyncFd<OwnedFd>>) {
    match pidfd {
        Some(pidfd) => {
            // An error here is an end as well: the descriptor is ours and valid.
            let _ = pidfd.readable().await;
        }
        None => std::future::pending().await,
    }
}
