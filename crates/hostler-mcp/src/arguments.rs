//! The arguments of the tools, read strictly: what a tool does not know is refused by its name, and nothing runs.

use std::collections::BTreeMap;

use hostler_shell::{
    Answer, BashRequest, Eof, ErrorCode, InputRequest, KillRequest, Look, Mode, OutputRequest, ReadRequest,
    ReadyRequest, SavedState, Terminal, WriteRequest,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Reads the arguments of a tool, or says which one is wrong.
pub(crate) fn parse<T: DeserializeOwned>(arguments: Option<Map<String, Value>>) -> Result<T, Answer> {
    let arguments = Value::Object(arguments.unwrap_or_default());
    serde_path_to_error::deserialize(&arguments).map_err(|error| {
        let (path, why) = (error.path().to_string(), error.inner());
        let place = if path == "." { String::new() } else { format!("`{path}`: ") };
        Answer::error(ErrorCode::InvalidArguments, format!("{place}{why}"))
    })
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Bash {
    command: String,
    cwd: Option<String>,
    env: Option<BTreeMap<String, String>>,
    timeout: Option<i64>,
    run_in_background: Option<bool>,
    pty: Option<bool>,
    reset: Option<bool>,
    name: Option<String>,
    ready: Option<Ready>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ready {
    log: Option<String>,
    port: Option<i64>,
    host: Option<String>,
    timeout_s: Option<f64>,
}

impl From<Bash> for BashRequest {
    fn from(from: Bash) -> Self {
        Self {
            command: from.command,
            cwd: from.cwd,
            env: from.env.unwrap_or_default().into_iter().collect(),
            timeout_ms: from.timeout,
            mode: if from.run_in_background == Some(true) { Mode::Background } else { Mode::Foreground },
            terminal: if from.pty == Some(true) { Terminal::Pty } else { Terminal::None },
            state: if from.reset == Some(true) { SavedState::Discarded } else { SavedState::Kept },
            name: from.name,
            ready: from.ready.map(|ready| ReadyRequest {
                log: ready.log,
                port: ready.port,
                host: ready.host,
                timeout_s: ready.timeout_s,
            }),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BashOutput {
    process_id: String,
    peek: Option<bool>,
    wait_ms: Option<i64>,
}

impl From<BashOutput> for OutputRequest {
    fn from(from: BashOutput) -> Self {
        Self {
            process_id: from.process_id,
            look: if from.peek == Some(true) { Look::Peek } else { Look::Next },
            wait_ms: from.wait_ms,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProcessInput {
    process_id: String,
    input: String,
    eof: Option<bool>,
}

fn eof(eof: Option<bool>) -> Eof {
    if eof == Some(true) { Eof::Close } else { Eof::Open }
}

impl From<ProcessInput> for InputRequest {
    fn from(from: ProcessInput) -> Self {
        Self { process_id: from.process_id, input: from.input, then: eof(from.eof) }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct KillProcess {
    process_id: String,
    signal: Option<String>,
}

impl From<KillProcess> for KillRequest {
    fn from(from: KillProcess) -> Self {
        Self { process_id: from.process_id, signal: from.signal }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Read {
    path: String,
    offset: Option<i64>,
    limit: Option<i64>,
}

impl From<Read> for ReadRequest {
    fn from(from: Read) -> Self {
        Self { path: from.path, offset: from.offset, limit: from.limit }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Write {
    path: String,
    content: String,
    eof: Option<bool>,
}

impl From<Write> for WriteRequest {
    fn from(from: Write) -> Self {
        Self { path: from.path, content: from.content, then: eof(from.eof) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn wrong<T: DeserializeOwned + std::fmt::Debug>(arguments: Value) -> String {
        let Value::Object(arguments) = arguments else { panic!("no object") };
        let answer = parse::<T>(Some(arguments)).unwrap_err();
        assert_eq!(answer.details.error, Some(ErrorCode::InvalidArguments));
        answer.text()
    }

    #[test]
    fn what_is_wrong_is_named() {
        insta::assert_snapshot!(wrong::<Bash>(json!({"command": "x", "timeuot": 5})), @"[`timeuot`: unknown field `timeuot`, expected one of `command`, `cwd`, `env`, `timeout`, `run_in_background`, `pty`, `reset`, `name`, `ready`]");
        insta::assert_snapshot!(wrong::<Bash>(json!({})), @"[missing field `command`]");
        insta::assert_snapshot!(wrong::<Bash>(json!({"command": "x", "timeout": 1.5})), @"[`timeout`: invalid type: floating point `1.5`, expected i64]");
        insta::assert_snapshot!(wrong::<Bash>(json!({"command": "x", "env": {"A": null}})), @"[`env.A`: invalid type: null, expected a string]");
        insta::assert_snapshot!(wrong::<Bash>(json!({"command": "x", "ready": {"prot": 1}})), @"[`ready.prot`: unknown field `prot`, expected one of `log`, `port`, `host`, `timeout_s`]");
        insta::assert_snapshot!(wrong::<BashOutput>(json!({"process_id": 5})), @"[`process_id`: invalid type: integer `5`, expected a string]");
    }

    #[test]
    fn an_argument_that_is_null_counts_as_none() {
        let Value::Object(arguments) = json!({"command": "x", "cwd": null, "timeout": null}) else {
            panic!("no object")
        };
        let request: BashRequest = parse::<Bash>(Some(arguments)).unwrap().into();
        assert_eq!(request, BashRequest { command: "x".to_owned(), ..BashRequest::default() });
    }
}
