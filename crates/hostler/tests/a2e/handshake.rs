//! Who may do what: tokens, capability words, and the forms of events.

use std::fs;
use std::path::Path;

use hostler_testkit::{as_nobody, descendants};
use serde_json::{Value, json};

use crate::client::{Client, Data};
use crate::host::{Host, Setup};

const TOKEN: &str = "a-token-that-stands-nowhere-else-4711";

fn shake(client: &mut Client, token: &str) -> Value {
    client.call("handshake/req", json!({"agent_caps": ["proc"], "auth_token": token}))
}

/// Refuses every token but the right one, and everything else before that.
fn only_the_token_opens(host: &Host, client: &mut Client) {
    for wrong in ["", "x", &TOKEN[1..], &format!("{TOKEN} "), &TOKEN.to_uppercase(), &TOKEN.repeat(2)] {
        let reply = shake(client, wrong);
        assert_eq!(
            (&reply["ok"], &reply["reason"], &reply["session_id"]),
            (&json!(false), &json!("auth_failed"), &json!(""))
        );
        let refused = client.call("proc/spawn/req", json!({"cmd": ["ls"]}));
        assert_eq!((&refused["type"], &refused["code"]), (&json!("error"), &json!("unauthorized")));
        client.ping();
    }
    assert_eq!(shake(client, TOKEN)["ok"], true);
    let proc = client.evil(host, &["exit", "0"]);
    assert_eq!(client.finish(&proc).end, Data::Code(0));
    assert_eq!(shake(client, "wrong again")["ok"], false, "a refused handshake changes nothing");
    assert_eq!(client.call("proc/status/req", json!({}))["status"], "completed");
}

/// What `/proc` shows of a process to its own user, who may be another one than runs the tests.
fn shown(host: &Host, pid: i32, file: &str) -> Vec<u8> {
    let mut command = host.env().command("cat");
    command.arg(format!("/proc/{pid}/{file}"));
    as_nobody(command).output().unwrap().stdout
}

/// No process of the host's shows the token: not its own variables to others, and nothing at all of its helpers and
/// processes.
fn the_token_is_nowhere(host: &Host, client: &mut Client) {
    let seen = client.spawn(&host.evil_command(&["print-env"]));
    let variables = client.finish(&seen).stdout;
    assert!(variables.iter().any(|line| line.starts_with("PATH=")));
    assert!(
        variables.iter().all(|line| !line.contains(TOKEN) && !line.starts_with("HOSTLER_A2E_AUTH")),
        "{variables:?}"
    );
    client.evil(host, &["setsid"]);
    let pids = descendants(host.pid());
    assert!(pids.len() >= 5, "nursery, two keepers, a process and its child: {pids:?}");
    for pid in pids.iter().chain([&host.pid()]) {
        for file in ["environ", "cmdline"] {
            let text = shown(host, *pid, file);
            assert!(!String::from_utf8_lossy(&text).contains(TOKEN), "{file} of {pid}");
        }
    }
    // Nobody may read the host's variables, so that only its command line was looked at above.
    assert_eq!(shown(host, host.pid(), "environ"), b"");
    assert_ne!(shown(host, host.pid(), "cmdline"), b"");
    assert!(!host.log().contains(TOKEN));
}

#[test]
fn a_token_by_variable_opens_and_is_seen_nowhere() {
    let setup = Setup::nobody("token by variable").variable("HOSTLER_A2E_AUTH_TOKEN", TOKEN);
    let (host, mut client) = setup.flag("--log-level=trace").start();
    only_the_token_opens(&host, &mut client);
    the_token_is_nowhere(&host, &mut client);
    host.end(client);
}

#[test]
fn a_token_by_file_opens() {
    let setup = Setup::new("token by file");
    let path = setup.env().config_home().join("token");
    fs::write(&path, format!("{TOKEN}\n")).unwrap();
    let setup = setup.variable("HOSTLER_A2E_AUTH_TOKEN_FILE", path.as_os_str());
    let (host, mut client) = setup.flag("--log-level=trace").start();
    only_the_token_opens(&host, &mut client);
    let log = host.log();
    assert!(!log.contains(TOKEN), "{log}");
    host.end(client);
}

#[test]
fn the_log_names_the_agent_that_has_shaken_hands_in_one_short_line() {
    let (host, mut client) = Setup::new("agent in the log").flag("--log-level=info").start();
    let name = format!("line 1\nline 2 {}", "x".repeat(1000));
    let refused = json!({"agent_id": "old", "version": "2.0", "agent_caps": ["proc"]});
    assert_eq!(client.call("handshake/req", refused)["ok"], false);
    assert_eq!(client.call("handshake/req", json!({"agent_id": name, "agent_caps": ["proc"]}))["ok"], true);
    // Messages leave the host by a thread of their own.
    crate::client::until("both messages", || {
        let log = host.log();
        let line = |text: &str| log.lines().find(|line| line.contains(text)).map(str::to_owned);
        let (refused, accepted) = (line("a handshake was refused")?, line("a handshake was accepted")?);
        assert!(refused.contains(r#"agent="old""#) && refused.contains("version_mismatch"), "{refused}");
        assert!(accepted.contains(r#"agent="line 1\nline 2 xxx"#) && accepted.len() < 300, "{accepted}");
        Some(())
    });
    host.end(client);
}

/// The whole answer to a handshake, its ids and times aside, and the form of the events that follow.
fn forms(setup: Setup, capabilities: &[&str]) -> (Value, Value, String) {
    let (host, mut client) = setup.start();
    let mut reply = client.call("handshake/req", json!({"agent_caps": capabilities}));
    for changing in ["id", "ts", "session_id", "req_id"] {
        assert!(reply.as_object_mut().unwrap().remove(changing).is_some());
    }
    let id = client.send_spawn(&["bash", "-c", "echo \u{e4} >&2; exit 9"], json!({}));
    client.reply(&id);
    let (first, last) = (client.raw_event(), client.raw_event());
    assert_eq!((&first["req_id"], &first["stream_type"]), (&last["req_id"], &last["stream_type"]));
    let req_id = if first["req_id"] == *id { "the request's" } else { first["req_id"].as_str().unwrap() };
    let answer = (reply, json!([first["data"], last["data"]]), req_id.to_owned());
    host.end(client);
    answer
}

#[test]
fn events_have_the_form_that_the_agent_asks_for() {
    let accepted = json!({
        "type": "handshake/resp", "version": "1.0", "max_parallel": 4, "ok": true, "reason": "",
        "accepted_caps": [{
            "capability": "proc", "enabled": true,
            "metadata": {"name": "proc", "type": "proc", "priority": 5, "exclusive": false},
        }],
    });
    let text = json!(["{\"text\":\"\u{e4}\\n\"}", "{\"code\":9}"]);
    let object = json!([{"text": "\u{e4}\n"}, {"code": 9}]);
    let (named, pushed) = ("the request's", "");
    let cases = [
        (&["proc"][..], &[][..], &text, named),
        (&["proc", "proc.data.object"], &[], &object, named),
        (&["proc.event.push", "proc"], &[], &text, pushed),
        (&["proc", "proc.data.object", "proc.event.push", "unheard.of"], &[], &object, pushed),
        (&["proc"], &["--event-data=object"], &object, named),
        (&["proc"], &["--push-events"], &text, pushed),
        (&["proc", "proc.data.object"], &["--push-events"], &object, pushed),
    ];
    for (capabilities, flags, data, req_id) in cases {
        let setup = flags.iter().fold(Setup::new("forms"), |setup, flag| setup.flag(*flag));
        let found = forms(setup, capabilities);
        assert_eq!(found, (accepted.clone(), data.clone(), req_id.to_owned()), "{capabilities:?} {flags:?}");
    }
}

#[test]
fn without_the_capability_everything_about_processes_is_refused() {
    let (host, mut client) = Setup::new("no capability").start();
    for capabilities in [json!([]), json!(["proc.data.object"]), json!(["PROC", "tool"])] {
        let reply = client.call("handshake/req", json!({"agent_caps": capabilities}));
        assert_eq!((&reply["ok"], &reply["accepted_caps"]), (&json!(true), &json!([])));
        for kind in ["proc/spawn/req", "proc/write/req", "proc/kill/req", "proc/status/req"] {
            let refused = client.call(kind, json!({"cmd": ["ls"]}));
            assert_eq!(
                (&refused["code"], &refused["capability_name"]),
                (&json!("capability_missing"), &json!("proc"))
            );
        }
    }
    let first = client.call("handshake/req", json!({"agent_caps": ["proc"]}));
    let proc = client.evil(&host, &["pause"]);
    let again = client.call("handshake/req", json!({"agent_caps": ["proc"]}));
    assert_eq!(first["session_id"], again["session_id"], "the session stays");
    assert_eq!(client.status(&proc), "running");
    let other = client.call("handshake/req", json!({"agent_caps": ["proc"], "version": "2.0"}));
    assert_eq!((&other["ok"], &other["reason"]), (&json!(false), &json!("version_mismatch")));
    assert_eq!(client.status(&proc), "running");
    host.end(client);
}

#[test]
fn a_token_that_cannot_be_read_keeps_the_host_from_starting() {
    for (name, value, words) in [
        ("HOSTLER_A2E_AUTH_TOKEN", "", "HOSTLER_A2E_AUTH_TOKEN"),
        ("HOSTLER_A2E_AUTH_TOKEN_FILE", "/nonexistent/token", "/nonexistent/token"),
    ] {
        let (mut host, _client) = Setup::new("bad token").variable(name, value).start();
        assert_eq!(host.wait().code(), Some(2));
        assert!(host.log().contains(words), "{}", host.log());
    }
    assert!(!Path::new("/nonexistent").exists());
}
