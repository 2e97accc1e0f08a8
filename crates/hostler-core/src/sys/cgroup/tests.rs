//! Parsers by tables; everything else with real cgroups, in a folder of each test's own below the one that the tests
//! run in. Where a probe shows that there are none to be had, these tests say so and do nothing.

use std::io::Write;
use std::os::fd::BorrowedFd;
use std::process::{Child, Command, Stdio};

use super::files::PATH_ONLY;
use super::locate::{Mount, folder, parse_group, parse_mounts};
use super::*;

/// How long a test waits for what the kernel does at once on an idle machine.
const LONG: Duration = Duration::from_secs(20);

fn mount(root: &str, point: &str) -> Mount {
    Mount { root: root.into(), point: point.into() }
}

#[test]
fn mounts_of_version_2_are_found_among_others() {
    let text = b"\
24 30 0:22 / /proc rw,nosuid shared:14 - proc proc rw
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 master:1 - cgroup2 cgroup2 rw,nsdelegate
50 31 0:38 /docker/a-b /mnt/with\\040space\\134 ro - cgroup2 none ro
51 31 0:38 / /mnt/cgroup2 rw - tmpfs cgroup2 rw
broken line
52 31 0:38 / /mnt/x rw";
    let expected = [mount("/", "/sys/fs/cgroup/unified"), mount("/docker/a-b", "/mnt/with space\\")];
    assert_eq!(parse_mounts(text), expected);
    assert_eq!(parse_mounts(b""), []);
}

#[test]
fn our_group_is_the_line_without_a_hierarchy() {
    let found = |text: &[u8]| parse_group(text).map(|path| path.display().to_string());
    assert_eq!(found(b"4:memory:/x\n0::/user.slice/a b\n"), Some("/user.slice/a b".to_owned()));
    assert_eq!(found(b"0::/"), Some("/".to_owned()));
    assert_eq!(found(b"0::/../outer\n"), Some("/../outer".to_owned()));
    assert_eq!(found(b"10::/x\n4:memory:/x\n"), None);
    assert_eq!(found(b"0::\n"), None);
}

#[test]
fn a_mount_shows_the_groups_below_its_root_only() {
    let found = |root, point, group: &str| folder(&mount(root, point), Path::new(group));
    assert_eq!(found("/", "/sys/fs/cgroup", "/"), Some("/sys/fs/cgroup".into()));
    assert_eq!(found("/", "/sys/fs/cgroup", "/a/b"), Some("/sys/fs/cgroup/a/b".into()));
    assert_eq!(found("/docker/x", "/sys/fs/cgroup", "/docker/x"), Some("/sys/fs/cgroup".into()));
    assert_eq!(found("/docker/x", "/sys/fs/cgroup", "/docker/x/y"), Some("/sys/fs/cgroup/y".into()));
    assert_eq!(found("/docker/x", "/sys/fs/cgroup", "/docker/xy"), None);
    assert_eq!(found("/docker/x", "/sys/fs/cgroup", "/"), None);
    assert_eq!(found("/../..", "/sys/fs/cgroup", "/"), None);
    assert_eq!(found("/", "/sys/fs/cgroup", "/../outer"), None);
}

#[test]
fn a_host_tag_prints_and_parses_in_one_spelling() {
    let tag = HostTag { boot: 0x8f_aac1, pid: 42, start_time: 7, nonce: 0xbee };
    assert_eq!(tag.to_string(), "008faac1-42-7-00000bee");
    assert_eq!(tag.to_string().parse(), Ok(tag));
    assert_eq!(HostTag::from_folder("hostler-008faac1-42-7-00000bee"), Some(tag));
    assert_eq!(HostTag::from_folder("hostler-008faac1-42-7-00000bee.probe-9-0"), Some(tag));
    // Two hosts that look alike, each from within its own pid namespace.
    assert_ne!(HostTag::own(), HostTag::own());
    for bad in
        ["", "8faac1-42-7", "008FAAC1-42-7", "008faac1-42", "008faac1-42-7-1", "008faac1-+42-7", "x-42-7"]
    {
        assert_eq!(bad.parse::<HostTag>(), Err(ParseTagError), "{bad}");
    }
    for foreign in ["hostler", "hostler-", "hostler-mine", "system.slice", "hostler-008faac1-42-7.scope"] {
        assert_eq!(HostTag::from_folder(foreign), None, "{foreign}");
    }
}

#[test]
fn a_host_is_dead_when_its_boot_its_pid_or_its_start_is_another() {
    let own = HostTag::own().unwrap();
    assert!(!own.is_dead());
    assert!(HostTag { boot: own.boot ^ 1, ..own }.is_dead());
    assert!(HostTag { start_time: own.start_time + 1, ..own }.is_dead());
    let mut child = sleeper();
    let zombie = HostTag::of_process(child.pid()).unwrap();
    assert!(!zombie.is_dead());
    // Killed and not waited for: a zombie still has its pid and start time.
    child.0.kill().unwrap();
    wait_for_zombie(&child);
    assert!(zombie.is_dead());
    drop(child);
    assert!(zombie.is_dead());
}

#[test]
fn a_session_is_created_in_a_folder_named_as_a_host_only() {
    for bad in ["", "/", "hostler-008faac1-42-7", "/sys/fs/cgroup", "/none/hostler-mine"] {
        let refused = SessionGroup::create(bad.as_bytes(), 1).unwrap_err();
        assert!(matches!(refused, CgroupError::Name { .. } | CgroupError::Open { .. }), "{bad}: {refused}");
    }
}

/// A child that does nothing; killed and waited for at the end of the test.
struct Sleeper(Child);

impl Sleeper {
    fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).unwrap()
    }

    fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[expect(clippy::disallowed_methods, reason = "something has to be in the group that is killed")]
fn sleeper() -> Sleeper {
    Sleeper(Command::new("sleep").arg("300").stdin(Stdio::null()).spawn().unwrap())
}

/// Returns once the child is a zombie. It blocks without reaping.
fn wait_for_zombie(child: &Sleeper) {
    let pid = rustix::process::Pid::from_raw(child.pid()).unwrap();
    let options = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
    rustix::process::waitid(rustix::process::WaitId::Pid(pid), options).unwrap();
}

/// A group of one test's own: nobody else's sweep sees what is in it.
struct Playground {
    own: Base,
    name: String,
    base: Base,
}

impl Playground {
    /// `None`, and a word about it, where there are no cgroups to be had.
    fn new(test: &str) -> Option<Self> {
        let tag = HostTag::own().unwrap();
        let own = match Base::probe(tag) {
            Ok(own) => own,
            Err(reason) => {
                let source = std::error::Error::source(&reason).map(ToString::to_string).unwrap_or_default();
                // Past the test runner, which hides what a passing test prints.
                let _ = writeln!(std::io::stderr(), "SKIPPED cgroup test {test}: {reason}: {source}");
                return None;
            }
        };
        let name = format!("test-{test}-{}", tag.pid);
        files::make(own.dir.as_fd(), &name, Existing::Refused).unwrap();
        let base = Base::at(&own.path().join(&name), tag).unwrap();
        Some(Self { own, name, base })
    }

    fn names(&self) -> Vec<String> {
        files::subgroups(self.base.dir.as_fd(), "playground").unwrap()
    }

    /// The same folder in the eyes of another host.
    fn as_host(&self, tag: HostTag) -> Base {
        Base::at(self.base.path(), tag).unwrap()
    }
}

impl Drop for Playground {
    fn drop(&mut self) {
        let emptied = files::kill(self.base.dir.as_fd(), &self.name)
            .and_then(|()| files::wait_empty(self.base.dir.as_fd(), &self.name, LONG))
            .and_then(|_| files::remove_tree(self.own.dir.as_fd(), &self.name));
        if !std::thread::panicking() {
            emptied.unwrap();
        }
    }
}

fn id(n: u128) -> ProcessId {
    ProcessId::from_u128(n)
}

/// Moves a process as its keeper's clone would.
fn put_in(dir: BorrowedFd<'_>, pid: i32) {
    let procs = files::open_file(dir, "leaf", "cgroup.procs", rustix::fs::OFlags::WRONLY).unwrap().unwrap();
    rustix::io::write(&procs, pid.to_string().as_bytes()).unwrap();
}

#[test]
fn a_probe_leaves_nothing_behind() {
    let Some(ground) = Playground::new("probe") else { return };
    locate::try_out(&ground.base.dir, ground.base.path(), "probe").unwrap();
    assert_eq!(ground.names(), Vec::<String>::new());
    // A folder that was there before is not its own.
    files::make(ground.base.dir.as_fd(), "probe", Existing::Refused).unwrap();
    let taken = locate::try_out(&ground.base.dir, ground.base.path(), "probe").unwrap_err();
    assert!(matches!(taken, Unusable::Create { source: Errno::EXIST, .. }), "{taken}");
    assert_eq!(ground.names(), ["probe"]);
}

#[test]
fn a_group_below_a_threaded_one_is_refused_and_the_probe_removed() {
    let Some(ground) = Playground::new("threaded") else { return };
    std::fs::create_dir(ground.base.path().join("t")).unwrap();
    let path = ground.base.path().join("t");
    std::fs::write(path.join("cgroup.type"), "threaded").unwrap();
    let base = Base::at(&path, ground.base.tag).unwrap();
    let verdict = locate::try_out(&base.dir, &path, "probe").unwrap_err();
    assert!(matches!(verdict, Unusable::Threaded { .. }), "{verdict}");
    assert_eq!(files::subgroups(base.dir.as_fd(), "t").unwrap(), Vec::<String>::new());
}

#[test]
fn a_probe_of_another_file_system_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let hidden = locate::open_own(folder.path()).unwrap_err();
    assert!(matches!(hidden, Unusable::Hidden { .. }), "{hidden}");
    let missing = locate::open_own(&folder.path().join("none")).unwrap_err();
    assert!(matches!(missing, Unusable::Open { source: Errno::NOENT, .. }), "{missing}");
}

#[test]
fn a_group_that_this_process_is_not_in_is_not_taken_for_its_own() {
    let Some(ground) = Playground::new("stranger") else { return };
    let other = locate::open_own(ground.base.path()).unwrap_err();
    assert!(matches!(other, Unusable::NotOurs { .. }), "{other}");
}

#[test]
fn a_kill_ends_everything_in_the_leaf_and_nothing_beside_it() {
    let Some(ground) = Playground::new("kill") else { return };
    let session = ground.base.session(1).unwrap();
    let (leaf, other) = (session.leaf(id(1)).unwrap(), session.leaf(id(2)).unwrap());
    let (mut inside, mut deeper, mut beside) = (sleeper(), sleeper(), sleeper());
    files::make(leaf.dir(), "own", Existing::Refused).unwrap();
    put_in(leaf.dir(), inside.pid());
    put_in(files::open_group(leaf.dir(), "own", PATH_ONLY).unwrap().as_fd(), deeper.pid());
    put_in(other.dir(), beside.pid());

    for pid in [inside.pid(), deeper.pid()] {
        assert_eq!(owner_of(pid, Some).unwrap(), Some(id(1)));
        assert_eq!(owner_of(pid, |first| (first == id(2)).then_some(())).unwrap(), None);
    }
    assert_eq!(owner_of(beside.pid(), Some).unwrap(), Some(id(2)));
    let mut pids = leaf.pids();
    pids.sort_unstable();
    let mut expected = [inside.pid(), deeper.pid()];
    expected.sort_unstable();
    assert_eq!(pids, expected);
    assert!(leaf.populated());
    assert!(matches!(leaf.remove(), Err(CgroupError::Busy { .. })));

    leaf.kill().unwrap();
    assert!(leaf.wait_empty(LONG).unwrap());
    wait_for_zombie(&inside);
    wait_for_zombie(&deeper);
    assert!(!leaf.populated());
    assert!(inside.has_ended() && deeper.has_ended() && !beside.has_ended());
    leaf.remove().unwrap();
    assert!(other.populated());

    drop(beside);
    assert!(other.wait_empty(LONG).unwrap());
    session.remove().unwrap();
    assert_eq!(ground.names(), Vec::<String>::new());
}

#[test]
fn a_kill_reaches_a_frozen_leaf_and_thaws_it() {
    let Some(ground) = Playground::new("frozen") else { return };
    let session = ground.base.session(1).unwrap();
    let leaf = session.leaf(id(1)).unwrap();
    let child = sleeper();
    put_in(leaf.dir(), child.pid());
    let freeze =
        || files::open_file(leaf.dir(), "leaf", "cgroup.freeze", rustix::fs::OFlags::RDWR).unwrap().unwrap();
    rustix::io::write(freeze(), b"1").unwrap();
    leaf.kill().unwrap();
    assert!(leaf.wait_empty(LONG).unwrap());
    wait_for_zombie(&child);
    assert_eq!(files::read_all(&freeze()).unwrap(), b"0\n");
}

#[test]
fn a_wait_for_an_empty_leaf_ends_with_its_patience() {
    let Some(ground) = Playground::new("patience") else { return };
    let session = ground.base.session(1).unwrap();
    let leaf = session.leaf(id(1)).unwrap();
    let child = sleeper();
    put_in(leaf.dir(), child.pid());
    assert!(!leaf.wait_empty(Duration::from_millis(20)).unwrap());
    drop(child);
    assert!(leaf.wait_empty(LONG).unwrap());
}

#[test]
fn what_a_child_made_below_its_leaf_is_removed_with_it() {
    let Some(ground) = Playground::new("nested") else { return };
    let session = ground.base.session(1).unwrap();
    let leaf = session.leaf(id(1)).unwrap();
    let path = ground.base.host_folder().join(format!("s1/p{}", id(1)));
    for below in ["x/y/z", "x/w", "v"] {
        std::fs::create_dir_all(path.join(below)).unwrap();
    }
    // More side by side than may lie one in another.
    for n in 0..MAX_DEPTH + 4 {
        std::fs::create_dir_all(path.join(format!("side{n}/below"))).unwrap();
    }
    assert_eq!(leaf.pids(), [0_i32; 0]);
    leaf.remove().unwrap();
    assert!(!path.exists());
    // A folder that is gone already is as good, for every call.
    leaf.remove().unwrap();
    leaf.kill().unwrap();
    assert!(!leaf.populated() && leaf.wait_empty(LONG).unwrap());
    assert_eq!(leaf.pids(), [0_i32; 0]);
    assert!(session.leaf(id(1)).is_ok());
}

#[test]
fn groups_nested_deeper_than_the_bound_are_reported_and_left() {
    let Some(ground) = Playground::new("deep") else { return };
    let session = ground.base.session(1).unwrap();
    let leaf = session.leaf(id(1)).unwrap();
    let mut path = ground.base.host_folder().join(format!("s1/p{}", id(1)));
    let mut made = Vec::new();
    for _ in 0..=MAX_DEPTH {
        path.push("x");
        std::fs::create_dir(&path).unwrap();
        made.push(path.clone());
    }
    assert!(matches!(leaf.remove(), Err(CgroupError::TooMany { .. })));
    assert_eq!(leaf.pids(), [0_i32; 0]);
    for path in made.iter().rev() {
        std::fs::remove_dir(path).unwrap();
    }
    leaf.remove().unwrap();
}

#[test]
fn a_leaf_that_is_as_it_was_made_serves_the_next_process() {
    let Some(ground) = Playground::new("reuse") else { return };
    let session = ground.base.session(1).unwrap();
    let leaf = session.leaf(id(1)).unwrap();
    let child = sleeper();
    put_in(leaf.dir(), child.pid());
    assert!(!leaf.release(), "somebody lives in it");
    drop(child);
    assert!(leaf.wait_empty(LONG).unwrap());
    assert!(leaf.release());
    let next = session.leaf(id(2)).unwrap();
    assert_eq!(next.first(), id(1), "it keeps the name of its first process");
    assert_eq!(session.leaf(id(3)).unwrap().first(), id(3), "there is one spare leaf only");
    session.remove().unwrap();
}

#[test]
fn a_leaf_that_was_touched_serves_nobody_again() {
    let Some(ground) = Playground::new("touched") else { return };
    let session = ground.base.session(1).unwrap();
    let write = |leaf: &Leaf, file, text: &[u8]| {
        let file = files::open_file(leaf.dir(), "leaf", file, rustix::fs::OFlags::WRONLY).unwrap().unwrap();
        rustix::io::write(&file, text).unwrap();
    };
    type Touch<'a> = &'a dyn Fn(&Leaf);
    let touches: [(&str, Touch<'_>); 4] = [
        ("killed", &|leaf| leaf.kill().unwrap()),
        ("refused by a clone", &Leaf::spoil),
        ("groups below", &|leaf| files::make(leaf.dir(), "own", Existing::Refused).unwrap()),
        ("frozen", &|leaf| write(leaf, "cgroup.freeze", b"1")),
    ];
    for (number, (what, touch)) in (1..).zip(touches) {
        let leaf = session.leaf(id(number)).unwrap();
        assert_eq!(leaf.first(), id(number), "a new one after: {what}");
        touch(&leaf);
        assert!(leaf.release(), "{what}");
        assert!(!ground.base.path().join(format!("p{}", id(number))).exists(), "{what}");
    }
    session.remove().unwrap();
}

#[test]
fn only_so_many_leaves_are_kept() {
    let Some(ground) = Playground::new("many") else { return };
    let session = ground.base.session(1).unwrap();
    let leaves: Vec<_> = (1..=20).map(|number| session.leaf(id(number)).unwrap()).collect();
    assert!(leaves.iter().all(Leaf::release));
    let kept =
        files::subgroups(files::open_group(session.dir.as_fd(), ".", DIRECTORY).unwrap().as_fd(), "s1");
    assert_eq!(kept.unwrap().len(), 16);
    session.remove().unwrap();
}

#[test]
fn a_leaf_is_made_once_and_a_session_opened_again() {
    let Some(ground) = Playground::new("twice") else { return };
    let session = ground.base.session(1).unwrap();
    let _leaf = session.leaf(id(1)).unwrap();
    let second = session.leaf(id(1)).unwrap_err();
    assert!(matches!(second, CgroupError::Create { source: Errno::EXIST, .. }), "{second}");
    // As the nursery does after a lost keeper.
    let again = SessionGroup::create(ground.base.host_folder().as_os_str().as_bytes(), 1).unwrap();
    again.remove().unwrap();
    assert_eq!(ground.names(), Vec::<String>::new());
    assert!(matches!(session.leaf(id(2)), Err(CgroupError::Create { .. })));
    // The next session finds the host's folder gone and makes it again.
    ground.base.session(2).unwrap().remove().unwrap();
}

#[test]
fn the_host_folder_stays_until_its_last_session_ends() {
    let Some(ground) = Playground::new("sessions") else { return };
    let (first, second) = (ground.base.session(1).unwrap(), ground.base.session(2).unwrap());
    first.remove().unwrap();
    assert_eq!(ground.names(), [ground.base.tag.folder()]);
    assert!(ground.base.has_session(2) && !ground.base.has_session(1));
    second.remove().unwrap();
    assert!(!ground.base.has_session(2));
    assert_eq!(ground.names(), Vec::<String>::new(), "a look makes nothing");
}

/// Sweeps until nothing is in use any more; how many hosts are gone. A child that another test is just starting holds
/// copies of all our descriptors until its exec, locks included.
fn sweep_all(base: &Base) -> u32 {
    let mut removed = 0;
    let mut last = Swept::default();
    for _ in 0..10_000 {
        last = base.sweep(LONG).unwrap();
        removed += last.removed;
        if last.failed.is_empty() {
            return removed;
        }
        std::thread::yield_now();
    }
    panic!("still in use: {last:?}");
}

#[test]
fn a_sweep_removes_dead_hosts_with_their_processes_and_nothing_else() {
    let Some(ground) = Playground::new("sweep") else { return };
    let own = ground.base.tag;
    let dead = HostTag { start_time: own.start_time + 1, ..own };
    let last_boot = HostTag { boot: own.boot ^ 1, ..own };
    let left = ground.as_host(dead).session(1).unwrap();
    let leaf = left.leaf(id(1)).unwrap();
    let mut orphan = sleeper();
    put_in(leaf.dir(), orphan.pid());
    drop(left);
    drop(ground.as_host(last_boot).session(2).unwrap());
    let stale_probe = format!("{}.probe-1-0", dead.folder());
    files::make(ground.base.dir.as_fd(), &stale_probe, Existing::Refused).unwrap();
    // Ours, another live host's, and one that only looks similar.
    let _ours = ground.base.session(3).unwrap();
    let neighbour = sleeper();
    let live = HostTag::of_process(neighbour.pid()).unwrap();
    drop(ground.as_host(live).session(4).unwrap());
    files::make(ground.base.dir.as_fd(), "hostler-mine", Existing::Refused).unwrap();

    assert_eq!(sweep_all(&ground.base), 3);
    wait_for_zombie(&orphan);
    assert!(orphan.has_ended());
    let mut names = ground.names();
    names.sort();
    let mut expected = [own.folder(), live.folder(), "hostler-mine".to_owned()];
    expected.sort();
    assert_eq!(names, expected);
}

#[test]
fn a_sweep_spares_a_host_that_looks_dead_while_its_folder_is_in_use() {
    let Some(ground) = Playground::new("lock") else { return };
    // What a host of another pid namespace looks like from here.
    let unseen = HostTag { start_time: ground.base.tag.start_time + 1, ..ground.base.tag };
    let session = ground.as_host(unseen).session(1).unwrap();
    let leaf = session.leaf(id(1)).unwrap();
    let mut innocent = sleeper();
    put_in(leaf.dir(), innocent.pid());
    let swept = ground.base.sweep(LONG).unwrap();
    assert_eq!(swept.removed, 0);
    assert!(matches!(swept.failed[..], [CgroupError::Busy { .. }]), "{swept:?}");
    assert!(leaf.populated() && !innocent.has_ended());
    drop(session);
    assert_eq!(sweep_all(&ground.base), 1);
}
