//! A hermetic environment: nothing of the person who runs the tests reaches the program under test.

use std::ffi::{OsStr, OsString};
use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::privilege::{NOBODY, is_root, private_folder};

/// The search path in a [`TestEnv`].
pub const SEARCH_PATH: &str = "/usr/bin:/bin";

/// Variable and folder for each of them, below the folder of the environment.
const FOLDERS: [(&str, &str); 7] = [
    ("HOME", "home"),
    ("TMPDIR", "tmp"),
    ("XDG_CONFIG_HOME", "config"),
    ("XDG_STATE_HOME", "state"),
    ("XDG_DATA_HOME", "data"),
    ("XDG_CACHE_HOME", "cache"),
    ("XDG_RUNTIME_DIR", "run"),
];

/// Own HOME, TMPDIR, XDG folders and working folder (all 0700), `LANG=C.UTF-8` and a minimal PATH. The folder is
/// removed on drop.
#[derive(Debug)]
pub struct TestEnv {
    root: TempDir,
}

impl TestEnv {
    /// An environment that belongs to the user who runs the tests.
    ///
    /// # Panics
    /// When a folder cannot be made.
    #[expect(clippy::new_without_default, reason = "making folders is no default")]
    pub fn new() -> Self {
        let env = Self { root: private_folder("hostler-test-").expect("a temporary folder can be made") };
        let folders = FOLDERS.iter().map(|(_, folder)| *folder).chain(["work"]);
        for folder in folders {
            DirBuilder::new().mode(0o700).create(env.root().join(folder)).expect("a new folder of our own");
        }
        env
    }

    /// An environment for a command that [`as_nobody`](crate::as_nobody) wraps: the folders belong to uid and gid
    /// 65534 when the tests run as root.
    ///
    /// # Panics
    /// As [`TestEnv::new`].
    pub fn for_nobody() -> Self {
        let env = Self::new();
        if is_root() {
            let folders =
                std::fs::read_dir(env.root()).expect("just made").flatten().map(|entry| entry.path());
            for folder in folders.chain([env.root().to_owned()]) {
                chown(folder, Some(NOBODY), Some(NOBODY)).expect("root may give folders away");
            }
        }
        env
    }

    /// The folder that holds all others.
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// `HOME`.
    pub fn home(&self) -> PathBuf {
        self.root().join("home")
    }

    /// `TMPDIR`.
    pub fn tmp(&self) -> PathBuf {
        self.root().join("tmp")
    }

    /// `XDG_CONFIG_HOME`.
    pub fn config_home(&self) -> PathBuf {
        self.root().join("config")
    }

    /// `XDG_STATE_HOME`.
    pub fn state_home(&self) -> PathBuf {
        self.root().join("state")
    }

    /// The working folder of what [`TestEnv::command`] starts.
    pub fn work(&self) -> PathBuf {
        self.root().join("work")
    }

    /// All variables and nothing else, for whatever starts programs without a `std` command.
    pub fn vars(&self) -> Vec<(OsString, OsString)> {
        let fixed = [("LANG", OsString::from("C.UTF-8")), ("PATH", OsString::from(SEARCH_PATH))];
        let folders = FOLDERS.iter().map(|(name, folder)| (*name, self.root().join(folder).into_os_string()));
        fixed.into_iter().chain(folders).map(|(name, value)| (OsString::from(name), value)).collect()
    }

    /// A command with exactly [`TestEnv::vars`], in [`TestEnv::work`].
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env_clear().envs(self.vars()).current_dir(self.work());
        command
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use super::*;

    #[test]
    fn a_command_sees_the_variables_of_the_environment_and_no_others() {
        let env = TestEnv::new();
        let output = env.command("env").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let seen: BTreeMap<OsString, OsString> =
            text.lines().filter_map(|line| line.split_once('=')).map(|(k, v)| (k.into(), v.into())).collect();
        assert_eq!(seen, env.vars().into_iter().collect());
        assert_eq!(seen[OsStr::new("HOME")], env.home().into_os_string());
        let output = env.command("pwd").output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap().trim_end(), env.work().to_str().unwrap());
    }

    #[test]
    fn folders_are_private_and_gone_after_the_drop() {
        let env = TestEnv::new();
        let root = env.root().to_owned();
        let folders = [env.home(), env.tmp(), env.config_home(), env.state_home(), env.work()];
        for folder in folders.iter().chain([&root]) {
            assert_eq!(
                folder.metadata().unwrap().permissions().mode() & 0o7777,
                0o700,
                "{}",
                folder.display()
            );
        }
        drop(env);
        assert!(!root.exists());
    }

    #[test]
    fn folders_for_nobody_belong_to_nobody_if_root_runs_the_tests() {
        let env = TestEnv::for_nobody();
        let expected = if is_root() { NOBODY } else { rustix::process::getuid().as_raw() };
        for folder in [env.root().to_owned(), env.home(), env.state_home()] {
            assert_eq!(folder.metadata().unwrap().uid(), expected);
        }
    }
}
