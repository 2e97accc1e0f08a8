//! A client that vanishes, and a host that is told to end: everything that ran is gone, and an orderly end is one.

use std::os::unix::process::ExitStatusExt;

use rustix::process::Signal;
use serde_json::json;

use crate::client::{Client, Data, Message, Proc, until};
use crate::host::{Host, Setup};

/// How the end comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    InputClosed,
    OutputClosed,
    BothClosed,
    Shutdown,
    Signal(Signal),
}

/// Trees that do not go by themselves when their pipes close or a SIGTERM comes.
const TREES: [&str; 5] = ["setsid", "double-fork", "hard-daemon", "ignore-term", "exit-after-double-fork"];

/// A host with a stubborn tree of each kind, all ready.
fn grown(test: &str) -> (Host, Client, Vec<Proc>) {
    // Whoever runs the tests in the background has SIGINT ignored, and what is ignored would be ignored by the host.
    let setup = Setup::new(test).shell("exec env --default-signal=INT,HUP \"$0\" \"$@\"");
    let (mut host, mut client) = setup.start_greeted();
    let procs = TREES.iter().map(|tree| client.evil(&host, &[tree])).collect();
    host.note_helpers();
    // The host, at least two processes of each tree but one, and a pause for nobody: all bear the token.
    until("all trees", || match host.token().pids().len() {
        count if count >= 2 * TREES.len() => Ok(()),
        count => Err(count),
    });
    (host, client, procs)
}

fn end(host: &Host, client: &mut Client, way: Way) {
    match way {
        Way::InputClosed => client.close_input(),
        Way::OutputClosed => client.close_output(),
        Way::BothClosed => {
            client.close_output();
            client.close_input();
        }
        Way::Shutdown => drop(client.send("shutdown", json!({}))),
        Way::Signal(signal) => host.signal(signal),
    }
}

/// Each tree ends, and a client that still listens hears of each end exactly once.
fn everything_ends(test: &str, way: Way) {
    let (host, mut client, procs) = grown(test);
    end(&host, &mut client, way);
    if !matches!(way, Way::OutputClosed | Way::BothClosed) {
        let ended: Vec<String> = client.rest().into_iter().filter_map(ended).collect();
        let mut expected: Vec<String> = procs.iter().map(|proc| proc.id.clone()).collect();
        let mut found = ended.clone();
        expected.sort();
        found.sort();
        assert_eq!(found, expected, "terminal events");
    }
    host.ends_well();
}

fn ended(message: Message) -> Option<String> {
    match message {
        Message::Event(event) if event.data.is_terminal() => Some(event.proc_id),
        Message::Event(_) | Message::Reply(_) => None,
    }
}

#[test]
fn everything_ends_with_the_end_of_standard_input() {
    everything_ends("input closed", Way::InputClosed);
}

#[test]
fn everything_ends_when_nobody_reads_standard_output_any_more() {
    everything_ends("output closed", Way::OutputClosed);
}

#[test]
fn everything_ends_when_the_client_vanishes() {
    everything_ends("both closed", Way::BothClosed);
}

#[test]
fn everything_ends_at_shutdown() {
    everything_ends("shutdown", Way::Shutdown);
}

#[test]
fn everything_ends_at_sigterm() {
    everything_ends("sigterm", Way::Signal(Signal::TERM));
}

#[test]
fn everything_ends_at_sigint() {
    everything_ends("sigint", Way::Signal(Signal::INT));
}

#[test]
fn everything_ends_at_sighup() {
    everything_ends("sighup", Way::Signal(Signal::HUP));
}

#[test]
fn a_host_that_was_started_with_signals_ignored_goes_on_ignoring_them() {
    let (host, mut client) = Setup::new("nohup").shell("trap '' HUP INT").start_greeted();
    let status = std::fs::read_to_string(format!("/proc/{}/status", host.pid())).unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    // One bit for each signal, the lowest for number 1.
    let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
    let bit = |signal: Signal| ignored >> (signal.as_raw() - 1) & 1;
    assert_eq!((bit(Signal::HUP), bit(Signal::INT), bit(Signal::TERM)), (1, 1, 0), "{status}");
    host.signal(Signal::HUP);
    host.signal(Signal::INT);
    let proc = client.evil(&host, &["exit", "0"]);
    assert_eq!(client.finish(&proc).end, Data::Code(0));
    host.end(client);
}

#[test]
fn a_host_that_was_started_with_signals_blocked_hears_them_all_the_same() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let blocking = "exec env --block-signal=TERM,INT,HUP \"$0\" \"$@\"";
        let (mut host, _client) = Setup::new("blocked").shell(blocking).start_greeted();
        host.signal(signal);
        assert_eq!(host.wait().code(), Some(0), "{signal:?}");
    }
}

#[test]
fn nothing_outlives_a_host_that_was_killed() {
    let (mut host, _client, _procs) = grown("sigkill");
    host.signal(Signal::KILL);
    assert_eq!(host.wait().signal(), Some(9));
    host.token().wait_until_gone(crate::host::LONG).unwrap();
}

/// A flooding process beside stubborn ones: its output is what the host is busy with.
fn everything_ends_during_a_flood(test: &str, way: Way) {
    let (host, mut client, _procs) = grown(test);
    let flood = client.evil(&host, &["flood"]);
    for _ in 0..1000 {
        client.text(&flood);
    }
    end(&host, &mut client, way);
    host.ends_well();
}

#[test]
fn a_flood_does_not_hold_up_the_end_when_standard_output_closes() {
    everything_ends_during_a_flood("flood, output closed", Way::OutputClosed);
}

#[test]
fn a_flood_does_not_hold_up_the_end_when_both_close() {
    everything_ends_during_a_flood("flood, both closed", Way::BothClosed);
}

/// Nobody reads what is left, so it is given up after a while.
#[test]
fn a_client_that_has_stopped_reading_does_not_hold_up_the_end_of_input() {
    everything_ends_during_a_flood("flood, input closed, not reading", Way::InputClosed);
}

#[test]
fn a_client_that_has_stopped_reading_does_not_hold_up_sigterm() {
    everything_ends_during_a_flood("flood, sigterm, not reading", Way::Signal(Signal::TERM));
}

#[test]
fn what_was_written_before_the_end_of_input_is_still_delivered() {
    let (host, mut client) = Setup::new("last words").start_greeted();
    let script = "trap 'echo last words; exit 0' TERM; echo ready; read line; while :; do read -t 1 x; done";
    let polite = client.spawn(&["bash", "-c", script, host.token().as_str()]);
    assert_eq!(client.text(&polite), "ready\n");
    client.close_input();
    let finished = client.finish(&polite);
    assert_eq!(finished.stdout, ["last words\n"]);
    assert_eq!(finished.end, Data::Killed);
    assert_eq!(client.rest(), []);
    host.ends_well();
}
