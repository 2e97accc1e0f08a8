//! A client that writes and reads lines.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Output, Stdio};
use std::sync::mpsc::{self, Receiver};

use hostler_testkit::{TestEnv, Token};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::LONG;

/// The last revision with a handshake, and the first without.
pub(crate) const LEGACY: &str = "2025-11-25";
pub(crate) const MODERN: &str = "2026-07-28";

/// A server and who talks to it.
pub(crate) struct Client {
    server: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    revision: &'static str,
    next_id: u64,
    answers: HashMap<u64, Value>,
    notifications: Vec<String>,
    env: TestEnv,
}

impl Client {
    /// Starts a server and introduces itself in this revision.
    pub(crate) fn start(revision: &'static str) -> Self {
        let env = TestEnv::new();
        let mut command = env.command(env!("CARGO_BIN_EXE_hostler"));
        command.arg("mcp").arg("--workspace").arg(env.work());
        // The private folder is looked for where nothing else is.
        command.env_remove("XDG_RUNTIME_DIR");
        let mut server =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let (input, output) = (server.stdin.take(), server.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                // The test may have ended.
                let Ok(()) = sender.send(line.unwrap()) else { return };
            }
        });
        let (answers, notifications) = (HashMap::new(), Vec::new());
        let mut client = Self { server, input, lines, revision, next_id: 0, answers, notifications, env };
        if revision != MODERN {
            let about = json!({"name": "test", "version": "1"});
            let fields = json!({"protocolVersion": revision, "clientInfo": about, "capabilities": {}});
            let answer = client.request("initialize", fields);
            assert_eq!(answer["protocolVersion"], revision);
            client.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        }
        client
    }

    pub(crate) fn send_line(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    fn send(&mut self, message: &Value) {
        self.send_line(&message.to_string());
    }

    fn ask(&mut self, method: &str, mut params: Value) -> u64 {
        self.next_id += 1;
        if self.revision == MODERN {
            params["_meta"] = json!({
                "io.modelcontextprotocol/protocolVersion": MODERN,
                "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
                "io.modelcontextprotocol/clientCapabilities": {},
            });
        }
        self.send(&json!({"jsonrpc": "2.0", "id": self.next_id, "method": method, "params": params}));
        self.next_id
    }

    /// Calls a tool without waiting.
    pub(crate) fn begin(&mut self, tool: &str, arguments: Value) -> u64 {
        self.ask("tools/call", json!({"name": tool, "arguments": arguments}))
    }

    /// Calls a tool and waits for its result.
    pub(crate) fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let id = self.begin(tool, arguments);
        self.answer(id)
    }

    pub(crate) fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.ask(method, params);
        self.answer(id)
    }

    pub(crate) fn cancel(&mut self, id: u64, reason: &str) {
        let params = json!({"requestId": id, "reason": reason});
        self.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}));
    }

    fn answer(&mut self, id: u64) -> Value {
        loop {
            if let Some(answer) = self.answers.remove(&id) {
                return answer;
            }
            self.receive();
        }
    }

    pub(crate) fn wait_for_notification(&mut self, method: &str) {
        while !self.notifications.iter().any(|seen| seen == method) {
            self.receive();
        }
    }

    fn receive(&mut self) {
        let line = self.lines.recv_timeout(LONG).unwrap();
        let message: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert_eq!(message["jsonrpc"], "2.0", "{line}");
        match (message["id"].as_u64(), message["method"].as_str()) {
            (Some(id), None) if message["error"].is_null() => {
                self.answers.insert(id, message["result"].clone());
            }
            // What is said of lines that were no requests.
            (None, None) => assert!(message["error"].is_object(), "{line}"),
            (None, Some(method)) => self.notifications.push(method.to_owned()),
            (Some(_), _) => panic!("{line}"),
        }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.env.work().join(name)
    }

    pub(crate) fn tmp(&self) -> PathBuf {
        self.env.tmp()
    }

    pub(crate) fn close_input(&mut self) {
        self.input = None;
    }

    pub(crate) fn signal(&mut self, signal: Signal) {
        // A child that nobody has waited for.
        kill_process(Pid::from_child(&self.server), signal).unwrap();
    }

    pub(crate) fn wait_for_exit(&mut self) {
        let server = &mut self.server;
        hostler_testkit::wait_until("its exit", LONG, || match server.try_wait().unwrap() {
            Some(_) => Ok(()),
            None => Err("it runs"),
        });
    }

    /// Ends the session, which is no failure.
    pub(crate) fn end(mut self) {
        self.close_input();
        self.wait_for_exit();
        assert!(self.server.wait().unwrap().success());
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Of a test that has failed.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Runs the program to its end.
pub(crate) fn run_once(arguments: &[&str]) -> Output {
    let env = TestEnv::new();
    let mut command = env.command(env!("CARGO_BIN_EXE_hostler"));
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// A part of a number of seconds that is this test's alone.
pub(crate) fn digits(token: &Token) -> String {
    token.as_str().bytes().map(|byte| char::from(b'0' + byte % 10)).collect()
}

/// Those that sleep for so long.
pub(crate) fn sleepers(token: &Token) -> Vec<i32> {
    let wanted = digits(token);
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            memchr::memmem::find(&line, wanted.as_bytes()).is_some()
        })
        .collect()
}
