//! The keeper's spawning thread: one request at a time, from the spawn socket to a running program.
//!
//! It is the thread that vfork stops until the program executes, which may take for ever (a program on a dead
//! network or FUSE file system); so it does nothing else. It ends when the host closes the spawn socket or breaks the
//! protocol, and when it cannot read what the programs of its session have in common; the keeper then ends too.

use std::ffi::{CString, OsStr, c_char};
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::books::{Books, EarlyExit, Root};
use super::protocol::{Body, KeeperEvent, MAX_PACKET, Open, ProtocolError, Spawn, SpawnRequest};
use super::{PROCESS_ID_VARIABLE, Shared};
use crate::id::ProcessId;
use crate::sys::cgroup::{Leaf, SessionGroup};
use crate::sys::clone::{self, ChildStack, ExecPlan, FailedStart, StartFailure, Started, Step};
use crate::sys::oom::OomScore;
use crate::sys::packet::{self, Fds, Wait};
use crate::sys::procfs::OwnChildren;
use crate::sys::wait;

/// What [`Open`] said, in the forms that starting a program wants.
#[derive(Debug, Default)]
struct Common {
    nofile: Option<(u64, u64)>,
    oom_score: Option<OomScore>,
    cwd: Option<CString>,
    search_path: Vec<u8>,
    env: BaseEnv,
}

/// The thread's own things.
pub(super) struct Spawner {
    requests: OwnedFd,
    shared: Arc<Shared>,
    stack: ChildStack,
    common: Common,
    /// New control groups do not take processes here.
    groups_refuse: bool,
    buffer: Vec<u8>,
}

impl Spawner {
    pub(super) fn new(requests: OwnedFd, shared: Arc<Shared>) -> io::Result<Self> {
        Ok(Self {
            requests,
            shared,
            stack: ChildStack::new()?,
            common: Common::default(),
            groups_refuse: false,
            buffer: vec![0; MAX_PACKET + 1024],
        })
    }

    /// Serves until the host closes its end or breaks the protocol.
    pub(super) fn run(mut self) {
        // It is set once, and nobody else sets it.
        let _ = self.shared.spawners_children.set(OwnChildren::open());
        loop {
            let mut buffer = std::mem::take(&mut self.buffer);
            let Ok(Some((len, fds))) = packet::receive(self.requests.as_fd(), &mut buffer, Wait::Block)
            else {
                return;
            };
            self.shared.busy.store(true, Ordering::SeqCst);
            let served = self.serve(&buffer[..len], fds);
            self.shared.busy.store(false, Ordering::SeqCst);
            if served.is_err() {
                return;
            }
            self.buffer = buffer;
        }
    }

    /// An error is the end: the host breaks the protocol, or the session cannot be known.
    fn serve(&mut self, packet: &[u8], mut fds: Fds) -> io::Result<()> {
        let (id, len) = match SpawnRequest::body(packet).map_err(io::Error::other)? {
            Body::Inline(bytes) => {
                let request = SpawnRequest::decode(bytes).map_err(io::Error::other)?;
                self.carry_out(&request, stdio(&mut fds));
                return Ok(());
            }
            Body::File { id, len } => (id, len),
        };
        let stdio = id.and_then(|_| stdio(&mut fds));
        // It came with the packet, and last: when the kernel found no room for it here, nobody can say what was asked, but who
        // asked.
        let file = fds.take().ok_or_else(|| io::Error::from_raw_os_error(libc::EMFILE));
        match (file.and_then(|file| read_file(file, len)), id) {
            (Ok(bytes), _) => {
                let request = SpawnRequest::decode(&bytes).map_err(io::Error::other)?;
                if request.id() != id {
                    return Err(io::Error::other(ProtocolError::Malformed));
                }
                self.carry_out(&request, stdio);
            }
            (Err(error), Some(id)) => self.refuse(id, error.raw_os_error().ok_or(error)?),
            // Without what its programs have in common there is no session. Nothing has been started in it: whoever asks next
            // gets another keeper.
            (Err(error), None) => return Err(error),
        }
        Ok(())
    }

    fn carry_out(&mut self, request: &SpawnRequest<'_>, stdio: Option<[OwnedFd; 3]>) {
        match (request, stdio) {
            (SpawnRequest::Open(open), _) => self.open(open),
            (SpawnRequest::Spawn(spawn), Some(stdio)) => self.spawn(spawn, stdio),
            // They came with the packet, and the kernel found no room for them here.
            (SpawnRequest::Spawn(spawn), None) => self.refuse(spawn.id, libc::EMFILE),
        }
    }

    fn refuse(&self, id: ProcessId, errno: i32) {
        let failure = StartFailure { step: Step::Stdio, errno };
        let _ = self.send(&KeeperEvent::SpawnFailed { id, failure }.encode(), &[]);
    }

    fn open(&mut self, open: &Open<'_>) {
        self.common = Common {
            nofile: Some(open.nofile),
            // A container may refuse it, and the programs matter more.
            oom_score: Some(open.oom_score_adj)
                .filter(|text| !text.is_empty())
                .and_then(|text| OomScore::new(text).ok()),
            cwd: CString::new(open.cwd).ok().filter(|cwd| !cwd.is_empty()),
            search_path: open.search_path.to_vec(),
            env: BaseEnv::new(open.env),
        };
        if !open.private_folder.is_empty() {
            // A session is opened once.
            let _ = self.shared.private_folder.set(OsStr::from_bytes(open.private_folder).into());
        }
        // A folder that cannot be made only costs the quick way to kill: the walk over descendants does the same.
        if !open.cgroup.is_empty()
            && let Ok(group) = SessionGroup::create(open.cgroup, open.session)
        {
            // A session is opened once.
            let _ = self.shared.group.set(group);
        }
    }

    fn spawn(&mut self, spawn: &Spawn<'_>, stdio: [OwnedFd; 3]) {
        let id = spawn.id;
        let pipes = [inode(stdio[1].as_fd()), inode(stdio[2].as_fd())];
        let group = self.shared.group.get().filter(|_| !self.groups_refuse);
        let leaf = group.and_then(|group| group.leaf(id).ok());
        if !self.begin(Root { id, pipes, leaf: leaf.clone() }) {
            if let Some(leaf) = leaf {
                leaf.release();
            }
            let failure = StartFailure { step: Step::Clone, errno: libc::ECANCELED };
            let _ = self.send(&KeeperEvent::SpawnFailed { id, failure }.encode(), &[]);
            return;
        }
        let result = self.start(spawn, &stdio, leaf.as_deref());
        drop(stdio);
        match result {
            Ok(started) => {
                let event = KeeperEvent::Spawned { id, pid: started.pid }.encode();
                // A host that is gone needs no answer: the watching thread has seen its end. One that is there can do
                // without the descriptor, but not without the word.
                if self.send(&event, &[started.pidfd.as_fd()]).is_err_and(|error| packet::may_pass(&error)) {
                    let _ = self.send(&event, &[]);
                }
                if let Some(exit) = self.settle(|books| write_down(books, started.pid)) {
                    let _ = self.send(&exit, &[]);
                }
            }
            Err(FailedStart { mut failure, zombie }) => {
                self.settle(|books| {
                    books.starting = None;
                    zombie.map(wait::reap);
                    if books.closed && failure.step == Step::Clone {
                        failure.errno = libc::ECANCELED;
                    }
                });
                if let Some(leaf) = leaf {
                    leaf.release();
                }
                let _ = self.send(&KeeperEvent::SpawnFailed { id, failure }.encode(), &[]);
            }
        }
    }

    /// Writes down what is about to be started, unless the session is over.
    fn begin(&self, root: Root) -> bool {
        let mut books = self.shared.books.lock();
        let open = !books.closed;
        if open {
            books.starting = Some(root);
        }
        open
    }

    /// Reaps the child of a start that may go on with another one; not so when the session is over, whose end has killed
    /// it.
    fn bury(&self, zombie: Option<i32>) -> bool {
        let books = self.shared.books.lock();
        zombie.map(wait::reap);
        self.shared.attempt.settle();
        !books.closed
    }

    /// Writes the outcome of a start into the books, after which it is no longer in flight.
    fn settle<R>(&self, write: impl FnOnce(&mut Books) -> R) -> R {
        let (result, look_again) = {
            let mut books = self.shared.books.lock();
            let result = write(&mut books);
            self.shared.attempt.settle();
            (result, std::mem::take(&mut books.look_again))
        };
        if look_again {
            self.shared.wake_watcher();
        }
        result
    }

    fn send(&self, packet: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        packet::send(self.shared.control.as_fd(), &[IoSlice::new(packet)], fds, Wait::Block)
    }

    fn start(
        &mut self,
        spawn: &Spawn<'_>,
        stdio: &[OwnedFd; 3],
        leaf: Option<&Leaf>,
    ) -> Result<Started, FailedStart> {
        let marker = format!("{PROCESS_ID_VARIABLE}={}\0", spawn.id);
        let argv = pointers(spawn.argv);
        let envp = self.common.env.layered(spawn.env, marker.as_bytes());
        let program = argv_first(spawn.argv);
        let candidates = candidates(program, &self.common.search_path);
        let cwd = if spawn.cwd.is_empty() { None } else { CString::new(spawn.cwd).ok() };
        let plan = ExecPlan {
            candidates: &candidates,
            argv: &argv,
            envp: &envp,
            cwd: cwd.as_deref().or(self.common.cwd.as_deref()),
            stdio: [stdio[0].as_fd(), stdio[1].as_fd(), stdio[2].as_fd()],
            nofile: self.common.nofile,
            oom_score: self.common.oom_score.as_ref(),
            cgroup: leaf.map(Leaf::dir),
        };
        match clone::start(&plan, &mut self.stack, &self.shared.attempt) {
            // A group that does not take the process (its folder was removed, or a rule of the kernel's), or in which it is
            // killed at birth: go without.
            Err(FailedStart { failure: StartFailure { step: Step::Clone, errno }, zombie })
                if plan.cgroup.is_some()
                    && (zombie.is_some() || (errno != libc::EAGAIN && errno != libc::ENOMEM)) =>
            {
                leaf.inspect(|leaf| leaf.spoil());
                // What a new group does to a process, every other one will do to the next.
                self.groups_refuse |= leaf.is_some_and(|leaf| leaf.first() == spawn.id);
                if !self.bury(zombie) {
                    let failure = StartFailure { step: Step::Clone, errno: libc::ECANCELED };
                    return Err(FailedStart { failure, zombie: None });
                }
                clone::start(&ExecPlan { cgroup: None, ..plan }, &mut self.stack, &self.shared.attempt)
            }
            result => result,
        }
    }
}

/// A program that executes: among the roots, unless it has ended by now and was reaped. Returns the packet that says
/// so, if it is ready.
fn write_down(books: &mut Books, pid: i32) -> Option<Vec<u8>> {
    if let Some(root) = books.starting.take() {
        books.insert(pid, root);
        return None;
    }
    match std::mem::take(&mut books.early_exit) {
        EarlyExit::Ready(packet) => return Some(packet),
        EarlyExit::Reaped => books.early_exit = EarlyExit::StartSaid,
        // Whoever keeps it is woken.
        EarlyExit::None | EarlyExit::StartSaid | EarlyExit::Kept => {}
    }
    None
}

/// The three of a program; `None` when not all of them are there.
fn stdio(fds: &mut Fds) -> Option<[OwnedFd; 3]> {
    Some([fds.take()?, fds.take()?, fds.take()?])
}

/// An error without a number is the sender's fault, any other may pass.
fn read_file(file: OwnedFd, len: u64) -> io::Result<Vec<u8>> {
    let file = File::from(file);
    if file.metadata()?.len() < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let no_memory = || io::Error::from_raw_os_error(libc::ENOMEM);
    let len = usize::try_from(len).map_err(|_| no_memory())?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| no_memory())?;
    bytes.resize(len, 0);
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

fn inode(fd: BorrowedFd<'_>) -> u64 {
    rustix::fs::fstat(fd).map_or(0, |s| s.st_ino)
}

/// Pointers to NUL-ended strings that stand one after another, with the null pointer that ends such an array.
fn pointers(block: &[u8]) -> Vec<*const c_char> {
    let mut found = Vec::with_capacity(16);
    let mut rest = block;
    while let Some(end) = memchr::memchr(0, rest) {
        found.push(rest.as_ptr().cast());
        rest = &rest[end + 1..];
    }
    found.push(std::ptr::null());
    found
}

fn argv_first(argv: &[u8]) -> &[u8] {
    argv.split(|b| *b == 0).next().unwrap_or_default()
}

fn entries(block: &[u8]) -> impl Iterator<Item = &[u8]> {
    block.split_inclusive(|b| *b == 0)
}

/// Up to the equals sign, or the end of the first entry where that has none.
fn name(block: &[u8]) -> &[u8] {
    memchr::memchr2(b'=', 0, block).map_or(block, |end| &block[..end])
}

/// The environment that programs inherit.
#[derive(Debug, Default)]
struct BaseEnv {
    block: Vec<u8>,
    /// Where the entries begin, but for a process's own, which is set anew for each.
    starts: Vec<usize>,
}

impl BaseEnv {
    fn new(block: &[u8]) -> Self {
        let mut starts = Vec::new();
        let mut at = 0;
        for entry in entries(block) {
            if name(entry) != PROCESS_ID_VARIABLE.as_bytes() {
                starts.push(at);
            }
            at += entry.len();
        }
        Self { block: block.to_vec(), starts }
    }

    /// With `over` and the marker laid over it: a later value replaces an earlier one.
    fn layered(&self, over: &[u8], marker: &[u8]) -> Vec<*const c_char> {
        let mut replaced: Vec<&[u8]> = entries(over).map(name).collect();
        replaced.sort_unstable();
        let mut envp = Vec::with_capacity(self.starts.len() + replaced.len() + 2);
        let base = self.starts.iter().map(|start| &self.block[*start..]);
        // Most programs get no variables of their own: then no name is looked at.
        let kept = base.filter(|rest| replaced.is_empty() || replaced.binary_search(&name(rest)).is_err());
        envp.extend(kept.map(|rest| rest.as_ptr().cast()));
        envp.extend(
            entries(over).filter(|entry| name(entry) != name(marker)).map(|entry| entry.as_ptr().cast()),
        );
        envp.push(marker.as_ptr().cast());
        envp.push(std::ptr::null());
        envp
    }
}

/// Where execvp(3) would look for the program.
fn candidates(program: &[u8], search_path: &[u8]) -> Vec<CString> {
    if program.contains(&b'/') || program.is_empty() {
        return CString::new(program).into_iter().collect();
    }
    let folders = search_path.split(|b| *b == b':');
    folders.filter_map(|folder| join(folder, program)).collect()
}

/// An empty folder in the search path means the working directory.
fn join(folder: &[u8], program: &[u8]) -> Option<CString> {
    let mut path = Vec::with_capacity(folder.len() + program.len() + 2);
    path.extend_from_slice(if folder.is_empty() { b"." } else { folder });
    path.push(b'/');
    path.extend_from_slice(program);
    CString::new(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(pointers: &[*const c_char]) -> Vec<String> {
        let pointers = &pointers[..pointers.len() - 1];
        let text = |p: &*const c_char| {
            #[expect(unsafe_code, reason = "the pointers under test are those that exec would follow")]
            // SAFETY: each points to a NUL-ended string that the test keeps alive.
            unsafe {
                std::ffi::CStr::from_ptr(*p).to_str().unwrap().to_owned()
            }
        };
        pointers.iter().map(text).collect()
    }

    #[test]
    fn env_is_layered_and_the_marker_wins() {
        let check = |base: &[u8], over: &[u8], expected: &[&str]| {
            let base = BaseEnv::new(base);
            assert_eq!(strings(&base.layered(over, b"HOSTLER_PROCESS_ID=new\0")), expected);
        };
        let marker = "HOSTLER_PROCESS_ID=new";
        let base = b"A=1\0HOSTLER_PROCESS_ID=old\0B=2\0";
        check(base, b"B=3\0HOSTLER_PROCESS_ID=forged\0C=x=y\0", &["A=1", "B=3", "C=x=y", marker]);
        check(base, b"", &["A=1", "B=2", marker]);
        check(b"BARE\0A=1\0", b"A=2\0", &["BARE", "A=2", marker]);
        check(b"", b"", &[marker]);
    }

    #[test]
    fn programs_are_looked_for_as_execvp_does() {
        let found = |program: &str, path: &str| {
            candidates(program.as_bytes(), path.as_bytes())
                .into_iter()
                .map(|c| c.into_string().unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(found("ls", "/bin:/usr/bin"), ["/bin/ls", "/usr/bin/ls"]);
        assert_eq!(found("ls", ":/x"), ["./ls", "/x/ls"]);
        assert_eq!(found("./ls", "/bin"), ["./ls"]);
        assert_eq!(found("/bin/ls", "/x"), ["/bin/ls"]);
    }

    #[test]
    fn argv_block_becomes_pointers() {
        assert_eq!(strings(&pointers(b"a\0\0b c\0")), ["a", "", "b c"]);
        assert_eq!(argv_first(b"prog\0x\0"), b"prog");
    }

    #[test]
    fn a_request_that_memory_has_no_room_for_is_no_breach_of_the_protocol() {
        let file = |len: u64| {
            let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            rustix::fs::ftruncate(&file, len).unwrap();
            file
        };
        // More than any address space has.
        assert_eq!(read_file(file(1 << 62), 1 << 62).unwrap_err().raw_os_error(), Some(libc::ENOMEM));
        assert_eq!(read_file(file(4), 5).unwrap_err().raw_os_error(), None);
        assert_eq!(read_file(file(4), 4).unwrap(), [0; 4]);
    }
}
