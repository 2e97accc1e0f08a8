//! Those who have no business here.

use std::io::{BufReader, Read, Write};
use std::path::Path;

use hostler_testkit::{TestEnv, as_nobody, is_root, wait_until};
use serde_json::json;

use super::agent::{Agent, ask, connect, read_answer, request_head};
use super::routes::end;
use crate::host::{LONG, Setup};

#[test]
fn without_the_bearer_token_nothing_is_served_but_the_health() {
    let setup = Setup::new("http_bearer").variable("HOSTLER_A2E_HTTP_BEARER_TOKEN", "sesame-street");
    let (host, url) = setup.start_http();
    assert_eq!(ask(&url, "GET", "/health", &[], b"").status, 200);
    let bearer = |token: &str| format!("Bearer {token}");
    for wrong in ["", "sesame", "sesame-street1", "Sesame-street", "sesame-stree"] {
        for path in ["/session", "/send", "/stream", "/unknown"] {
            let answer = ask(&url, "POST", path, &[("Authorization", &bearer(wrong))], b"");
            assert_eq!(answer.status, 401, "{path} with {wrong:?}: {answer:?}");
        }
    }
    assert_eq!(ask(&url, "POST", "/session?token=sesame-street", &[], b"").status, 401);
    let right = bearer("sesame-street");
    let mut agent = Agent::join_with(&url, &[("Authorization", &right)]);
    let mut stream = agent.stream(None);
    let reply = agent.call(&mut stream, "handshake/req", json!({"agent_caps": ["proc"]}));
    assert_eq!(reply["ok"], true);
    let log = host.log();
    assert!(!log.contains("sesame"), "{log}");
    end(host);
}

#[test]
fn the_token_of_the_handshake_opens_a_session_and_a_wrong_one_does_not() {
    let setup = Setup::new("http_auth").variable("HOSTLER_A2E_AUTH_TOKEN", "open sesame");
    let (host, url) = setup.start_http();
    for wrong in ["", "open", "open sesame!", "Open sesame"] {
        let mut agent = Agent::join(&url);
        let mut stream = agent.stream(None);
        let fields = json!({"agent_caps": ["proc"], "auth_token": wrong});
        let reply = agent.call(&mut stream, "handshake/req", fields);
        assert_eq!(
            (&reply["ok"], &reply["reason"], &reply["session_id"]),
            (&json!(false), &json!("auth_failed"), &json!(""))
        );
        let reply = agent.call(&mut stream, "proc/spawn/req", json!({"cmd": ["ls"]}));
        assert_eq!(reply["code"], "unauthorized");
    }
    let mut agent = Agent::join(&url);
    let mut stream = agent.stream(None);
    let reply = agent.call(
        &mut stream,
        "handshake/req",
        json!({"auth_token": "open sesame", "agent_caps": ["proc"]}),
    );
    assert_eq!(reply["ok"], true);
    end(host);
}

#[test]
fn sessions_without_a_handshake_are_few_at_a_time() {
    // Anybody may connect where this token is all that protects.
    let setup = Setup::new("http_strangers").variable("HOSTLER_A2E_AUTH_TOKEN", "open sesame");
    let (host, url) = setup.start_http();
    let mut opened = 0;
    let refused = loop {
        let answer = ask(&url, "POST", "/session", &[], b"");
        if answer.status != 200 {
            break answer;
        }
        opened += 1;
        assert!(opened <= 1000, "a bound");
    };
    assert_eq!((refused.status, opened), (429, 64), "{refused:?}");
    assert!(refused.detail().contains("handshake"), "{refused:?}");
    end(host);
}

#[test]
fn ten_thousand_half_open_sessions_cost_no_memory() {
    let setup = Setup::new("http_half_open").variable("HOSTLER_A2E_HTTP_HANDSHAKE_TIMEOUT_S", "86400");
    let (host, url) = setup.start_http();
    let mut connection = BufReader::new(connect(&url));
    let mut open = |count: usize| {
        for _ in 0..count {
            let head = request_head("POST", "/session", &[], Some(0));
            connection.get_mut().write_all(head.as_bytes()).unwrap();
            let status = read_answer(&mut connection).status;
            assert!(status == 200 || status == 503, "{status}");
        }
    };
    open(1000);
    let first = host.rss_kib();
    open(9000);
    let last = host.rss_kib();
    assert!(last < first + 32 * 1024, "{first} KiB after a tenth, {last} KiB after all");
    assert_eq!(ask(&url, "GET", "/health", &[], b"").status, 200);
    end(host);
}

#[test]
fn web_pages_and_rebound_names_are_refused_on_every_route() {
    let (host, url) = Setup::new("http_origin").start_http();
    for path in ["/health", "/session", "/send", "/stream", "/unknown"] {
        for (header, status) in [
            (("Host", "attacker.example"), 421),
            (("Host", "localhost.attacker.example:80"), 421),
            (("Origin", "http://attacker.example"), 403),
            (("Origin", "null"), 403),
            (("Sec-Fetch-Site", "cross-site"), 403),
        ] {
            let answer = ask(&url, "POST", path, &[header], b"");
            assert_eq!(answer.status, status, "{path} {header:?}: {answer:?}");
        }
    }
    end(host);
}

#[test]
fn another_user_of_this_machine_gets_nothing() {
    if !is_root() {
        // Nobody can become another user.
        return;
    }
    let (host, url) = Setup::new("http_other_user").start_http();
    let port = url.rsplit(':').next().unwrap().to_owned();
    let script = r#"for i in $(seq 20); do exec 3<>/dev/tcp/127.0.0.1/$1 &&
        printf 'POST /session HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n' >&3
        [ $((i % 2)) = 0 ] && cat <&3; exec 3>&-; done"#;
    let env = TestEnv::for_nobody();
    let mut command = env.command(Path::new("/bin/bash"));
    command.args(["-c", script, "bash", &port]);
    let said = String::from_utf8_lossy(&as_nobody(command).output().unwrap().stdout).into_owned();
    assert!(!said.contains("session_id") && !said.contains(" 200 "), "{said}");
    wait_until("a refusal in the log", LONG, || {
        let log = host.log();
        if log.contains("a connection was refused") { Ok(()) } else { Err(log) }
    });
    let (_agent, _stream) = Agent::greet(&url);
    end(host);
}

#[test]
fn other_machines_are_not_served_without_a_token_and_tls() {
    for (variables, flags, what) in [
        (&[][..], &[][..], "needs a bearer token"),
        (&[("HOSTLER_A2E_HTTP_BEARER_TOKEN", "x")], &[], "needs TLS"),
        (&[("HOSTLER_A2E_AUTH_TOKEN", "x")], &[], "needs a bearer token"),
        (&[], &["--insecure-http"], "needs a bearer token"),
    ] {
        let mut setup = Setup::new("http_exposed").http_at("0.0.0.0:0");
        for (name, value) in variables {
            setup = setup.variable(name, *value);
        }
        for flag in flags {
            setup = setup.flag(*flag);
        }
        let mut host = setup.start_on(std::process::Stdio::null(), std::process::Stdio::null());
        assert_eq!(host.wait().code(), Some(2));
        let log = host.log();
        assert!(log.contains(what) && log.contains("hint: "), "{log}");
    }
}

#[test]
fn a_slow_reader_holds_up_nobody_else() {
    let (host, url) = Setup::new("http_slow_reader").start_http();
    let (mut slow, mut slow_stream) = Agent::greet(&url);
    slow.spawn(&mut slow_stream, &host.evil_command(&["flood"]));
    let before = host.rss_kib();
    let (mut agent, mut stream) = Agent::greet(&url);
    for _ in 0..20 {
        let proc_id = agent.spawn(&mut stream, &["bash", "-c", "echo quick"]);
        assert_eq!(stream.finish(&proc_id).0, "quick\n");
    }
    assert!(host.rss_kib() < before + 32 * 1024);
    // A byte at a time is reading, too.
    let mut connection = connect(&url);
    let head = request_head("GET", "/stream", &[("X-Session-Id", &slow.session_id)], None);
    connection.write_all(head.as_bytes()).unwrap();
    for _ in 0..2000 {
        connection.read_exact(&mut [0]).unwrap();
    }
    let reply = slow.post(br#"{"type":"ping","id":"x"}"#);
    assert_eq!(reply.status, 200);
    end(host);
}

/// Looks for a text, given backwards so that it does not find itself, in variables, command line and memory of processes.
/// A line for each: what there was to be found, or that nothing may be looked at.
const LOOK: &str = r#"
import sys
secret = sys.argv[1][::-1].encode()
def look(pid):
    for name in ("cmdline", "environ"):
        with open(f"/proc/{pid}/{name}", "rb") as file:
            if secret in file.read():
                return name
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            start, end = (int(number, 16) for number in line.split()[0].split("-"))
            try:
                memory.seek(start)
                if secret in memory.read(end - start):
                    return "memory"
            except (OSError, ValueError, OverflowError):
                pass  # the kernel's own pages
    return "nothing"
for pid in sys.argv[2:]:
    try:
        print(pid, look(pid))
    except PermissionError:
        print(pid, "refused")
"#;

const BEARER: &str = "sesame-street-4711";
const AUTH: &str = "sesame-seed-4711";

/// A program of the host's own user finds no token in the host, its nursery and its keepers.
fn a_program_finds_no_token(setup: Setup, headers: &[(&str, &str)]) {
    let (host, url) = setup.flag("--log-level=trace").start_listening();
    let mut agent = Agent::join_with(&url, headers);
    let mut stream = agent.stream(None);
    let fields = json!({"agent_caps": ["proc"], "auth_token": AUTH});
    assert_eq!(agent.call(&mut stream, "handshake/req", fields)["ok"], true);
    let proc_id = agent.spawn(&mut stream, &["bash", "-c", "env"]);
    let (variables, _) = stream.finish(&proc_id);
    assert!(variables.contains("PATH=") && !variables.contains("sesame"), "{variables}");
    let helpers: Vec<String> = host.helpers().iter().map(|helper| helper.pid.to_string()).collect();
    assert!(helpers.len() >= 2, "nursery and keeper: {helpers:?}");
    for secret in [BEARER, AUTH] {
        let backwards: String = secret.chars().rev().collect();
        let own = host.pid().to_string();
        let mut command = vec!["python3", "-c", LOOK, &backwards, &own];
        command.extend(helpers.iter().map(String::as_str));
        let proc_id = agent.spawn(&mut stream, &command);
        let (found, _) = stream.finish(&proc_id);
        let mut lines = found.lines();
        assert_eq!(lines.next(), Some(format!("{own} refused").as_str()), "{found}");
        // Where Yama keeps a process from looking into those above it, they are refused as well.
        assert!(
            lines.clone().all(|line| line.ends_with(" nothing") || line.ends_with(" refused")),
            "{found}"
        );
        assert_eq!(lines.count(), helpers.len(), "{found}");
    }
    let log = host.log();
    assert!(!log.contains("sesame"), "{log}");
    end(host);
}

#[test]
fn neither_token_of_a_variable_is_seen_by_a_program_whatever_it_looks_into() {
    let setup = Setup::nobody("http_tokens")
        .variable("HOSTLER_A2E_HTTP_BEARER_TOKEN", BEARER)
        .variable("HOSTLER_A2E_AUTH_TOKEN", AUTH);
    let bearer = format!("Bearer {BEARER}");
    a_program_finds_no_token(setup.http_at("127.0.0.1:0"), &[("Authorization", &bearer)]);
}

/// That it can read the files is another matter, which the page on configuration tells.
#[test]
fn neither_token_of_a_file_is_seen_in_the_host() {
    let mut setup = Setup::nobody("http_token_files").http_at("127.0.0.1:0");
    for (variable, name, token) in [
        ("HOSTLER_A2E_HTTP_BEARER_TOKEN_FILE", "bearer", BEARER),
        ("HOSTLER_A2E_AUTH_TOKEN_FILE", "auth", AUTH),
    ] {
        let path = setup.env().root().join(name);
        std::fs::write(&path, token).unwrap();
        setup = setup.variable(variable, path.as_os_str());
    }
    let bearer = format!("Bearer {BEARER}");
    a_program_finds_no_token(setup, &[("Authorization", &bearer)]);
}

#[test]
fn the_token_of_the_python_sdks_configuration_is_not_seen_in_the_host() {
    let setup = Setup::nobody("http_token_sdk");
    let config = setup.env().root().join("a2e.yaml");
    let text = format!("auth_token: {AUTH}\nserver: {{port: 0}}\nplugins: [{{type: proc}}]\n");
    std::fs::write(&config, text).unwrap();
    // Events as this test's client reads them, which is not the SDK's.
    let setup = setup
        .sdk_config(&config)
        .variable("HOSTLER_A2E_EVENT_DATA", "string")
        .variable("HOSTLER_A2E_PUSH_EVENTS", "false");
    a_program_finds_no_token(setup, &[]);
}
