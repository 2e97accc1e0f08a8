//! Random conversations with the built program, none of which waits for answers unless it must: whatever is sent in
//! whatever order, the rules of the protocol hold for everything that comes back.

use std::collections::HashMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::client::{Client, Data, Event, Message};
use crate::host::{Host, Setup};

/// One thing to send. Numbers choose one of the processes that were started so far.
#[derive(Clone, Debug)]
enum Op {
    Spawn(Kind),
    SpawnNothing,
    Write {
        whom: usize,
        text: String,
        eof: bool,
    },
    Kill {
        whom: usize,
        signal: &'static str,
    },
    Status {
        whom: usize,
    },
    StatusAll,
    AboutNobody,
    BadLine,
    /// Look at what has come, so that what follows meets processes that have ended.
    WaitForAnEnd {
        whom: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Copies its input.
    Echo,
    /// Ends with this code.
    Exit(u8),
    /// Prints so many numbered lines and ends.
    Lines(u16),
    /// A descendant holds its pipes; ends with code 3.
    Linger,
}

fn op() -> impl Strategy<Value = Op> {
    let kind = prop_oneof![
        3 => Just(Kind::Echo),
        3 => (0..200_u8).prop_map(Kind::Exit),
        2 => (0..3000_u16).prop_map(Kind::Lines),
        1 => Just(Kind::Linger),
    ];
    let whom = 0..8_usize;
    let signal = prop_oneof![Just("SIGTERM"), Just("SIGKILL"), Just("SIGINT"), Just("SIGWINCH")];
    let text = prop_oneof!["[ -~]{0,20}\n", "\\PC{0,20}", "[a-z]{3000}\n"];
    prop_oneof![
        6 => kind.prop_map(Op::Spawn),
        1 => Just(Op::SpawnNothing),
        6 => (whom.clone(), text, prop::bool::weighted(0.2)).prop_map(|(whom, text, eof)| Op::Write { whom, text, eof }),
        3 => (whom.clone(), signal).prop_map(|(whom, signal)| Op::Kill { whom, signal }),
        3 => whom.clone().prop_map(|whom| Op::Status { whom }),
        1 => Just(Op::StatusAll),
        1 => Just(Op::AboutNobody),
        1 => Just(Op::BadLine),
        2 => whom.prop_map(|whom| Op::WaitForAnEnd { whom }),
    ]
}

/// What was asked, to judge the answer by.
#[derive(Clone, Debug)]
enum Asked {
    Spawn(usize),
    Refused,
    Write { whom: usize, text: String, was: Was },
    Kill { whom: usize, known_signal: bool, was: Was },
    Status { whom: usize, was: Was },
    StatusAll,
    Nobody,
}

/// What is known of a process when something is asked of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Was {
    /// It runs and reads: nothing has given it a reason to end.
    Alive,
    /// It may have ended by the time the host reads the request.
    Either,
    /// Its last event was out.
    Over,
}

/// A process that was asked for.
#[derive(Debug)]
struct Process {
    kind: Kind,
    /// Its id, once it has started.
    id: Option<String>,
    refused: bool,
    /// Whether somebody asked for its end.
    killed: bool,
    eof: bool,
    stdout: String,
    /// What it was given and said to have.
    written: String,
    end: Option<Data>,
}

impl Process {
    fn was(&self) -> Was {
        match self.end {
            Some(_) => Was::Over,
            None if self.kind == Kind::Echo && !self.killed && !self.eof => Was::Alive,
            None => Was::Either,
        }
    }
}

struct Conversation {
    client: Client,
    host: Host,
    asked: HashMap<String, Asked>,
    processes: Vec<Process>,
    by_id: HashMap<String, usize>,
    bad_lines: usize,
}

impl Conversation {
    fn start() -> Self {
        let (host, client) = Setup::new("model").flag("--max-processes=4").start_greeted();
        let (asked, processes, by_id) = (HashMap::new(), Vec::new(), HashMap::new());
        Self { client, host, asked, processes, by_id, bad_lines: 0 }
    }

    fn ask(&mut self, kind: &str, fields: Value, asked: Asked) {
        let id = self.client.send(kind, fields);
        self.asked.insert(id, asked);
    }

    /// One of the processes that run or have run, chosen by number.
    fn choose(&mut self, whom: usize) -> Option<(usize, String, Was)> {
        let asked: Vec<usize> = (0..self.processes.len()).filter(|i| !self.processes[*i].refused).collect();
        let index = *asked.get(whom % asked.len().max(1))?;
        while self.processes[index].id.is_none() && !self.processes[index].refused {
            self.take_next();
        }
        let process = &self.processes[index];
        Some((index, process.id.clone()?, process.was()))
    }

    fn carry_out(&mut self, op: Op) {
        match op {
            Op::Spawn(kind) => self.spawn(kind),
            Op::SpawnNothing => {
                self.ask("proc/spawn/req", json!({"cmd": ["no such command"]}), Asked::Refused)
            }
            Op::Write { whom, text, eof } => {
                let Some((whom, proc_id, was)) = self.choose(whom) else { return };
                self.processes[whom].eof |= eof;
                let fields = json!({"proc_id": proc_id, "data": text, "eof": eof});
                self.ask("proc/write/req", fields, Asked::Write { whom, text, was });
            }
            Op::Kill { whom, signal } => {
                let Some((whom, proc_id, was)) = self.choose(whom) else { return };
                let known_signal = signal != "SIGWINCH";
                self.processes[whom].killed |= known_signal;
                let fields = json!({"proc_id": proc_id, "signal": signal});
                self.ask("proc/kill/req", fields, Asked::Kill { whom, known_signal, was });
            }
            Op::Status { whom } => {
                let Some((whom, proc_id, was)) = self.choose(whom) else { return };
                self.ask("proc/status/req", json!({"proc_id": proc_id}), Asked::Status { whom, was });
            }
            Op::StatusAll => self.ask("proc/status/req", json!({}), Asked::StatusAll),
            Op::AboutNobody => {
                for kind in ["proc/write/req", "proc/kill/req", "proc/status/req"] {
                    self.ask(kind, json!({"proc_id": "nobody", "data": "x"}), Asked::Nobody);
                }
            }
            Op::BadLine => {
                self.client.write(b"{\"type\":\"proc/spawn/req\",\n");
                self.bad_lines += 1;
            }
            Op::WaitForAnEnd { whom } => {
                let Some((whom, ..)) = self.choose(whom) else { return };
                let ends = |process: &Process| process.kind != Kind::Echo || process.killed || process.eof;
                while ends(&self.processes[whom]) && self.processes[whom].end.is_none() {
                    self.take_next();
                }
            }
        }
    }

    fn spawn(&mut self, kind: Kind) {
        let number;
        let arguments: &[&str] = match kind {
            Kind::Echo => &["echo"],
            Kind::Exit(code) => {
                number = code.to_string();
                &["exit", &number]
            }
            Kind::Lines(count) => {
                number = count.to_string();
                &["lines", &number]
            }
            Kind::Linger => &["linger", "silent", "1"],
        };
        let cmd = self.host.evil_command(arguments);
        let (stdout, written) = (String::new(), String::new());
        let process =
            Process { kind, id: None, refused: false, killed: false, eof: false, stdout, written, end: None };
        self.processes.push(process);
        self.ask("proc/spawn/req", json!({"cmd": cmd}), Asked::Spawn(self.processes.len() - 1));
    }

    /// Takes the next message and checks it against everything that was before it.
    fn take_next(&mut self) {
        match self.client.next().expect("the host lives") {
            Message::Event(event) => self.take_event(event),
            Message::Reply(reply) if reply["code"] == "parse_error" => {
                self.bad_lines = self.bad_lines.checked_sub(1).expect("one error for each bad line");
            }
            Message::Reply(reply) => {
                let asked = self.asked.remove(reply["req_id"].as_str().unwrap());
                self.take_reply(&reply, asked.expect("one answer for each request"));
            }
        }
    }

    fn take_event(&mut self, event: Event) {
        let whom =
            *self.by_id.get(&event.proc_id).expect("the answer to the spawn comes before the first event");
        let process = &mut self.processes[whom];
        assert_eq!(process.end, None, "{event:?} after the last event of {process:?}");
        match event.data {
            Data::Text(text) if event.stream == "stdout" => process.stdout += &text,
            Data::Text(_) => assert_eq!(process.kind, Kind::Linger, "nobody else writes there"),
            end @ (Data::Code(_) | Data::Killed) => {
                let own = match process.kind {
                    Kind::Echo | Kind::Lines(_) => 0,
                    Kind::Exit(code) => code.into(),
                    Kind::Linger => 3,
                };
                let expected = end == Data::Code(own) || (process.killed && end == Data::Killed);
                assert!(expected, "{end:?} of {process:?}");
                process.end = Some(end);
            }
        }
    }

    fn take_reply(&mut self, reply: &Value, asked: Asked) {
        let ok = reply["ok"] == true;
        let says = |words: &str| reply["error"].as_str().is_some_and(|error| error.starts_with(words));
        match asked {
            Asked::Spawn(whom) if ok => {
                let id = reply["proc_id"].as_str().unwrap().to_owned();
                assert_eq!(self.by_id.insert(id.clone(), whom), None, "each id once");
                self.processes[whom].id = Some(id);
            }
            Asked::Spawn(whom) => {
                assert!(says("proc_limit"), "{reply}");
                self.processes[whom].refused = true;
            }
            Asked::Refused => assert!(!ok && says("command"), "{reply}"),
            Asked::Write { whom, text, was } => {
                let process = &mut self.processes[whom];
                match was {
                    // A kill that came later may have met it while the pipe was full.
                    Was::Alive => assert!(ok || (process.killed && says("proc_dead")), "{reply}"),
                    Was::Either => {}
                    Was::Over => assert!(!ok && says("proc_dead"), "{reply}"),
                }
                if ok {
                    process.written += &text;
                }
            }
            Asked::Kill { known_signal: false, .. } => assert!(!ok && says("signal"), "{reply}"),
            Asked::Kill { whom, was, .. } => {
                check_state(&reply["state"]);
                match was {
                    Was::Alive => assert!(ok && reply["state"] == "killed", "{reply}"),
                    Was::Either => {}
                    Was::Over => {
                        // A SIGKILL still finds what lives on of one that has ended.
                        assert!(!ok || self.processes[whom].kind == Kind::Linger, "{reply}");
                        self.check_final_state(whom, &reply["state"]);
                    }
                }
            }
            Asked::Status { whom, was } => {
                check_state(&reply["status"]);
                match was {
                    Was::Alive => assert_eq!(reply["status"], "running"),
                    Was::Either => {}
                    Was::Over => self.check_final_state(whom, &reply["status"]),
                }
            }
            Asked::StatusAll => {
                let procs = reply["procs"].as_array().unwrap();
                for entry in procs {
                    let id = entry["proc_id"].as_str().unwrap();
                    let over = self.by_id.get(id).is_some_and(|whom| self.processes[*whom].end.is_some());
                    assert!(!over || entry["state"] != "running", "{entry}");
                }
                let known = self.processes.iter().filter(|process| process.end.is_some()).count();
                assert!(procs.len() >= known, "all that have ended are listed");
            }
            Asked::Nobody => assert!(says("unknown_proc"), "{reply}"),
        }
    }

    /// The word for the state of a process whose last event was out when it was asked for.
    fn check_final_state(&self, whom: usize, word: &Value) {
        let process = &self.processes[whom];
        let expected = match process.end {
            Some(Data::Killed) => "killed",
            Some(Data::Code(0)) => "completed",
            _ => "failed",
        };
        assert_eq!(word, expected, "{process:?}");
    }

    /// Ends all processes and checks that nothing is missing.
    fn finish(mut self) {
        for whom in 0..self.processes.len() {
            while self.processes[whom].id.is_none() && !self.processes[whom].refused {
                self.take_next();
            }
            if self.processes[whom].kind == Kind::Echo && !self.processes[whom].refused {
                self.close_input_of(whom);
            }
        }
        while !self.asked.is_empty()
            || self.bad_lines > 0
            || self.processes.iter().any(|p| !p.refused && p.end.is_none())
        {
            self.take_next();
        }
        self.client.ping();
        assert_eq!(self.client.kept(), 0, "nothing comes after the last events");
        for process in &self.processes {
            check_output(process);
        }
        self.host.end(self.client);
    }

    /// Closes the input of one that copies it, which ends it if nobody has killed it.
    fn close_input_of(&mut self, whom: usize) {
        let process = &self.processes[whom];
        let (id, was) = (process.id.clone().unwrap(), process.was());
        let fields = json!({"proc_id": id, "data": "", "eof": true});
        self.ask("proc/write/req", fields, Asked::Write { whom, text: String::new(), was });
    }
}

/// The word for the state of a process that may have ended meanwhile.
fn check_state(word: &Value) {
    assert!(["running", "killed", "completed", "failed"].iter().any(|expected| word == expected), "{word}");
}

fn check_output(process: &Process) {
    let Some(end) = &process.end else { return };
    let whole = *end != Data::Killed;
    let expected = match process.kind {
        Kind::Echo => format!("ready\n{}", process.written),
        Kind::Lines(count) => {
            let lines = (0..u64::from(count)).map(hostler_testkit::numbered::line);
            lines.fold("ready\n".to_owned(), |text, line| text + std::str::from_utf8(&line).unwrap())
        }
        Kind::Exit(_) => "ready\n".to_owned(),
        Kind::Linger => return,
    };
    if whole {
        assert!(process.stdout == expected, "{process:?} should have printed {expected:?}");
    } else {
        assert!(
            expected.starts_with(&process.stdout) || process.kind == Kind::Echo,
            "{process:?}, not of {expected:?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 100, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_sent_the_rules_of_the_protocol_hold(ops in prop::collection::vec(op(), 1..40)) {
        let mut conversation = Conversation::start();
        for op in ops {
            conversation.carry_out(op);
        }
        conversation.finish();
    }
}
