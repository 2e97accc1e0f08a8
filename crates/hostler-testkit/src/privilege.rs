//! The same command with fewer rights: as uid 65534, where no cgroup can be seen, or without clone3(2).
//!
//! A wrapped command has exactly the variables that were set on the original one ([`TestEnv::command`] sets them
//! all): what it would have inherited is cleared. Its standard streams are set after the wrapping, because a `std`
//! command does not tell them. Each wrapper replaces itself by the next program, so the pid of the child is the pid
//! of the program in the end.
//!
//! [`TestEnv::command`]: crate::TestEnv::command

use std::ffi::{OsStr, OsString};
use std::ops::Deref;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

use tempfile::TempDir;

use crate::evil;

/// User and group id without rights, by custom "nobody".
pub const NOBODY: u32 = 65534;

/// Covers the cgroup mounts, then becomes the command. `$0` is the path of `mount`.
const HIDE_CGROUPS: &str = r#""$0" -t tmpfs none /sys/fs/cgroup && exec "$@""#;

/// Whether the tests run with effective uid 0.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The command as uid and gid 65534 without supplementary groups, if root runs the tests; else as it was, with the
/// environment cleared alike. Give it a program that this user can reach: [`public_copy`].
///
/// # Panics
/// When `setpriv` (util-linux) is missing.
pub fn as_nobody(command: Command) -> Command {
    let ids = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")];
    let mut prefix = Vec::new();
    if is_root() {
        prefix.push(tool("setpriv"));
        prefix.extend(ids.map(OsString::from));
        prefix.extend(["--clear-groups", "--"].map(OsString::from));
    }
    wrap(prefix, &command)
}

/// The command in a mount namespace of its own where `/sys/fs/cgroup` is an empty tmpfs, if root runs the tests;
/// else as it was, with the environment cleared alike. It needs root itself, so it goes around [`as_nobody`]:
/// `without_cgroups(as_nobody(command))`.
///
/// # Panics
/// When `unshare` or `mount` (util-linux) is missing.
pub fn without_cgroups(command: Command) -> Command {
    let mut prefix = Vec::new();
    if is_root() {
        prefix.push(tool("unshare"));
        prefix.extend(["-m", "--", "/bin/sh", "-c", HIDE_CGROUPS].map(OsString::from));
        prefix.push(tool("mount"));
    }
    wrap(prefix, &command)
}

/// Whether [`without_cgroups`] hides anything here: root may still be forbidden to mount, as in most containers. The
/// commands that it wraps fail then.
pub fn can_hide_cgroups() -> bool {
    is_root()
        && without_cgroups(Command::new("/bin/true")).output().is_ok_and(|output| output.status.success())
}

/// The command where clone3(2) does not exist, neither for it nor for what it starts. It executes a path: nothing is searched
/// for.
pub fn without_clone3(command: &Command) -> Command {
    wrap(vec![evil().into(), "without-clone3".into()], command)
}

/// A copy of `program` that every user can execute, in a folder of its own.
///
/// # Panics
/// When it cannot be copied.
pub fn public_copy(program: &Path) -> PublicCopy {
    let folder = private_folder("hostler-public-").expect("a temporary folder can be made");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("our own folder");
    let path = folder.path().join(program.file_name().expect("a program has a name"));
    // A child does the writing: were the file open for writing here, a fork in another thread could carry the
    // descriptor along, and the kernel refuses to execute a file that somebody may write to (ETXTBSY).
    let copied = Command::new(tool("install")).args(["-m", "0755"]).args([program, &path]).output();
    let copied = copied.expect("install (coreutils) can be run");
    let complaint = String::from_utf8_lossy(&copied.stderr);
    assert!(copied.status.success(), "failed to copy {}: {complaint}", program.display());
    PublicCopy { path, _folder: folder }
}

/// A program that every user can execute; removed on drop.
#[derive(Debug)]
pub struct PublicCopy {
    path: PathBuf,
    _folder: TempDir,
}

impl Deref for PublicCopy {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

impl AsRef<OsStr> for PublicCopy {
    fn as_ref(&self) -> &OsStr {
        self.path.as_os_str()
    }
}

/// A new folder (0700), in a place that every user can reach.
pub(crate) fn private_folder(prefix: &str) -> io::Result<TempDir> {
    let mode = fs::Permissions::from_mode(0o700);
    tempfile::Builder::new().prefix(prefix).permissions(mode).tempdir_in(public_temp_dir())
}

/// A folder for temporary files that every user can pass through: `TMPDIR` if it is one, else `/tmp`.
fn public_temp_dir() -> PathBuf {
    let candidates = [env::temp_dir(), PathBuf::from("/tmp")];
    let found = candidates.into_iter().find(|folder| folder.is_absolute() && is_passable(folder));
    found.expect("every user can pass through TMPDIR or /tmp")
}

fn is_passable(folder: &Path) -> bool {
    folder.ancestors().all(|part| part.metadata().is_ok_and(|data| data.mode() & 0o001 != 0))
}

fn tool(name: &str) -> OsString {
    let folders = ["/usr/bin", "/bin", "/usr/sbin", "/sbin"];
    let found = folders.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists());
    found.unwrap_or_else(|| panic!("{name} is not in any of {folders:?}")).into_os_string()
}

fn wrap(mut prefix: Vec<OsString>, command: &Command) -> Command {
    prefix.push(command.get_program().to_owned());
    prefix.extend(command.get_args().map(OsStr::to_owned));
    let mut wrapped = Command::new(&prefix[0]);
    wrapped.args(&prefix[1..]).env_clear();
    wrapped.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    if let Some(folder) = command.get_current_dir() {
        wrapped.current_dir(folder);
    }
    wrapped
}

/// Lets the programs that this process executes inherit a descriptor. A number that is not open is left alone.
#[expect(unsafe_code, reason = "a descriptor by its number, which may be anybody's in this process")]
pub fn keep_on_exec(fd: i32) {
    // SAFETY: changes a flag of a descriptor of this process, no memory.
    unsafe { libc::fcntl(fd, libc::F_SETFD, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TestEnv, Token};

    fn text_of(mut command: Command) -> String {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn expected_ids() -> String {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        if is_root() { format!("{NOBODY} {NOBODY} {NOBODY}") } else { format!("{uid} {gid} {gid}") }
    }

    #[test]
    fn nobody_keeps_arguments_environment_and_working_folder() {
        let env = TestEnv::for_nobody();
        let mut command = env.command("/bin/sh");
        command.args(["-c", r#"echo "$(id -u) $(id -g) $(id -g)|$1|$MARK|$PWD""#, "sh", "a  b"]);
        command.env("MARK", "set");
        let expected = format!("{}|a  b|set|{}\n", expected_ids(), env.work().display());
        assert_eq!(text_of(as_nobody(command)), expected);
    }

    #[test]
    fn a_wrapped_command_inherits_nothing_that_was_not_set_on_it() {
        let mut command = Command::new("/usr/bin/env");
        command.env("ONLY", "this");
        assert_eq!(text_of(as_nobody(command)), "ONLY=this\n");
    }

    #[test]
    fn nobody_can_run_a_public_copy_and_write_into_its_environment() {
        let env = TestEnv::for_nobody();
        let program = public_copy(&evil());
        let token = Token::new("public copy");
        let mut command = env.command(&program);
        command.args(["print-ids", token.as_str()]);
        assert!(text_of(as_nobody(command)).starts_with("ready\npid "));
        let mut command = env.command("sh");
        command.args(["-c", r#"touch "$HOME/file" "$TMPDIR/file" && echo done"#]);
        assert_eq!(text_of(as_nobody(command)), "done\n");
        let folder = program.parent().unwrap().to_owned();
        drop(program);
        assert!(!folder.exists());
    }

    #[test]
    fn cgroups_are_hidden_from_the_command_and_from_nobody_else() {
        let env = TestEnv::for_nobody();
        let list = || {
            let mut command = env.command("ls");
            command.args(["-A", "/sys/fs/cgroup"]);
            command
        };
        let before = text_of(list());
        if is_root() && !can_hide_cgroups() {
            println!("skipped: root may not mount here");
            return;
        }
        let hidden = text_of(without_cgroups(as_nobody(list())));
        assert_eq!(hidden, if is_root() { "" } else { &before });
        assert_eq!(text_of(list()), before);
    }

    #[test]
    fn without_clone3_nobody_has_it() {
        let env = TestEnv::new();
        let mut command = env.command("/bin/sh");
        command.args(["-c", "grep Seccomp: /proc/self/status; echo $$"]);
        let child = without_clone3(&command).stdout(std::process::Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("Seccomp:\t2\n{pid}\n"));
    }

    #[test]
    fn the_child_is_the_program_itself_after_all_wrappers() {
        let env = TestEnv::for_nobody();
        let mut command = env.command("sh");
        command.args(["-c", "echo $$"]);
        let mut wrapped = as_nobody(command);
        if can_hide_cgroups() {
            wrapped = without_cgroups(wrapped);
        }
        let child = wrapped.stdout(std::process::Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{pid}\n"));
    }

    #[test]
    fn a_private_folder_is_not_passable() {
        let folder = private_folder("hostler-test-").unwrap();
        assert!(is_passable(Path::new("/tmp")));
        assert!(!is_passable(folder.path()));
        assert!(!is_passable(&folder.path().join("missing")));
    }
}
