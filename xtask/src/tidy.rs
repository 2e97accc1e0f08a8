//! What no compiler sees: files that grew too long, leftovers, paths that exist on one machine only.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::house;

/// Rust files may have this many lines; the aim is 500.
const LONGEST: usize = 600;

/// Files that may be longer, each with the reason.
const LONGER: &[(&str, &str)] = &[];

/// Hidden files and folders that belong to the house; any other is somebody's editor, cache or secret.
const HIDDEN: &[&str] = &[".cargo", ".ci", ".config", ".gitattributes", ".github", ".gitignore"];

/// Text that must not be in a Rust file, and why. Written in two pieces, so that this file may stay.
const LEFTOVERS: &[(&str, &str)] = &[
    (concat!("todo", "!("), "finish it or leave it out"),
    (concat!("unimplemented", "!("), "finish it or leave it out"),
    (concat!("#[", "ignore"), "assert what happens today, with a comment, instead of ignoring the test"),
    (concat!("dbg", "!("), "remove what was for looking only"),
];

/// Folders that exist on the machine of one person.
const MACHINE: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/Use", "rs/")];

/// Looks at every file that is or would be checked in and lists what is wrong.
pub(crate) fn tidy() -> Result<()> {
    let machine = machine_paths();
    let mut wrong = Vec::new();
    for file in files()? {
        wrong.extend(hidden(&file).map(|what| format!("{}: {what}", file.display())));
        let bytes = match fs::read(house::root().join(&file)) {
            Ok(bytes) => bytes,
            // Deleted, and not yet told to git.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error).with_context(|| format!("failed to read {}", file.display())),
        };
        if let Ok(text) = std::str::from_utf8(&bytes) {
            wrong.extend(problems(&file, text, &machine));
        }
    }
    wrong.extend(stale_map()?);
    ensure!(wrong.is_empty(), "the repository is not tidy:\n{}", wrong.join("\n"));
    Ok(())
}

/// Tests that the map names and that are not there.
fn stale_map() -> Result<Vec<String>> {
    let map = house::root().join("ARCHITECTURE.md");
    let text = fs::read_to_string(&map).with_context(|| format!("failed to read {}", map.display()))?;
    let crates = fs::read_dir(house::root().join("crates")).context("failed to read the folder of crates")?;
    let crates: Vec<PathBuf> = crates.flatten().map(|entry| entry.path()).collect();
    let is_there = |name: &str| {
        let mut places = crates.iter().map(|folder| folder.join(name));
        places.any(|path| path.is_dir() || path.with_extension("rs").is_file())
    };
    let gone = named_tests(&text).into_iter().filter(|name| !is_there(name));
    Ok(gone.map(|name| format!("ARCHITECTURE.md: there is no {name}")).collect())
}

/// What stands between backquotes and begins with `tests/`.
fn named_tests(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).filter(|name| name.starts_with("tests/")).collect()
}

/// What git has or would take, relative to the workspace.
fn files() -> Result<BTreeSet<PathBuf>> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(house::root());
    let output = git.output().context("failed to start git")?;
    ensure!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    let names = output.stdout.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    Ok(names.map(|name| PathBuf::from(String::from_utf8_lossy(name).into_owned())).collect())
}

/// Absolute paths that nobody else has: well-known ones, this checkout and the home of whoever runs the check.
fn machine_paths() -> BTreeSet<String> {
    let here = [Some(house::root().into()), std::env::var_os("HOME").map(PathBuf::from)];
    let own = here.into_iter().flatten().filter(|path| path.components().count() > 1);
    let own = own.map(|path| format!("{}/", path.display()));
    MACHINE.iter().map(|&path| path.to_owned()).chain(own).collect()
}

fn hidden(file: &Path) -> Option<&'static str> {
    let mut parts = file.components().filter_map(|part| part.as_os_str().to_str());
    parts.any(|part| part.starts_with('.') && !HIDDEN.contains(&part)).then_some("a hidden file")
}

/// What is wrong inside one file, each as `file:line: what`.
fn problems(file: &Path, text: &str, machine: &BTreeSet<String>) -> Vec<String> {
    let rust = file.extension().is_some_and(|extension| extension == "rs");
    let mut wrong = Vec::new();
    let lines = text.lines().count();
    let excused = LONGER.iter().any(|(name, _)| Path::new(name) == file);
    if rust && lines > LONGEST && !excused {
        wrong.push(format!("{}: {lines} lines; split it, or say in xtask why not", file.display()));
    }
    for (number, line) in text.lines().enumerate() {
        let leftover = LEFTOVERS.iter().filter(|(word, _)| rust && line.contains(word));
        let leftover = leftover.map(|(word, why)| format!("{word}: {why}"));
        let path = machine.iter().find(|path| names_path(line, path));
        let path = path.map(|path| format!("{path} exists on one machine only"));
        let at = |what| format!("{}:{}: {what}", file.display(), number + 1);
        wrong.extend(leftover.chain(path).map(at));
    }
    wrong
}

/// Whether `path` stands in `line` as the beginning of an absolute path, not as the middle of another one.
fn names_path(line: &str, path: &str) -> bool {
    let begins = |at: usize| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-/~}$*".contains(c))
    };
    line.match_indices(path).any(|(at, _)| begins(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_names_tests_between_backquotes() {
        let map = "| 1 | nothing `tests` | `tests/a`, `x::tests`; `tests/b/c` of `d` |";
        assert_eq!(named_tests(map), ["tests/a", "tests/b/c"]);
    }

    fn check(file: &str, text: &str, expected: &[&str]) {
        let machine = BTreeSet::from(["/home/ada/".to_owned()]);
        assert_eq!(problems(Path::new(file), text, &machine), expected, "{file}: {text}");
    }

    #[test]
    fn leftovers_are_found_with_their_line() {
        let text = format!("fn a() {{}}\nfn b() {{ {}) }}\n", LEFTOVERS[0].0);
        check("a.rs", &text, &[&format!("a.rs:2: {}: finish it or leave it out", LEFTOVERS[0].0)]);
        check("a.md", &text, &[]);
    }

    #[test]
    fn a_path_of_one_machine_is_found_and_the_middle_of_another_path_is_not() {
        check("a.md", "see /home/ada/x", &["a.md:1: /home/ada/ exists on one machine only"]);
        check("a.toml", "p = \"/home/ada/\"", &["a.toml:1: /home/ada/ exists on one machine only"]);
        check("a.md", "see /mnt/home/ada/x and $X/home/ada/", &[]);
        check("a.md", "see /home/ada", &[]);
    }

    #[test]
    fn a_rust_file_has_a_length_that_can_be_read() {
        check("a.rs", &"\n".repeat(LONGEST), &[]);
        check("a.rs", &"\n".repeat(LONGEST + 1), &["a.rs: 601 lines; split it, or say in xtask why not"]);
        check("a.txt", &"\n".repeat(LONGEST + 1), &[]);
    }

    #[test]
    fn only_hidden_files_of_the_house_may_stay() {
        assert_eq!(hidden(Path::new(".ci/run")), None);
        assert_eq!(hidden(Path::new("crates/a/.env")), Some("a hidden file"));
        assert_eq!(hidden(Path::new("docs/a.md")), None);
    }
}
