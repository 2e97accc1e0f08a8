//! Requests around the size of a packet and at the kernel's limits, and what failures say.

use std::error::Error as _;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use hostler_core::{Host, Session, SessionOptions, SpawnError, SpawnSpec};
use hostler_testkit::{TestEnv, bin};

use crate::{
    GRACE, Stopped, keeper_of, output, parent_of, run, shrink_send_buffers, start_host, start_host_giving,
};

/// Strings of up to 100,000 bytes, all different, `total` bytes in all.
fn strings(total: usize) -> Vec<String> {
    let mut left = total;
    std::iter::from_fn(|| {
        let len = left.min(100_000);
        left -= len;
        let text: String = (0_u8..26).map(|n| char::from(b'a' + (n + (left % 26) as u8) % 26)).collect();
        (len > 0).then(|| text.repeat(len / 26 + 1)[..len].to_owned())
    })
    .collect()
}

fn open(env: &TestEnv) -> (Host, Session) {
    let host = start_host(env);
    let session = host.open_session(SessionOptions::record());
    (host, session)
}

#[tokio::test]
async fn arguments_and_environment_of_every_size_arrive_byte_for_byte() {
    let env = TestEnv::new();
    let (_host, session) = open(&env);
    // The socket takes about 200 KB; larger ones go another way.
    for total in [150_000, 190_000, 199_000, 200_000, 204_800, 212_992, 260_000, 1_000_000, 1_500_000] {
        let (args, values) = (strings(total / 2), strings(total - total / 2));
        let named = (0..).zip(&values);
        let variables = named.map(|(n, value)| (OsString::from(format!("LONG_{n}")), OsString::from(value)));
        // Builtins alone: a program could not be given all of this once more.
        let prints: String = (0..values.len()).map(|n| format!("; printf '%s\\n' \"$LONG_{n}\"")).collect();
        let script = format!("printf '%s\\n' \"$@\"{prints}");
        let argv = ["sh", "-c", &script, "sh"].map(str::to_owned).into_iter().chain(args.clone());
        let spec = SpawnSpec { env: variables.collect(), ..SpawnSpec::new(argv) };
        let process = session.spawn(spec).await.unwrap();
        let expected: String = args.iter().chain(&values).map(|line| format!("{line}\n")).collect();
        assert!(output(&process).await == expected.as_bytes(), "{total} bytes did not arrive as they were");
    }
    session.close(GRACE).await;
}

#[tokio::test]
async fn what_the_kernel_does_not_take_is_told_with_figures() {
    let env = TestEnv::new();
    let (host, session) = open(&env);
    let longest = "x".repeat(131_071);
    assert!(session.spawn(SpawnSpec::new(["true", &longest])).await.is_ok());
    let value = "v".repeat(131_072 - "NAME=".len());
    let long_value = SpawnSpec { env: vec![("NAME".into(), value.into())], ..SpawnSpec::new(["true"]) };
    match session.spawn(long_value).await {
        Err(SpawnError::TooLarge { longest: 131_073, max_string: 131_072, .. }) => {}
        other => panic!("{other:?}"),
    }
    let in_all = SpawnSpec::new(std::iter::once("true".to_owned()).chain(vec!["x".repeat(130_000); 60]));
    let error = session.spawn(in_all).await.unwrap_err();
    let SpawnError::TooLarge { total, count, longest: 130_001, max_total, .. } = &error else {
        panic!("{error:?}");
    };
    assert!(*total > 60 * 130_001 && *count > 60 && *max_total < *total as u64, "{error}");
    for figure in [total.to_string(), count.to_string(), max_total.to_string()] {
        assert!(error.to_string().contains(&figure), "{error}");
    }
    assert_eq!(run(&session, "echo fine").await, "fine\n");
    assert_eq!((host.live(), session.live()), (0, 0));
    session.close(GRACE).await;
}

#[tokio::test]
async fn failures_say_what_was_tried_and_what_the_kernel_answered() {
    let env = TestEnv::new();
    let (_host, session) = open(&env);
    let in_work = |name: &str| env.work().join(name).into_os_string().into_string().unwrap();
    let (script, no_bit) = (in_work("no-interpreter-line"), in_work("no-x-bit"));
    fs::write(&script, "echo\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(&no_bit, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&no_bit, fs::Permissions::from_mode(0o644)).unwrap();
    let dangling = in_work("missing-interpreter");
    fs::write(&dangling, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&dangling, fs::Permissions::from_mode(0o755)).unwrap();
    let cases = [
        ("no-such-program", "No such file or directory", ""),
        ("/no/such/program", "No such file or directory", ""),
        (&dangling, "No such file or directory", ""),
        (&no_bit, "Permission denied", "x bit"),
        ("/", "Permission denied", "x bit"),
        (&script, "Exec format error", "#!"),
        ("/etc/passwd/program", "Not a directory", ""),
    ];
    for (program, cause, hint) in cases {
        let error = session.spawn(SpawnSpec::new([program])).await.unwrap_err();
        let text = format!("{error}: {}", error.source().unwrap());
        assert!(text.contains(program) && text.contains(cause) && text.contains(hint), "{text}");
    }
    for (cwd, cause) in [("/no/such/folder", "No such file"), ("/etc/passwd", "Not a directory")] {
        let spec = SpawnSpec { cwd: Some(cwd.into()), ..SpawnSpec::new(["true"]) };
        let error = session.spawn(spec).await.unwrap_err();
        let text = format!("{error}: {}", error.source().unwrap());
        assert!(text.contains(cwd) && text.contains(cause), "{text}");
    }
    session.close(GRACE).await;
}

#[tokio::test]
async fn a_burst_of_sessions_waits_for_the_nursery_and_each_gets_its_keeper() {
    let env = TestEnv::new();
    let host = start_host(&env);
    let session = host.open_session(SessionOptions::record());
    assert_eq!(run(&session, "echo before").await, "before\n");
    // Room for a few requests: forty come faster than the nursery starts keepers.
    shrink_send_buffers(1);
    let burst: Vec<_> = (0..40)
        .map(|_| {
            let session = host.open_session(SessionOptions::record());
            let started = session.spawn(SpawnSpec::new(["true"]));
            (session, started)
        })
        .collect();
    for (session, started) in burst {
        started.await.unwrap().finished().await;
        session.close(GRACE).await;
    }
    session.close(GRACE).await;
    assert_eq!(host.nursery_replacements(), 0);
}

#[tokio::test]
async fn what_a_small_socket_buffer_has_no_room_for_arrives_all_the_same() {
    let env = TestEnv::new();
    let long = |bytes: usize| "x".repeat(bytes);
    let vars = [env.vars(), vec![("LONG".into(), long(90_000).into())]].concat();
    let host = start_host_giving(&env, bin("embedder"), vars);
    // As if net.core.wmem_default were this. The spare keeper's are the session's.
    shrink_send_buffers(16 * 1024);
    let session = host.open_session(SessionOptions::record());
    assert_eq!(run(&session, "echo ${#LONG}").await, "90000\n");
    let start = |bytes: usize| {
        session.spawn(SpawnSpec::new(["sh".to_owned(), "-c".into(), "echo ${#0}".into(), long(bytes)]))
    };
    // The first ones fill the socket, and what comes after them waits. The nursery would let the keeper go on.
    let keeper = keeper_of(&session).await;
    let nursery = Stopped::new(parent_of(keeper));
    let stopped = Stopped::new(keeper);
    let sizes = [20_000, 20_000, 20_000, 60_000, 130_000];
    let started = sizes.map(start);
    drop((stopped, nursery));
    for (size, started) in sizes.into_iter().zip(started) {
        let process = started.await.unwrap();
        assert_eq!(String::from_utf8(output(&process).await).unwrap(), format!("{size}\n"));
    }
    session.close(GRACE).await;
}
