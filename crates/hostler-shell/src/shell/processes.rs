//! Reading, feeding and stopping what runs.

use std::sync::Arc;
use std::time::Duration;

use hostler_core::{ReadError, SharedLog, StopCause, Then, Withdrawn, WriteError};

use super::{Inner, Shell, invalid};
use crate::answer::{Answer, Capture, Details, ErrorCode, Status};
use crate::reader::{self, LastLine, Shown};
use crate::request::{Eof, InputRequest, KillRequest, Look, Mode, OutputRequest};
use crate::run::{Phase, Run, StopRequest};

/// How long a full standard input is waited for.
const INPUT_PATIENCE: Duration = Duration::from_secs(10);
/// How long bash_output may wait.
const LONGEST_WAIT_MS: i64 = 600_000;

impl Shell {
    /// Reads output of a run. Dropped before its end, the future has read nothing.
    pub async fn output(&self, request: OutputRequest) -> Answer {
        match self.0.output(request).await {
            Ok(answer) | Err(answer) => answer,
        }
    }

    /// Writes to the standard input of a run: answers when all of it is in the pipe, or after 10 s.
    pub async fn input(&self, request: InputRequest) -> Answer {
        match self.0.allowed() {
            Ok(()) => self.0.input(&request.process_id, request.input.as_bytes(), request.then).await,
            Err(refused) => refused,
        }
    }

    /// Stops a run and answers at once: how it stood, and what was sent.
    #[expect(clippy::unused_async, reason = "like the other requests, whose adapters wait for them")]
    pub async fn kill(&self, request: KillRequest) -> Answer {
        let signal = request.signal.as_deref().unwrap_or("term");
        match self.0.allowed().and_then(|()| self.0.kill(&request.process_id, signal)) {
            Ok(answer) | Err(answer) => answer,
        }
    }
}

impl Inner {
    async fn output(&self, request: OutputRequest) -> Result<Answer, Answer> {
        let wait = request.wait_ms.unwrap_or(0);
        if !(0..=LONGEST_WAIT_MS).contains(&wait) {
            return Err(invalid(format!("`wait_ms` is {wait}: give 0 to {LONGEST_WAIT_MS} milliseconds")));
        }
        let run = self.run(&request.process_id)?;
        let wait = Duration::from_millis(wait.unsigned_abs());
        if !wait.is_zero() {
            // The time that is over is an answer like another.
            let _ = tokio::time::timeout(wait, news(&run)).await;
        }
        Ok(match request.look {
            Look::Peek => self.peek(&run),
            Look::Next => self.next(&run),
        })
    }

    /// What comes next, which is not read again.
    fn next(&self, run: &Run) -> Answer {
        let mut answer = self.standing(run);
        let Some(log) = run.log() else { return answer };
        let last_line = run.last_line();
        match run.with_place(|place| place.next(&log, last_line)) {
            Ok(lines) => {
                let details = &mut answer.details;
                details.more = lines.more;
                (details.dropped_bytes, details.dropped_lines) = (lines.lost.bytes, lines.lost.lines);
                let mut notices =
                    lost_notice(lines.lost.bytes, lines.lost.lines).into_iter().collect::<Vec<_>>();
                if lines.more {
                    notices.push("there is more: call bash_output again".to_owned());
                }
                notices.append(&mut details.notices);
                details.notices = notices;
                answer.output = String::from_utf8_lossy(&lines.bytes).into_owned();
                answer
            }
            Err(error) => unreadable(answer, &error),
        }
    }

    /// The newest output, without moving the place up to which it was read.
    pub(crate) fn peek(&self, run: &Run) -> Answer {
        let mut answer = self.standing(run);
        let Some(log) = run.log() else { return answer };
        match reader::newest(&log, run.last_line()) {
            Ok(shown) => {
                answer.output = String::from_utf8_lossy(&shown.tail).into_owned();
                let before = self.say_what_is_cut(&mut answer.details, run, &log, &shown);
                answer.details.notices.splice(0..0, before);
                answer
            }
            Err(error) => unreadable(answer, &error),
        }
    }

    /// How a run stands, with the line that says so.
    fn standing(&self, run: &Run) -> Answer {
        let mut details = run.details();
        details.process_id = Some(run.id.to_string());
        details.background = run.mode == Mode::Background || !run.is_attached();
        details.notices = vec![match (details.status, &details.signal, details.exit_code) {
            (Status::Queued, _, _) => "queued".to_owned(),
            (Status::Running, _, _) => "running".to_owned(),
            (Status::Canceled, _, _) => "canceled: it never ran".to_owned(),
            (Status::Error, _, _) => match run.phase() {
                Phase::NotStarted(failure) => {
                    details.error = Some(failure.code);
                    failure.text
                }
                Phase::Queued | Phase::Starting | Phase::Running(_) | Phase::Ended(_) | Phase::Canceled => {
                    "not started".to_owned()
                }
            },
            (status, Some(signal), _) => format!("{} by {signal}", status.word()),
            (status, None, Some(code)) => format!("{}, exit {code}", status.word()),
            (status, None, None) => status.word().to_owned(),
        }];
        if run.lingers() {
            details.notices.insert(0, "processes that it started still run".to_owned());
        }
        Answer::new("", details)
    }

    /// Both ends of what a run has printed, and what is to be said about the rest.
    pub(crate) fn show_both_ends(&self, run: &Run) -> Answer {
        let mut details = run.details();
        let Some(log) = run.log() else { return Answer::new("", details) };
        let shown = match reader::both_ends(&log) {
            Ok(shown) => shown,
            Err(error) => return unreadable(Answer::new("", details), &error),
        };
        let lost = log.totals().dropped;
        (details.dropped_bytes, details.dropped_lines) = (lost.bytes, lost.lines.unwrap_or(0));
        let mut output = String::from_utf8_lossy(&shown.head).into_owned();
        details.notices = self.say_what_is_cut(&mut details, run, &log, &shown);
        details.notices.extend(lost_notice(lost.bytes, details.dropped_lines));
        if shown.is_cut() {
            if !output.is_empty() && !output.ends_with('\n') {
                output.push('\n');
            }
            let (bytes, lines) = shown.left_out();
            output += &format!("[... {lines} lines, {bytes} bytes left out ...]\n");
        }
        output += &String::from_utf8_lossy(&shown.tail);
        Answer::new(output, details)
    }

    /// Says how much there is and where the rest can be had, when that is not shown.
    fn say_what_is_cut(
        &self,
        details: &mut Details,
        run: &Run,
        log: &Arc<SharedLog>,
        shown: &Shown,
    ) -> Vec<String> {
        if !shown.is_cut() {
            return Vec::new();
        }
        details.truncated = true;
        details.total_bytes = Some(shown.total_bytes);
        details.total_lines = Some(shown.total_lines);
        if log.artifact_path().is_none() {
            return vec!["the output is too long to be shown, and could not be saved".to_owned()];
        }
        let address = format!("artifact://{}", run.id);
        let whole = match details.capture {
            Some(Capture::Complete) | None => "the whole output",
            Some(Capture::Limited | Capture::Failed) => "what was saved of the output",
        };
        let notice =
            format!("{whole} ({} lines, {} bytes): read {address}", shown.total_lines, shown.total_bytes);
        details.saved_output = Some(address);
        vec![notice]
    }

    pub(crate) async fn input(&self, id: &str, bytes: &[u8], then: Eof) -> Answer {
        let run = match self.run(id) {
            Ok(run) => run,
            Err(answer) => return answer,
        };
        let process = match run.phase() {
            Phase::Queued if run.mode == Mode::Background => {
                return wrong(
                    &run,
                    ErrorCode::StdinFull,
                    "it waits for a place and has no standard input yet: try again later",
                );
            }
            Phase::Starting if run.mode == Mode::Background => {
                return wrong(&run, ErrorCode::StdinFull, "it is just being started: try again");
            }
            Phase::Queued | Phase::Starting => return wrong(&run, ErrorCode::StdinClosed, NO_STDIN),
            Phase::Running(process) => process,
            Phase::Ended(_) | Phase::NotStarted(_) | Phase::Canceled => {
                return wrong(&run, ErrorCode::ProcessDead, DEAD);
            }
        };
        let then = match then {
            Eof::Open => Then::KeepOpen,
            Eof::Close => Then::Close,
        };
        match process.write(bytes, then).done_within(INPUT_PATIENCE).await {
            Withdrawn::Answered(Ok(())) => {
                let mut answer = self.standing(&run);
                let end = if then == Then::Close { ", then end of file" } else { "" };
                answer.details.notices.insert(0, format!("{} bytes written{end}", bytes.len()));
                answer
            }
            Withdrawn::Answered(Err(error)) => {
                let (code, notice) = input_error(error);
                wrong(&run, code, notice)
            }
            Withdrawn::Partly { written } => {
                let notice = format!(
                    "it does not read: {written} of {} bytes went in within {} s, the rest will not; send it again later",
                    bytes.len(),
                    INPUT_PATIENCE.as_secs()
                );
                wrong(&run, ErrorCode::StdinFull, notice)
            }
        }
    }

    pub(crate) fn kill(&self, id: &str, signal: &str) -> Result<Answer, Answer> {
        let (grace, name) = match signal {
            "term" => (self.options.stop_grace, "SIGTERM"),
            "kill" => (Duration::ZERO, "SIGKILL"),
            _ => return Err(invalid(format!("`signal` is {signal:?}: give \"term\" or \"kill\""))),
        };
        let run = self.run(id)?;
        let mut receipt = self.standing(&run);
        receipt.details.notices = vec![match run.phase() {
            Phase::NotStarted(_) | Phase::Canceled => return Err(wrong(&run, ErrorCode::ProcessDead, DEAD)),
            Phase::Ended(_) if !run.lingers() => return Err(wrong(&run, ErrorCode::ProcessDead, DEAD)),
            Phase::Queued => {
                receipt.details.status = Status::Canceled;
                "canceled: it never ran".to_owned()
            }
            Phase::Starting => format!("{name} is sent as soon as it has started"),
            Phase::Running(_) | Phase::Ended(_) if grace.is_zero() => format!("{name} sent to its processes"),
            Phase::Running(_) | Phase::Ended(_) => format!(
                "{name} sent to its processes; what lives {} ms later gets SIGKILL: see the end with bash_output",
                grace.as_millis()
            ),
        }];
        run.stop(StopRequest { cause: StopCause::Request, grace });
        Ok(receipt)
    }
}

const DEAD: &str = "it has ended: bash_output shows how";
const NO_STDIN: &str =
    "it was started in the foreground and has no standard input: use run_in_background for what reads";

fn wrong(run: &Run, code: ErrorCode, notice: impl Into<String>) -> Answer {
    let mut answer = Answer::error(code, notice);
    answer.details.process_id = Some(run.id.to_string());
    answer
}

fn input_error(error: WriteError) -> (ErrorCode, String) {
    match error {
        WriteError::NoStdin => (ErrorCode::StdinClosed, NO_STDIN.to_owned()),
        WriteError::Ended => (ErrorCode::ProcessDead, DEAD.to_owned()),
        WriteError::Closed | WriteError::ClosedByProcess | WriteError::Unwatched => {
            (ErrorCode::StdinClosed, error.to_string())
        }
        WriteError::Full { .. } | WriteError::SessionFull { .. } => (ErrorCode::StdinFull, error.to_string()),
    }
}

fn lost_notice(bytes: u64, lines: u64) -> Option<String> {
    (bytes > 0).then(|| format!("{lines} lines ({bytes} bytes) of the output were not saved and are lost"))
}

fn unreadable(mut answer: Answer, error: &ReadError) -> Answer {
    answer.details.notices.insert(0, format!("output that was saved cannot be read now: {error}"));
    answer
}

/// Waits for a line that was not read, or until no more can come.
async fn news(run: &Run) {
    let Some(process) = run.started().await else { return };
    let Some(mut cursor) = process.cursor(hostler_core::Stream::Stdout) else { return };
    loop {
        let log = Arc::clone(cursor.log());
        if run.with_place(|place| place.has_news(&log, run.last_line())) {
            return;
        }
        if !matches!(run.phase(), Phase::Running(_)) && !run.lingers() {
            return;
        }
        cursor.go_to_end();
        // Looked at again: it may have come before the cursor was there.
        if run.with_place(|place| place.has_news(&log, run.last_line())) {
            return;
        }
        let mut byte = [0];
        tokio::select! {
            _ = cursor.next(&mut byte) => {}
            () = run.ended(), if run.last_line() == LastLine::Grows => {}
            () = process.closed() => {}
        }
        tokio::task::yield_now().await;
    }
}
