//! Shells with and without a capture, side by side.

use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use hostler_testkit::TestEnv;

use super::*;

/// Output, exit status as bash has it, and what was left.
#[derive(Debug, PartialEq)]
struct Ran {
    output: String,
    code: i32,
}

fn start(env: &TestEnv, text: &[u8], bash_env: Option<&Path>) -> Ran {
    let mut command = env.command("bash");
    command.args(["--noprofile", "--norc", "-c", "--"]).arg(std::ffi::OsStr::from_bytes(text));
    command.stdin(Stdio::null()).env_remove("BASH_ENV");
    if let Some(path) = bash_env {
        command.env("BASH_ENV", path);
    }
    let (mut reader, writer) = io::pipe().unwrap();
    command.stdout(writer.try_clone().unwrap()).stderr(writer);
    let mut child = command.spawn().unwrap();
    drop(command);
    let mut output = Vec::new();
    reader.read_to_end(&mut output).unwrap();
    let status = child.wait().unwrap();
    let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap();
    Ran { output: String::from_utf8_lossy(&output).into_owned(), code }
}

fn captured(env: &TestEnv, command: &str) -> (Ran, Option<Left>) {
    let private = PrivateFolder::below(env.root(), 7);
    let plan = Plan { command, takes: Takes::State, later: &[] };
    let prepared = prepare(&private, "it's a run", plan).unwrap();
    let ran = start(env, &prepared.text, prepared.bash_env.as_deref());
    let left = match prepared.folder.as_ref().unwrap().taken() {
        Taken::State(left) => Some(left),
        Taken::Nothing => None,
        Taken::TooMuch => panic!("too much"),
    };
    drop(prepared);
    assert_eq!(fs::read_dir(private.path()).unwrap().count(), 0, "nothing stays");
    (ran, left)
}

/// The command does what it does without a capture.
#[track_caller]
fn check_neutral(command: &str) {
    let env = TestEnv::new();
    let plain = start(&env, command.as_bytes(), None);
    let (ran, _) = captured(&env, command);
    assert_eq!(ran, plain, "{command}");
}

fn value<'l>(left: &'l Left, name: &str) -> Option<&'l [u8]> {
    let found = left.exported.iter().find(|(known, _)| known == name.as_bytes());
    found.map(|(_, value)| value.as_slice())
}

#[test]
fn a_command_finds_the_shell_of_a_plain_bash() {
    for command in [
        "echo $0 $# $- $LINENO $_",
        "echo $?; false; echo $?",
        "echo \"[$*]\" $BASH_SUBSHELL ${#BASH_SOURCE[@]} ${#FUNCNAME[@]} ${BASH_ARGV[*]}",
        "f() { caller; caller 0; echo ${FUNCNAME[*]} $LINENO; }\nf",
        "set -o; shopt; echo \"${BASH_ENV-none}\"; env | grep -v '^_=' | sort",
        "compgen -v | grep -v '^_$' | grep -v PIPESTATUS",
        "echo $BASH_EXECUTION_STRING; hash; jobs; umask; echo $!",
    ] {
        check_neutral(command);
    }
}

#[test]
fn texts_that_do_not_end_well_end_as_they_do_in_a_plain_bash() {
    for command in [
        "cat <<'EOF'\nbody\nEOF",
        "cat <<E\nopen",
        "echo b \\",
        "echo a # c",
        "# only",
        "--version",
        "-c 'x'",
        "echo 'a",
        "if true",
        "fi",
        "echo $(",
        "( echo x",
        "return 5; echo $?",
        "exit 300",
        "exit abc",
        "echo a; exit 5; echo b",
        "exec nosuchprogram_x; echo no",
        "${nope?msg}; echo no",
        "set -e; false; echo no",
        "set -u; echo ${nope}",
        "kill -TERM $$",
        "kill -KILL $$",
        "set -x; echo a",
        "trap 'echo E $BASH_COMMAND' ERR; false; true",
        "trap 'echo D' DEBUG; echo a",
        "trap 'echo T' EXIT; echo a",
        "set -x; exec 5>&1; BASH_XTRACEFD=5; echo a",
        "exec >&-; echo x",
        "false &\nwait $!; exit $?",
    ] {
        check_neutral(command);
    }
}

#[test]
fn state_is_taken_whatever_the_command_has_done_to_its_shell() {
    for odd in [
        "true",
        "exit 3",
        "set -e; false",
        "set -u; echo $nope_x",
        "kill -TERM $$; sleep 9",
        "set -C",
        "IFS=/",
        "PATH=",
        "exec >&- 2>&-",
        "set -f",
        "set -o posix",
        "shopt -s extdebug",
        "set -T; trap 'true' DEBUG",
        "set -x",
        "umask 777",
        "printf() { :; }; env() { :; }; pwd() { :; }; declare() { :; }; export() { :; }; builtin() { return 1; }",
        "trap() { :; }; set() { :; }; unset() { :; }; command() { return 1; }",
        "alias pwd=false export=false; shopt -s expand_aliases",
        "exec 3>&1 4>&1 255>&1",
        "unset HOME PWD OLDPWD",
        "f() { exit 6; }; f",
        "trap 'exit 4' USR1; kill -USR1 $$; sleep 9",
    ] {
        let env = TestEnv::new();
        let (ran, left) = captured(&env, &format!("mkdir d; cd d; export V=$'a\\n\\xff'; {odd}"));
        let left = left.unwrap_or_else(|| panic!("{odd}: {ran:?}"));
        assert_eq!(
            (value(&left, "V"), left.cwd.file_name()),
            (Some(&b"a\n\xff"[..]), Some("d".as_ref())),
            "{odd}"
        );
    }
}

#[test]
fn no_state_is_taken_when_the_trap_is_not_reached() {
    for command in [
        "exec echo hi",
        "trap 'echo bye' EXIT",
        "trap - EXIT",
        "trap '' EXIT",
        "kill -KILL $$",
        "f() { trap : EXIT; }; f",
    ] {
        let env = TestEnv::new();
        assert_eq!(captured(&env, &format!("export V=1; {command}")).1, None, "{command}");
    }
    // A subshell has traps of its own.
    let env = TestEnv::new();
    assert!(captured(&env, "(trap 'echo T' EXIT); trap : USR1").1.is_some());
}

#[test]
fn a_directory_that_is_gone_leaves_no_state() {
    let env = TestEnv::new();
    assert_eq!(captured(&env, "mkdir d; cd d; rmdir ../d").1, None);
}

#[test]
fn what_is_too_long_for_an_argument_is_read_by_the_shell() {
    let env = TestEnv::new();
    let command = format!(": '{}'; export BIG=1; echo ok $LINENO $0; exit 3", "x".repeat(200_000));
    let (ran, left) = captured(&env, &command);
    assert_eq!(ran, Ran { output: "ok 1 bash\n".to_owned(), code: 3 });
    assert_eq!(value(&left.unwrap(), "BIG"), Some(&b"1"[..]));
}

#[test]
fn variables_for_the_shell_are_there_for_what_it_starts_and_did_nothing_to_it() {
    let env = TestEnv::new();
    let folder = env.root().join("elsewhere");
    std::fs::create_dir(&folder).unwrap();
    let script = folder.join("it's");
    std::fs::write(&script, "echo READ\n").unwrap();
    let later = [("BASH_ENV", script.as_os_str().as_bytes().to_vec()), ("POSIXLY_CORRECT", b"y".to_vec())];
    let plan = Plan { command: "echo $SHELLOPTS; bash -c 'echo sub'", takes: Takes::State, later: &later };
    let prepared = prepare(&PrivateFolder::below(env.root(), 8), "run", plan).unwrap();
    let ran = start(&env, &prepared.text, prepared.bash_env.as_deref());
    assert!(ran.output.contains("posix") && ran.output.ends_with("sub\n"), "{ran:?}");
    let Taken::State(left) = prepared.folder.as_ref().unwrap().taken() else { panic!("no state") };
    assert_eq!(value(&left, "BASH_ENV"), Some(script.as_os_str().as_bytes()));
}

#[test]
fn what_a_command_writes_into_the_files_itself_is_no_state_when_it_is_too_much() {
    let env = TestEnv::new();
    let private = PrivateFolder::below(env.root(), 9);
    let plan = Plan { command: "", takes: Takes::State, later: &[] };
    let prepared = prepare(&private, "run", plan).unwrap();
    let folder = prepared.folder.unwrap();
    assert_eq!(folder.taken(), Taken::Nothing, "nothing was written");
    std::fs::write(folder.0.join(CWD), "/x\n").unwrap();
    std::fs::write(folder.0.join(EXPORTED), vec![b'x'; (MOST_STATE + 1) as usize]).unwrap();
    assert_eq!(folder.taken(), Taken::TooMuch);
    std::fs::write(folder.0.join(EXPORTED), "junk").unwrap();
    assert_eq!(folder.taken(), Taken::State(Left { cwd: "/x".into(), exported: Vec::new() }));
}

#[test]
fn a_folder_that_somebody_else_could_read_is_not_used() {
    let env = TestEnv::new();
    let private = PrivateFolder::below(env.root(), 10);
    std::fs::create_dir(private.path()).unwrap();
    std::fs::set_permissions(private.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(private.make("run").unwrap_err().kind(), io::ErrorKind::PermissionDenied);
}
