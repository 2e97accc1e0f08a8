//! `hostler mcp` as its clients have it: a program with standard input and output.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests, which clippy does not take for tests"
)]

mod client;

use std::fs;
use std::time::Duration;

use hostler_testkit::{NoProcessLeft, Token, wait_until};
use rustix::process::Signal;
use serde_json::{Value, json};

use client::{Client, LEGACY, MODERN};

/// Longer than anything here takes, also where the machine is busy.
const LONG: Duration = Duration::from_secs(60);

/// Text, and what is in the structure.
fn parts(result: &Value) -> (&str, &str, &Value) {
    let text = result["content"][0]["text"].as_str().unwrap();
    let structured = &result["structuredContent"];
    (text, structured["output"].as_str().unwrap(), &structured["details"])
}

#[test]
fn a_command_s_result_is_complete_as_text_and_as_structure_in_both_eras() {
    for revision in ["2024-11-05", "2025-03-26", "2025-06-18", LEGACY, MODERN] {
        let mut client = Client::start(revision);
        let result = client.call("bash", json!({"command": "echo out; exit 3"}));
        let (text, output, details) = parts(&result);
        assert_eq!((text, output), ("out\n[exit 3]", "out\n"), "{revision}");
        assert_eq!((&details["status"], &details["exit_code"]), (&json!("failed"), &json!(3)), "{revision}");
        assert_eq!(result["isError"], true, "{revision}");
        client.end();
    }
}

#[test]
fn standard_output_carries_protocol_alone_and_bad_lines_end_nothing() {
    let mut client = Client::start(LEGACY);
    for line in [
        "hello",
        "{",
        "[]",
        "17",
        r#"{"jsonrpc":"2.0"}"#,
        "\u{0}",
        r#"{"jsonrpc":"2.0","id":null,"method":5}"#,
    ] {
        client.send_line(line);
    }
    let result = client.call("bash", json!({"command": "echo on"}));
    assert_eq!(parts(&result).1, "on\n");
    client.end();
}

#[test]
fn what_a_cancelled_call_runs_is_stopped_unless_the_client_has_only_waited_too_long() {
    let token = Token::new("mcp-cancel");
    let _left = NoProcessLeft::new(&token);
    let mut client = Client::start(LEGACY);
    let sleep = |name: &str| format!("touch {name}; exec sleep 600.{}", client::digits(&token));
    for (name, reason, lives) in [
        ("stopped", "the user pressed escape", false),
        ("detached", "MCP error -32001: Request timed out", true),
    ] {
        let id = client.begin("bash", json!({"command": sleep(name)}));
        wait_until("its start", LONG, || client.file(name).exists().then_some(()).ok_or("not there"));
        client.cancel(id, reason);
        wait_until("what becomes of it", LONG, || {
            let listed = client.call("read", json!({"path": "proc://"}));
            let live = parts(&listed).2["processes"].as_array().unwrap().len();
            // A run that is being stopped is listed until it has ended.
            if live == usize::from(lives) { Ok(()) } else { Err(live) }
        });
    }
    let listed = client.call("read", json!({"path": "proc://"}));
    let process = parts(&listed).2["processes"][0]["process_id"].as_str().unwrap().to_owned();
    let killed = client.call("kill_process", json!({"process_id": process, "signal": "kill"}));
    assert_eq!(killed["isError"], false);
    client.end();
}

#[test]
fn whatever_ends_a_server_nothing_of_its_session_is_left() {
    enum End {
        Input,
        Signal(Signal),
    }
    for end in [
        End::Input,
        End::Signal(Signal::TERM),
        End::Signal(Signal::HUP),
        End::Signal(Signal::INT),
        End::Signal(Signal::KILL),
    ] {
        let token = Token::new("mcp-end");
        let _left = NoProcessLeft::new(&token);
        let mut client = Client::start(LEGACY);
        let sleep = format!("sleep 600.{}", client::digits(&token));
        client.call(
            "bash",
            json!({"command": format!("trap '' TERM HUP; {sleep}"), "run_in_background": true}),
        );
        client.call("bash", json!({"command": sleep, "timeout": 50}));
        client.call("bash", json!({"command": format!("(setsid {sleep} >/dev/null 2>&1 &); true")}));
        client.call("write", json!({"path": "local://secret", "content": "x"}));
        client.begin("bash", json!({"command": format!("touch up; {sleep}")}));
        wait_until("the last one", LONG, || client.file("up").exists().then_some(()).ok_or("not up"));
        let tmp = client.tmp();
        match end {
            End::Input => client.close_input(),
            End::Signal(signal) => client.signal(signal),
        }
        client.wait_for_exit();
        wait_until("no process and no file", LONG, || {
            let files: Vec<_> = fs::read_dir(&tmp).unwrap().map(|entry| entry.unwrap().path()).collect();
            if client::sleepers(&token).is_empty() && files.is_empty() { Ok(()) } else { Err(files) }
        });
    }
}

#[test]
fn a_client_hears_that_processes_have_come_and_gone() {
    let mut client = Client::start(LEGACY);
    client.call("bash", json!({"command": "read x", "run_in_background": true}));
    client.wait_for_notification("notifications/resources/list_changed");
    let listed = client.request("resources/list", json!({}));
    assert_eq!(listed["resources"].as_array().unwrap().len(), 1);
    client.end();
}

#[test]
fn help_describes_the_flags() {
    let outcome = client::run_once(&["mcp", "--help"]);
    insta::assert_snapshot!(String::from_utf8(outcome.stdout).unwrap(), @r#"
    Give an agent a shell over MCP, on standard input and output

    Usage: hostler mcp [OPTIONS]

    Options:
          --workspace <DIR>    Work in this directory, instead of the current one
          --config <FILE>      Read this configuration file too, instead of the one that HOSTLER_CONFIG
                               names
          --log-level <LEVEL>  Write messages from this level on to standard error [log.level, default:
                               "warn"] [possible values: off, error, warn, info, debug, trace]
      -h, --help               Print help

    Exit status:
      0  done
      1  failed while running
      2  the command line or the configuration cannot be used
    "#);
}

#[test]
fn a_workspace_that_is_none_is_refused() {
    let outcome = client::run_once(&["mcp", "--workspace", "/nowhere"]);
    assert_eq!(outcome.status.code(), Some(2));
    let said = String::from_utf8(outcome.stderr).unwrap();
    assert!(said.contains("/nowhere") && said.contains("--workspace DIR"), "{said}");
}
