//! On a real disk, in temporary folders.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::Barrier;

use super::*;

fn temporary() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

fn entries(path: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A host that was killed: its folder is there and its lock is free.
fn abandoned(base: &Path, name: &str) -> PathBuf {
    let folder = base.join(name);
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join(LOCK), "pid 1\nboot another\n").unwrap();
    folder
}

#[test]
fn a_host_has_a_private_locked_folder_until_it_ends() {
    let base = temporary();
    let base = base.path().join("state");
    let host = StateDir::below(&base).unwrap();
    let path = host.path().to_owned();
    assert_eq!((mode(&base), mode(&path), mode(&path.join(LOCK))), (0o700, 0o700, 0o600));
    let mark = std::fs::read_to_string(path.join(LOCK)).unwrap();
    assert_eq!(mark, format!("pid {}\nboot {}\n", std::process::id(), boot_id()));
    let session = host.session("s1").unwrap();
    assert_eq!(mode(session.path()), 0o700);
    std::fs::write(session.path().join("p1.stdout"), "x").unwrap();
    host.remove().unwrap();
    assert!(entries(&base).is_empty());
    drop(session);
}

#[test]
fn a_session_folder_goes_with_its_session() {
    let base = temporary();
    let host = StateDir::below(base.path()).unwrap();
    let session = host.session("s1").unwrap();
    session.disk().create("p1.stdout").unwrap();
    std::fs::create_dir_all(session.path().join("scratch/a/b")).unwrap();
    assert!(host.session("s1").is_err(), "a name is used once");
    for name in ["", ".", "..", "a/b", "lock"] {
        assert!(host.session(name).is_err(), "{name:?} is no name");
    }
    drop(session);
    assert_eq!(entries(host.path()), ["lock"]);
}

#[test]
fn folders_of_dead_hosts_are_swept_and_those_of_live_ones_stay() {
    let base = temporary();
    let dead = abandoned(base.path(), "host-1-0badb007-x");
    std::fs::create_dir(dead.join("s1")).unwrap();
    std::fs::write(dead.join("s1/p1.stdout"), "x").unwrap();
    std::fs::create_dir(base.path().join("host-2-0badb007-died-before-its-lock")).unwrap();
    std::fs::write(base.path().join("notes"), "not ours").unwrap();
    let living = StateDir::below(base.path()).unwrap();
    let host = StateDir::below(base.path()).unwrap();
    let swept = std::thread::spawn(host.sweeper()).join().unwrap();
    assert_eq!(swept, Swept { removed: 2, alive: 1, failed: 0 });
    let name = |dir: &StateDir| dir.path().file_name().unwrap().to_str().unwrap().to_owned();
    let mut expected = vec![name(&living), name(&host), "notes".to_owned()];
    expected.sort();
    assert_eq!(entries(base.path()), expected);
}

#[test]
fn a_folder_that_cannot_be_locked_is_never_removed() {
    let base = temporary();
    let strange = base.path().join("host-3-0badb007-strange");
    std::fs::create_dir(&strange).unwrap();
    std::fs::write(strange.join("kept"), "x").unwrap();
    let linked = abandoned(base.path(), "host-4-0badb007-linked");
    std::fs::remove_file(linked.join(LOCK)).unwrap();
    symlink(strange.join("kept"), linked.join(LOCK)).unwrap();
    let host = StateDir::below(base.path()).unwrap();
    assert_eq!(host.sweep(), Swept { removed: 0, alive: 0, failed: 2 });
    assert!(strange.join("kept").exists() && linked.exists());
}

#[test]
fn sweeping_never_follows_a_link() {
    let (base, outside) = (temporary(), temporary());
    std::fs::write(outside.path().join("precious"), "x").unwrap();
    symlink(outside.path(), base.path().join("host-5-0badb007-link")).unwrap();
    let dead = abandoned(base.path(), "host-6-0badb007-x");
    symlink(outside.path(), dead.join("s1")).unwrap();
    std::fs::create_dir(dead.join("s2")).unwrap();
    symlink(outside.path().join("precious"), dead.join("s2/file")).unwrap();
    symlink("..", dead.join("s2/up")).unwrap();
    let host = StateDir::below(base.path()).unwrap();
    assert_eq!(host.sweep(), Swept { removed: 1, alive: 0, failed: 1 });
    assert_eq!(entries(outside.path()), ["precious"]);
    assert!(!dead.exists());
}

#[test]
fn deep_wide_and_closed_folders_are_removed_too() {
    let base = temporary();
    let dead = abandoned(base.path(), "host-7-0badb007-x");
    let deep: PathBuf = std::iter::repeat_n("d", 300).collect();
    std::fs::create_dir_all(dead.join("s1").join(&deep)).unwrap();
    std::fs::create_dir_all(dead.join("s2").join(&deep)).unwrap();
    std::fs::write(dead.join("s2").join(&deep).join("file"), "x").unwrap();
    std::fs::create_dir(dead.join("deep-1")).unwrap();
    std::fs::write(dead.join("deep-2"), "in the way").unwrap();
    let closed = dead.join("s3");
    std::fs::create_dir(&closed).unwrap();
    std::fs::write(closed.join("file"), "x").unwrap();
    std::fs::set_permissions(&closed, PermissionsExt::from_mode(0o000)).unwrap();
    let host = StateDir::below(base.path()).unwrap();
    assert_eq!(host.sweep(), Swept { removed: 1, alive: 0, failed: 0 });
    assert!(!dead.exists());
}

#[test]
fn hosts_that_start_at_once_do_not_remove_each_others_folders() {
    let base = temporary();
    let together = Barrier::new(8);
    let hosts: Vec<StateDir> = std::thread::scope(|scope| {
        let start = || {
            together.wait();
            (0..25)
                .map(|_| {
                    let host = StateDir::below(base.path()).unwrap();
                    host.sweep();
                    host
                })
                .collect::<Vec<_>>()
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(start)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    for host in &hosts {
        assert!(is_linked(host.inner.base().as_fd(), &host.inner.name, host.inner.folder().as_fd()).unwrap());
        assert!(host.path().join(LOCK).exists(), "{} was swept", host.path().display());
    }
    assert_eq!(entries(base.path()).len(), 200);
}

#[test]
fn a_host_whose_new_folder_was_swept_finds_out() {
    let base = temporary();
    let fd = open_base(base.path()).unwrap();
    std::fs::create_dir(base.path().join("host-8-x-y")).unwrap();
    assert!(matches!(sweep_one(fd.as_fd(), "host-8-x-y").unwrap(), Fate::Removed));
    assert!(lock_new(fd.as_fd(), "host-8-x-y").unwrap().is_none());
    assert!(claim(fd.as_fd(), "host-8-x-y").unwrap().is_some(), "and the next attempt holds");
}

#[test]
fn a_folder_that_was_removed_under_a_living_host_is_made_and_locked_again() {
    let home = temporary();
    let base = home.path().join("state");
    let host = StateDir::below(&base).unwrap();
    let session = host.session("s1").unwrap();
    let disk = session.disk();
    for gone in [base.clone(), host.path().to_owned(), session.path().to_owned()] {
        std::fs::remove_dir_all(&gone).unwrap();
        disk.create("p1.stdout.0").unwrap();
        assert_eq!((mode(&base), mode(host.path()), mode(session.path())), (0o700, 0o700, 0o700));
        let other = StateDir::below(&base).unwrap();
        assert_eq!(other.sweep(), Swept { removed: 0, alive: 1, failed: 0 }, "{}", gone.display());
    }
    std::fs::remove_dir_all(&base).unwrap();
    let second = host.session("s2").unwrap();
    assert_eq!(entries(host.path()), ["lock", "s2"], "a new session finds its place too");
    disk.create("p1.stdout.1").unwrap();
    drop((session, second));
    assert!(disk.create("p1.stdout.2").is_err(), "the session is over");
    assert_eq!(entries(host.path()), ["lock"]);
    host.remove().unwrap();
    assert!(disk.create("p1.stdout.3").is_err());
    assert!(entries(&base).is_empty());
}

#[test]
fn a_folder_is_not_made_again_where_somebody_else_is_now() {
    let (base, outside) = (temporary(), temporary());
    let host = StateDir::below(base.path()).unwrap();
    let session = host.session("s1").unwrap();
    let moved = outside.path().join("moved");
    std::fs::rename(host.path(), &moved).unwrap();
    std::fs::create_dir(outside.path().join("lure")).unwrap();
    symlink(outside.path().join("lure"), host.path()).unwrap();
    assert!(session.disk().create("p1.stdout.0").is_err());
    assert!(entries(&outside.path().join("lure")).is_empty());
    std::fs::remove_file(host.path()).unwrap();
    std::fs::set_permissions(base.path(), PermissionsExt::from_mode(0o777)).unwrap();
    assert!(session.disk().create("p1.stdout.0").is_err(), "a base that others can write is refused now too");
    std::fs::set_permissions(base.path(), PermissionsExt::from_mode(0o700)).unwrap();
    session.disk().create("p1.stdout.0").unwrap();
}

#[test]
fn linked_exposed_and_foreign_base_folders_are_refused() {
    let home = temporary();
    let base = home.path().join("base");
    std::fs::create_dir(&base).unwrap();
    symlink(&base, home.path().join("link")).unwrap();
    assert!(matches!(StateDir::below(&home.path().join("link")), Err(StateDirError::Open { .. })));
    std::fs::write(home.path().join("file"), "x").unwrap();
    assert!(matches!(StateDir::below(&home.path().join("file")), Err(StateDirError::Open { .. })));
    assert!(matches!(StateDir::below(Path::new("relative")), Err(StateDirError::Make { .. })));
    for exposed in [0o770, 0o707, 0o1777] {
        std::fs::set_permissions(&base, PermissionsExt::from_mode(exposed)).unwrap();
        assert!(
            matches!(StateDir::below(&base), Err(StateDirError::Exposed { mode, .. }) if mode == exposed)
        );
    }
    std::fs::set_permissions(&base, PermissionsExt::from_mode(0o700)).unwrap();
    // Root can give a folder away; for anybody else /usr is foreign.
    let somebody = if rustix::process::geteuid().as_raw() == 65_534 { 65_533 } else { 65_534 };
    let given_away = std::os::unix::fs::chown(&base, Some(somebody), None).is_ok();
    let foreign = if given_away { base.as_path() } else { Path::new("/usr") };
    assert!(matches!(StateDir::below(foreign), Err(StateDirError::Foreign { .. })));
}

#[test]
fn places_are_tried_in_order_and_without_any_the_ring_is_all() {
    let home = temporary();
    let blocked = home.path().join("file");
    std::fs::write(&blocked, "x").unwrap();
    let places = Places {
        xdg_state_home: Some("relative".into()),
        home: Some(home.path().to_owned()),
        tmpdir: Some(blocked.clone()),
    };
    let StateHome::Folder(folder) = StateHome::open(None, &places) else { panic!("HOME can be written") };
    assert!(folder.path().starts_with(home.path().join(".local/state/hostler")));
    let places = Places { xdg_state_home: Some(home.path().join("xdg")), ..places };
    let StateHome::Folder(folder) = StateHome::open(None, &places) else {
        panic!("XDG_STATE_HOME can be written")
    };
    assert!(folder.path().starts_with(home.path().join("xdg/hostler")));
    let nowhere = Places { xdg_state_home: None, home: Some(blocked.clone()), tmpdir: Some(blocked.clone()) };
    let StateHome::RingOnly { refused } = StateHome::open(None, &nowhere) else {
        panic!("nothing can be written")
    };
    assert_eq!(refused.len(), 2);
    let configured = StateHome::open(Some(&blocked), &places);
    let StateHome::RingOnly { refused } = configured else { panic!("a configured place is the only one") };
    assert_eq!(refused.len(), 1);
}

#[test]
fn a_forecast_names_the_place_that_a_host_then_uses_and_leaves_nothing_behind() {
    let root = temporary();
    let place = |name: &str| root.path().join(name);
    let [real, home, tmp] = ["real", "home", "tmp"].map(place);
    for folder in [&real, &home, &tmp] {
        std::fs::create_dir(folder).unwrap();
    }
    let [exposed, linked, missing, file] = ["exposed", "linked", "missing", "file"].map(place);
    std::fs::create_dir_all(exposed.join("hostler")).unwrap();
    std::fs::set_permissions(exposed.join("hostler"), std::fs::Permissions::from_mode(0o777)).unwrap();
    std::fs::create_dir(&linked).unwrap();
    symlink(&real, linked.join("hostler")).unwrap();
    std::fs::write(&file, "").unwrap();
    for (state_home, refused) in [(&exposed, 1), (&linked, 1), (&file, 1), (&missing, 0), (&real, 0)] {
        let places = Places {
            xdg_state_home: Some(state_home.clone()),
            home: Some(home.clone()),
            tmpdir: Some(tmp.clone()),
        };
        let forecast = StateForecast::of(None, &places);
        let chosen = forecast.chosen.clone().unwrap();
        assert_eq!(forecast.refused.len(), refused, "{forecast:?}");
        assert!(
            [&missing, &real, &home].iter().all(|folder| !folder.join("hostler").exists()),
            "{forecast:?}"
        );
        assert!(!home.join(".local").exists(), "{forecast:?}");

        let StateHome::Folder(folder) = StateHome::open(None, &places) else { panic!("{places:?}") };
        assert_eq!(folder.path().parent(), Some(chosen.as_path()));
        drop(folder);
        // There is one now, and trying it leaves it as it was.
        assert_eq!(StateForecast::of(None, &places).chosen, Some(chosen.clone()));
        assert_eq!(entries(&chosen), [""; 0]);
        std::fs::remove_dir_all(&home).unwrap();
        std::fs::create_dir(&home).unwrap();
        let _ = std::fs::remove_dir(real.join("hostler"));
        let _ = std::fs::remove_dir_all(&missing);
    }
}
