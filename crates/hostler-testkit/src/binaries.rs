//! Where the helper programs of the test kit are, for tests of every crate. Cargo builds the binaries of a package
//! only for that package's own integration tests, so others get them built here.
//!
//! One build per change of source. The sources are those in the list that cargo writes beside the program; a stamp,
//! also beside it, holds the time at which the last successful build began, as cargo touches nothing that it finds
//! unchanged. A lock file keeps tests that run at the same time from building twice.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;
use std::{env, io};

static FOUND: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());

/// The helper child `hostler-evil`.
///
/// # Panics
/// As [`bin`].
pub fn evil() -> PathBuf {
    bin("hostler-evil")
}

/// The binary `name` of this package, in the profile and target folder of the running test; built by cargo if it is
/// missing or older than its source.
///
/// # Panics
/// When it cannot be built, with cargo's words.
pub fn bin(name: &str) -> PathBuf {
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(path) = found.get(name) {
        return path.clone();
    }
    let folder = ProfileFolder::of_this_test();
    if !folder.has_fresh(name) {
        let lock =
            File::create(folder.path.join(".hostler-testkit.lock")).expect("the target folder is writable");
        lock.lock().expect("a file can be locked");
        // Another test may have built it while this one waited for the lock.
        if !folder.has_fresh(name) {
            let began = SystemTime::now();
            folder.build(name);
            let stamp = File::create(folder.stamp(name)).and_then(|stamp| stamp.set_modified(began));
            stamp.expect("the target folder is writable");
        }
    }
    let path = folder.path.join(name);
    assert!(path.exists(), "cargo built {name} but not as {}", path.display());
    found.insert(name.to_owned(), path.clone());
    path
}

/// The files that cargo's dependency list (a make rule: `program: source source`) names.
fn sources(rules: &str) -> Vec<PathBuf> {
    let names = rules.lines().next().and_then(|rule| rule.split_once(": ")).map_or("", |(_, names)| names);
    // A blank inside a name is escaped; NUL cannot be in a name, so it holds the place meanwhile.
    let names = names.replace("\\ ", "\0");
    names.split_ascii_whitespace().map(|name| PathBuf::from(name.replace('\0', " "))).collect()
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|data| data.modified()).ok()
}

/// A folder such as `target/debug`, and how cargo is told to build into it.
#[derive(Debug, PartialEq, Eq)]
struct ProfileFolder {
    path: PathBuf,
    target_dir: PathBuf,
    triple: Option<OsString>,
}

impl ProfileFolder {
    /// The profile folder that holds the running test: it lies in `deps`, an example in `examples`, a program in
    /// the folder itself. A doc test runs elsewhere; the development profile serves it.
    fn of_this_test() -> Self {
        let test = env::current_exe().expect("/proc is mounted");
        let folders = test.ancestors().skip(1).take(2);
        let found = folders.into_iter().find(|folder| folder.join(".fingerprint").is_dir());
        Self::new(found.map_or_else(default_profile_folder, Path::to_owned))
    }

    /// With `--target` there is one level more, named after the triple; only the target folder itself has a
    /// `CACHEDIR.TAG`.
    fn new(path: PathBuf) -> Self {
        let parent = path.parent().expect("a profile folder lies in a target folder");
        let above = parent.parent().filter(|above| above.join("CACHEDIR.TAG").exists());
        match above {
            Some(above) if !parent.join("CACHEDIR.TAG").exists() => {
                let triple = parent.file_name().map(OsStr::to_owned);
                Self { target_dir: above.to_owned(), triple, path }
            }
            Some(_) | None => Self { target_dir: parent.to_owned(), triple: None, path },
        }
    }

    fn profile(&self) -> &OsStr {
        let folder = self.path.file_name().expect("a profile folder has a name");
        // The only profile whose folder has another name.
        if folder == "debug" { OsStr::new("dev") } else { folder }
    }

    fn stamp(&self, name: &str) -> PathBuf {
        self.path.join(format!(".{name}.stamp"))
    }

    /// Whether the program is there and newer than all its sources. Where this package has no source (the tests run
    /// from an archive), the program is what there is.
    fn has_fresh(&self, name: &str) -> bool {
        let Some(built) = modified(&self.path.join(name)) else { return false };
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        if !manifest.exists() {
            return true;
        }
        let built = modified(&self.stamp(name)).map_or(built, |stamp| stamp.max(built));
        let Ok(rules) = fs::read_to_string(self.path.join(format!("{name}.d"))) else { return false };
        let is_older = |source: &PathBuf| modified(source).is_some_and(|changed| changed < built);
        sources(&rules).iter().chain([&manifest]).all(is_older)
    }

    fn build(&self, name: &str) {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "--quiet", "--bin", name, "--manifest-path"]);
        cargo.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"));
        cargo.arg("--profile").arg(self.profile()).arg("--target-dir").arg(&self.target_dir);
        if let Some(triple) = &self.triple {
            cargo.arg("--target").arg(triple);
        }
        let output: io::Result<_> = cargo.output();
        let output = output.unwrap_or_else(|error| panic!("failed to run {cargo:?}: {error}"));
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "failed to build {name} by {cargo:?}:\n{complaint}");
    }
}

fn default_profile_folder() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/hostler-testkit");
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace.join("target"), PathBuf::from);
    let folder = target.join("debug");
    fs::create_dir_all(&folder).expect("the target folder is writable");
    folder
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_helper_child_lies_beside_the_test_and_is_newer_than_its_source() {
        let program = evil();
        let folder = ProfileFolder::of_this_test();
        assert_eq!(program.parent(), Some(&*folder.path));
        assert!(env::current_exe().unwrap().starts_with(&folder.path));
        assert!(folder.has_fresh("hostler-evil"));
    }

    #[test]
    fn an_unknown_program_is_refused_with_the_words_of_cargo() {
        let result = std::panic::catch_unwind(|| ProfileFolder::of_this_test().build("no-such-program"));
        let panic = result.unwrap_err();
        let text = panic.downcast_ref::<String>().unwrap();
        assert!(text.contains("no bin target named `no-such-program`"), "{text}");
    }

    #[test]
    fn sources_are_the_names_of_the_first_rule() {
        let found = sources("/t/x: /a/b.rs /a/c\\ d.rs\n\n/t/y: /e.rs\n");
        assert_eq!(found, [Path::new("/a/b.rs"), Path::new("/a/c d.rs")]);
        assert_eq!(sources(""), [] as [PathBuf; 0]);
    }

    #[test]
    fn a_program_is_fresh_if_it_or_its_stamp_is_newer_than_every_source_in_its_list() {
        let folder = tempfile::tempdir().unwrap();
        let folder = ProfileFolder::new(folder.path().join("debug"));
        let source = folder.target_dir.join("a source.rs");
        fs::create_dir_all(&folder.path).unwrap();
        let now = SystemTime::now();
        let make = |path: &Path, minutes: u64| {
            let time = now + Duration::from_secs(60 * minutes);
            File::create(path).unwrap().set_modified(time).unwrap();
        };
        let mut steps = vec![folder.has_fresh("x")];
        make(&folder.path.join("x"), 10);
        steps.push(folder.has_fresh("x"));
        let list = format!("x: {}\n", source.display().to_string().replace(' ', "\\ "));
        fs::write(folder.path.join("x.d"), list).unwrap();
        steps.push(folder.has_fresh("x"));
        make(&source, 5);
        steps.push(folder.has_fresh("x"));
        make(&source, 20);
        steps.push(folder.has_fresh("x"));
        make(&folder.stamp("x"), 30);
        steps.push(folder.has_fresh("x"));
        fs::remove_file(folder.path.join("x")).unwrap();
        steps.push(folder.has_fresh("x"));
        // Missing; without list; source missing; older source; newer source; stamp newer still; missing again.
        assert_eq!(steps, [false, false, false, true, false, true, false]);
    }

    #[test]
    fn profile_and_triple_are_read_from_the_folders() {
        let root = tempfile::tempdir().unwrap();
        let target = root.path().join("target");
        fs::create_dir_all(&target).unwrap();
        File::create(target.join("CACHEDIR.TAG")).unwrap();
        let plain = ProfileFolder::new(target.join("debug"));
        assert_eq!((plain.profile(), &plain.target_dir, &plain.triple), (OsStr::new("dev"), &target, &None));
        let cross = ProfileFolder::new(target.join("some-triple/release"));
        assert_eq!((cross.profile(), &cross.target_dir), (OsStr::new("release"), &target));
        assert_eq!(cross.triple, Some("some-triple".into()));
    }
}
