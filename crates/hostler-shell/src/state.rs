//! What a session keeps between its calls: the working directory and exported variables, as differences from the host's.
//!
//! Pure: what the end of a command has left comes in, what the next one starts with goes out.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

/// A value as the system has it: any bytes but NUL.
pub(crate) type Bytes = Vec<u8>;

/// The variables that commands inherit, and those that are kept from the shell that we start and given to what it starts.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostEnv {
    vars: HashMap<Bytes, Bytes>,
}

impl HostEnv {
    pub(crate) fn new(vars: impl IntoIterator<Item = (Bytes, Bytes)>) -> Self {
        Self { vars: vars.into_iter().collect() }
    }

    pub(crate) fn get(&self, name: &[u8]) -> Option<&Bytes> {
        self.vars.get(name)
    }
}

/// Variables that say something to the shell itself, before it reads a command: it starts without them, and they are set
/// when it has started.
pub(crate) const FOR_THE_SHELL: [&str; 3] = ["BASH_ENV", "ENV", "POSIXLY_CORRECT"];

/// Variables of the host that no shell is given: options of another shell, and what that one ran last.
pub(crate) const NEVER_INHERITED: [&str; 3] = ["SHELLOPTS", "BASHOPTS", "_"];

/// Whether a variable can be state: bash makes these anew, options are none, and functions are not kept.
fn is_state(name: &[u8]) -> bool {
    !matches!(
        name,
        b"_" | b"SHLVL"
            | b"PWD"
            | b"OLDPWD"
            | b"SHELLOPTS"
            | b"BASHOPTS"
            | b"POSIXLY_CORRECT"
            | b"BASH_XTRACEFD"
            | b"HOSTLER_PROCESS_ID"
    ) && !name.starts_with(b"BASH_FUNC_")
}

/// The state of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Saved {
    pub(crate) cwd: PathBuf,
    pub(crate) vars: BTreeMap<Bytes, Bytes>,
}

/// What a command has left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    /// The physical working directory.
    pub(crate) cwd: PathBuf,
    /// All exported variables.
    pub(crate) exported: Vec<(Bytes, Bytes)>,
}

impl Saved {
    /// Nothing but a place to be.
    pub(crate) fn fresh(workspace: &Path) -> Self {
        Self { cwd: workspace.to_owned(), vars: BTreeMap::new() }
    }

    /// The variable as a command finds it without being given another value.
    pub(crate) fn effective<'s>(&'s self, host: &'s HostEnv, name: &[u8]) -> Option<&'s Bytes> {
        self.vars.get(name).or_else(|| host.get(name))
    }

    /// The state after a command that was given these variables for itself alone.
    pub(crate) fn after(
        &self,
        left: Left,
        given: &[(String, String)],
        host: &HostEnv,
        workspace: &Path,
    ) -> Self {
        let mut vars: BTreeMap<Bytes, Bytes> = left
            .exported
            .into_iter()
            .filter(|(name, value)| is_state(name) && host.get(name) != Some(value))
            .collect();
        for (name, value) in given {
            let (name, value) = (name.as_bytes(), value.as_bytes());
            // One that the command has not touched was for this call alone.
            if is_state(name) && vars.get(name).or_else(|| host.get(name)).is_some_and(|now| now == value) {
                vars.remove(name);
                vars.extend(self.vars.get(name).map(|before| (name.to_vec(), before.clone())));
            }
        }
        // Physical, and so is the workspace: what leads out of it is out of it.
        let cwd = if left.cwd.starts_with(workspace) { left.cwd } else { self.cwd.clone() };
        Self { cwd, vars }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> HostEnv {
        let var = |name: &str, value: &str| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
        HostEnv::new([var("PATH", "/bin"), var("HOSTV", "h")])
    }

    fn vars(of: &[(&str, &str)]) -> Vec<(Bytes, Bytes)> {
        of.iter().map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec())).collect()
    }

    fn saved(of: &[(&str, &str)]) -> Saved {
        Saved { cwd: "/w".into(), vars: vars(of).into_iter().collect() }
    }

    /// What is saved after a command that was given `given` and has left `exported`.
    fn check(
        before: &[(&str, &str)],
        given: &[(&str, &str)],
        exported: &[(&str, &str)],
        after: &[(&str, &str)],
    ) {
        let given: Vec<(String, String)> =
            given.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        let left = Left { cwd: "/w".into(), exported: vars(exported) };
        let is = saved(before).after(left, &given, &host(), Path::new("/w"));
        assert_eq!(is, saved(after), "{before:?} {given:?} {exported:?}");
    }

    #[test]
    fn what_differs_from_the_host_is_kept_and_nothing_else() {
        check(&[], &[], &[("PATH", "/bin"), ("HOSTV", "h"), ("A", "1")], &[("A", "1")]);
        check(&[], &[], &[("PATH", "/other"), ("HOSTV", "h")], &[("PATH", "/other")]);
        check(&[("A", "1")], &[], &[("PATH", "/bin")], &[]);
        check(&[], &[], &[("PWD", "/x"), ("SHLVL", "2"), ("BASH_FUNC_f%%", "() { :; }"), ("_", "x")], &[]);
    }

    #[test]
    fn a_value_for_one_call_is_kept_only_when_the_command_has_changed_it() {
        check(&[], &[("A", "1")], &[("A", "1")], &[]);
        check(&[], &[("A", "1")], &[("A", "2")], &[("A", "2")]);
        check(&[("A", "2")], &[("A", "5")], &[("A", "5"), ("C", "c")], &[("A", "2"), ("C", "c")]);
        check(&[("A", "2")], &[("A", "5")], &[], &[]);
        check(&[("HOSTV", "mine")], &[("HOSTV", "h")], &[("HOSTV", "h")], &[("HOSTV", "mine")]);
    }

    #[test]
    fn a_directory_outside_of_the_workspace_is_not_kept() {
        let after = |cwd: &str| {
            let left = Left { cwd: cwd.into(), exported: Vec::new() };
            saved(&[]).after(left, &[], &host(), Path::new("/w")).cwd
        };
        assert_eq!(after("/w/sub"), Path::new("/w/sub"));
        assert_eq!(after("/"), Path::new("/w"));
        assert_eq!(after("/wide"), Path::new("/w"));
    }
}
