//! A recipe's steps: each is announced, timed and listed at the end, and the test runner's own summary is repeated
//! as the very last line, so that whoever reads only that line knows how the tests went.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::house;

/// What has been run so far.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    done: Vec<Done>,
    summary: Option<String>,
}

#[derive(Debug)]
struct Done {
    name: String,
    took: Duration,
    verdict: &'static str,
}

impl Steps {
    /// Runs `step` under `name` and notes how long it took.
    pub(crate) fn step(&mut self, name: &str, step: impl FnOnce() -> Result<()>) -> Result<()> {
        println!("==> {name}");
        let started = Instant::now();
        let result = step();
        let took = started.elapsed();
        let verdict = if result.is_ok() { "passed" } else { "failed" };
        println!("<== {name}: {verdict} in {:.1} s", took.as_secs_f64());
        self.done.push(Done { name: name.to_owned(), took, verdict });
        result.with_context(|| format!("step {name} failed"))
    }

    /// Runs one command as a step.
    pub(crate) fn command(&mut self, name: &str, command: &mut Command) -> Result<()> {
        self.step(name, || house::run(command))
    }

    /// Runs a test runner as a step: what it prints passes through, its summary line is kept for the end.
    pub(crate) fn tests(&mut self, name: &str, command: &mut Command) -> Result<()> {
        let mut summary = None;
        let result = self.step(name, || pass_through(command, &mut summary));
        self.summary = summary.or(self.summary.take());
        result
    }

    /// Notes a step that cannot be run here, and why.
    pub(crate) fn left_out(&mut self, name: &str, why: &str) {
        println!("--- {name}: left out, {why}");
        self.done.push(Done { name: format!("{name}: {why}"), took: Duration::ZERO, verdict: "left out" });
    }

    /// Prints how long each step took and, last of all, the summary of the tests.
    pub(crate) fn report(&self) {
        println!("\n{}", self.list().join("\n"));
    }

    fn list(&self) -> Vec<String> {
        let line = |took: Duration, text: &str| format!("{:>8.1} s  {text}", took.as_secs_f64());
        let step = |done: &Done| line(done.took, &format!("{:<8}  {}", done.verdict, done.name));
        let total = line(self.done.iter().map(|done| done.took).sum(), "in all");
        self.done.iter().map(step).chain([total]).chain(self.summary.clone()).collect()
    }
}

/// Runs the command and copies its output line by line, watching for the summary.
fn pass_through(command: &mut Command, summary: &mut Option<String>) -> Result<()> {
    let started = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = started.with_context(|| format!("failed to start {}", house::shown(command)))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let found = Mutex::new(None);
    thread::scope(|scope| {
        scope.spawn(|| copy(stdout, &found, |line| println!("{line}")));
        scope.spawn(|| copy(stderr, &found, |line| eprintln!("{line}")));
    });
    *summary = found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let status = child.wait().context("failed to wait for the test runner")?;
    ensure!(status.success(), "{} ended with {status}", house::shown(command));
    Ok(())
}

fn copy(from: Option<impl Read>, found: &Mutex<Option<String>>, print: impl Fn(&str)) {
    let Some(from) = from else { return };
    for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        print(&line);
        if is_summary(&line) {
            *found.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(line.trim().to_owned());
        }
    }
}

/// Whether this is the line in which nextest or the standard runner counts its tests.
fn is_summary(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("Summary [") || line.starts_with("test result:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_line_of_each_test_runner_is_known() {
        assert!(is_summary("     Summary [   0.012s] 3 tests run: 3 passed, 0 skipped"));
        assert!(is_summary("test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out"));
        assert!(!is_summary("test steps::tests::summary ... ok"));
    }

    #[test]
    fn the_summary_is_kept_from_either_stream_and_a_failure_is_reported() {
        let mut steps = Steps::default();
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo '  Summary [ 1s] 2 tests run: 1 passed, 1 failed' >&2; echo later; exit 3"]);
        let error = steps.tests("test", &mut command).expect_err("status 3 is a failure");
        assert!(format!("{error:#}").contains("exit status: 3"), "{error:#}");
        assert_eq!(steps.summary.as_deref(), Some("Summary [ 1s] 2 tests run: 1 passed, 1 failed"));
        assert_eq!(steps.done[0].verdict, "failed");
    }

    #[test]
    fn the_list_at_the_end_names_what_was_left_out_and_ends_with_the_summary() {
        let mut steps = Steps::default();
        steps
            .tests("one", Command::new("sh").args(["-c", "echo 'test result: ok. 1 passed'"]))
            .expect("ends well");
        steps.left_out("two", "nothing to run");
        steps.done[0].took = Duration::from_millis(1500);
        let expected = [
            "     1.5 s  passed    one",
            "     0.0 s  left out  two: nothing to run",
            "     1.5 s  in all",
            "test result: ok. 1 passed",
        ];
        assert_eq!(steps.list(), expected);
    }

    #[test]
    fn a_later_step_without_a_summary_keeps_the_one_there_is() {
        let mut steps = Steps::default();
        let mut first = Command::new("sh");
        steps.tests("one", first.args(["-c", "echo 'test result: ok. 1 passed'"])).expect("ends well");
        let mut second = Command::new("true");
        steps.tests("two", &mut second).expect("ends well");
        assert_eq!(steps.summary.as_deref(), Some("test result: ok. 1 passed"));
    }
}
