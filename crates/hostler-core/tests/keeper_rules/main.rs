//! The rules of nursery and keepers where something is wrong around them: a host that was started badly, an exec
//! that hangs, helpers that are killed or stopped, a host that is pid 1, requests at the kernel's limits, and what dead
//! hosts leave behind; and what a keeper does on good days. Every way to escape is in `orphans.rs`.
#![expect(clippy::unwrap_used, reason = "tests")]
#![expect(clippy::disallowed_methods, reason = "tests start hosts and read the clock")]

mod bad_starts;
mod container;
mod ends;
mod good_days;
mod hung_exec;
mod leftovers;
mod lost_helpers;
mod lost_nursery;
mod receipts;
mod requests;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use hostler_core::{
    CgroupUse, CursorRead, HelperProgram, Host, HostOptions, Nursery, Places, Process, Session, SpawnSpec,
    Stream,
};
use hostler_testkit::{ProcessInfo, TestEnv, Token, bin, evil, is_alive, wait_until, wait_until_async};
use rustix::net::{SocketType, sockopt};
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Resource, Rlimit, Signal, getpid, getrlimit, kill_process, pidfd_getfd,
    pidfd_open, prlimit,
};

/// Longer than anything here takes, also where the machine is busy.
const MAX: Duration = Duration::from_secs(30);
const GRACE: Duration = Duration::from_millis(100);

/// A host in this process, whose helpers run the test program that knows how.
fn start_host(env: &TestEnv) -> Host {
    start_host_with(env, bin("embedder"))
}

fn start_host_with(env: &TestEnv, helper: PathBuf) -> Host {
    start_host_as(env, helper, CgroupUse::Auto, env.vars())
}

/// One that must do without control groups.
fn start_host_without_groups(env: &TestEnv) -> Host {
    start_host_as(env, bin("embedder"), CgroupUse::Off, env.vars())
}

/// One whose programs inherit these variables.
fn start_host_giving(env: &TestEnv, helper: PathBuf, vars: Vec<(OsString, OsString)>) -> Host {
    start_host_as(env, helper, CgroupUse::Auto, vars)
}

fn start_host_as(env: &TestEnv, helper: PathBuf, cgroup: CgroupUse, vars: Vec<(OsString, OsString)>) -> Host {
    let nursery = Nursery::start(HelperProgram::Path(helper)).unwrap();
    let places = Places { xdg_state_home: Some(env.state_home()), home: None, tmpdir: Some(env.tmp()) };
    Host::start(nursery, HostOptions { places, env: vars, cgroup, ..HostOptions::default() }).unwrap()
}

/// The path of the helper child, for argument lists.
fn evil_path() -> String {
    evil().into_os_string().into_string().unwrap()
}

/// Starts the helper child and waits until its tree stands.
async fn evil_process(session: &Session, mode: &str, token: &Token) -> Process {
    let argv: [OsString; 3] = [evil().into(), mode.into(), token.as_str().into()];
    let process = session.spawn(SpawnSpec::new(argv)).await.unwrap();
    ready(&process).await;
    process
}

/// Until the helper child says that all is set up.
async fn ready(process: &Process) {
    let mut cursor = process.cursor(Stream::Stdout).unwrap();
    let mut buffer = [0; 6];
    assert_eq!(cursor.next(&mut buffer).await.unwrap(), CursorRead::Chunk(6));
    assert_eq!(&buffer, b"ready\n");
}

/// All of standard output.
async fn output(process: &Process) -> Vec<u8> {
    let mut cursor = process.cursor(Stream::Stdout).unwrap();
    let (mut bytes, mut buffer) = (Vec::new(), vec![0; 65536]);
    while let CursorRead::Chunk(n) = cursor.next(&mut buffer).await.unwrap() {
        bytes.extend_from_slice(&buffer[..n]);
    }
    bytes
}

/// What a shell prints in this session: proof that it still starts programs and hears of their ends.
async fn run(session: &Session, script: &str) -> String {
    let process = session.spawn(SpawnSpec::new(["sh", "-c", script])).await.unwrap();
    process.finished().await;
    String::from_utf8(output(&process).await).unwrap()
}

/// The session's keeper. The nursery says who that is on its own time: a process may run before it has.
async fn keeper_of(session: &Session) -> i32 {
    wait_until_async("the keeper's pid", MAX, async || session.keeper_pid()).await
}

fn kill(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// A process that stands still until this is dropped, also by a test that fails.
struct Stopped(i32);

impl Stopped {
    fn new(pid: i32) -> Self {
        kill(pid, Signal::STOP);
        let stands_still = || ProcessInfo::of(pid).is_some_and(|process| process.state == 'T');
        wait_until("a process that stands still", MAX, stands_still);
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_raw(self.0).unwrap(), Signal::CONT);
    }
}

/// Takes a process the means to open anything, until this is dropped.
struct NoDescriptors {
    pid: Option<Pid>,
    before: Rlimit,
}

impl NoDescriptors {
    fn new(pid: i32) -> Self {
        // Room for standard streams alone: poll(2) takes no more than the limit.
        Self::limit(pid, 3)
    }

    /// But for `room` more than are open now.
    fn but(pid: i32, room: usize) -> Self {
        let open: BTreeSet<u64> = fs::read_dir(format!("/proc/{pid}/fd"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap())
            .collect();
        Self::limit(pid, (0..).filter(|number| !open.contains(number)).nth(room).unwrap())
    }

    fn limit(pid: i32, limit: u64) -> Self {
        let pid = Pid::from_raw(pid);
        // The hard limit is everybody's here, helpers included.
        let maximum = getrlimit(Resource::Nofile).maximum;
        let before = prlimit(pid, Resource::Nofile, Rlimit { current: Some(limit), maximum }).unwrap();
        Self { pid, before }
    }
}

impl Drop for NoDescriptors {
    fn drop(&mut self) {
        let _ = prlimit(self.pid, Resource::Nofile, self.before);
    }
}

/// Lets the sockets that this process, the host, has to nursery and keepers take no more than that at a time.
fn shrink_send_buffers(bytes: usize) {
    let this = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    for entry in fs::read_dir("/proc/self/fd").unwrap() {
        let number = entry.unwrap().file_name().to_str().unwrap().parse().unwrap();
        // The descriptor of the folder is gone by the time that it is asked for.
        let Ok(fd) = pidfd_getfd(&this, number, PidfdGetfdFlags::empty()) else { continue };
        if sockopt::socket_type(&fd) == Ok(SocketType::SEQPACKET) {
            sockopt::set_socket_send_buffer_size(&fd, bytes).unwrap();
        }
    }
}

fn parent_of(pid: i32) -> i32 {
    ProcessInfo::of(pid).unwrap().parent
}

/// Waits until nursery and keepers have ended.
#[track_caller]
fn wait_for_helpers(pids: &[i32]) {
    // A pid that somebody else has by now is not one of them.
    let is_helper =
        |pid: &i32| is_alive(*pid) && ProcessInfo::of(*pid).is_some_and(|p| p.cmdline.contains("__hostler-"));
    wait_until("the end of nursery and keepers", MAX, || {
        let left: Vec<i32> = pids.iter().copied().filter(is_helper).collect();
        if left.is_empty() { Ok(()) } else { Err(left) }
    });
}
