//! Starting a program: clone3 with `CLONE_VFORK`, then `execve`, with nothing in between that allocates.
//!
//! The child of a vfork runs in the parent's memory while the calling thread is stopped, so it gets a stack of its
//! own (the parent's frames stay whole) and may only make system calls. What fails there is written into
//! [`Attempt`], which the parent reads when it goes on: no pipe is needed to bring an errno back.
//!
//! Sources: clone(2), vfork(2), execve(2), setsid(2), getrlimit(2).

use std::ffi::{CStr, CString, c_char, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use super::oom::OomScore;

/// What has to be true of the new process when the program starts.
#[derive(Debug)]
pub struct ExecPlan<'a> {
    /// Absolute or cwd-relative paths to try in this order, as execvp(3) does.
    pub candidates: &'a [CString],
    /// Arguments, ended by a null pointer.
    pub argv: &'a [*const c_char],
    /// `NAME=value` strings, ended by a null pointer.
    pub envp: &'a [*const c_char],
    /// Working directory; `None` keeps the parent's.
    pub cwd: Option<&'a CStr>,
    /// Descriptors that become 0, 1 and 2; each must be above 2.
    pub stdio: [BorrowedFd<'a>; 3],
    /// Soft and hard limit of open files to set; `None` keeps the parent's.
    pub nofile: Option<(u64, u64)>,
    /// The score that the process is to have when memory runs out; `None` keeps the parent's.
    pub oom_score: Option<&'a OomScore>,
    /// Folder of a version 2 control group that the process is born into.
    pub cgroup: Option<BorrowedFd<'a>>,
}

/// The step at which a start failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Step {
    /// The kernel made no process.
    Clone = 0,
    /// The working directory could not be entered.
    Chdir = 1,
    /// A descriptor could not be put into its place.
    Stdio = 2,
    /// The program could not be executed.
    Exec = 3,
}

impl Step {
    /// The step with this number, for the wire between keeper and host.
    pub fn from_u32(n: u32) -> Option<Self> {
        [Self::Clone, Self::Chdir, Self::Stdio, Self::Exec].into_iter().find(|step| *step as u32 == n)
    }
}

/// Why a start failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartFailure {
    /// Where.
    pub step: Step,
    /// The errno value, see errno(3).
    pub errno: i32,
}

/// A start that came to nothing.
#[derive(Clone, Copy, Debug)]
pub struct FailedStart {
    /// Why.
    pub failure: StartFailure,
    /// The child that ended before its program, to be reaped by the caller.
    pub zombie: Option<i32>,
}

/// A start under way, readable by other threads of the process: the child's pid stands here as soon as the
/// kernel has made it, while the thread that asked is still stopped in vfork.
#[derive(Debug, Default)]
pub struct Attempt {
    pid: AtomicI32,
    pidfd: AtomicI32,
    step: AtomicU32,
    errno: AtomicI32,
    /// The child has run.
    begun: AtomicBool,
    /// The child has lowered its parent's score again.
    score_lowered: AtomicBool,
}

/// What another thread may know of an [`Attempt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlight {
    /// No start is under way.
    No,
    /// One is, and its child's pid is not known yet.
    Unknown,
    /// One is, with this child.
    Child(i32),
}

const PID_UNKNOWN: i32 = -1;

impl Attempt {
    /// Whether a start is under way: from `start` until [`Attempt::settle`].
    pub fn in_flight(&self) -> InFlight {
        match self.pid.load(Ordering::Acquire) {
            0 => InFlight::No,
            pid if pid > 0 => InFlight::Child(pid),
            _ => InFlight::Unknown,
        }
    }

    /// Whether the child has written down that it could not execute its program.
    pub fn has_failed(&self) -> bool {
        self.errno.load(Ordering::Acquire) != 0
    }

    /// Whether the child has run at all. One that has not was killed by the kernel in the moment of its birth.
    pub fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }

    fn begin(&self) {
        self.begun.store(false, Ordering::Release);
        self.pid.store(PID_UNKNOWN, Ordering::Release);
        self.pidfd.store(-1, Ordering::Release);
        self.errno.store(0, Ordering::Release);
        self.score_lowered.store(false, Ordering::Release);
    }

    /// Says that the child's fate is in the caller's books now, or that there is no child.
    pub fn settle(&self) {
        self.pid.store(0, Ordering::Release);
    }
}

/// A process that has executed its program.
#[derive(Debug)]
pub struct Started {
    /// Its pid; it is a child of the caller and stays reserved until it is waited for.
    pub pid: i32,
    /// A descriptor of the process, closed on exec.
    pub pidfd: OwnedFd,
}

/// Memory for the stack of vfork children, with a guard page below it.
#[derive(Debug)]
pub struct ChildStack {
    base: *mut c_void,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone and has no thread affinity.
unsafe impl Send for ChildStack {}

const STACK_BYTES: usize = 64 * 1024;
const GUARD_BYTES: usize = 4096 * 16;

impl ChildStack {
    /// Maps the stack.
    pub fn new() -> io::Result<Self> {
        let len = STACK_BYTES + GUARD_BYTES;
        // SAFETY: a fresh anonymous mapping; no existing memory is touched.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let stack = Self { base, len };
        // SAFETY: the range is the lower part of the mapping made above.
        if unsafe { libc::mprotect(base, GUARD_BYTES, libc::PROT_NONE) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(stack)
    }

    fn top(&self) -> *mut c_void {
        self.base.wrapping_byte_add(self.len)
    }
}

impl Drop for ChildStack {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` and nothing runs on it: every vfork child has left it by now.
        unsafe { libc::munmap(self.base, self.len) };
    }
}

struct ChildContext<'a> {
    plan: &'a ExecPlan<'a>,
    attempt: &'a Attempt,
    stdio: [RawFd; 3],
    no_signals: libc::sigset_t,
}

/// Starts the program of `plan` in a session of its own and returns when it is executing.
///
/// The calling thread stands still until then. All signals must be blocked in it and no handler may be installed
/// in the process: the child unblocks everything just before it executes. `attempt` stays in flight until the caller
/// settles it.
///
/// # Errors
/// [`FailedStart`]; a child that failed before its program is left as a zombie, so that the caller can reap it in step
/// with whoever may be about to signal it.
pub(crate) fn start(
    plan: &ExecPlan<'_>,
    stack: &mut ChildStack,
    attempt: &Attempt,
) -> Result<Started, FailedStart> {
    attempt.begin();
    debug_assert!(
        plan.argv.last().is_some_and(|p| p.is_null()) && plan.envp.last().is_some_and(|p| p.is_null())
    );
    let mut context = ChildContext {
        plan,
        attempt,
        stdio: plan.stdio.map(|fd| fd.as_raw_fd()),
        no_signals: super::signal::empty_set(),
    };
    let arg = ptr::from_mut(&mut context).cast::<c_void>();
    plan.oom_score.inspect(|score| score.raise());
    let pid = vfork(plan.cgroup.map(|fd| fd.as_raw_fd()), stack, attempt, arg);
    if !attempt.score_lowered.load(Ordering::Acquire) {
        plan.oom_score.inspect(|score| score.lower());
    }
    let pid = pid
        .map_err(|errno| FailedStart { failure: StartFailure { step: Step::Clone, errno }, zombie: None })?;
    // SAFETY: what stands here was made for us by the kernel in clone, if at all, and nobody else owns it.
    let pidfd = unsafe { pidfd_of_clone(attempt.pidfd.load(Ordering::Acquire)) }.map_err(|failure| {
        let _ = super::signal::send_child(pid, libc::SIGKILL);
        FailedStart { failure, zombie: Some(pid) }
    })?;
    if !attempt.has_begun() {
        // Out of memory, or born into a control group that was killed once (`cgroup.kill`): Linux 6.18 then takes the
        // child for one that the kill has missed.
        let failure = StartFailure { step: Step::Clone, errno: libc::EAGAIN };
        return Err(FailedStart { failure, zombie: Some(pid) });
    }
    let errno = attempt.errno.load(Ordering::Acquire);
    if errno == 0 {
        return Ok(Started { pid, pidfd });
    }
    let step = Step::from_u32(attempt.step.load(Ordering::Acquire)).unwrap_or(Step::Exec);
    Err(FailedStart { failure: StartFailure { step, errno }, zombie: Some(pid) })
}

/// The descriptor that clone has left, or the failure that a clone without one is: a kernel before 5.2, or something that
/// only looks like one, has not heard of CLONE_PIDFD, and a process that nobody can name for certain must not run.
///
/// # Safety
/// A number that is no longer -1 must be a descriptor that nobody else owns.
unsafe fn pidfd_of_clone(raw: RawFd) -> Result<OwnedFd, StartFailure> {
    if raw < 0 {
        return Err(StartFailure { step: Step::Clone, errno: libc::ENOSYS });
    }
    // SAFETY: see the function's contract.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

fn vfork(
    cgroup: Option<RawFd>,
    stack: &mut ChildStack,
    attempt: &Attempt,
    arg: *mut c_void,
) -> Result<i32, i32> {
    let flags = (libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::CLONE_PARENT_SETTID) as u64;
    let mut args = libc::clone_args {
        flags: flags | if cgroup.is_some() { CLONE_INTO_CGROUP } else { 0 },
        pidfd: attempt.pidfd.as_ptr() as u64,
        child_tid: 0,
        parent_tid: attempt.pid.as_ptr() as u64,
        exit_signal: libc::SIGCHLD as u64,
        stack: stack.base as u64,
        stack_size: stack.len as u64,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: cgroup.unwrap_or(0) as u64,
    };
    // SAFETY: `args` describes a vfork child on a stack that only it uses; `child_main` never returns and makes
    // system calls only; `arg` outlives the call because this thread is stopped until the child executes or ends.
    match unsafe { raw_clone3(&mut args, child_main, arg) } {
        ret if ret >= 0 => Ok(ret as i32),
        ret if cgroup.is_none() && [libc::ENOSYS, libc::EPERM].contains(&(-ret as i32)) => {
            old_clone(stack, attempt, arg)
        }
        ret => Err(-ret as i32),
    }
}

/// clone(2) through libc, for kernels and seccomp filters without clone3. It has one slot for both the pidfd and the
/// parent's tid; so the child writes its pid, before anything else that it does. The memory is the parent's: the pid is
/// known while the program is being executed, as it is with clone3.
fn old_clone(stack: &mut ChildStack, attempt: &Attempt, arg: *mut c_void) -> Result<i32, i32> {
    let flags =
        libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::CLONE_CHILD_SETTID | libc::SIGCHLD;
    let no_tls = ptr::null_mut::<c_void>();
    // SAFETY: as in `vfork`; the arguments after `arg` are where CLONE_PIDFD stores the descriptor, the TLS that is not asked
    // for, and where CLONE_CHILD_SETTID stores the pid: both places outlive the call.
    let pid = unsafe {
        libc::clone(
            child_entry,
            stack.top(),
            flags,
            arg,
            attempt.pidfd.as_ptr(),
            no_tls,
            attempt.pid.as_ptr(),
        )
    };
    if pid < 0 {
        return Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::ENOSYS));
    }
    // Something that only looks like Linux may not have written it.
    let _ = attempt.pid.compare_exchange(PID_UNKNOWN, pid, Ordering::AcqRel, Ordering::Acquire);
    Ok(pid)
}

extern "C" fn child_entry(arg: *mut c_void) -> libc::c_int {
    // SAFETY: `arg` is the context that `start` made, see `vfork`.
    unsafe { child_main(arg) }
}

/// Calls clone3; in the child calls `entry(arg)` on the new stack. Returns the pid or a negative errno.
///
/// # Safety
/// `args` must be valid for clone3(2) with a stack of its own for the child; `entry` must never return.
#[cfg(target_arch = "x86_64")]
unsafe fn raw_clone3(
    args: &mut libc::clone_args,
    entry: unsafe extern "C" fn(*mut c_void) -> !,
    arg: *mut c_void,
) -> i64 {
    let ret: i64;
    // SAFETY: the kernel keeps all registers but rax, rcx and r11 in parent and child; those two are outputs from the
    // start, so that no input shares them. The child starts with rsp at the top of its stack, which is 16-aligned as
    // the call instruction wants it.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, {arg}",
            "call {entry}",
            "ud2",
            "2:",
            arg = in(reg) arg,
            entry = in(reg) entry,
            inlateout("rax") libc::SYS_clone3 => ret,
            in("rdi") ptr::from_mut(args),
            in("rsi") size_of::<libc::clone_args>(),
            out("rcx") _,
            out("r11") _,
        );
    }
    ret
}

/// Calls clone3; in the child calls `entry(arg)` on the new stack. Returns the pid or a negative errno.
///
/// # Safety
/// `args` must be valid for clone3(2) with a stack of its own for the child; `entry` must never return.
#[cfg(target_arch = "aarch64")]
unsafe fn raw_clone3(
    args: &mut libc::clone_args,
    entry: unsafe extern "C" fn(*mut c_void) -> !,
    arg: *mut c_void,
) -> i64 {
    let ret: i64;
    // SAFETY: the kernel keeps all registers but x0 in parent and child; the child starts with sp at the top of
    // its 16-aligned stack.
    unsafe {
        std::arch::asm!(
            "svc #0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, {arg}",
            "blr {entry}",
            "brk #1",
            "2:",
            arg = in(reg) arg,
            entry = in(reg) entry,
            in("x8") libc::SYS_clone3,
            inlateout("x0") ptr::from_mut(args) => ret,
            in("x1") size_of::<libc::clone_args>(),
            out("x30") _,
        );
    }
    ret
}

/// Reports "no such call": other machines take the path through clone(2).
///
/// # Safety
/// Always safe to call.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn raw_clone3(
    _args: &mut libc::clone_args,
    _entry: unsafe extern "C" fn(*mut c_void) -> !,
    _arg: *mut c_void,
) -> i64 {
    -i64::from(libc::ENOSYS)
}

/// What the child does between clone and exec.
///
/// # Safety
/// Only as the entry of a vfork child, with `arg` pointing to a live [`ChildContext`].
unsafe extern "C" fn child_main(arg: *mut c_void) -> ! {
    // SAFETY: see the function's contract; the parent is stopped, so nothing else uses the context.
    let context = unsafe { &*arg.cast::<ChildContext<'_>>() };
    context.attempt.begun.store(true, Ordering::Release);
    let (step, errno) = child_steps(context);
    context.attempt.step.store(step as u32, Ordering::Release);
    context.attempt.errno.store(errno, Ordering::Release);
    // SAFETY: ends the child without running anything of the parent's.
    unsafe { libc::_exit(127) }
}

fn last_errno() -> i32 {
    // SAFETY: the location is this thread's errno, always valid.
    unsafe { *libc::__errno_location() }
}

/// Returns only when a step failed.
fn child_steps(context: &ChildContext<'_>) -> (Step, i32) {
    let plan = context.plan;
    // SAFETY: plain system calls on descriptors and strings that the parent keeps alive while it is stopped.
    unsafe {
        if let Some((fd, text)) = plan.oom_score.map(OomScore::lowering) {
            let written = libc::pwrite(fd, text.as_ptr().cast(), text.len(), 0);
            context.attempt.score_lowered.store(written > 0, Ordering::Release);
        }
        libc::setsid();
        for (target, fd) in context.stdio.iter().enumerate() {
            if libc::dup2(*fd, target as i32) < 0 {
                return (Step::Stdio, last_errno());
            }
        }
        if let Some(cwd) = plan.cwd
            && libc::chdir(cwd.as_ptr()) != 0
        {
            return (Step::Chdir, last_errno());
        }
        if let Some((soft, hard)) = plan.nofile {
            let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
        libc::sigprocmask(libc::SIG_SETMASK, &context.no_signals, ptr::null_mut());
        exec_first(plan)
    }
}

/// Tries the candidates as execvp(3) does: goes on after "not there" and "not allowed", and reports "not allowed"
/// in the end when any candidate was there.
///
/// # Safety
/// Only in the vfork child.
unsafe fn exec_first(plan: &ExecPlan<'_>) -> (Step, i32) {
    let mut errno = libc::ENOENT;
    for candidate in plan.candidates {
        // SAFETY: the strings and arrays live in the stopped parent and the arrays end with null pointers.
        unsafe { libc::execve(candidate.as_ptr(), plan.argv.as_ptr(), plan.envp.as_ptr()) };
        match last_errno() {
            // Of a search nobody wants to know which folder was none; of a path that was given, what is wrong with it.
            missing @ (libc::ENOENT | libc::ENOTDIR | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT) => {
                if plan.candidates.len() == 1 {
                    errno = missing;
                }
            }
            libc::EACCES => errno = libc::EACCES,
            other => return (Step::Exec, other),
        }
    }
    (Step::Exec, errno)
}

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd;

    use super::*;

    #[test]
    fn a_clone_without_a_pidfd_is_a_failed_start() {
        let nothing_left = Attempt::default();
        nothing_left.begin();
        // SAFETY: no descriptor is meant.
        let failed = unsafe { pidfd_of_clone(nothing_left.pidfd.load(Ordering::Acquire)) };
        assert_eq!(failed.unwrap_err(), StartFailure { step: Step::Clone, errno: libc::ENOSYS });
        let (reader, writer) = io::pipe().unwrap();
        let raw = OwnedFd::from(reader).into_raw_fd();
        // SAFETY: the descriptor was given up just now.
        let made = unsafe { pidfd_of_clone(raw) }.unwrap();
        assert_eq!(made.as_raw_fd(), raw);
        drop((made, writer));
    }
}
