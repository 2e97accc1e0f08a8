//! The built program from outside: standard output, standard error and exit status.
#![expect(clippy::unwrap_used, reason = "helpers of tests, which clippy does not take for tests")]

use std::fs::{self, File};
use std::io::{PipeReader, Write, pipe};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use insta::assert_snapshot;
use tempfile::TempDir;

/// A home of its own, which is the working directory too, and nothing else in the environment.
struct Home(TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn file(&self, name: &str, text: &str) -> &Self {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    #[expect(clippy::disallowed_methods, reason = "the program under test is started from here alone")]
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hostler"));
        command
            .args(arguments)
            .env_clear()
            .env("HOME", self.path())
            .current_dir(self.path())
            .stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Outcome {
        self.run_with(arguments, &[])
    }

    fn run_with(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Outcome {
        let output = self.command(arguments).envs(variables.iter().copied()).output().unwrap();
        let text =
            |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().replace(self.path().to_str().unwrap(), "HOME");
        Outcome { status: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

struct Outcome {
    status: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Outcome {
    /// All of it in one text. Blanks at line ends are of no interest.
    fn all(&self) -> String {
        let status = self.status.map_or("none".to_owned(), |code| code.to_string());
        let text = format!("{}--- stderr\n{}--- status {status}", self.stdout, self.stderr);
        text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
    }
}

fn run(arguments: &[&str]) -> String {
    Home::new().run(arguments).all()
}

#[test]
fn version_is_one_line() {
    assert_snapshot!(run(&["--version"]), @"
    hostler 0.1.0
    --- stderr
    --- status 0
    ");
}

#[test]
fn help_describes_commands_flags_defaults_and_exit_statuses() {
    assert_snapshot!(run(&["--help"]), @r#"
    Run, feed, watch and stop the processes of AI agents

    Usage: hostler [OPTIONS] <COMMAND>

    Commands:
      a2e     Host processes for an agent over A2E
      mcp     Give an agent a shell over MCP, on standard input and output
      config  Print the configuration
      doctor  Show what this machine offers and what will be used
      help    Print this message or the help of the given subcommand(s)

    Options:
          --config <FILE>      Read this configuration file too, instead of the one that HOSTLER_CONFIG
                               names
          --log-level <LEVEL>  Write messages from this level on to standard error [log.level, default:
                               "warn"] [possible values: off, error, warn, info, debug, trace]
      -h, --help               Print help
      -V, --version            Print version

    Exit status:
      0  done
      1  failed while running
      2  the command line or the configuration cannot be used
    --- stderr
    --- status 0
    "#);
    assert_snapshot!(run(&["a2e", "--help"]), @r#"
    Host processes for an agent over A2E

    Usage: hostler a2e <--stdio | --http ADDR | --sdk-config FILE> [OPTIONS]

    Options:
          --stdio
              Talk to the agent over standard input and output, one JSON object a line

          --http <ADDR>
              Serve agents over HTTP at HOST:PORT, or at a socket: unix:PATH

          --insecure-http
              Serve other machines in clear text, tokens too

          --sdk-config <FILE>
              Read the configuration of a Python SDK host; its transport is used unless another one is
              named

          --allow <CMD,...>
              Allow these commands and no others [a2e.allowed_commands, default: ["python3", "bash",
              "ls"]]

          --max-processes <N>
              Allow a session this many live processes [a2e.max_processes, default: 64]

          --event-data <SHAPE>
              Write `data` of events in this shape [a2e.event_data, default: "string"]

              Possible values:
              - string: JSON text in a string
              - object: A JSON object

          --push-events
              Leave `req_id` of events empty [a2e.push_events, default: false]

          --audit <FILE>
              Append a JSON line for each handled `proc/*` request to this file [a2e.audit.path,
              default: ""]

          --config <FILE>
              Read this configuration file too, instead of the one that HOSTLER_CONFIG names

          --log-level <LEVEL>
              Write messages from this level on to standard error [log.level, default: "warn"]

              [possible values: off, error, warn, info, debug, trace]

      -h, --help
              Print help (see a summary with '-h')

    Exit status:
      0  done
      1  failed while running
      2  the command line or the configuration cannot be used
    --- stderr
    --- status 0
    "#);
}

#[test]
fn short_help_fits_a_screen() {
    assert_snapshot!(run(&["config", "-h"]), @r#"
    Print the configuration

    Usage: hostler config [OPTIONS] <COMMAND>

    Commands:
      default  Print the commented defaults
      show     Print the values in force, secrets left out
      help     Print this message or the help of the given subcommand(s)

    Options:
          --config <FILE>      Read this configuration file too, instead of the one that HOSTLER_CONFIG
                               names
          --log-level <LEVEL>  Write messages from this level on to standard error [log.level, default:
                               "warn"] [possible values: off, error, warn, info, debug, trace]
      -h, --help               Print help

    Exit status:
      0  done
      1  failed while running
      2  the command line or the configuration cannot be used
    --- stderr
    --- status 0
    "#);
    assert_snapshot!(run(&["doctor", "-h"]), @r#"
    Show what this machine offers and what will be used

    Usage: hostler doctor [OPTIONS]

    Options:
          --json               Print JSON
          --config <FILE>      Read this configuration file too, instead of the one that HOSTLER_CONFIG
                               names
          --log-level <LEVEL>  Write messages from this level on to standard error [log.level, default:
                               "warn"] [possible values: off, error, warn, info, debug, trace]
      -h, --help               Print help

    Exit status:
      0  done
      1  failed while running
      2  the command line or the configuration cannot be used
    --- stderr
    --- status 0
    "#);
}

#[test]
fn a_command_line_that_cannot_be_used_ends_with_status_2() {
    assert_snapshot!(run(&["a2e"]), @"
    --- stderr
    error: the following required arguments were not provided:
      <--stdio|--http <ADDR>|--sdk-config <FILE>>

    Usage: hostler a2e <--stdio | --http ADDR | --sdk-config FILE> [OPTIONS]

    For more information, try '--help'.
    --- status 2
    ");
    assert_snapshot!(run(&["a2e", "--stdio", "--max-proceses", "3"]), @"
    --- stderr
    error: unexpected argument '--max-proceses' found

      tip: a similar argument exists: '--max-processes'

    Usage: hostler a2e <--stdio | --http ADDR | --sdk-config FILE> [OPTIONS]

    For more information, try '--help'.
    --- status 2
    ");
    assert_snapshot!(run(&["a2e", "--stdio", "--max-processes", "many"]), @"
    --- stderr
    error: invalid value 'many' for '--max-processes <N>': invalid digit found in string

    For more information, try '--help'.
    --- status 2
    ");
    assert_snapshot!(run(&["a2e", "--stdio", "--event-data", "text"]), @"
    --- stderr
    error: invalid value 'text' for '--event-data <SHAPE>'
      [possible values: string, object]

    For more information, try '--help'.
    --- status 2
    ");
    assert_snapshot!(run(&["a2e", "--stdio", "--max-processes", "0"]), @"
    --- stderr
    error: flag --max-processes: `a2e.max_processes`: invalid value: integer `0`, expected a whole number from 1 to 1000000
    hint: `hostler config default` describes what each key takes
    --- status 2
    ");
    assert_snapshot!(run(&["a2e", "--stdio", "--allow", "bash,"]), @r#"
    --- stderr
    error: flag --allow: `a2e.allowed_commands`: invalid value: string "", expected a list of names of commands, none of them empty or with a blank at an end
    hint: `hostler config default` describes what each key takes
    --- status 2
    "#);
    assert_eq!(Home::new().run(&[]).status, Some(2));
}

#[test]
fn transports_that_contradict_each_other_are_refused() {
    assert_snapshot!(run(&["a2e", "--stdio", "--http", "127.0.0.1:0"]), @"
    --- stderr
    error: the argument '--stdio' cannot be used with '--http <ADDR>'

    Usage: hostler a2e <--stdio | --http ADDR | --sdk-config FILE> [OPTIONS]

    For more information, try '--help'.
    --- status 2
    ");
    assert_snapshot!(run(&["a2e", "--stdio", "--insecure-http"]), @"
    --- stderr
    error: the argument '--stdio' cannot be used with '--insecure-http'

    Usage: hostler a2e <--stdio | --http ADDR | --sdk-config FILE> [OPTIONS]

    For more information, try '--help'.
    --- status 2
    ");
    let home = Home::new();
    home.file("a2e.yaml", "transport: {type: subprocess}\nplugins: [{type: proc}]\n");
    assert_snapshot!(home.run(&["a2e", "--sdk-config", "a2e.yaml", "--insecure-http"]).all(), @"
    --- stderr
    error: HOME/a2e.yaml: transport.type: is not `http`, which is all that --insecure-http is for
    hint: leave the flag out, or use --http ADDR
    --- status 2
    ");
}

#[test]
fn a_configuration_that_cannot_be_used_ends_with_status_2() {
    let home = Home::new();
    home.file(".config/hostler/config.toml", "[a2e]\n# one too many\nmax_procs = 3\n");
    assert_snapshot!(home.run(&["doctor"]).all(), @"
    --- stderr
    error: HOME/.config/hostler/config.toml:3: unknown key `a2e.max_procs`
    hint: the nearest known key is `a2e.max_processes`; `hostler config default` lists all
    --- status 2
    ");
    assert_snapshot!(run(&["config", "show", "--config", "none.toml"]), @"
    --- stderr
    error: failed to read the configuration file HOME/none.toml: No such file or directory (os error 2)
    hint: it must be a file that you may read; your own is looked for below XDG_CONFIG_HOME or HOME
    --- status 2
    ");
    let shown = Home::new().run_with(&["config", "show"], &[("HOSTLER_LOGLEVEL", "info")]);
    assert_snapshot!(shown.all(), @"
    --- stderr
    error: unknown variable HOSTLER_LOGLEVEL
    hint: the nearest known variable is HOSTLER_LOG_LEVEL; unset what is not meant for hostler
    --- status 2
    ");
}

#[test]
fn the_defaults_are_printed_as_they_are_whatever_is_configured() {
    let home = Home::new();
    home.file(".config/hostler/config.toml", "broken");
    let outcome = home.run_with(&["config", "default"], &[("HOSTLER_NONSENSE", "1")]);
    assert_eq!(outcome.stdout, include_str!("../config/default.toml"));
    assert_eq!((outcome.stderr.as_str(), outcome.status), ("", Some(0)));
}

/// What is shown of settings from all layers.
fn values_in_force() -> String {
    let home = Home::new();
    home.file(".config/hostler/config.toml", "[a2e.audit]\nenabled = true\npath = 'audit.jsonl'\n");
    home.file("named.toml", "[runtime.processes]\nstop_grace_ms = 50\n");
    let variables = [("HOSTLER_A2E_ALLOWED_COMMANDS", "cat,ls"), ("HOSTLER_A2E_AUTH_TOKEN", "s3cret")];
    let arguments = ["config", "show", "--config", "named.toml", "--log-level", "error"];
    home.run_with(&arguments, &variables).all()
}

#[test]
fn the_values_in_force_are_shown_without_secrets() {
    assert_snapshot!(values_in_force(), @r#"
    [a2e]
    allowed_commands = ["cat", "ls"]
    max_processes = 64
    max_processes_total = 4096
    default_timeout_s = 0
    auth_token_file = ""
    event_data = "string"
    push_events = false

    [a2e.http]
    bearer_token_file = ""
    tls_cert = ""
    tls_key = ""
    allowed_hosts = []
    allowed_origins = []
    max_sessions = 1000
    max_connections = 2048
    replay_bytes = 16777216
    replay_replies = 1024
    handshake_timeout_s = 10
    idle_timeout_s = 1800
    busy_timeout_s = 86400

    [a2e.audit]
    enabled = true
    path = "HOME/.config/hostler/audit.jsonl"
    max_bytes = 10485760
    backup_count = 5

    [mcp]
    nonzero_exit_is_error = true
    max_wait_without_progress_ms = 50000
    on_client_timeout = "detach"

    [runtime]
    state_dir = ""

    [runtime.processes]
    stop_grace_ms = 50
    max_running = 64
    max_queued = 256
    cgroup = "auto"

    [runtime.tools]
    shell = "allow"

    [runtime.skills]
    paths = []

    [runtime.output]
    buffer_bytes = 65536
    relay_bytes_per_process = 16777216
    relay_bytes_per_session = 268435456
    artifact_bytes_per_process = 67108864
    artifact_bytes_per_session = 1073741824
    artifact_bytes_total = 8589934592

    [log]
    level = "error"
    format = "text"
    # A token, not shown here, is asked of a handshake.
    --- stderr
    --- status 0
    "#);
}

#[test]
fn a_secret_appears_in_no_output() {
    let home = Home::new();
    home.file("token", "f1le-s3cret");
    let inherited = [("HOSTLER_A2E_AUTH_TOKEN", "s3cret"), ("HOSTLER_LOG_LEVEL", "trace")];
    let from_file =
        [("HOSTLER_A2E_AUTH_TOKEN_FILE", home.path().join("token")), ("HOSTLER_LOG_LEVEL", "trace".into())];
    for arguments in [&["config", "show"][..], &["doctor"], &["doctor", "--json"], &["a2e", "--stdio"]] {
        let given = home.run_with(arguments, &inherited);
        let read = home
            .run_with(arguments, &from_file.each_ref().map(|(name, value)| (*name, value.to_str().unwrap())));
        for outcome in [given, read] {
            assert!(outcome.stderr.contains("configuration read"), "{}", outcome.all());
            assert!(!outcome.all().contains("s3cret"), "{}", outcome.all());
        }
    }
}

#[test]
fn nothing_is_read_from_the_working_directory() {
    let home = Home::new();
    let evil = "[a2e]\nallowed_commands = ['rm']\n";
    for name in
        ["config.toml", "hostler.toml", ".hostler.toml", "hostler/config.toml", ".config/hostler/config.toml"]
    {
        home.file(&format!("repository/{name}"), evil);
    }
    let mut command = home.command(&["config", "show"]);
    let output = command.current_dir(home.path().join("repository")).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), Home::new().run(&["config", "show"]).stdout);
}

#[test]
fn messages_are_off_until_asked_for_and_take_the_configured_form() {
    let home = Home::new();
    assert_eq!(home.run(&["config", "show"]).stderr, "");
    let text = home.run(&["config", "show", "--log-level", "debug"]).stderr;
    assert!(text.ends_with(" DEBUG hostler: configuration read files=[]\n"), "{text}");
    let json =
        home.run_with(&["config", "show"], &[("HOSTLER_LOG_LEVEL", "debug"), ("HOSTLER_LOG_FORMAT", "json")]);
    let line: serde_json::Value = serde_json::from_str(&json.stderr).unwrap();
    assert_eq!((&line["level"], &line["fields"]["message"]), (&"DEBUG".into(), &"configuration read".into()));
}

#[test]
fn doctor_says_what_follows_from_each_probe() {
    let outcome = Home::new().run(&["doctor"]);
    let (head, table) = outcome.stdout.split_once("\n\n").unwrap();
    assert_eq!(head, format!("hostler {}\nconfiguration: defaults", env!("CARGO_PKG_VERSION")));
    assert!(table.lines().all(|line| line.starts_with("yes  ") || line.starts_with("no   ")), "{table}");
    let state = table.lines().find(|line| line.contains("state_folder")).unwrap();
    assert!(state.contains("(HOME/.local/state/hostler, ") && state.ends_with(" bytes free)"), "{state}");
    assert!(table.contains("yes  proc "), "{table}");
}

#[test]
fn doctor_names_the_state_folder_that_a_host_uses_and_why_others_are_not() {
    let home = Home::new();
    home.file("state/hostler/x", "");
    let exposed = home.path().join("state/hostler");
    fs::set_permissions(&exposed, fs::Permissions::from_mode(0o777)).unwrap();
    let state_home = home.path().join("state");
    let outcome = home.run_with(&["doctor"], &[("XDG_STATE_HOME", state_home.to_str().unwrap())]);
    let state = outcome.stdout.lines().find(|line| line.contains("state_folder")).unwrap();
    assert!(state.contains("(HOME/.local/state/hostler, "), "{state}");
    assert!(
        state.ends_with("; not used: HOME/state/hostler can be written by others (mode 0777))"),
        "{state}"
    );
}

#[test]
fn doctor_tells_programs_the_same_in_json() {
    let home = Home::new();
    home.file("named.toml", "runtime.processes.cgroup = 'off'");
    let outcome = home.run(&["doctor", "--json", "--config", "named.toml"]);
    let report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(report["configuration"]["files"][0], "HOME/named.toml");
    assert_eq!(outcome.status, Some(if report["usable"] == true { 0 } else { 1 }));
    let probes = report["probes"].as_array().unwrap();
    let probe = |name: &str| probes.iter().find(|probe| probe["name"] == name).unwrap();
    assert_eq!(probe("kernel")["detail"], rustix::system::uname().release().to_str().unwrap());
    let used = probe("cgroup_v2")["used"].as_str().unwrap();
    assert!(used.starts_with("switched off by runtime.processes.cgroup"), "{used}");
}

#[test]
fn an_audit_that_cannot_be_written_is_told_before_anything_starts() {
    let home = Home::new();
    let audit = |path: &str| home.run(&["a2e", "--stdio", "--audit", path]).all();
    assert_snapshot!(audit("missing/audit.jsonl"), @"
    --- stderr
    error: failed to open the audit file HOME/missing/audit.jsonl: No such file or directory (os error 2)
    hint: its folder must exist and this user must be able to write there, a pipe needs its reader first; --audit FILE or `a2e.audit.path` names another one
    --- status 2
    ");
    assert_snapshot!(audit("."), @"
    --- stderr
    error: failed to open the audit file HOME: Is a directory (os error 21)
    hint: its folder must exist and this user must be able to write there, a pipe needs its reader first; --audit FILE or `a2e.audit.path` names another one
    --- status 2
    ");
}

#[test]
fn a_full_disk_is_a_failure_and_a_reader_that_has_left_is_none() {
    let home = Home::new();
    let mut command = home.command(&["config", "show"]);
    let full = command.stdout(File::options().write(true).open("/dev/full").unwrap()).output().unwrap();
    assert_eq!(full.status.code(), Some(1));
    assert_snapshot!(String::from_utf8(full.stderr).unwrap(), @"
    error: failed to write to standard output: No space left on device (os error 28)
    hint: make room where it goes, or let it go elsewhere
    ");

    let (reader, writer) = pipe().unwrap();
    drop(reader);
    let left = home.command(&["config", "show"]).stdout(writer).output().unwrap();
    assert_eq!((left.status.code(), left.stderr), (Some(0), Vec::new()));
}

/// A pipe that takes not a single byte more.
fn full_pipe() -> (PipeReader, OwnedFd) {
    let (reader, writer) = pipe().unwrap();
    let size = rustix::pipe::fcntl_setpipe_size(writer.as_fd(), 4096).unwrap();
    let writer = OwnedFd::from(writer);
    File::from(writer.try_clone().unwrap()).write_all(&vec![b'.'; size]).unwrap();
    (reader, writer)
}

/// The exit status, or none when the program does not end.
fn status_in_time(mut child: Child) -> Option<i32> {
    let (sender, receiver) = mpsc::channel();
    let pidfd = rustix::process::pidfd_open(
        rustix::process::Pid::from_child(&child),
        rustix::process::PidfdFlags::empty(),
    )
    .unwrap();
    let waiting = std::thread::spawn(move || sender.send(child.wait().unwrap().code()));
    let status = receiver.recv_timeout(Duration::from_secs(30));
    if status.is_err() {
        rustix::process::pidfd_send_signal(pidfd, rustix::process::Signal::KILL).unwrap();
    }
    waiting.join().unwrap().unwrap();
    status.ok().flatten()
}

#[test]
fn a_full_standard_error_holds_up_neither_messages_nor_the_last_words() {
    let home = Home::new();
    let (_reader, writer) = full_pipe();
    for (arguments, expected) in [
        (&["config", "show", "--log-level", "trace"][..], 0),
        (&["config", "show", "--config", "none.toml"], 2),
        (&["--nonsense"], 2),
    ] {
        let mut command = home.command(arguments);
        command.stdout(Stdio::null()).stderr(writer.try_clone().unwrap());
        assert_eq!(status_in_time(command.spawn().unwrap()), Some(expected), "{arguments:?}");
    }
}
