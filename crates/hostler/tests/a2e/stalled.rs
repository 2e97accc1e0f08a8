//! A client that reads slowly or not at all for a while: processes wait, memory and disk stay bounded, nothing is lost.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use hostler_testkit::numbered::LINE_BYTES;
use hostler_testkit::wait_until;
use serde_json::json;

use crate::client::{Client, Data, Innocent, until};
use crate::host::{Host, LONG, Setup};
use crate::raw::{Raw, RawData, RawReader};

const MIB: u64 = 1 << 20;

/// Bytes that the files below a folder take, the lock of the host aside.
pub(crate) fn disk_bytes(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(data) if data.is_dir() => disk_bytes(&entry.path()),
            Ok(_) if entry.file_name() == "lock" => 0,
            Ok(data) => data.blocks() * 512,
            // Gone since it was listed.
            Err(_) => 0,
        })
        .sum()
}

/// Waits until every process waits for the client: for a moment at which all sleep, the host, its helpers and the
/// programs. None of them can be woken then but by the client, by a timer or by one that does not sleep.
pub(crate) fn wait_until_all_wait(host: &Host) {
    wait_until("a moment at which all sleep", LONG, || {
        let before = threads(host);
        // Whoever sleeps at both looks without having been switched to has slept all the time between them, and the last
        // of the first look was seen before the first of the second.
        if before.iter().all(|thread| thread.state == 'S') && threads(host) == before {
            Ok(())
        } else {
            Err(before)
        }
    });
}

/// What one thread does.
#[derive(Debug, PartialEq, Eq)]
struct Thread {
    pid: i32,
    id: i32,
    state: char,
    /// How often it has been switched away from.
    switches: u64,
}

/// All threads of the host, of its helpers and of what bears the token of the test.
fn threads(host: &Host) -> Vec<Thread> {
    let helpers = host.helpers().into_iter().map(|helper| helper.pid);
    let pids: BTreeSet<i32> = host.token().pids().into_iter().chain(helpers).collect();
    let of = |pid: i32| {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        tasks.filter_map(move |task| Thread::of(pid, task.file_name().to_str()?.parse().ok()?))
    };
    pids.into_iter().flat_map(of).collect()
}

impl Thread {
    /// `None` when it is gone.
    fn of(pid: i32, id: i32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/task/{id}/status")).ok()?;
        let value = |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let number = |name| value(name)?.parse::<u64>().ok();
        let state = value("State:")?.chars().next()?;
        let switches = number("voluntary_ctxt_switches:")? + number("nonvoluntary_ctxt_switches:")?;
        Some(Self { pid, id, state, switches })
    }
}

/// Reads the answers to so many spawn requests for floods of so many bytes, all that these print, and their ends.
pub(crate) fn read_floods(client: &mut Client, count: usize, bytes: u64, mut look: impl FnMut(u64)) {
    let mut reader = RawReader::of(client);
    // The number of the next line, once the process has said that it is ready.
    let mut next: HashMap<String, Option<u64>> = HashMap::new();
    let (mut ended, mut total) = (0, 0);
    while ended < count {
        let (proc_id, data) = match reader.next() {
            Raw::Event { proc_id, data, .. } => (proc_id, data),
            Raw::Reply(reply) => {
                assert_eq!(reply["ok"], true, "{reply}");
                next.insert(reply["proc_id"].as_str().unwrap().to_owned(), None);
                continue;
            }
        };
        let next = next.get_mut(proc_id).expect("the answer comes before the first event");
        match (data, next) {
            (RawData::Text(br"ready\\n"), next @ None) => *next = Some(0),
            (RawData::Text(_), Some(next)) => {
                assert!(data.is_line(*next), "{data:?} is not line {next} of {proc_id}");
                *next += 1;
                total += 1;
                look(total);
            }
            (end, next) => {
                let seen = next.map(|next| next * LINE_BYTES as u64);
                assert_eq!((end, seen), (RawData::Code("0"), Some(bytes)), "{proc_id}");
                ended += 1;
            }
        }
    }
    reader.give_back(client);
}

/// Reads nothing for 3 seconds, or for as many as HOSTLER_TEST_PAUSE_SECONDS says (`cargo xtask stall`), and looks at
/// something meanwhile.
#[expect(clippy::print_stdout, reason = "who asked for a long pause wants to see that it was one")]
pub(crate) fn pause(mut look: impl FnMut()) {
    let by_hand = std::env::var("HOSTLER_TEST_PAUSE_SECONDS").ok().map(|seconds| seconds.parse().unwrap());
    let pause = Duration::from_secs(by_hand.unwrap_or(3));
    let began = SystemTime::now();
    wait_until("the end of the pause", LONG + pause, || {
        look();
        began.elapsed().is_ok_and(|paused| paused >= pause)
    });
    println!("nothing was read for {:?}", began.elapsed().unwrap());
}

#[test]
fn a_client_that_stops_reading_for_a_while_gets_everything_in_order() {
    const FLOODS: usize = 3;
    const QUOTA: u64 = 2 * MIB;
    const BYTES: u64 = 80 * 100_000;
    let setup = Setup::new("stopped reading")
        .variable("HOSTLER_RUNTIME_OUTPUT_RELAY_BYTES_PER_PROCESS", QUOTA.to_string());
    let (host, mut client) = setup.start_greeted();
    let mut innocent = Innocent::start(&host, &mut client);
    let flood = host.evil_command(&["flood", &BYTES.to_string()]);
    for _ in 0..FLOODS {
        client.send_spawn(&flood, json!({}));
    }
    until("spools of all", || match disk_bytes(&host.env().state_home()) {
        enough if enough >= FLOODS as u64 * QUOTA / 2 => Ok(()),
        few => Err(few),
    });
    wait_until_all_wait(&host);
    let rss = host.rss_kib();
    pause(|| {
        assert!(disk_bytes(&host.env().state_home()) <= FLOODS as u64 * QUOTA);
        assert!(host.rss_kib() <= rss + 4 * 1024, "memory grows while nobody reads");
    });
    read_floods(&mut client, FLOODS, BYTES, |_| ());
    assert!(host.rss_kib() < rss + 32 * 1024, "from {rss} to {} KiB", host.rss_kib());
    innocent.answers(&mut client);
    let left = disk_bytes(&host.env().state_home());
    assert!(left <= 64 * 1024, "{left} bytes on the disk: space behind the reader is given back");
    host.end(client);
}

/// 250 MB in a build without optimisation, where the host is much slower, else 2 GB; HOSTLER_TEST_BYTES for more by hand.
fn volume() -> u64 {
    let by_hand = std::env::var("HOSTLER_TEST_BYTES").ok().map(|bytes| bytes.parse().unwrap());
    let bytes: u64 = by_hand.unwrap_or(if cfg!(debug_assertions) { 250_000_000 } else { 2_000_000_000 });
    bytes / LINE_BYTES as u64 * LINE_BYTES as u64
}

#[test]
fn gigabytes_through_one_process_never_stall_and_cost_no_memory() {
    let (host, mut client) = Setup::new("volume").start_greeted();
    let began = SystemTime::now();
    let bytes = volume();
    client.send_spawn(&host.evil_command(&["flood", &bytes.to_string()]), json!({}));
    let lines = bytes / LINE_BYTES as u64;
    let (mut rss_early, mut rss_peak, mut disk_peak) = (0, 0, 0);
    let state = host.env().state_home();
    read_floods(&mut client, 1, bytes, |seen| {
        if seen % (lines / 1000).max(1) == 0 {
            disk_peak = disk_peak.max(disk_bytes(&state));
            rss_peak = rss_peak.max(host.rss_kib());
            if seen <= lines / 10 {
                rss_early = rss_early.max(host.rss_kib());
            }
        }
    });
    let took = began.elapsed().unwrap();
    println!("{bytes} bytes in {took:?}; at most {rss_peak} KiB of memory, {disk_peak} bytes on the disk");
    assert!(rss_peak <= rss_early + 32 * 1024, "memory grows from {rss_early} to {rss_peak} KiB");
    assert!(disk_peak <= 16 * MIB, "{disk_peak} bytes on the disk");
    host.end(client);
}

#[test]
fn half_a_character_and_a_carriage_return_wait_for_their_rest_even_where_room_is_scarce() {
    let setup = Setup::new("scarce room")
        .variable("HOSTLER_RUNTIME_OUTPUT_RELAY_BYTES_PER_PROCESS", "65536")
        .variable("HOSTLER_RUNTIME_OUTPUT_RELAY_BYTES_PER_SESSION", "65536");
    let (host, mut client) = setup.start_greeted();
    let script = "
import os, sys
os.write(1, b'ready\\n')
os.write(1, b'50%\\r')
os.write(2, b'\\xe2\\x82')
sys.stdin.readline()
os.write(1, b'\\n')
os.write(2, b'\\xac')
";
    let waiting = client.spawn(&["python3", "-c", script, host.token().as_str()]);
    assert_eq!(client.text(&waiting), "ready\n");
    // No line end ever makes room: all must give up what they have of theirs.
    let long = client.spawn(&host.evil_command(&["long-line", "1600000"]));
    let finished = client.finish(&long);
    assert_eq!((finished.stdout.concat().len(), finished.end), ("ready\n".len() + 1_600_001, Data::Code(0)));
    assert_eq!(client.write_to(&waiting, "go\n")["ok"], true);
    let finished = client.finish(&waiting);
    assert_eq!((finished.stdout.concat(), finished.stderr.concat()), ("50%\r\n".into(), "\u{20ac}".into()));
    host.end(client);
}
