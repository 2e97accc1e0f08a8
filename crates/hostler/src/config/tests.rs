use std::fs;
use std::os::unix::ffi::OsStringExt;

use insta::assert_snapshot;

use super::*;

/// A place with a user's file and a named one.
struct Place {
    folder: tempfile::TempDir,
    sources: Sources,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("hostler")).unwrap();
        let variables = vec![("XDG_CONFIG_HOME".into(), folder.path().into())];
        Self { folder, sources: Sources { variables, ..Sources::default() } }
    }

    fn user_file(self, text: &str) -> Self {
        self.file("hostler/config.toml", text)
    }

    fn file(self, name: &str, text: impl AsRef<[u8]>) -> Self {
        fs::write(self.path(name), text).unwrap();
        self
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn variable(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.sources.variables.push((name.into(), value.into()));
        self
    }

    fn flag(mut self, key: &str, value: impl Into<toml::Value>) -> Self {
        let origin = Origin::Flag("--flag");
        self.sources.flags.push(Setting { key: key.into(), value: value.into(), origin });
        self
    }

    fn config(&self) -> Config {
        load(&self.sources).unwrap().config
    }

    /// What the user reads, with the folder's name left out.
    fn error(&self) -> String {
        let error = load(&self.sources).unwrap_err();
        let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
        let causes: Vec<_> = causes.map(ToString::to_string).collect();
        let text = format!("{}\nhint: {}", causes.join(": "), error.hint());
        text.replace(self.folder.path().to_str().unwrap(), "DIR")
    }
}

fn error_in_file(text: &str) -> String {
    Place::new().user_file(text).error()
}

fn error_in_variable(name: &str, value: &str) -> String {
    Place::new().variable(name, value).error()
}

#[test]
fn the_default_file_gives_the_documented_defaults() {
    let expected = Config {
        a2e: A2e {
            allowed_commands: ["python3", "bash", "ls"].map(String::from).to_vec(),
            max_processes: 64,
            max_processes_total: 4096,
            default_timeout: None,
            auth_token: None,
            event_data: EventData::String,
            push_events: false,
            http: Http {
                bearer_token: None,
                tls: None,
                allowed_hosts: Vec::new(),
                allowed_origins: Vec::new(),
                max_sessions: 1000,
                max_connections: 2048,
                replay_bytes: 16_777_216,
                replay_replies: 1024,
                handshake_timeout: Duration::from_secs(10),
                idle_timeout: Duration::from_secs(1800),
                busy_timeout: Duration::from_secs(86_400),
            },
            audit: None,
        },
        mcp: Mcp {
            nonzero_exit_is_error: true,
            max_wait_without_progress: Duration::from_secs(50),
            on_client_timeout: OnClientTimeout::Detach,
        },
        runtime: Runtime {
            state_dir: None,
            stop_grace: Duration::from_secs(2),
            max_running: 64,
            max_queued: 256,
            cgroup: Cgroup::Auto,
            shell: ShellPolicy::Allow,
            skills: Vec::new(),
            output: Output {
                buffer_bytes: 65_536,
                relay_bytes_per_process: 16_777_216,
                relay_bytes_per_session: 268_435_456,
                artifact_bytes_per_process: 67_108_864,
                artifact_bytes_per_session: 1_073_741_824,
                artifact_bytes_total: 8_589_934_592,
            },
        },
        log: Log { level: LogLevel::Warn, format: LogFormat::Text },
    };
    assert_eq!(load(&Sources::default()).unwrap().config, expected);
}

/// Parsing refuses keys that the types lack, and types whose keys are absent; what is left to hold are the comments.
#[test]
fn every_key_of_the_default_file_has_a_comment() {
    let lines: Vec<_> = DEFAULT_FILE.lines().collect();
    for (number, line) in
        lines.iter().enumerate().filter(|(_, line)| line.contains(" = ") && !line.starts_with('#'))
    {
        assert!(number > 0 && lines[number - 1].starts_with('#'), "{line}");
    }
}

#[test]
fn the_reference_shows_the_default_file() {
    let page = include_str!("../../../../docs/configuration.md");
    assert!(
        page.contains(&format!("```toml\n{DEFAULT_FILE}```\n")),
        "docs/configuration.md and config/default.toml differ"
    );
}

#[test]
fn the_reference_names_the_variable_of_every_key() {
    let page = include_str!("../../../../docs/configuration.md");
    for (key, _) in Schema::new().keys() {
        let variable = environment::variable_name(&key);
        assert!(page.contains(&format!("| `{key}` | `{variable}` |")), "{key}");
    }
}

#[test]
fn a_later_layer_wins_key_by_key() {
    let user = "[a2e]\nmax_processes = 1\nmax_processes_total = 11";
    let place = Place::new().user_file(user).file("named.toml", "a2e.max_processes = 2");
    let processes =
        |place: &Place| (place.config().a2e.max_processes, place.config().a2e.max_processes_total);
    assert_eq!(processes(&place), (1, 11));
    let named = place.path("named.toml");
    let mut place = place.variable("HOSTLER_CONFIG", named);
    assert_eq!(processes(&place), (2, 11));
    place = place.file("flag.toml", "a2e.max_processes = 3");
    place.sources.file = Some(place.path("flag.toml"));
    assert_eq!(processes(&place), (3, 11));
    place = place.variable("HOSTLER_A2E_MAX_PROCESSES", "4");
    assert_eq!(processes(&place), (4, 11));
    place = place.flag("a2e.max_processes", 5);
    assert_eq!(processes(&place), (5, 11));
    assert_eq!(
        load(&place.sources).unwrap().files,
        [place.path("hostler/config.toml"), place.path("flag.toml")]
    );
}

#[test]
fn without_xdg_config_home_the_file_below_home_is_read() {
    let mut place = Place::new();
    fs::create_dir_all(place.path(".config/hostler")).unwrap();
    place = place.file(".config/hostler/config.toml", "log.level = \"trace\"");
    let home = place.folder.path().as_os_str().to_owned();
    // A relative folder is ignored, as the specification wants it.
    place.sources.variables = vec![("XDG_CONFIG_HOME".into(), "relative".into()), ("HOME".into(), home)];
    assert_eq!(place.config().log.level, LogLevel::Trace);
}

#[test]
fn variables_are_read_as_the_type_of_their_key() {
    let place = Place::new()
        .variable("HOSTLER_A2E_ALLOWED_COMMANDS", "cat,/usr/bin/env")
        .variable("HOSTLER_A2E_PUSH_EVENTS", "true")
        .variable("HOSTLER_A2E_DEFAULT_TIMEOUT_S", "90")
        .variable("HOSTLER_A2E_EVENT_DATA", "object")
        .variable("HOSTLER_A2E_AUDIT_ENABLED", "true")
        .variable("HOSTLER_A2E_AUDIT_PATH", "/var/log/audit")
        .variable("HOSTLER_RUNTIME_PROCESSES_CGROUP", "off");
    let config = place.config();
    assert_eq!(config.a2e.allowed_commands, ["cat", "/usr/bin/env"]);
    assert!(config.a2e.push_events);
    assert_eq!(config.a2e.default_timeout, Some(Duration::from_secs(90)));
    assert_eq!(config.a2e.event_data, EventData::Object);
    assert_eq!(config.runtime.cgroup, Cgroup::Off);
    let audit = Audit {
        path: "/var/log/audit".into(),
        max_bytes: 10_485_760,
        backup_count: 5,
        folder: AuditFolder::MustExist,
    };
    assert_eq!(config.a2e.audit, Some(audit));
    let nothing = Place::new().variable("HOSTLER_A2E_ALLOWED_COMMANDS", "");
    assert_eq!(nothing.config().a2e.allowed_commands, Vec::<String>::new());
}

#[test]
fn an_empty_variable_counts_as_none_but_for_a_list() {
    let file = "[a2e]\nallowed_commands = ['cat']\nauth_token_file = '../token'\nmax_processes = 7\npush_events = true\n\
                [a2e.http]\nallowed_hosts = ['host']\n[runtime]\nstate_dir = '/s'\n[log]\nlevel = 'trace'";
    let place = || Place::new().file("token", "s3cret").user_file(file);
    let schema = Schema::new();
    for (key, default) in schema.keys() {
        let config = place().variable(&environment::variable_name(&key), "").config();
        let mut expected = place().config();
        match key.as_str() {
            "a2e.allowed_commands" => expected.a2e.allowed_commands.clear(),
            "a2e.http.allowed_hosts" => expected.a2e.http.allowed_hosts.clear(),
            // Those that are empty here anyway.
            "a2e.http.allowed_origins" | "runtime.skills.paths" => {}
            _ => assert!(!default.is_array(), "{key}"),
        }
        // The places of two folders differ in nothing else.
        assert_eq!(config, expected, "{key}");
    }
}

#[test]
fn reserved_variables_are_no_settings() {
    let place = Place::new().variable("HOSTLER_PROCESS_ID", "7").variable("HOSTLER_CONFIG", "");
    assert_eq!(place.config(), Place::new().config());
}

#[test]
fn a_relative_path_in_a_file_starts_at_its_folder() {
    let place = Place::new().user_file("runtime.state_dir = 'state/here'");
    assert_eq!(place.config().runtime.state_dir, Some(place.path("hostler/state/here")));
}

#[test]
fn effective_values_are_a_configuration_file_of_the_same_meaning() {
    let place = Place::new()
        .user_file("[a2e]\nallowed_commands = []\n[runtime]\nstate_dir = '/s'\n[log]\nformat = 'json'")
        .flag("a2e.max_processes", 9);
    let text = load(&place.sources).unwrap().to_toml().unwrap();
    assert_eq!(Place::new().user_file(&text).config(), place.config());
}

#[test]
fn the_token_of_the_variable_wins_and_is_never_shown() {
    let place = Place::new().file("token", "from-file\r\n").user_file("a2e.auth_token_file = '../token'");
    let token = place.config().a2e.auth_token.unwrap();
    assert_eq!(token.reveal(), "from-file");
    let place = place.variable("HOSTLER_A2E_AUTH_TOKEN", "s3cret ");
    let loaded = load(&place.sources).unwrap();
    let token = loaded.config.a2e.auth_token.as_ref().unwrap();
    assert_eq!(token.reveal(), "s3cret ");
    let shown = format!("{loaded:?}{}", loaded.to_toml().unwrap());
    assert!(!shown.contains("s3cret") && !shown.contains("from-file"), "{shown}");
}

#[test]
fn the_bearer_token_is_another_one_and_must_fit_a_header() {
    let place = Place::new()
        .file("token", "from-file\n")
        .user_file("a2e.http.bearer_token_file = '../token'")
        .variable("HOSTLER_A2E_AUTH_TOKEN", "s3cret");
    let a2e = place.config().a2e;
    assert_eq!(a2e.auth_token.unwrap().reveal(), "s3cret");
    assert_eq!(a2e.http.bearer_token.unwrap().reveal(), "from-file");
    let loaded = load(&place.sources).unwrap();
    let shown = format!("{loaded:?}{}", loaded.to_toml().unwrap());
    assert!(!shown.contains("s3cret") && !shown.contains("from-file"), "{shown}");
    assert_snapshot!(error_in_variable("HOSTLER_A2E_HTTP_BEARER_TOKEN", "two words"), @"
    variable HOSTLER_A2E_HTTP_BEARER_TOKEN: the token holds a blank or something else that no header can carry
    hint: write the token again, or unset it to ask for none
    ");
}

#[test]
fn tls_needs_both_of_its_files() {
    let both = "[a2e.http]\ntls_cert = 'c.pem'\ntls_key = '/k.pem'\n";
    let place = Place::new().user_file(both);
    let tls = Tls { certificate: place.path("hostler/c.pem"), key: "/k.pem".into() };
    assert_eq!(place.config().a2e.http.tls, Some(tls));
    assert_snapshot!(error_in_file("[a2e.http]\ntls_cert = '/c.pem'\n"), @"
    DIR/hostler/config.toml:2: `a2e.http.tls_cert` is set, but `a2e.http.tls_key` is empty
    hint: TLS needs a certificate and its key: set both, or neither
    ");
    assert_snapshot!(error_in_file("a2e.http.tls_key = '/k.pem'"), @"
    DIR/hostler/config.toml:1: `a2e.http.tls_key` is set, but `a2e.http.tls_cert` is empty
    hint: TLS needs a certificate and its key: set both, or neither
    ");
}

#[test]
fn hosts_and_origins_are_what_headers_say() {
    let place = Place::new()
        .variable("HOSTLER_A2E_HTTP_ALLOWED_HOSTS", "build.example,ci_1")
        .variable("HOSTLER_A2E_HTTP_ALLOWED_ORIGINS", "https://tool.example,http://localhost:3000");
    let http = place.config().a2e.http;
    assert_eq!(http.allowed_hosts, ["build.example", "ci_1"]);
    assert_eq!(http.allowed_origins, ["https://tool.example", "http://localhost:3000"]);
    for bad in ["https://build.example", "build.example:80", "", "*", "a b"] {
        let error = error_in_file(&format!("a2e.http.allowed_hosts = ['{bad}']"));
        assert!(error.contains("a list of host names"), "{error}");
    }
    for bad in ["tool.example", "https://", "https://tool.example/", "*", "https://*.example", "null", ""] {
        let error = error_in_file(&format!("a2e.http.allowed_origins = ['{bad}']"));
        assert!(error.contains("a list of origins"), "{error}");
    }
}

#[test]
fn a_token_that_is_no_token_is_refused() {
    assert_snapshot!(error_in_variable("HOSTLER_A2E_AUTH_TOKEN", ""), @"
    variable HOSTLER_A2E_AUTH_TOKEN: the token is empty
    hint: write the token again, or unset it to ask for none
    ");
    let file =
        |content: &[u8]| Place::new().file("token", content).user_file("\na2e.auth_token_file = '../token'");
    assert_snapshot!(file(b"\n").error(), @"
    DIR/hostler/config.toml:2: the token is empty
    hint: write the token again, or unset it to ask for none
    ");
    assert_snapshot!(file(b"\xff\n").error(), @"
    DIR/hostler/config.toml:2: the token is not valid UTF-8
    hint: write the token again, or unset it to ask for none
    ");
    assert_snapshot!(file(&[b'x'; 4097]).error(), @"
    DIR/hostler/config.toml:2: the token is longer than 4096 bytes
    hint: write the token again, or unset it to ask for none
    ");
    assert_eq!(file(&[b'x'; 4096]).config().a2e.auth_token.unwrap().reveal().len(), 4096);
    assert_snapshot!(error_in_file("a2e.auth_token_file = 'none'"), @"
    DIR/hostler/config.toml:1: failed to read the token file DIR/hostler/none: No such file or directory (os error 2)
    hint: make the file readable for this user, or set HOSTLER_A2E_AUTH_TOKEN instead
    ");
}

#[test]
fn unknown_keys_name_place_and_nearest_key() {
    assert_snapshot!(error_in_file("[a2e]\n\nmax_proceses = 3"), @"
    DIR/hostler/config.toml:3: unknown key `a2e.max_proceses`
    hint: the nearest known key is `a2e.max_processes`; `hostler config default` lists all
    ");
    assert_snapshot!(error_in_file("[a2e.audit]\nstop_grace_ms = 3"), @"
    DIR/hostler/config.toml:2: unknown key `a2e.audit.stop_grace_ms`
    hint: the nearest known key is `runtime.processes.stop_grace_ms`; `hostler config default` lists all
    ");
    assert_snapshot!(error_in_file("[runtime.outptu]\nbuffer_bytes = 5000"), @"
    DIR/hostler/config.toml:1: unknown key `runtime.outptu`
    hint: the nearest known key is `runtime.output`; `hostler config default` lists all
    ");
    assert_snapshot!(error_in_file("max_processes = 3"), @"
    DIR/hostler/config.toml:1: unknown key `max_processes`
    hint: the nearest known key is `a2e.max_processes`; `hostler config default` lists all
    ");
    // Nothing is like it: the section is all that is known of what was meant.
    assert_snapshot!(error_in_file("[a2e]\nfoo = 3"), @"
    DIR/hostler/config.toml:2: unknown key `a2e.foo`
    hint: the nearest known key is `a2e.allowed_commands`; `hostler config default` lists all
    ");
    // The first by line, although another one comes first by name.
    assert_snapshot!(error_in_file("[log]\nlevle = 'info'\n[a2e]\nallow = []"), @"
    DIR/hostler/config.toml:2: unknown key `log.levle`
    hint: the nearest known key is `log.level`; `hostler config default` lists all
    ");
    assert_snapshot!(error_in_variable("HOSTLER_A2E_MAX_PROCS", "3"), @"
    unknown variable HOSTLER_A2E_MAX_PROCS
    hint: the nearest known variable is HOSTLER_A2E_MAX_PROCESSES; unset what is not meant for hostler
    ");
    assert_snapshot!(error_in_variable("HOSTLER_AUTH_TOKEN", "s3cret"), @"
    unknown variable HOSTLER_AUTH_TOKEN
    hint: the nearest known variable is HOSTLER_A2E_AUTH_TOKEN; unset what is not meant for hostler
    ");
}

#[test]
fn bad_numbers_name_place_value_and_range() {
    assert_snapshot!(error_in_file("[a2e]\nmax_processes = 0"), @"
    DIR/hostler/config.toml:2: `a2e.max_processes`: invalid value: integer `0`, expected a whole number from 1 to 1000000
    hint: `hostler config default` describes what each key takes
    ");
    assert_snapshot!(error_in_file("[a2e]\nmax_processes = -1"), @"
    DIR/hostler/config.toml:2: `a2e.max_processes`: invalid value: integer `-1`, expected a whole number from 1 to 1000000
    hint: `hostler config default` describes what each key takes
    ");
    assert_snapshot!(error_in_file("[a2e]\nmax_processes = 1.5"), @"
    DIR/hostler/config.toml:2: `a2e.max_processes`: invalid type: floating point `1.5`, expected a whole number from 1 to 1000000
    hint: `hostler config default` describes what each key takes
    ");
    assert_snapshot!(error_in_file("[a2e]\nmax_processes = '64'"), @r#"
    DIR/hostler/config.toml:2: `a2e.max_processes`: invalid type: string "64", expected a whole number from 1 to 1000000
    hint: `hostler config default` describes what each key takes
    "#);
    assert_snapshot!(error_in_file("[a2e]\nmax_processes.x = 1"), @"
    DIR/hostler/config.toml:2: `a2e.max_processes`: invalid type: map, expected a whole number from 1 to 1000000
    hint: `hostler config default` describes what each key takes
    ");
}

#[test]
fn bad_lists_switches_words_and_sections_say_what_is_allowed() {
    assert_snapshot!(error_in_file("[a2e]\nallowed_commands = 'bash'"), @r#"
    DIR/hostler/config.toml:2: `a2e.allowed_commands`: invalid type: string "bash", expected a list of names of commands, none of them empty or with a blank at an end
    hint: `hostler config default` describes what each key takes
    "#);
    assert_snapshot!(error_in_file("[a2e]\nallowed_commands = ['bash', 7]"), @"
    DIR/hostler/config.toml:2: `a2e.allowed_commands`: invalid type: integer `7`, expected a string
    hint: `hostler config default` describes what each key takes
    ");
    assert_snapshot!(error_in_file("[a2e]\nallowed_commands = ['bash', '']"), @r#"
    DIR/hostler/config.toml:2: `a2e.allowed_commands`: invalid value: string "", expected a list of names of commands, none of them empty or with a blank at an end
    hint: `hostler config default` describes what each key takes
    "#);
    assert_snapshot!(error_in_file("[a2e]\npush_events = 'yes'"), @r#"
    DIR/hostler/config.toml:2: `a2e.push_events`: invalid type: string "yes", expected true or false
    hint: `hostler config default` describes what each key takes
    "#);
    assert_snapshot!(error_in_file("[a2e]\nevent_data = 'text'"), @r#"
    DIR/hostler/config.toml:2: `a2e.event_data`: invalid value: string "text", expected "string" or "object"
    hint: `hostler config default` describes what each key takes
    "#);
    assert_snapshot!(error_in_file("[a2e]\nevent_data = 1"), @r#"
    DIR/hostler/config.toml:2: `a2e.event_data`: invalid type: integer `1`, expected "string" or "object"
    hint: `hostler config default` describes what each key takes
    "#);
    assert_snapshot!(error_in_file("[runtime]\nstate_dir = 1"), @"
    DIR/hostler/config.toml:2: `runtime.state_dir`: invalid type: integer `1`, expected a string
    hint: `hostler config default` describes what each key takes
    ");
    assert_snapshot!(error_in_file("runtime = 1"), @"
    DIR/hostler/config.toml:1: `runtime` is a section, not a single value
    hint: `hostler config default` prints a file to start from
    ");
}

#[test]
fn bad_values_of_variables_and_flags_name_them() {
    assert_snapshot!(error_in_variable("HOSTLER_A2E_MAX_PROCESSES", "many"), @r#"
    variable HOSTLER_A2E_MAX_PROCESSES: `a2e.max_processes`: invalid type: string "many", expected a whole number from 1 to 1000000
    hint: `hostler config default` describes what each key takes
    "#);
    assert_snapshot!(error_in_variable("HOSTLER_A2E_MAX_PROCESSES", "99999999999999999999"), @r#"
    variable HOSTLER_A2E_MAX_PROCESSES: `a2e.max_processes`: invalid type: string "99999999999999999999", expected a whole number from 1 to 1000000
    hint: `hostler config default` describes what each key takes
    "#);
    assert_snapshot!(error_in_variable("HOSTLER_A2E_PUSH_EVENTS", "1"), @r#"
    variable HOSTLER_A2E_PUSH_EVENTS: `a2e.push_events`: invalid type: string "1", expected true or false
    hint: `hostler config default` describes what each key takes
    "#);
    assert_snapshot!(error_in_variable("HOSTLER_A2E_ALLOWED_COMMANDS", "bash, ls"), @r#"
    variable HOSTLER_A2E_ALLOWED_COMMANDS: `a2e.allowed_commands`: invalid value: string " ls", expected a list of names of commands, none of them empty or with a blank at an end
    hint: `hostler config default` describes what each key takes
    "#);
    assert_snapshot!(error_in_variable("HOSTLER_LOG_LEVEL", "loud"), @r#"
    variable HOSTLER_LOG_LEVEL: `log.level`: invalid value: string "loud", expected "off", "error", "warn", "info", "debug" or "trace"
    hint: `hostler config default` describes what each key takes
    "#);
    assert_snapshot!(error_in_variable("HOSTLER_RUNTIME_STATE_DIR", "state"), @r#"
    variable HOSTLER_RUNTIME_STATE_DIR: `runtime.state_dir` cannot be the relative path "state"
    hint: write an absolute path
    "#);
    assert_snapshot!(error_in_variable("HOSTLER_CONFIG", "config.toml"), @r#"
    HOSTLER_CONFIG cannot be the relative path "config.toml"
    hint: write an absolute path
    "#);
    assert_snapshot!(Place::new().flag("a2e.max_processes", 1_000_001).error(), @"
    flag --flag: `a2e.max_processes`: invalid value: integer `1000001`, expected a whole number from 1 to 1000000
    hint: `hostler config default` describes what each key takes
    ");
}

#[test]
fn an_error_of_an_earlier_layer_is_not_hidden_by_a_later_one() {
    let place = Place::new().user_file("a2e.max_processes = 0").flag("a2e.max_processes", 3);
    assert_snapshot!(place.error(), @"
    DIR/hostler/config.toml:1: `a2e.max_processes`: invalid value: integer `0`, expected a whole number from 1 to 1000000
    hint: `hostler config default` describes what each key takes
    ");
}

#[test]
fn files_that_cannot_be_used_are_named() {
    assert_snapshot!(error_in_file("[a2e\nmax_processes = 1"), @"
    DIR/hostler/config.toml:1: not valid TOML: unclosed table, expected `]`
    hint: `hostler config default` prints a file to start from
    ");
    assert_snapshot!(error_in_file("[log]\nlevel = 'info'\nlevel = 'warn'"), @"
    DIR/hostler/config.toml:3: not valid TOML: duplicate key
    hint: `hostler config default` prints a file to start from
    ");
    let bytes = Place::new().file("hostler/config.toml", b"# one\n# \xff\n");
    assert_snapshot!(bytes.error(), @"
    DIR/hostler/config.toml:2: the text is not valid UTF-8
    hint: write it in UTF-8
    ");
    let large = Place::new().file("hostler/config.toml", vec![b'#'; (1 << 20) + 1]);
    assert_snapshot!(large.error(), @"
    the configuration file DIR/hostler/config.toml is larger than 1048576 bytes
    hint: `hostler config default` prints a file to start from
    ");
    let mut missing = Place::new();
    missing.sources.file = Some(missing.path("none.toml"));
    assert_snapshot!(missing.error(), @"
    failed to read the configuration file DIR/none.toml: No such file or directory (os error 2)
    hint: it must be a file that you may read; your own is looked for below XDG_CONFIG_HOME or HOME
    ");
    let mut folder = Place::new();
    folder.sources.file = Some(folder.path("hostler"));
    assert_snapshot!(folder.error(), @"
    failed to read the configuration file DIR/hostler: Is a directory (os error 21)
    hint: it must be a file that you may read; your own is looked for below XDG_CONFIG_HOME or HOME
    ");
    let odd = Place::new().variable("HOSTLER_LOG_LEVEL", OsString::from_vec(b"\xff".to_vec()));
    assert_snapshot!(odd.error(), @"
    variable HOSTLER_LOG_LEVEL: the text is not valid UTF-8
    hint: write it in UTF-8
    ");
}

#[test]
fn an_audit_without_a_path_is_refused() {
    assert_snapshot!(error_in_file("[a2e.audit]\nenabled = true"), @"
    DIR/hostler/config.toml:2: the audit is enabled, but `a2e.audit.path` is empty
    hint: set `a2e.audit.path`, use --audit FILE, or set `a2e.audit.enabled` to false
    ");
}
