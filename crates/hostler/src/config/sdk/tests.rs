//! The Python SDK's configurations, good and bad.

use std::fs;

use insta::assert_snapshot;
use proptest::prelude::*;

use super::*;
use crate::config::{AuditFolder, Config, EventData, Loaded, Sources, load};

/// What a text as the file of `--sdk-config` comes to, besides variables.
fn load_with(text: &str, variables: &[(&str, &str)]) -> Result<Loaded, String> {
    load_bytes(text.as_bytes(), variables)
}

fn load_bytes(text: &[u8], variables: &[(&str, &str)]) -> Result<Loaded, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a2e.yaml");
    fs::write(&path, text).unwrap();
    let variables = variables.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    load(&Sources { variables, sdk_file: Some(path), ..Sources::default() }).map_err(|error| {
        format!("{error}\nhint: {}", error.hint()).replace(folder.path().to_str().unwrap(), "DIR")
    })
}

fn config(text: &str) -> Config {
    load_with(text, &[]).unwrap_or_else(|error| panic!("{error}: {text}")).config
}

fn error(text: &str) -> String {
    load_with(text, &[]).map(|loaded| loaded.config).unwrap_err()
}

/// The keys that are said to have no effect.
fn without_effect(text: &str) -> Vec<String> {
    let loaded = load_with(text, &[]).unwrap();
    let key = |warning: &String| warning.split(": ").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    loaded.warnings.iter().map(key).collect()
}

const PROC: &str = "plugins:\n  - type: proc\n";

fn with_metadata(lines: &str) -> String {
    let metadata: String = lines.lines().map(|line| format!("      {line}\n")).collect();
    format!("{PROC}    metadata:\n{metadata}")
}

#[test]
fn the_example_of_the_page_is_read_as_the_page_says() {
    let page = include_str!("../../../../../docs/sdk.md");
    let between = |from: &str| page.split(from).nth(1).unwrap().split("```").next().unwrap();
    let loaded = load_with(between("```yaml\n"), &[]).unwrap();
    let said: String = loaded
        .warnings
        .iter()
        .map(|warning| {
            format!("{}\n", warning.rsplit_once("a2e.yaml: ").map_or(warning.as_str(), |(_, rest)| rest))
        })
        .collect();
    assert_eq!(said, between("```text warnings\n"));
    let a2e = &loaded.config.a2e;
    assert_eq!(a2e.allowed_commands, ["python3", "bash", "git"]);
    assert_eq!((a2e.max_processes, a2e.default_timeout.unwrap().as_secs()), (16, 600));
    assert_eq!(loaded.config.runtime.output.relay_bytes_per_process, 1_048_576);
    assert_eq!(a2e.auth_token.as_ref().unwrap().reveal(), "sesame");
    assert_eq!(loaded.sdk_transport, Some(SdkTransport::Http("127.0.0.1:8765".to_owned())));
    let audit = a2e.audit.as_ref().unwrap();
    assert_eq!((audit.max_bytes, audit.backup_count, audit.folder), (10_485_760, 3, AuditFolder::Made));
    assert!(audit.path.is_absolute() && audit.path.ends_with("logs/audit.jsonl"));
}

#[test]
fn events_are_what_sdk_clients_need_unless_something_else_is_asked_for() {
    let drop_in = config(PROC).a2e;
    assert_eq!((drop_in.event_data, drop_in.push_events), (EventData::Object, true));
    let variables = [("HOSTLER_A2E_EVENT_DATA", "string"), ("HOSTLER_A2E_PUSH_EVENTS", "false")];
    let a2e = load_with(PROC, &variables).unwrap().config.a2e;
    assert_eq!((a2e.event_data, a2e.push_events), (EventData::String, false));
}

#[test]
fn the_plugin_is_the_first_enabled_one_of_its_type_or_class() {
    const REAL: &str =
        "{name: p, type: x, cls: a2e.caps.proc.plugin.ProcPlugin, metadata: {ALLOWED_COMMANDS: [cat]}}";
    for before in [
        "",
        "{name: processor, type: tools, cls: my.tools.ProcessorPlugin}",
        "{name: proc, type: process, cls: a2e.caps.proc.plugin.ProcPluginBase}",
        "{name: proc, type: procs, metadata: {enabled: false, ALLOWED_COMMANDS: [bash]}}",
    ] {
        let text = format!("plugins: [{before}{} {REAL}]", if before.is_empty() { "" } else { "," });
        assert_eq!(config(&text).a2e.allowed_commands, ["cat"], "{text}");
    }
    for plugin in [
        "{type: proc}",
        "{type: procs}",
        "{type: x, cls: a2e.plugins.procs.ProcsPlugin}",
        "{cls: 'a2e.plugins:ProcPlugin'}",
    ] {
        config(&format!("plugins: [{plugin}]"));
    }
    for none in [
        "",
        "plugins: []",
        "plugins:\n",
        "plugins: [{type: files}]",
        "plugins: [{name: proc}]",
        "plugins: [{type: process}]",
        "plugins: [{type: proc, metadata: {enabled: false}}]",
    ] {
        let error = error(none);
        assert!(error.contains("no enabled plugin of type `proc`"), "{none}: {error}");
    }
}

#[test]
fn both_spellings_are_read_and_must_agree() {
    let upper = config(&with_metadata(
        "ALLOWED_COMMANDS: [cat]\nDEFAULT_TIMEOUT: 5\nMAX_PROCS: 3\nMAX_OUTPUT_BYTES: 70000",
    ));
    let lower = config(&with_metadata(
        "allowed_commands: [cat]\ntimeout: 5.0\nmax_procs: 3\nmax_output_bytes: 70000",
    ));
    assert_eq!(upper, lower);
    assert_eq!(
        upper,
        config(&with_metadata(
            "ALLOWED_COMMANDS: [cat]\nallowed_commands: [cat]\ntimeout: 5\nmax_procs: 3\nmax_output_bytes: 70000"
        ))
    );
    assert_snapshot!(error(&with_metadata("MAX_PROCS: 3\nmax_procs: 4")), @"
    DIR/a2e.yaml: plugins[0].metadata.MAX_PROCS: says something else than `plugins[0].metadata.max_procs`, which is the same key
    hint: leave one of them out
    ");
}

#[test]
fn what_cannot_be_honoured_keeps_the_host_from_starting() {
    for on in
        ["DISABLE_NETWORK: true", "network_disabled: true", "DISABLE_NETWORK: true\nnetwork_disabled: true"]
    {
        let error = error(&with_metadata(on));
        assert!(error.contains("cannot be kept from the network"), "{error}");
    }
    for off in ["DISABLE_NETWORK: false", "network_disabled: false", "DISABLE_NETWORK:"] {
        config(&with_metadata(off));
    }
    assert_snapshot!(error(&with_metadata("DISABLE_NETWORK: true")), @"
    DIR/a2e.yaml: plugins[0].metadata.DISABLE_NETWORK: programs cannot be kept from the network yet, so this host does not start
    hint: start it where there is no network, such as in a network namespace, and leave the key out
    ");
}

#[test]
fn what_has_no_effect_is_named() {
    let text = format!(
        "host_id: h\nserver: {{host: '::1', port: 1, workers: 4}}\ncolour: blue\n{}",
        with_metadata("priority: 5\nenabled: true\nextra: {a: 1}")
    );
    assert_eq!(
        without_effect(&text),
        ["server.workers", "plugins[0].metadata.extra", "plugins[0].metadata.priority", "colour", "host_id"]
    );
    assert_eq!(
        without_effect(&format!("{PROC}  - type: files\n  - type: proc\n")),
        ["plugins[1]", "plugins[2]"]
    );
    assert_eq!(
        load_with("server: {host: '::1', port: 1}\nplugins: [{type: proc}]", &[]).unwrap().sdk_transport,
        Some(SdkTransport::Http("[::1]:1".to_owned()))
    );
}

#[test]
fn an_audit_without_a_path_is_none_and_that_is_said() {
    let loaded = load_with(&format!("audit: {{enabled: true}}\n{PROC}"), &[]).unwrap();
    assert_eq!(loaded.config.a2e.audit, None);
    assert!(loaded.warnings[0].ends_with("audit.enabled, without audit.path, has no effect here"));
}

#[test]
fn values_that_are_smaller_than_ours_may_be_are_raised_and_that_is_said() {
    let text = format!("audit: {{rotate: {{max_bytes: 1000}}}}\n{}", with_metadata("MAX_OUTPUT_BYTES: 10"));
    let loaded = load_with(&text, &[]).unwrap();
    assert_eq!(loaded.config.runtime.output.relay_bytes_per_process, 65_536);
    assert_eq!(loaded.warnings.len(), 2);
    assert!(
        loaded.warnings[0]
            .ends_with("audit.rotate.max_bytes is 1000; the least here is 65536, which is used")
    );
}

#[test]
fn what_is_no_such_configuration_says_where_and_what_it_should_be() {
    for (text, expected) in [
        ("just a text", "DIR/a2e.yaml: expected keys and values"),
        ("[1, 2]", "DIR/a2e.yaml: expected keys and values"),
        ("server: here", "DIR/a2e.yaml: server: expected keys and values"),
        ("server: {port: x}", "server.port: expected a port, 0 to 65535"),
        ("server: {port: 70000}", "server.port: expected a port"),
        ("server: {host: 5}", "server.host: expected a text"),
        ("transport: {type: carrier-pigeon}", "transport.type: expected `http`, `direct` or `subprocess`"),
        ("auth_token: 5", "auth_token: expected a text"),
        ("audit: {enabled: maybe}", "audit.enabled: expected true or false"),
        ("audit: {rotate: {backup_count: many}}", "audit.rotate.backup_count: expected a number of files"),
        ("plugins: {}", "plugins: expected a list of plugins"),
        ("plugins: [proc]", "plugins[0]: expected keys and values"),
        ("plugins: [{type: proc, metadata: {MAX_PROCS: -1}}]", "metadata.MAX_PROCS: expected a whole number"),
        ("plugins: [{type: proc, metadata: {timeout: 1.5}}]", "metadata.timeout: expected a whole number"),
        (
            "plugins: [{type: proc, metadata: {ALLOWED_COMMANDS: ls}}]",
            "ALLOWED_COMMANDS: expected a list of texts",
        ),
        ("plugins: [{type: proc, metadata: {ALLOWED_COMMANDS: ['']}}]", "a list of names of commands"),
        ("plugins: [{type: proc, metadata: {MAX_PROCS: 0}}]", "a whole number from 1 to 1000000"),
        ("a: {", "not valid YAML"),
        ("plugins: [{type: proc, metadata: {timeout: .inf}}]", "not a finite number at line 1, column 44"),
        ("plugins: [{type: proc, metadata: {enabled: 'false'}}]", "enabled: expected true or false"),
        ("plugins: [{type: proc, metadata: {MAX_PROCS: '3'}}]", "MAX_PROCS: expected a whole number"),
    ] {
        let error = error(text);
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn what_is_no_yaml_says_where() {
    assert_snapshot!(error("plugins:\n\t- type: proc\n"), @"
    DIR/a2e.yaml: not valid YAML: tabs disallowed within this context (block indentation) at line 2, column 2
    hint: docs/sdk.md lists the keys and what they take
    ");
    assert_snapshot!(error("server:\n  port: 1\n  port: 1\n"), @"
    DIR/a2e.yaml: not valid YAML: duplicate mapping key `port` is not allowed here at line 3, column 3
    hint: docs/sdk.md lists the keys and what they take
    ");
    assert_snapshot!(error("a: 1\n---\nb: 2\n"), @"
    DIR/a2e.yaml: not valid YAML: only single YAML document expected but multiple found at line 3, column 1
    hint: docs/sdk.md lists the keys and what they take
    ");
    assert_snapshot!(error("a: *nowhere\n"), @"
    DIR/a2e.yaml: not valid YAML: reference to unknown value at line 1, column 4
    hint: docs/sdk.md lists the keys and what they take
    ");
}

#[test]
fn a_file_that_is_no_text_or_too_large_is_refused() {
    let error_of = |bytes: &[u8]| load_bytes(bytes, &[]).map(|loaded| loaded.config).unwrap_err();
    assert_snapshot!(error_of(b"host_id: x\nauth_token: \xff\n"), @"
    DIR/a2e.yaml:2: the text is not valid UTF-8
    hint: write it in UTF-8
    ");
    assert_snapshot!(error_of(&[b'#'; (1 << 20) + 1]), @"
    the configuration file DIR/a2e.yaml is larger than 1048576 bytes
    hint: `hostler config default` prints a file to start from
    ");
    // A mark of the order of bytes, as some editors write it, is no part of the text.
    assert_eq!(config(&format!("\u{feff}{PROC}")), config(PROC));
}

#[test]
fn no_mistake_shows_the_token() {
    for mistake in [
        "auth_token: \"sesame",
        "auth_token: sesame: street",
        "auth_token: *sesame",
        "auth_token: @sesame",
        "auth_token: [sesame]",
        "auth_token: {sesame: 1}",
        "auth_token: sesame\n\tserver:",
        "auth_token: sesame\nauth_token: sesame",
        "auth_token: sesame\nserver: [",
        "auth_token: sesame\nplugins: sesame",
    ] {
        let error = error(mistake);
        assert!(!error.contains("sesame"), "{mistake}: {error}");
    }
}

#[test]
fn a_name_of_a_key_cannot_write_lines_of_its_own() {
    let text = format!("\"a\\nb\\e[31m\": 1\n{PROC}");
    let warnings = load_with(&text, &[]).unwrap().warnings;
    assert!(warnings[0].ends_with(r"a\nb\u{1b}[31m has no effect here"), "{warnings:?}");
}

#[test]
fn aliases_that_multiply_are_refused_quickly() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
        text += &format!("a{level}: &a{level} [{aliases}]\n");
    }
    assert!(error(&text).contains("not valid YAML"));
    let deep = "[".repeat(100_000);
    assert!(error(&deep).contains("not valid YAML"));
}

#[test]
fn the_transport_of_the_file_is_the_one_that_is_used() {
    let transport =
        |kind: &str| load_with(&format!("transport: {{type: {kind}}}\n{PROC}"), &[]).unwrap().sdk_transport;
    assert_eq!(transport("direct"), Some(SdkTransport::Stdio));
    assert_eq!(transport("subprocess"), Some(SdkTransport::Stdio));
    assert_eq!(transport("http"), Some(SdkTransport::Http("127.0.0.1:8765".to_owned())));
    let server = "server: {host: 10.0.0.1, port: 80}\ntransport: {type: direct}";
    assert_eq!(without_effect(&format!("{server}\n{PROC}")), ["server.host", "server.port"]);
}

#[test]
fn a_token_of_a_variable_wins_over_the_one_of_the_file_and_neither_is_shown() {
    let text = format!("auth_token: from-yaml\n{PROC}");
    let token = |variables: &[(&str, &str)]| {
        let loaded = load_with(&text, variables).unwrap();
        assert!(!format!("{loaded:?}").contains("from-yaml"));
        loaded.config.a2e.auth_token.unwrap().reveal().to_owned()
    };
    assert_eq!(token(&[]), "from-yaml");
    assert_eq!(token(&[("HOSTLER_A2E_AUTH_TOKEN", "other")]), "other");
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(text in "[a-z0-9:{}\\[\\],&*!|>'\"#%@` \n\t-]{0,200}|\\PC{0,100}|(?s:.{0,100})") {
        let _ = parse(Path::new("/x"), &text);
    }

    /// The same for those that get further: known keys, with values that may be anything.
    #[test]
    fn no_values_make_the_reader_panic(
        values in prop::collection::vec("[0-9]{1,30}|-1|1e400|-0.0|~|\\[\\]|\\[x\\]|\\{\\}|true|http|proc|'[^']{0,9}'", 14),
    ) {
        let keys = [
            "host_id", "auth_token", "server: {host", "server: {port", "transport: {type", "audit: {enabled",
            "audit: {path", "audit: {rotate", "audit: {rotate: {max_bytes", "plugins: [{type",
            "plugins: [{type: proc, metadata", "plugins: [{type: proc, metadata: {enabled",
            "plugins: [{type: proc, metadata: {MAX_PROCS", "plugins: [{type: proc, metadata: {ALLOWED_COMMANDS",
        ];
        for (key, value) in keys.iter().zip(&values) {
            let closing: String = key
                .chars()
                .rev()
                .filter_map(|opening| match opening {
                    '{' => Some('}'),
                    '[' => Some(']'),
                    _ => None,
                })
                .collect();
            let _ = parse(Path::new("/x"), &format!("{key}: {value}{closing}\n"));
        }
    }
}
