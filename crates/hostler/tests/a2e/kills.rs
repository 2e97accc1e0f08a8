//! What an answer to a kill says of what lives on.

use serde_json::{Value, json};

use crate::client::{Data, Innocent, until};
use crate::host::Setup;

#[test]
fn a_daemon_that_shed_every_mark_is_named_by_each_kill_until_the_session_ends() {
    // A control group would be a mark that nothing can shed.
    let setup = Setup::new("unattributed").variable("HOSTLER_RUNTIME_PROCESSES_CGROUP", "off");
    let (host, mut client) = setup.start_greeted();
    let mut innocent = Innocent::start(&host, &mut client);
    let plain = client.evil(&host, &["pause"]);
    let reply = client.kill(&plain, "SIGKILL");
    assert_eq!((&reply["ok"], &reply["unattributed"]), (&json!(true), &Value::Null), "{reply}");
    let before = host.token().pids();

    let root = client.evil(&host, &["hard-daemon"]);
    until("the daemon beside its root", || host.token().pids().len() >= before.len() + 2);
    let reply = client.kill(&root, "SIGKILL");
    assert_eq!(client.finish(&root).end, Data::Killed);
    let daemon: Vec<i32> = host.token().pids().into_iter().filter(|pid| !before.contains(pid)).collect();
    assert_eq!(daemon.len(), 1, "{daemon:?}");
    assert_eq!((&reply["ok"], &reply["state"]), (&json!(true), &json!("killed")), "{reply}");
    assert_eq!(reply["unattributed"], json!(daemon), "{reply}");

    let other = client.evil(&host, &["pause"]);
    assert_eq!(client.kill(&other, "SIGTERM")["unattributed"], json!(daemon), "it may be of any");
    innocent.answers(&mut client);
    host.end(client);
}
