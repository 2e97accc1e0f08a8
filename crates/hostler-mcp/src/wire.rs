//! Answers as results of tools: text, and a structure that is complete without it.

use std::time::{Duration, UNIX_EPOCH};

use hostler_shell::{Answer, Details, ErrorCode, Listed, Status};
use rmcp::model::{CallToolResult, ContentBlock};
use serde::Serialize;

use crate::McpOptions;

/// What a result answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A command.
    Bash,
    /// Anything else: how a process has ended is no error of who asks.
    Other,
}

/// The result of a tool.
pub(crate) fn result(answer: &Answer, kind: Kind, options: &McpOptions) -> CallToolResult {
    let content = vec![ContentBlock::text(answer.text())];
    let mut result = match is_error(&answer.details, kind, options) {
        true => CallToolResult::error(content),
        false => CallToolResult::success(content),
    };
    result.structured_content = serde_json::to_value(Structured::of(answer)).ok();
    result
}

/// Whether the call has failed.
fn is_error(details: &Details, kind: Kind, options: &McpOptions) -> bool {
    if details.error == Some(ErrorCode::NotReady) {
        return true;
    }
    let is_foreground = kind == Kind::Bash && !details.background;
    match details.status {
        Status::Refused => true,
        Status::Error => kind == Kind::Bash || details.error.is_some(),
        Status::Killed | Status::TimedOut => is_foreground,
        Status::Failed => is_foreground && options.nonzero_exit == NonzeroExit::IsError,
        Status::Queued | Status::Running | Status::Completed | Status::Canceled => false,
    }
}

/// Whether a foreground command that exits with another code than 0 makes its call fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NonzeroExit {
    /// It does.
    #[default]
    IsError,
    /// It does not: the details say how it ended.
    IsNoError,
}

#[derive(Serialize)]
struct Structured<'a> {
    output: &'a str,
    details: WireDetails<'a>,
}

impl<'a> Structured<'a> {
    fn of(answer: &'a Answer) -> Self {
        Self { output: &answer.output, details: WireDetails::of(&answer.details) }
    }
}

#[derive(Serialize)]
struct WireDetails<'a> {
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    process_id: Option<&'a str>,
    #[serde(skip_serializing_if = "is_false")]
    background: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cwd: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_lines: Option<u64>,
    #[serde(skip_serializing_if = "is_false")]
    truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    saved_output: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    capture: Option<&'static str>,
    #[serde(skip_serializing_if = "is_zero")]
    dropped_bytes: u64,
    #[serde(skip_serializing_if = "is_zero")]
    dropped_lines: u64,
    #[serde(skip_serializing_if = "is_false")]
    more: bool,
    #[serde(skip_serializing_if = "is_false")]
    pty_fallback: bool,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    survivors: &'a [i32],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    notices: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    processes: Option<Vec<WireListed<'a>>>,
}

fn is_false(value: &bool) -> bool {
    !value
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl<'a> WireDetails<'a> {
    fn of(details: &'a Details) -> Self {
        Self {
            status: details.status.word(),
            process_id: details.process_id.as_deref(),
            background: details.background,
            name: details.name.as_deref(),
            pid: details.pid,
            exit_code: details.exit_code,
            signal: details.signal.as_deref(),
            duration_ms: details.duration.map(millis),
            timeout_ms: details.timeout.map(millis),
            cwd: details.cwd.as_ref().map(|cwd| cwd.to_string_lossy().into_owned()),
            total_bytes: details.total_bytes,
            total_lines: details.total_lines,
            truncated: details.truncated,
            saved_output: details.saved_output.as_deref(),
            capture: details.capture.map(|capture| capture.word()),
            dropped_bytes: details.dropped_bytes,
            dropped_lines: details.dropped_lines,
            more: details.more,
            pty_fallback: details.pty_fallback,
            survivors: &details.survivors,
            notices: &details.notices,
            error: details.error.map(ErrorCode::word),
            processes: details.processes.as_ref().map(|list| list.iter().map(WireListed::of).collect()),
        }
    }
}

#[derive(Serialize)]
struct WireListed<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    process_id: &'a str,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<i32>,
    command: &'a str,
    /// Seconds since 1970.
    started_at: f64,
}

impl<'a> WireListed<'a> {
    fn of(listed: &'a Listed) -> Self {
        Self {
            name: listed.name.as_deref(),
            process_id: &listed.process_id,
            status: listed.status.word(),
            pid: listed.pid,
            command: &listed.command,
            started_at: listed.started_at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_has_failed_when_its_command_has_or_nothing_was_done() {
        let lenient = McpOptions { nonzero_exit: NonzeroExit::IsNoError, ..McpOptions::default() };
        let check = |status, kind, strict: bool, otherwise: bool| {
            let details = Details::new(status);
            assert_eq!(is_error(&details, kind, &McpOptions::default()), strict, "{status:?}, {kind:?}");
            assert_eq!(is_error(&details, kind, &lenient), otherwise, "{status:?}, {kind:?}");
        };
        check(Status::Completed, Kind::Bash, false, false);
        check(Status::Failed, Kind::Bash, true, false);
        check(Status::Failed, Kind::Other, false, false);
        check(Status::Killed, Kind::Bash, true, true);
        check(Status::Killed, Kind::Other, false, false);
        check(Status::TimedOut, Kind::Bash, true, true);
        check(Status::Refused, Kind::Other, true, true);
        check(Status::Running, Kind::Bash, false, false);
        check(Status::Queued, Kind::Bash, false, false);
        let unknown = Answer::error(ErrorCode::UnknownProcess, "no such process");
        assert!(is_error(&unknown.details, Kind::Other, &lenient));
    }

    #[test]
    fn fields_without_a_value_are_left_out() {
        let details = Details {
            exit_code: Some(3),
            notices: vec!["exit 3".to_owned()],
            ..Details::new(Status::Failed)
        };
        let result = result(&Answer::new("a\n", details), Kind::Bash, &McpOptions::default());
        insta::assert_snapshot!(serde_json::to_string(&result).unwrap(), @r#"{"resultType":"complete","content":[{"type":"text","text":"a\n[exit 3]"}],"structuredContent":{"details":{"exit_code":3,"notices":["exit 3"],"status":"failed"},"output":"a\n"},"isError":true}"#);
    }
}
