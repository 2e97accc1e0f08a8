//! A disk that is full or cannot be written at all: output goes on through memory alone, and nothing is lost.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;

use hostler_testkit::Tmpfs;
use serde_json::json;

use crate::client::{Client, Data, Message};
use crate::client::{Innocent, until};
use crate::host::{Host, Setup};
use crate::stalled::{disk_bytes, read_floods, wait_until_all_wait};

const MIB: u64 = 1 << 20;
const FLOODS: usize = 2;
const BYTES: u64 = 80 * 50_000;

/// Processes flood, nobody reads until they wait, then all of it is read: in order, with nothing missing.
fn nothing_is_lost(host: Host, mut client: Client, while_all_wait: impl FnOnce(&Host)) {
    let mut innocent = Innocent::start(&host, &mut client);
    let flood = host.evil_command(&["flood", &BYTES.to_string()]);
    for _ in 0..FLOODS {
        client.send_spawn(&flood, json!({}));
    }
    until("all processes", || host.token().pids().len() >= FLOODS + 2);
    wait_until_all_wait(&host);
    while_all_wait(&host);
    read_floods(&mut client, FLOODS, BYTES, |_| ());
    innocent.answers(&mut client);
    host.end(client);
}

#[test]
fn a_full_disk_slows_processes_down_and_loses_nothing() {
    let disk = match Tmpfs::mount(MIB) {
        Ok(disk) => disk,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
            println!("skipped: mounting is forbidden here");
            return;
        }
    };
    let folder = disk.path().to_owned();
    let setup = Setup::new("full disk").variable("XDG_STATE_HOME", folder.as_os_str());
    let (host, client) = setup.start_greeted();
    nothing_is_lost(host, client, |host| {
        let used = disk_bytes(&folder);
        assert!(used > MIB / 2 && used <= MIB, "{used} bytes on a disk of {MIB}");
        // A thread of the host writes its log.
        until("a word about it", || host.log().contains("failed to spool output"));
    });
    drop(disk);
}

#[test]
fn where_no_file_may_grow_memory_alone_serves() {
    let (host, client) = Setup::new("no file may grow").shell("ulimit -f 0").start_greeted();
    nothing_is_lost(host, client, |host| assert_eq!(disk_bytes(&host.env().state_home()), 0));
}

#[test]
fn without_any_folder_to_write_to_memory_alone_serves() {
    let setup = Setup::new("no folder").variable("HOSTLER_RUNTIME_STATE_DIR", "/dev/null/state");
    let (host, client) = setup.start_greeted();
    nothing_is_lost(host, client, |host| {
        assert_eq!(disk_bytes(&host.env().state_home()), 0);
        assert!(host.log().contains("no folder for output"), "{}", host.log());
    });
}

#[test]
fn a_user_who_may_write_nowhere_is_served_from_memory_alone() {
    let mut setup = Setup::nobody("nobody");
    // Every place that is looked at in turn; nobody may make a folder in any of them.
    for name in ["XDG_STATE_HOME", "HOME", "TMPDIR", "XDG_RUNTIME_DIR"] {
        setup = setup.variable(name, "/proc");
    }
    let (host, client) = setup.start_greeted();
    nothing_is_lost(host, client, |host| {
        assert!(host.log().contains("no folder for output"), "{}", host.log());
    });
}

/// Cuts off half of every file with output.
fn cut_all(folder: &Path) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let data = entry.metadata().unwrap();
        if data.is_dir() {
            cut_all(&entry.path());
        } else if entry.file_name() != "lock" {
            File::options().write(true).open(entry.path()).unwrap().set_len(data.len() / 2).unwrap();
        }
    }
}

#[test]
fn output_that_somebody_cuts_off_is_said_to_be_lost_and_its_process_does_not_count_as_completed() {
    let (host, mut client) = Setup::new("cut off").start_greeted();
    let asked = client.send_spawn(&host.evil_command(&["flood", &BYTES.to_string()]), json!({}));
    until("the process", || host.token().pids().len() >= 2);
    wait_until_all_wait(&host);
    cut_all(&host.env().state_home());
    let proc = client.spawned(&asked);
    let (mut received, mut lost, mut holes) = (0, 0, 0);
    let end = loop {
        match client.next().expect("the host goes on") {
            Message::Event(event) if event.data.is_terminal() => break event.data,
            Message::Event(event) => match event.data {
                Data::Text(text) => received += text.len() as u64,
                Data::Code(_) | Data::Killed => unreachable!("they are the end"),
            },
            Message::Reply(error) => {
                assert_eq!(
                    (&error["code"], &error["detail"]["proc_id"]),
                    (&json!("output_lost"), &json!(proc.id))
                );
                assert_eq!(error["detail"]["stream_type"], "stdout", "{error}");
                lost += error["detail"]["bytes"].as_u64().unwrap();
                holes += 1;
            }
        }
    };
    assert!(holes > 0 && lost > 0, "something was cut off");
    assert_eq!(received + lost, BYTES + "ready\n".len() as u64, "every byte is here or said to be missing");
    assert_eq!((end, client.status(&proc).as_str()), (Data::Code(-9), "error"));
    host.end(client);
}
