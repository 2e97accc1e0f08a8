//! `cargo xtask tour`: plays examples/tour.jsonl to a real host and shows both sides of the conversation.
//!
//! Each line of the script is one message to send and what to wait for before the next: an A2E host ends its session
//! at the end of its input, so a script has to wait for its answers.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value};

use crate::{house, setup};

/// One line of the script.
#[derive(Debug)]
struct Step {
    /// What a reader is told before it.
    say: Option<String>,
    /// The message; `$NAME` in a text stands for a saved process id.
    send: Value,
    /// The name under which the process id of the answer is saved.
    save: Option<String>,
    /// A piece of the line that ends the wait.
    until: String,
}

impl Step {
    fn parse(line: &str) -> Result<Self> {
        let mut fields: Map<String, Value> = serde_json::from_str(line)?;
        let mut text = |name: &str| fields.remove(name).and_then(|v| v.as_str().map(ToOwned::to_owned));
        let (say, save, until) = (text("say"), text("save"), text("until"));
        Ok(Self {
            say,
            save,
            until: until.context("no until")?,
            send: fields.remove("send").context("no send")?,
        })
    }
}

#[derive(Debug)]
struct Conversation {
    host: Child,
    to_host: ChildStdin,
    from_host: BufReader<ChildStdout>,
    /// The names that the script gives to processes, by their ids.
    names: HashMap<String, String>,
}

/// Builds the host, plays the script, and ends the session by the end of input.
pub(crate) fn tour() -> Result<()> {
    ensure!(
        setup::on_path("python3"),
        "the tour starts python3, which is missing: `cargo xtask setup` installs it"
    );
    house::build_release()?;
    let script = house::root().join("examples/tour.jsonl");
    let text = fs::read_to_string(&script).with_context(|| format!("failed to read {}", script.display()))?;
    let mut conversation = Conversation::start()?;
    for (number, line) in text.lines().enumerate() {
        let step = Step::parse(line).with_context(|| format!("line {} of the script", number + 1))?;
        conversation.play(&step).with_context(|| format!("line {} of the script", number + 1))?;
    }
    conversation.end()
}

impl Conversation {
    fn start() -> Result<Self> {
        let mut command = Command::new(house::release_binary());
        let mut host = command
            .args(["a2e", "--stdio"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("failed to start the host")?;
        let to_host = host.stdin.take().context("a host without stdin")?;
        let from_host = BufReader::new(host.stdout.take().context("a host without stdout")?);
        Ok(Self { host, to_host, from_host, names: HashMap::new() })
    }

    fn play(&mut self, step: &Step) -> Result<()> {
        if let Some(say) = &step.say {
            println!("\n# {say}");
        }
        let mut message = step.send.to_string();
        for (proc_id, name) in &self.names {
            message = message.replace(&format!("${name}"), proc_id);
        }
        println!("> {}", self.shown(&message));
        writeln!(self.to_host, "{message}").context("failed to write to the host")?;
        loop {
            let mut line = String::new();
            let length = self.from_host.read_line(&mut line).context("failed to read from the host")?;
            ensure!(length > 0, "the host has ended before it said {:?}", step.until);
            if let (Some(name), Some(proc_id)) = (&step.save, saved(&line)) {
                self.names.insert(proc_id, name.clone());
            }
            println!("< {}", self.shown(line.trim_end()));
            if line.contains(&step.until) {
                return Ok(());
            }
        }
    }

    /// A message without the fields that every message has, its type first, and with names for process ids.
    fn shown(&self, line: &str) -> String {
        let Ok(mut fields) = serde_json::from_str::<Map<String, Value>>(line) else { return line.to_owned() };
        for everywhere in ["version", "ts", "detail", "metadata"] {
            fields.remove(everywhere);
        }
        if fields.contains_key("req_id") {
            fields.remove("id");
        }
        let kind = fields.remove("type").unwrap_or_default();
        let rest = Value::Object(fields).to_string();
        let mut text = format!("{{\"type\":{kind},{}", rest.trim_start_matches('{'));
        for (proc_id, name) in &self.names {
            text = text.replace(proc_id, &format!("${name}"));
        }
        text
    }

    fn end(self) -> Result<()> {
        let Self { mut host, to_host, mut from_host, .. } = self;
        println!("\n# The end of input ends the session and everything that was started in it.");
        drop(to_host);
        let mut rest = String::new();
        while from_host.read_line(&mut rest).context("failed to read from the host")? > 0 {}
        let status = host.wait().context("failed to wait for the host")?;
        ensure!(status.success(), "the host has ended with {status}");
        println!("the host has ended with {status}");
        Ok(())
    }
}

/// The process id of a good answer to a spawn request.
fn saved(line: &str) -> Option<String> {
    let fields: Map<String, Value> = serde_json::from_str(line).ok()?;
    let is_answer = fields.get("type")? == "proc/spawn/resp" && fields.get("ok")? == true;
    is_answer.then(|| fields.get("proc_id")?.as_str().map(ToOwned::to_owned))?
}
