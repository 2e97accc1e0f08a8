//! What standard input and output may be: pipes are everywhere else, here is the rest.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
use serde_json::{Value, json};

use crate::client::{Client, Data, Innocent};
use crate::host::Setup;

/// A conversation with all kinds of messages, megabytes in both directions among them.
fn converse(host: &crate::host::Host, client: &mut Client) {
    client.greet();
    let mut innocent = Innocent::start(host, client);
    let lines = client.evil(host, &["lines", "20000"]);
    let finished = client.finish(&lines);
    assert_eq!((finished.stdout.len(), finished.end), (20_000, Data::Code(0)));
    let count = client.spawn(&["python3", "-c", "import sys; print(len(sys.stdin.read()))"]);
    let fields = json!({"proc_id": count.id, "data": "x".repeat(1 << 20), "eof": true});
    assert_eq!(client.call("proc/write/req", fields)["ok"], true);
    assert_eq!(client.finish(&count).stdout, ["1048576\n"]);
    innocent.answers(client);
}

/// As Node makes them: a socket pair for each stream.
fn socket_pairs() -> ([UnixStream; 2], [UnixStream; 2]) {
    let (ours_in, theirs_in) = UnixStream::pair().unwrap();
    let (ours_out, theirs_out) = UnixStream::pair().unwrap();
    ([ours_in, ours_out], [theirs_in, theirs_out])
}

#[test]
fn a_socket_pair_for_each_stream_serves() {
    let ([ours_in, ours_out], [theirs_in, theirs_out]) = socket_pairs();
    let mut host = Setup::new("socket pairs").start_on(OwnedFd::from(theirs_in), OwnedFd::from(theirs_out));
    let mut client = Client::new(ours_in.into(), ours_out.into());
    converse(&host, &mut client);
    host.note_helpers();
    client.close_input();
    assert_eq!(client.rest().len(), 1, "the end of the one that echoes");
    host.ends_well();
}

#[test]
fn a_socket_whose_other_end_is_closed_ends_the_session_though_input_stays_open() {
    let ([ours_in, ours_out], [theirs_in, theirs_out]) = socket_pairs();
    let mut host = Setup::new("socket closed").start_on(OwnedFd::from(theirs_in), OwnedFd::from(theirs_out));
    let mut client = Client::new(ours_in.into(), ours_out.into());
    converse(&host, &mut client);
    host.note_helpers();
    client.close_output();
    host.ends_well();
}

#[test]
fn one_socket_for_both_streams_serves() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let stdout = OwnedFd::from(theirs.try_clone().unwrap());
    let mut host = Setup::new("one socket").start_on(OwnedFd::from(theirs), stdout);
    let mut client = Client::new(ours.try_clone().unwrap().into(), ours.into());
    converse(&host, &mut client);
    host.note_helpers();
    drop(client);
    host.ends_well();
}

#[test]
fn a_terminal_serves_and_its_end_is_the_end() {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let terminal = rustix::fs::open(name, flags, Mode::empty()).unwrap();
    let mut attributes = tcgetattr(&terminal).unwrap();
    attributes.make_raw();
    tcsetattr(&terminal, OptionalActions::Now, &attributes).unwrap();

    let stdout = terminal.try_clone().unwrap();
    let mut host = Setup::new("terminal").start_on(terminal, stdout);
    let mut client = Client::new(master.try_clone().unwrap(), master);
    converse(&host, &mut client);
    host.note_helpers();
    drop(client);
    host.ends_well();
}

/// A script that greets, starts a process that ends by itself and asks for its end in vain, as there is no waiting.
fn script(host_evil: &[String]) -> Vec<u8> {
    let lines = [
        json!({"type": "handshake/req", "id": "hello", "agent_caps": ["proc"]}),
        json!({"type": "proc/spawn/req", "id": "lines", "cmd": host_evil}),
        json!({"type": "proc/status/req", "id": "list"}),
        json!({"type": "ping", "id": "bye"}),
    ];
    lines.iter().flat_map(|line| format!("{line}\n").into_bytes()).collect()
}

fn replies(messages: &[Value]) -> Vec<&str> {
    messages.iter().filter_map(|message| message["req_id"].as_str()).collect()
}

/// Every request of a script has its answer, and every process that was started its last event, in the file.
fn is_complete(text: &str) {
    let messages: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(text.ends_with('\n'), "the last line is whole");
    let events: Vec<&Value> = messages.iter().filter(|m| m["type"] == "proc/read/event").collect();
    let mut answers = replies(&messages).into_iter().filter(|id| *id != "lines").collect::<Vec<_>>();
    answers.sort_unstable();
    assert_eq!(answers, ["bye", "hello", "list"]);
    let spawned: Vec<&Value> = messages.iter().filter(|m| m["type"] == "proc/spawn/resp").collect();
    assert_eq!(spawned.len(), 1);
    if spawned[0]["ok"] == true {
        let last = events.last().unwrap();
        assert!(last["stream_type"] == "killed" || last["data"] == "{\"code\":0}", "{last}");
    } else {
        let ending = "the session is ending and starts nothing any more; open a new one";
        assert_eq!(spawned[0]["error"], ending);
    }
}

#[test]
fn a_file_of_requests_is_carried_out_and_all_answers_reach_the_file_for_output() {
    // How far the process gets before the end of the script ends it is a matter of luck; that nothing is cut off is not.
    for _ in 0..20 {
        let setup = Setup::new("files");
        let (requests, answers) =
            (setup.env().work().join("script.jsonl"), setup.env().work().join("answers.jsonl"));
        let evil = hostler_testkit::evil();
        fs::write(
            &requests,
            script(&[evil.to_str().unwrap().into(), "lines".into(), "3000".into(), "x".into()]),
        )
        .unwrap();
        let host = setup.start_on(File::open(&requests).unwrap(), File::create(&answers).unwrap());
        let env = host.env().root().to_owned();
        let text = || fs::read_to_string(env.join("work/answers.jsonl")).unwrap();
        let text = host.ends_well_then(text);
        is_complete(&text);
    }
}

#[test]
fn output_into_a_file_is_complete_when_the_host_has_ended() {
    let setup = Setup::new("output file");
    let answers = setup.env().work().join("answers.jsonl");
    let file = OpenOptions::new().append(true).create(true).open(&answers).unwrap();
    let (theirs, mut ours) = std::io::pipe().unwrap();
    let mut host = setup.start_on(OwnedFd::from(theirs), file);
    let lines = host.evil_command(&["lines", "30000"]);
    ours.write_all(&script(&lines)).unwrap();
    let read = || fs::read_to_string(&answers).unwrap();
    crate::client::until("the end of the process", || read().contains("{\\\"code\\\":0}"));
    host.note_helpers();
    drop(ours);
    let text = host.ends_well_then(read);
    is_complete(&text);
    assert_eq!(text.lines().filter(|line| line.contains("abcdefghij")).count(), 30_000);
}

#[test]
fn nothing_to_read_at_all_is_the_end_at_once() {
    let (mut ours, theirs) = std::io::pipe().unwrap();
    let host = Setup::new("no input").start_on(Stdio::null(), OwnedFd::from(theirs));
    host.ends_well();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut ours, &mut text).unwrap();
    assert_eq!(text, "");
}

/// A host of another user cannot open the pipes anew, and uses them in whatever mode others have left them.
#[test]
fn pipes_of_another_user_serve_also_in_non_blocking_mode() {
    let (theirs_in, ours_in) = std::io::pipe().unwrap();
    let (ours_out, theirs_out) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&theirs_in, true).unwrap();
    rustix::io::ioctl_fionbio(&theirs_out, true).unwrap();
    let mut host =
        Setup::nobody("pipes of another").start_on(OwnedFd::from(theirs_in), OwnedFd::from(theirs_out));
    let mut client = Client::new(ours_in.into(), ours_out.into());
    converse(&host, &mut client);
    host.note_helpers();
    drop(client);
    host.ends_well();
}

fn full() -> File {
    OpenOptions::new().write(true).open("/dev/full").unwrap()
}

const NOT_WRITTEN: &str = "error: failed to write to standard output: No space left on device (os error 28)
hint: make room where it goes, or let it go elsewhere
";

#[test]
fn output_that_cannot_be_written_ends_the_session_and_is_a_failure() {
    let (theirs, mut ours) = std::io::pipe().unwrap();
    let host = Setup::new("full output").start_on(OwnedFd::from(theirs), full());
    ours.write_all(&script(&host.evil_command(&["ignore-term"]))).unwrap();
    assert_eq!(host.ends_badly(), NOT_WRITTEN);
}

#[test]
fn output_that_cannot_be_written_is_a_failure_also_after_the_end_of_input() {
    for _ in 0..5 {
        let (theirs, mut ours) = std::io::pipe().unwrap();
        ours.write_all(&script(&["ls".to_owned()])).unwrap();
        drop(ours);
        let host = Setup::new("full output, no input").start_on(OwnedFd::from(theirs), full());
        assert_eq!(host.ends_badly(), NOT_WRITTEN);
    }
}

#[test]
fn input_that_cannot_be_read_is_a_failure() {
    let (_ours, theirs) = std::io::pipe().unwrap();
    let host = Setup::new("folder for input").start_on(File::open("/").unwrap(), OwnedFd::from(theirs));
    let expected = "error: failed to read from standard input: Is a directory (os error 21)
hint: it must be a pipe, a socket, a file or a terminal
";
    assert_eq!(host.ends_badly(), expected);
}

#[test]
fn the_descriptors_of_others_are_left_in_the_mode_that_they_had() {
    let (theirs_in, ours_in) = std::io::pipe().unwrap();
    let (ours_out, theirs_out) = std::io::pipe().unwrap();
    let (shared_in, shared_out) = (theirs_in.try_clone().unwrap(), theirs_out.try_clone().unwrap());
    let host = Setup::new("modes").start_on(OwnedFd::from(theirs_in), OwnedFd::from(theirs_out));
    let mut client = Client::new(ours_in.into(), ours_out.into());
    converse(&host, &mut client);
    for mode in [rustix::fs::fcntl_getfl(&shared_in).unwrap(), rustix::fs::fcntl_getfl(&shared_out).unwrap()]
    {
        assert!(!mode.contains(OFlags::NONBLOCK), "{mode:?}");
    }
    drop((client, shared_in, shared_out));
    host.ends_well();
}
