//! Thousands of processes that print, leave behind a child which holds their pipes, and exit: everything that was
//! written before the exit must arrive, in order, before the terminal event, and nothing may follow that.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use super::Bench;
use super::host::{Host, Setup};
use super::messages::{Event, Message};
use super::numbered::Numbered;
use super::table::{Bound, Row};

/// Exits of one round; five rounds are the 10,000 of the design.
const EXITS: usize = 2000;
const IN_FLIGHT: usize = 48;

/// The child that is left behind lives on a little longer than the host waits for silence.
const LINGER_MS: &str = "400";

/// One process, as it was asked for and as far as it has come.
#[derive(Debug)]
struct Expected {
    lines: u64,
    stdout: Numbered,
    stderr: Numbered,
    /// Lines of the child that was left behind.
    late: u64,
    ended: bool,
}

/// Counts the processes whose output was not exactly what they wrote.
pub(crate) fn loss(bench: &Bench) -> Result<Vec<Row>> {
    let mut wrong = Vec::new();
    for _ in 0..bench.rounds {
        wrong.extend(round(bench)?);
    }
    let exits = bench.rounds * EXITS;
    let first = wrong.first().map(|what| format!("; the first: {what}")).unwrap_or_default();
    Ok(vec![Row {
        bar: "processes with lost or reordered output",
        measured: wrong.len() as f64,
        bound: Bound::AtMost(0.0),
        unit: "",
        note: format!("{exits} exits with lingering children{first}"),
    }])
}

/// The arguments of one process: how much it writes, below and above what a pipe holds, and who stays behind.
fn arguments(number: usize) -> (u64, &'static str) {
    let lines = (number * 37 % 1000) as u64;
    (lines, if number.is_multiple_of(2) { "silent" } else { "chatter" })
}

fn round(bench: &Bench) -> Result<Vec<String>> {
    let program = bench.programs.text("linger")?;
    let limit = Duration::from_secs(180);
    // A lingering child keeps the place of its process, so the quota is larger than what is under way.
    let setup = Setup { allow: &[&program], max_processes: 1000, open_files: None, limit };
    let mut host = Host::start(bench, &setup)?;
    let (mut asked, mut ended) = (0, 0);
    let mut wrong = Vec::new();
    let mut requests: HashMap<String, u64> = HashMap::new();
    let mut processes: HashMap<String, Expected> = HashMap::new();
    while ended < EXITS {
        while asked < EXITS && asked - ended < IN_FLIGHT {
            let (lines, mode) = arguments(asked);
            let id = host.ask_to_spawn(&[&program, &lines.to_string(), mode, LINGER_MS])?;
            requests.insert(id, lines);
            asked += 1;
        }
        match host.next()? {
            Message::Spawned { req_id, outcome: Ok(process) } => {
                let Some(lines) = requests.remove(&req_id) else { bail!("nobody asked for {req_id}") };
                processes.insert(process.proc_id, Expected::of(lines));
            }
            Message::Event { proc_id, what } => {
                let Some(process) = processes.get_mut(&proc_id) else { bail!("an event before its reply") };
                ended += usize::from(what.is_terminal() && !process.ended);
                wrong.extend(process.take(what).err().map(|error| format!("{proc_id}: {error:#}")));
            }
            other => bail!("unexpected {other:?}"),
        }
    }
    host.settle(|message| {
        wrong.push(format!("after all had ended: {message:?}"));
        Ok(())
    })?;
    host.end()?;
    Ok(wrong)
}

impl Expected {
    fn of(lines: u64) -> Self {
        Self { lines, stdout: Numbered::new(), stderr: Numbered::new(), late: 0, ended: false }
    }

    fn take(&mut self, what: Event) -> Result<()> {
        ensure!(!self.ended, "{what:?} after the terminal event");
        match what {
            Event::Stdout(text) if text.starts_with('L') => {
                ensure!(self.stdout.count() == self.lines, "the child left behind is ahead of its parent");
                ensure!(text.trim_end() == format!("L{}", self.late), "{text:?} as late line {}", self.late);
                self.late += 1;
                Ok(())
            }
            Event::Stdout(text) => self.stdout.take(text.trim_end_matches('\n').as_bytes()),
            Event::Stderr(text) => self.stderr.take(text.trim_end_matches('\n').as_bytes()),
            Event::Exited(3) => {
                self.ended = true;
                let (out, err) = (self.stdout.count(), self.stderr.count());
                ensure!((out, err) == (self.lines, self.lines), "{out} and {err} of {} lines", self.lines);
                Ok(())
            }
            Event::Exited(_) | Event::Killed => {
                self.ended = true;
                bail!("it ended with {what:?}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(events: &[Event], expected: Result<(), &str>) {
        let mut process = Expected::of(1);
        let result = events.iter().try_for_each(|event| process.take(event.clone()));
        assert_eq!(result.map_err(|error| error.to_string()), expected.map_err(str::to_owned), "{events:?}");
    }

    #[test]
    fn what_was_written_before_the_exit_must_come_first_and_whole() {
        let text =
            "000000000000 bcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmno\n".to_owned();
        let (out, err) = (Event::Stdout(text.clone()), Event::Stderr(text));
        let (end, late) = (Event::Exited(3), Event::Stdout("L0\n".into()));
        check(&[out.clone(), err.clone(), late.clone(), end.clone()], Ok(()));
        check(&[err.clone(), out.clone(), end.clone()], Ok(()));
        check(&[out.clone(), end.clone()], Err("1 and 0 of 1 lines"));
        check(std::slice::from_ref(&late), Err("the child left behind is ahead of its parent"));
        check(&[out.clone(), Event::Stdout("L1\n".into())], Err("\"L1\\n\" as late line 0"));
        check(&[out.clone(), err.clone(), end, late], Err("Stdout(\"L0\\n\") after the terminal event"));
        check(&[out, err, Event::Killed], Err("it ended with Killed"));
    }
}
