//! Limits: of open files, of processes, of what a host remembers.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;

use serde_json::{Value, json};

use crate::client::{Client, Data, Innocent, Message, Proc, until};
use crate::host::{Host, Setup};

fn is_proc_limit(reply: &Value) -> bool {
    assert_eq!((&reply["ok"], &reply["proc_id"]), (&json!(false), &json!("")), "{reply}");
    reply["error"].as_str().unwrap().starts_with("proc_limit")
}

/// Spawns processes that echo until one is refused, which must be for want of room, in these words.
fn fill(host: &Host, client: &mut Client, words: &str) -> Vec<Proc> {
    let command = host.evil_command(&["echo"]);
    let mut procs = Vec::new();
    loop {
        assert!(procs.len() < 300, "no limit was met");
        let id = client.send_spawn(&command, json!({}));
        let reply = client.reply(&id);
        if reply["ok"] == false {
            assert!(is_proc_limit(&reply) && reply["error"].as_str().unwrap().contains(words), "{reply}");
            return procs;
        }
        procs.push(Proc { id: reply["proc_id"].as_str().unwrap().to_owned(), req_id: id });
    }
}

#[test]
fn too_few_descriptors_are_a_proc_limit_and_the_host_lives_on() {
    for limit in [80, 120, 200] {
        let setup = Setup::new("few descriptors").open_files(limit).flag("--max-processes=1000");
        let (host, mut client) = setup.start_greeted();
        let mut innocent = Innocent::start(&host, &mut client);
        let mut before = None;
        for _ in 0..3 {
            let procs = fill(&host, &mut client, &format!("the host's limit of {limit} open files"));
            assert!(
                before.is_none_or(|before| before == procs.len()),
                "as many as before: {before:?}, {}",
                procs.len()
            );
            before = Some(procs.len());
            for proc in &procs {
                assert_eq!(client.text(proc), "ready\n");
                assert_eq!(client.write_to(proc, "hello\n")["ok"], true);
                assert_eq!(client.text(proc), "hello\n");
            }
            innocent.answers(&mut client);
            for proc in &procs {
                assert_eq!(client.kill(proc, "SIGKILL")["state"], "killed");
                assert_eq!(client.finish(proc).end, Data::Killed);
            }
        }
        assert!(before > Some(2), "with {limit} descriptors: {before:?}");
        innocent.answers(&mut client);
        host.end(client);
    }
}

#[test]
fn no_room_for_a_single_process_is_said_too() {
    let (host, mut client) = Setup::new("no descriptors").open_files(48).start_greeted();
    assert_eq!(fill(&host, &mut client, "the host's limit of 48 open files").len(), 0);
    client.ping();
    host.end(client);
}

/// Runs a host on two requests and returns its exit status, how many lines it answered, and its log.
fn two_requests(setup: Setup) -> (Option<i32>, usize, String) {
    let (theirs_in, mut ours_in) = std::io::pipe().unwrap();
    let (mut ours_out, theirs_out) = std::io::pipe().unwrap();
    let pings = "{\"type\":\"ping\",\"id\":\"p\"}\n".repeat(2);
    ours_in.write_all(pings.as_bytes()).unwrap();
    drop(ours_in);
    let mut host = setup.start_on(OwnedFd::from(theirs_in), OwnedFd::from(theirs_out));
    let status = host.wait();
    let mut answers = String::new();
    ours_out.read_to_string(&mut answers).unwrap();
    (status.code(), answers.lines().count(), host.log())
}

#[test]
fn a_start_that_is_out_of_descriptors_is_one_error_that_says_so() {
    let mut served = 0;
    // With fewer, the system's own loader does not find its libraries.
    for limit in 4..=40 {
        let (status, answers, log) = two_requests(Setup::new("out of descriptors").open_files(limit));
        if status == Some(0) {
            assert_eq!((answers, log.as_str()), (2, ""), "{limit}");
            served += 1;
        } else {
            assert_eq!(answers, 0, "{limit}");
            assert_eq!(log.lines().count(), 2, "{log}");
            let [error, hint] = [0, 1].map(|line| log.lines().nth(line).unwrap());
            assert!(
                error.starts_with("error: ") && error.ends_with("Too many open files (os error 24)"),
                "{log}"
            );
            // One file that is looked at before may be the first that cannot be opened.
            let expected =
                if status == Some(2) { "hint: " } else { "hint: raise the limit of open files: `ulimit -n`" };
            assert!(hint.starts_with(expected), "{log}");
        }
    }
    assert!((5..=15).contains(&served), "{served}");
}

#[test]
fn a_start_that_is_out_of_processes_is_one_error_that_says_so() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: others of this user would be counted");
        return;
    }
    let (status, answers, log) = two_requests(Setup::nobody("out of processes").user_processes(1));
    let expected = "error: failed to start: failed to start the nursery from /proc/self/exe: Resource temporarily unavailable (os error 11)
hint: no more processes or threads may be had, or no memory for one: raise `ulimit -u`, `ulimit -v` or the limits of the control group
";
    assert_eq!((status, answers, log.as_str()), (Some(1), 0, expected));
}

/// What is closed counts as /dev/null: the first file that is opened must not take its place.
#[test]
fn closed_descriptors_are_no_surprise() {
    for closed in ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"] {
        let setup = Setup::new("closed").shell(&format!("exec {closed}"));
        let (status, answers, log) = two_requests(setup);
        let expected = if closed == "2>&-" { 2 } else { 0 };
        assert_eq!((status, answers, log.as_str()), (Some(0), expected, ""), "{closed}");
    }
}

#[test]
fn a_burst_never_slips_through_the_quota() {
    let (host, mut client) = Setup::new("burst").start_greeted();
    let command = host.evil_command(&["pause"]);
    for round in 0..2 {
        let lines: Vec<Vec<u8>> =
            (0..300).map(|_| client.line("proc/spawn/req", json!({"cmd": command})).1).collect();
        client.write(&lines.concat());
        let (mut started, mut refused) = (Vec::new(), 0);
        while started.len() + refused < 300 {
            match client.next().unwrap() {
                Message::Reply(reply) if reply["ok"] == true => {
                    let text = |field: &str| reply[field].as_str().unwrap().to_owned();
                    started.push(Proc { id: text("proc_id"), req_id: text("req_id") });
                }
                Message::Reply(reply) => {
                    assert!(is_proc_limit(&reply), "{reply}");
                    refused += 1;
                }
                Message::Event(event) => assert_eq!(event.data, Data::Text("ready\n".into())),
            }
        }
        assert_eq!((started.len(), refused), (64, 236), "round {round}");
        until("64 and the host", || match host.token().pids().len() {
            65 => Ok(()),
            count => Err(count),
        });
        let kills: Vec<String> = started
            .iter()
            .map(|proc| client.send("proc/kill/req", json!({"proc_id": proc.id, "signal": "SIGKILL"})))
            .collect();
        for (proc, kill) in started.iter().zip(&kills) {
            assert_eq!(client.reply(kill)["state"], "killed");
            while client.event(proc).data != Data::Killed {}
        }
    }
    host.end(client);
}

#[test]
fn the_place_of_a_process_is_free_before_its_last_event() {
    let (host, mut client) = Setup::new("one place").flag("--max-processes=1").start_greeted();
    let command = host.evil_command(&["exit", "3"]);
    for _ in 0..300 {
        let proc = client.spawn(&command);
        assert_eq!(client.finish(&proc).end, Data::Code(3));
    }
    for signal in ["SIGKILL", "SIGTERM"].repeat(20) {
        let proc = client.evil(&host, &["pause"]);
        client.send("proc/kill/req", json!({"proc_id": proc.id, "signal": signal}));
        assert_eq!(client.finish(&proc).end, Data::Killed);
    }
    host.end(client);
}

#[test]
fn what_lingers_keeps_its_place_until_it_is_killed() {
    let (host, mut client) = Setup::new("lingering place").flag("--max-processes=1").start_greeted();
    let linger = client.spawn(&host.evil_command(&["linger", "silent", "60"]));
    assert_eq!(client.finish(&linger).end, Data::Code(3));
    assert_eq!(fill(&host, &mut client, "1 processes of this session").len(), 0, "a descendant lives");
    client.kill(&linger, "SIGKILL");
    until("the host alone", || match host.token().pids().as_slice() {
        [pid] if *pid == host.pid() => Ok(()),
        pids => Err(pids.to_vec()),
    });
    let proc = client.evil(&host, &["exit", "0"]);
    assert_eq!(client.finish(&proc).end, Data::Code(0));
    host.end(client);
}

#[test]
fn a_thousand_processes_leave_nothing_in_the_host_but_what_it_remembers() {
    const ALL: usize = 1300;
    let (host, mut client) = Setup::new("thousand").start_greeted();
    let command = host.evil_command(&["exit", "0"]);
    let mut procs = Vec::new();
    let mut early = None;
    for number in 0..ALL {
        let proc = client.spawn(&command);
        assert_eq!(client.finish(&proc).end, Data::Code(0));
        procs.push(proc);
        if number == ALL / 10 {
            let keepers: Vec<_> = host.helpers().iter().map(|helper| (helper.pid, fds(helper.pid))).collect();
            early = Some((host.rss_kib(), host.fd_count(), keepers));
        }
    }
    let (rss, descriptors, helpers) = early.unwrap();
    assert!(host.rss_kib() <= rss + 32 * 1024, "from {rss} to {} KiB", host.rss_kib());
    assert!(host.fd_count() <= descriptors + 2, "from {descriptors} to {} descriptors", host.fd_count());
    for (pid, before) in helpers {
        assert!(fds(pid) <= before + 2, "from {before} to {} descriptors in a helper", fds(pid));
    }

    let reply = client.call("proc/status/req", json!({}));
    let listed: Vec<&str> =
        reply["procs"].as_array().unwrap().iter().map(|p| p["proc_id"].as_str().unwrap()).collect();
    let expected: Vec<&str> = procs[ALL - listed.len()..].iter().map(|proc| proc.id.as_str()).collect();
    assert_eq!(listed, expected, "the last ones, in order of their start");
    assert!((1024..1200).contains(&listed.len()), "{} are known", listed.len());
    let known: HashSet<String> = listed.into_iter().map(str::to_owned).collect();
    for proc in procs.iter().step_by(50) {
        let expected = if known.contains(&proc.id) { "completed" } else { "not_found" };
        assert_eq!(client.status(proc), expected);
    }
    host.end(client);
}

/// A program that does nothing, with arguments in nearly as long strings as the kernel takes.
fn with_huge_arguments(count: usize) -> Vec<String> {
    [["bash", "-c", ":"].map(str::to_owned).to_vec(), vec!["x".repeat(125_000); count]].concat()
}

#[test]
fn what_processes_were_started_with_is_not_kept_and_an_answer_about_all_of_them_is_small() {
    let (host, mut client) = Setup::new("huge arguments").start_greeted();
    let command = with_huge_arguments(10);
    let mut early = None;
    for number in 0..30 {
        let variables = json!({"A": "x".repeat(125_000), "B": "x".repeat(125_000)});
        let proc = client.spawn_with(&command, json!({"env": variables}));
        assert_eq!(client.finish(&proc).end, Data::Code(0));
        let id = client.send_spawn(&command, json!({"cwd": "x".repeat(1_000_000)}));
        let refused = client.reply(&id);
        assert!(refused["error"].as_str().unwrap().contains("File name too long"), "{refused}");
        let id = client.send_spawn(&with_huge_arguments(20), json!({}));
        let refused = client.reply(&id)["error"].as_str().unwrap().to_owned();
        assert!(refused.contains("too large") && refused.contains("the longest 125001"), "{refused}");
        if number == 10 {
            early = Some(host.rss_kib());
        }
    }
    let (early, now) = (early.unwrap(), host.rss_kib());
    assert!(now <= early + 16 * 1024, "from {early} to {now} KiB");
    let reply = client.call("proc/status/req", json!({}));
    assert!(reply.to_string().len() < 30 * 4500, "{} bytes", reply.to_string().len());
    let shown = reply["procs"][0]["cmd"].as_str().unwrap();
    assert!(shown.starts_with("bash -c : xxx") && shown.ends_with("xxx…") && shown.len() < 4100, "{shown}");
    host.end(client);
}

fn fds(pid: i32) -> usize {
    hostler_testkit::fd_count(pid).unwrap()
}
