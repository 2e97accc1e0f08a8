//! The few A2E messages that the benches send and read. Everything but the stream of numbered lines goes through a
//! full JSON reader: what is rare need not be fast.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// A message of the host, as far as a bench wants to know.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Message {
    /// `handshake/resp`.
    Handshake { ok: bool, reason: String },
    /// `proc/spawn/resp`.
    Spawned { req_id: String, outcome: Result<Process, String> },
    /// `proc/read/event`.
    Event { proc_id: String, what: Event },
    /// `proc/write/resp`; the error of a refused one.
    Written { refused: Option<String> },
    /// `proc/kill/resp`.
    Killed,
    /// `pong`.
    Pong { req_id: String },
}

/// A process that was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) proc_id: String,
    pub(crate) pid: u32,
}

/// What an event says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A line of stdout.
    Stdout(String),
    /// A line of stderr.
    Stderr(String),
    /// The terminal event of a process that ended by itself: its code, or the negative signal.
    Exited(i64),
    /// The terminal event of a process that was killed.
    Killed,
}

impl Event {
    /// Whether nothing may come after it.
    pub(crate) fn is_terminal(&self) -> bool {
        match self {
            Self::Stdout(_) | Self::Stderr(_) => false,
            Self::Exited(_) | Self::Killed => true,
        }
    }
}

/// One request as a line without its newline.
pub(crate) fn request(kind: &str, id: &str, fields: Value) -> String {
    let mut message = json!({"type": kind, "id": id, "version": "1.0"});
    if let (Value::Object(message), Value::Object(fields)) = (&mut message, fields) {
        message.extend(fields);
    }
    message.to_string()
}

/// Reads a line of the host. An error envelope is an error, and so is a message that no bench asked for.
pub(crate) fn parse(line: &[u8]) -> Result<Message> {
    let wrong = || format!("from the host: {}", String::from_utf8_lossy(line));
    let value: Value = serde_json::from_slice(line).with_context(wrong)?;
    match value["type"].as_str().unwrap_or_default() {
        "handshake/resp" => {
            Ok(Message::Handshake { ok: value["ok"] == true, reason: text(&value, "reason")? })
        }
        "proc/spawn/resp" => spawned(&value),
        "proc/read/event" => {
            Ok(Message::Event { proc_id: text(&value, "proc_id")?, what: event(&value).with_context(wrong)? })
        }
        "proc/write/resp" => {
            let refused = if value["ok"] == true { None } else { Some(text(&value, "error")?) };
            Ok(Message::Written { refused })
        }
        "proc/kill/resp" => Ok(Message::Killed),
        "pong" => Ok(Message::Pong { req_id: text(&value, "req_id")? }),
        _ => bail!("unexpected {}", wrong()),
    }
}

fn spawned(value: &Value) -> Result<Message> {
    let outcome = if value["ok"] == true {
        let pid = value["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 1);
        Ok(Process { proc_id: text(value, "proc_id")?, pid: pid.context("a process without a pid")? })
    } else {
        Err(text(value, "error")?)
    };
    Ok(Message::Spawned { req_id: text(value, "req_id")?, outcome })
}

/// The payload, which is a JSON string holding JSON, or an object where the client asked for it.
fn event(value: &Value) -> Result<Event> {
    let inner: Value = match value["data"].as_str() {
        Some(data) => serde_json::from_str(data).context("data holds no JSON")?,
        None => value["data"].clone(),
    };
    let stream = text(value, "stream_type")?;
    match (stream.as_str(), inner["text"].as_str(), inner["code"].as_i64()) {
        ("stdout", Some(text), None) => Ok(Event::Stdout(text.to_owned())),
        ("stderr", Some(text), None) => Ok(Event::Stderr(text.to_owned())),
        ("stdout", None, Some(0)) => Ok(Event::Exited(0)),
        ("stderr", None, Some(code)) if code != 0 => Ok(Event::Exited(code)),
        ("killed", None, None) => Ok(Event::Killed),
        _ => bail!("an event of no known shape"),
    }
}

fn text(value: &Value, field: &str) -> Result<String> {
    Ok(value[field].as_str().with_context(|| format!("{field} is missing in {value}"))?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, expected: Message) {
        assert_eq!(parse(line.as_bytes()).expect(line), expected, "{line}");
    }

    #[test]
    fn messages_are_read_as_the_protocol_writes_them() {
        let spawned =
            r#"{"type":"proc/spawn/resp","req_id":"p1","proc_id":"c0","ok":true,"pid":4711,"error":""}"#;
        let process = Process { proc_id: "c0".into(), pid: 4711 };
        check(spawned, Message::Spawned { req_id: "p1".into(), outcome: Ok(process) });
        let refused =
            r#"{"type":"proc/spawn/resp","req_id":"p1","proc_id":"","ok":false,"error":"proc_limit: 64"}"#;
        check(refused, Message::Spawned { req_id: "p1".into(), outcome: Err("proc_limit: 64".into()) });
        check(r#"{"type":"pong","req_id":"x"}"#, Message::Pong { req_id: "x".into() });
        check(r#"{"type":"proc/write/resp","ok":true,"error":""}"#, Message::Written { refused: None });
    }

    #[test]
    fn events_are_read_in_both_forms_of_data() {
        let event = |stream: &str, data: &str| {
            format!(r#"{{"type":"proc/read/event","proc_id":"c0","stream_type":"{stream}","data":{data}}}"#)
        };
        let what = |what| Message::Event { proc_id: "c0".into(), what };
        check(&event("stdout", r#""{\"text\":\"hi\\n\"}""#), what(Event::Stdout("hi\n".into())));
        check(&event("stderr", r#"{"text":"hi\n"}"#), what(Event::Stderr("hi\n".into())));
        check(&event("stdout", r#""{\"code\":0}""#), what(Event::Exited(0)));
        check(&event("stderr", r#""{\"code\":-9}""#), what(Event::Exited(-9)));
        check(&event("killed", r#""{}""#), what(Event::Killed));
        assert!(
            parse(event("stdout", r#""{\"code\":1}""#).as_bytes()).is_err(),
            "a failure is told on stderr"
        );
    }

    #[test]
    fn an_error_envelope_is_an_error_that_shows_it() {
        let error = parse(br#"{"type":"error","code":"unauthorized"}"#).expect_err("no bench wants it");
        assert!(error.to_string().contains("unauthorized"), "{error}");
    }

    #[test]
    fn a_request_carries_its_fields_beside_the_base_ones() {
        let line = request("proc/kill/req", "7", json!({"signal": "SIGKILL"}));
        let value: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(value, json!({"type": "proc/kill/req", "id": "7", "version": "1.0", "signal": "SIGKILL"}));
    }
}
