//! `cargo xtask tour`: plays examples/tour.jsonl to a real host and shows both sides of the conversation.
//!
//! Each line of the script is one message to send and what to wait for before the next: an A2E host ends its session
//! at the end of its input, so a script has to wait for its answers. The whole of it has a limit of time: a host that
//! does not say what the script waits for is killed, and its keepers with what it had started end after it.

use std::collections::HashMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
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

/// How long the tour may take.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Options {
    /// Give up after this long; the script takes a few seconds
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u32,
}

/// A moment after which nothing is waited for.
#[derive(Clone, Copy, Debug)]
struct Deadline {
    at: Instant,
    limit: Duration,
}

impl Deadline {
    fn after(limit: Duration) -> Self {
        Self { at: Instant::now() + limit, limit }
    }

    /// Waits until a descriptor is ready.
    fn wait(&self, fd: impl std::os::fd::AsFd, flags: PollFlags) -> io::Result<()> {
        loop {
            let rest = self.at.saturating_duration_since(Instant::now());
            let rest = Timespec::try_from(rest).map_err(io::Error::other)?;
            match poll(&mut [PollFd::new(&fd, flags)], Some(&rest)) {
                Ok(0) => {
                    let text = format!("the tour took longer than {:?}; --seconds allows more", self.limit);
                    return Err(io::Error::new(io::ErrorKind::TimedOut, text));
                }
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// What the host says, until the deadline.
#[derive(Debug)]
struct Listener {
    from: ChildStdout,
    deadline: Deadline,
}

impl Read for Listener {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.deadline.wait(&self.from, PollFlags::IN)?;
        self.from.read(buffer)
    }
}

/// A host that does not outlive us.
#[derive(Debug)]
struct Hosted(Child);

impl Drop for Hosted {
    fn drop(&mut self) {
        // Both fail when it has ended, which is as well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[derive(Debug)]
struct Conversation {
    host: Hosted,
    deadline: Deadline,
    to_host: ChildStdin,
    from_host: BufReader<Listener>,
    /// The names that the script gives to processes, by their ids.
    names: HashMap<String, String>,
}

/// Builds the host, plays the script, and ends the session by the end of input.
pub(crate) fn tour(options: Options) -> Result<()> {
    ensure!(
        setup::on_path("python3"),
        "the tour starts python3, which is missing: `cargo xtask setup` installs it"
    );
    house::build_release()?;
    let script = house::root().join("examples/tour.jsonl");
    let text = fs::read_to_string(&script).with_context(|| format!("failed to read {}", script.display()))?;
    let deadline = Deadline::after(Duration::from_secs(options.seconds.into()));
    let mut conversation =
        Conversation::start(Command::new(house::release_binary()).args(["a2e", "--stdio"]), deadline)?;
    for (number, line) in text.lines().enumerate() {
        let step = Step::parse(line).with_context(|| format!("line {} of the script", number + 1))?;
        conversation.play(&step).with_context(|| format!("line {} of the script", number + 1))?;
    }
    conversation.end()
}

impl Conversation {
    fn start(command: &mut Command, deadline: Deadline) -> Result<Self> {
        let host = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut host = Hosted(host.context("failed to start the host")?);
        let to_host = host.0.stdin.take().context("a host without stdin")?;
        let from = host.0.stdout.take().context("a host without stdout")?;
        let from_host = BufReader::new(Listener { from, deadline });
        Ok(Self { host, deadline, to_host, from_host, names: HashMap::new() })
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
            let length = self.from_host.read_line(&mut line).with_context(|| waiting_for(&step.until))?;
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
        let Self { mut host, deadline, to_host, mut from_host, .. } = self;
        println!("\n# The end of input ends the session and everything that was started in it.");
        drop(to_host);
        let mut rest = String::new();
        while from_host.read_line(&mut rest).with_context(|| waiting_for("its end"))? > 0 {}
        let pid = i32::try_from(host.0.id()).ok().and_then(Pid::from_raw).context("a host without pid")?;
        let ended = pidfd_open(pid, PidfdFlags::empty()).context("failed to watch the host")?;
        deadline.wait(&ended, PollFlags::IN).with_context(|| waiting_for("its end"))?;
        let status = host.0.wait().context("failed to wait for the host")?;
        ensure!(status.success(), "the host has ended with {status}");
        println!("the host has ended with {status}");
        Ok(())
    }
}

fn waiting_for(what: &str) -> String {
    format!("failed while waiting for the host to say {what:?}")
}

/// The process id of a good answer to a spawn request.
fn saved(line: &str) -> Option<String> {
    let fields: Map<String, Value> = serde_json::from_str(line).ok()?;
    let is_answer = fields.get("type")? == "proc/spawn/resp" && fields.get("ok")? == true;
    is_answer.then(|| fields.get("proc_id")?.as_str().map(ToOwned::to_owned))?
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host that listens and says nothing.
    fn silent() -> Conversation {
        let deadline = Deadline::after(Duration::from_millis(50));
        Conversation::start(Command::new("/bin/sh").args(["-c", "cat >/dev/null; exec sleep 1000"]), deadline)
            .unwrap()
    }

    #[test]
    fn a_host_that_says_nothing_is_given_up_and_killed() {
        let mut conversation = silent();
        let pid = conversation.host.0.id();
        let step = Step::parse(r#"{"send":{"type":"ping","id":"p"},"until":"pong"}"#).unwrap();
        let error = format!("{:#}", conversation.play(&step).unwrap_err());
        let expected = "failed while waiting for the host to say \"pong\": the tour took longer than 50ms; --seconds allows more";
        assert_eq!(error, expected);
        drop(conversation);
        assert!(!fs::exists(format!("/proc/{pid}")).unwrap());
    }

    #[test]
    fn a_host_that_does_not_end_is_given_up_and_killed() {
        let conversation = silent();
        let pid = conversation.host.0.id();
        let error = format!("{:#}", conversation.end().unwrap_err());
        assert!(error.ends_with("the tour took longer than 50ms; --seconds allows more"), "{error}");
        assert!(!fs::exists(format!("/proc/{pid}")).unwrap());
    }
}
