//! The six tools, as clients see them: always all of them, in one order.
//!
//! Schemas are plain enough for every client that is known: one type a property, no formats, optional ones simply not
//! required.

use std::sync::{Arc, LazyLock};

use rmcp::model::{JsonObject, MetaObject, Tool, ToolAnnotations};
use serde_json::{Value, json};

/// What a model is told about all of them.
pub(crate) const INSTRUCTIONS: &str = "\
Runs shell commands whose processes are owned by this session: nothing hangs a call, no output is lost, and everything ends \
with the session.\n\
- bash waits up to `timeout` (120 s by default). A command that takes longer goes on in the background as the same process: \
the answer has a process_id. Do not run it again; read it with bash_output.\n\
- Start servers, watchers and long builds with run_in_background: true. Read them with bash_output (new lines once; wait_ms \
waits for more), feed them with process_input (add \\n yourself), stop them with kill_process.\n\
- The working directory and exported variables are kept from one foreground call to the next; reset: true forgets them.\n\
- Output that is too long is shown at both ends; the whole is at artifact://ID: page it with read (offset, limit in lines).\n\
- read proc:// lists what runs. Foreground commands have no standard input.";

const BASH: &str = "\
Run a command with bash and return what it prints, standard output and error in one. Foreground: waits for the end, at most \
`timeout` ms (default 120000, most 600000); a command that takes longer goes on in the background, the answer has its \
process_id, and bash_output reads on (do not run it again). run_in_background: true answers at once with a process_id; such a \
command has a standard input (process_input). The final working directory and exported variables are kept for the next call; \
`cwd` and `env` are for this call (`cwd` as if cd came first). At most 50 KB / 2000 lines are shown, the first and the last half; \
all of it is at `saved_output`.";

const BASH_OUTPUT: &str = "\
Read what a process has printed since the last such call, oldest first, complete lines only, at most 50 KB / 2000 lines (`more` \
says that there is more). peek: true shows the newest output instead and moves nothing. wait_ms waits for a new line or the end. \
Works for processes that have ended, too: the status says how.";

const PROCESS_INPUT: &str = "\
Write to the standard input of a background process, exactly as given: add \\n for a line. eof: true closes the input \
afterwards. Commands that began in the foreground have none.";

const KILL_PROCESS: &str = "\
Stop a process with everything that it has started. \"term\" (default) lets it clean up and kills what is left after 2 s; \"kill\" \
does so at once. Answers at once; bash_output shows the end.";

const READ: &str = "\
Read an address of this session, consuming nothing: proc:// (what runs), proc://ID (newest output), artifact://ID (saved output, by \
lines: offset, limit), local://PATH (scratch file), skill://NAME or skill://NAME/PATH. Not for files of the workspace.";

const WRITE: &str = "\
Write to an address of this session: proc://ID (its standard input), proc://ID/kill (stops it; content \"kill\" at once), \
local://PATH (a scratch file).";

/// The tools.
pub(crate) fn all() -> &'static [Tool] {
    static TOOLS: LazyLock<Vec<Tool>> = LazyLock::new(|| {
        vec![
            tool("bash", BASH, bash(), hints(false, true, false, true)),
            tool("bash_output", BASH_OUTPUT, bash_output(), hints(false, false, false, false)),
            tool("process_input", PROCESS_INPUT, process_input(), hints(false, true, false, true)),
            tool("kill_process", KILL_PROCESS, kill_process(), hints(false, true, true, false)),
            tool("read", READ, read(), hints(true, false, true, false)),
            tool("write", WRITE, write(), hints(false, true, false, true)),
        ]
    });
    &TOOLS
}

fn bash() -> JsonObject {
    object(
        json!({
            "command": text("Text for bash -c."),
            "cwd": text("Existing directory, absolute or relative to the session's."),
            "env": {
                "type": "object",
                "additionalProperties": {"type": "string"},
                "description": "Variables for this call.",
            },
            "timeout": number("Foreground wait in ms, 1 to 600000. Default 120000."),
            "run_in_background": flag("Answer at once; the command goes on."),
            "pty": flag("Give it a terminal (foreground)."),
            "reset": flag("Forget the kept directory and variables first."),
            "name": text("Start a service with this name."),
            "ready": {
                "type": "object",
                "description": "When the service counts as ready: either condition.",
                "properties": {
                    "log": text("Regular expression that a line matches."),
                    "port": number("TCP port, 1 to 65535."),
                    "host": text("Address of the port. Default 127.0.0.1."),
                    "timeout_s": {"type": "number", "description": "Above 0, at most 3600. Default 30."},
                },
                "additionalProperties": false,
            },
        }),
        &["command"],
    )
}

fn bash_output() -> JsonObject {
    object(
        json!({
            "process_id": id(),
            "peek": flag("Show the newest output without moving on."),
            "wait_ms": number("Wait for a new line or the end, 0 to 600000 ms. Default 0."),
        }),
        &["process_id"],
    )
}

fn process_input() -> JsonObject {
    object(
        json!({
            "process_id": id(),
            "input": text("Exactly these bytes; nothing is added."),
            "eof": flag("Close standard input afterwards."),
        }),
        &["process_id", "input"],
    )
}

fn kill_process() -> JsonObject {
    object(
        json!({
            "process_id": id(),
            "signal": {"type": "string", "enum": ["term", "kill"], "description": "Default: term."},
        }),
        &["process_id"],
    )
}

fn read() -> JsonObject {
    object(
        json!({
            "path": text("An address such as proc:// or artifact://ID."),
            "offset": number("Lines to skip. Default 0."),
            "limit": number("Lines to read, at most 2000, the default."),
        }),
        &["path"],
    )
}

fn write() -> JsonObject {
    object(
        json!({
            "path": text("An address such as proc://ID or local://PATH."),
            "content": text("Exactly these bytes."),
            "eof": flag("Close standard input afterwards (proc://ID)."),
        }),
        &["path", "content"],
    )
}

fn text(description: &str) -> Value {
    json!({"type": "string", "description": description})
}

fn id() -> Value {
    text("process_id of a run")
}

fn flag(description: &str) -> Value {
    json!({"type": "boolean", "description": description})
}

fn number(description: &str) -> Value {
    json!({"type": "integer", "description": description})
}

fn object(properties: Value, required: &[&str]) -> JsonObject {
    let mut schema = JsonObject::new();
    schema.insert("type".to_owned(), "object".into());
    schema.insert("properties".to_owned(), properties);
    schema.insert("required".to_owned(), json!(required));
    schema.insert("additionalProperties".to_owned(), false.into());
    schema
}

#[expect(clippy::fn_params_excessive_bools, reason = "the four hints of the protocol, in its order")]
fn hints(read_only: bool, destructive: bool, idempotent: bool, open_world: bool) -> ToolAnnotations {
    ToolAnnotations::new()
        .read_only(read_only)
        .destructive(destructive)
        .idempotent(idempotent)
        .open_world(open_world)
}

/// Characters of a result that Claude Code shows a model before it puts the rest into a file: a whole window.
const MOST_CHARACTERS: u64 = 120_000;

fn tool(
    name: &'static str,
    description: &'static str,
    input: JsonObject,
    annotations: ToolAnnotations,
) -> Tool {
    let tool = Tool::new_with_raw(name, Some(description.into()), Arc::new(input))
        .with_raw_output_schema(output())
        .with_annotations(annotations);
    if matches!(name, "bash" | "bash_output" | "read") {
        let mut meta = MetaObject::default();
        meta.insert("anthropic/maxResultSizeChars".to_owned(), MOST_CHARACTERS.into());
        return tool.with_meta(meta);
    }
    tool
}

/// What all results look like.
fn output() -> Arc<JsonObject> {
    static OUTPUT: LazyLock<Arc<JsonObject>> = LazyLock::new(|| {
        let texts = json!({"type": "array", "items": {"type": "string"}});
        let details = json!({
            "type": "object",
            "properties": {
                "status": {"type": "string"}, "process_id": {"type": "string"}, "background": {"type": "boolean"},
                "name": {"type": "string"}, "pid": {"type": "integer"}, "exit_code": {"type": "integer"},
                "signal": {"type": "string"}, "duration_ms": {"type": "integer"}, "timeout_ms": {"type": "integer"},
                "cwd": {"type": "string"}, "total_bytes": {"type": "integer"}, "total_lines": {"type": "integer"},
                "truncated": {"type": "boolean"}, "saved_output": {"type": "string"}, "capture": {"type": "string"},
                "dropped_bytes": {"type": "integer"}, "dropped_lines": {"type": "integer"}, "more": {"type": "boolean"},
                "pty_fallback": {"type": "boolean"},
                "survivors": {"type": "array", "items": {"type": "integer"}}, "notices": texts,
                "error": {"type": "string"},
                "processes": {"type": "array", "items": {"type": "object"}},
            },
            "required": ["status"],
        });
        let mut schema = JsonObject::new();
        schema.insert("type".to_owned(), "object".into());
        schema.insert("properties".to_owned(), json!({"output": {"type": "string"}, "details": details}));
        schema.insert("required".to_owned(), json!(["output", "details"]));
        Arc::new(schema)
    });
    Arc::clone(&OUTPUT)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use hostler_shell::Answer;

    use super::*;
    use crate::arguments;

    #[test]
    fn what_models_are_told_is_short_enough_for_every_client() {
        assert!(INSTRUCTIONS.len() < 2048);
        for tool in all() {
            let length = tool.description.as_ref().map_or(0, |text| text.len());
            assert!(0 < length && length < 2048, "{}: {length}", tool.name);
        }
    }

    /// The arguments that a tool knows, by what it says of one that it does not.
    fn known<T: serde::de::DeserializeOwned>() -> BTreeSet<String> {
        let mut unknown = JsonObject::new();
        unknown.insert("no such argument".to_owned(), 1.into());
        let answer: Answer = arguments::parse::<T>(Some(unknown)).map(drop).unwrap_err();
        let text = answer.text();
        let (_, expected) = text.split_once("expected").unwrap();
        expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    #[test]
    fn schemas_name_the_arguments_that_are_read() {
        let in_schema = |tool: &Tool| -> BTreeSet<String> {
            tool.input_schema["properties"].as_object().unwrap().keys().cloned().collect()
        };
        let read = [
            known::<arguments::Bash>(),
            known::<arguments::BashOutput>(),
            known::<arguments::ProcessInput>(),
            known::<arguments::KillProcess>(),
            known::<arguments::Read>(),
            known::<arguments::Write>(),
        ];
        for (tool, read) in all().iter().zip(read) {
            assert_eq!(in_schema(tool), read, "{}", tool.name);
        }
        assert_eq!(all().len(), 6);
    }
}
