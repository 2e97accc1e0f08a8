//! The examples of README.md, run as they stand, so that what a newcomer reads there is true.
//!
//! A fenced block opened with "sh smoke" is run by bash in the folder of the clone, with the release binary first on
//! PATH and an empty home. A block "text smoke" right after it is what must be printed, line by line. A block "text
//! excerpt" anywhere after it holds lines that must be printed in this order, whatever is printed between them. `..`
//! in either stands for anything.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{ci, house};

/// One example and where it stands.
#[derive(Debug, PartialEq, Eq)]
struct Example {
    line: usize,
    script: String,
    expected: Option<String>,
    excerpts: Vec<String>,
}

/// Builds the release binary and runs the examples of README.md.
pub(crate) fn built_readme() -> Result<()> {
    house::build_release()?;
    readme()
}

/// Runs the examples of README.md in order; without a README, or without examples in it, there is nothing to do.
pub(crate) fn readme() -> Result<()> {
    let file = house::root().join("README.md");
    if !file.is_file() {
        println!("--- readme: no README.md, left out");
        return Ok(());
    }
    let text = fs::read_to_string(&file).with_context(|| format!("failed to read {}", file.display()))?;
    let home = ci::clean_home("readme")?;
    let all = examples(&text);
    for example in &all {
        example.run(&home).with_context(|| format!("the example at README.md:{} failed", example.line))?;
    }
    println!("--- readme: {} examples ran", all.len());
    Ok(())
}

impl Example {
    fn run(&self, home: &Path) -> Result<()> {
        let first = house::target().join("release");
        let path = env::var_os("PATH").unwrap_or_default();
        let path = env::join_paths(std::iter::once(first).chain(env::split_paths(&path)))?;
        let mut bash = Command::new("bash");
        bash.args(["-euo", "pipefail", "-c", &self.script]).current_dir(house::root());
        bash.env("PATH", path).env("HOME", home).env("XDG_CONFIG_HOME", home.join("config"));
        let output =
            bash.env("XDG_STATE_HOME", home.join("state")).output().context("failed to start bash")?;
        let printed = String::from_utf8_lossy(&output.stdout);
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "bash ended with {}\n{printed}{complaint}", output.status);
        self.expected.iter().try_for_each(|expected| same(expected, &printed))?;
        self.excerpts.iter().try_for_each(|excerpt| excerpted(excerpt, &printed))
    }
}

/// The examples of a Markdown text, in order.
fn examples(text: &str) -> Vec<Example> {
    let mut found: Vec<Example> = Vec::new();
    let mut lines = text.lines().enumerate();
    // The example that a block of expected output may still belong to: the last one, until prose comes between.
    let mut open = false;
    while let Some((number, line)) = lines.next() {
        let Some(info) = line.strip_prefix("```") else {
            open &= line.trim().is_empty();
            continue;
        };
        let body: Vec<&str> =
            lines.by_ref().map(|(_, line)| line).take_while(|line| !line.starts_with("```")).collect();
        let body = body.join("\n");
        match (info.trim(), found.last_mut()) {
            ("sh smoke", _) => {
                found.push(Example { line: number + 1, script: body, expected: None, excerpts: Vec::new() })
            }
            ("text smoke", Some(last)) if open => last.expected = Some(body),
            ("text excerpt", Some(last)) => last.excerpts.push(body),
            _ => {}
        }
        open = info.trim() == "sh smoke";
    }
    found
}

fn same(expected: &str, printed: &str) -> Result<()> {
    let (expected, printed): (Vec<&str>, Vec<&str>) = (expected.lines().collect(), printed.lines().collect());
    let fits =
        expected.len() == printed.len() && expected.iter().zip(&printed).all(|(want, got)| like(want, got));
    ensure!(fits, "printed\n{}\nwhere this was expected\n{}", printed.join("\n"), expected.join("\n"));
    Ok(())
}

fn excerpted(excerpt: &str, printed: &str) -> Result<()> {
    let mut lines = printed.lines();
    for want in excerpt.lines().filter(|line| !line.is_empty()) {
        ensure!(
            lines.any(|got| like(want, got)),
            "printed\n{printed}\nwithout, or not in this place,\n{want}"
        );
    }
    Ok(())
}

/// Whether `got` is `want`, where each `..` of `want` stands for any text.
fn like(want: &str, got: &str) -> bool {
    let Some((head, mut rest)) = want.split_once("..") else { return want == got };
    let Some(mut got) = got.strip_prefix(head) else { return false };
    while let Some((part, more)) = rest.split_once("..") {
        let Some(at) = got.find(part) else { return false };
        got = &got[at + part.len()..];
        rest = more;
    }
    got.ends_with(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_marked_blocks_are_examples_and_output_belongs_to_the_block_before_it() {
        let text = "# T\n```sh\nrm -r x\n```\n\n```sh smoke\necho a\necho b\n```\n\n```text smoke\na\nb\n```\n\
                    ```sh smoke\ntrue\n```\nprose\n```text smoke\nlost\n```\nprose\n```text excerpt\nc\n```\n";
        let all = examples(text);
        let example = |line, script: &str, expected: Option<&str>, excerpts: &[&str]| Example {
            line,
            script: script.into(),
            expected: expected.map(Into::into),
            excerpts: excerpts.iter().map(|&text| text.into()).collect(),
        };
        let (one, two) = (example(6, "echo a\necho b", Some("a\nb"), &[]), example(15, "true", None, &["c"]));
        assert_eq!(all, [one, two]);
    }

    #[test]
    fn the_lines_of_an_excerpt_are_printed_in_its_order() {
        let printed = "a 1\nb\nc\n";
        for (excerpt, fits) in
            [("a ..\nc", true), ("a ..\n\nb\nc", true), ("c\nb", false), ("a", false), ("b\nb", false)]
        {
            assert_eq!(excerpted(excerpt, printed).is_ok(), fits, "{excerpt}");
        }
    }

    #[test]
    fn two_dots_stand_for_any_text() {
        for (want, got, fits) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("{\"id\":\"..\",\"ok\":true}", "{\"id\":\"77\",\"ok\":true}", true),
            ("{\"id\":\"..\",\"ok\":true}", "{\"id\":\"77\",\"ok\":false}", false),
            ("..b..", "abc", true),
            ("..b..", "ac", false),
            ("a..", "b", false),
        ] {
            assert_eq!(like(want, got), fits, "{want} against {got}");
        }
    }

    #[test]
    fn a_missing_or_surplus_line_is_told() {
        assert!(same("a\n..", "a\nb\n").is_ok());
        assert!(same("a", "a\nb").is_err());
        assert!(same("a\nb", "a").is_err());
    }

    #[test]
    fn an_example_fails_by_its_status_or_by_what_it_prints() {
        let home = ci::clean_home("smoke-test").expect("a folder below target");
        let example = |script: &str, expected: &str| Example {
            line: 1,
            script: script.into(),
            expected: Some(expected.into()),
            excerpts: vec!["..".into()],
        };
        assert!(example("echo one; echo two", "one\ntw..").run(&home).is_ok());
        assert!(example("false | true", "").run(&home).is_err());
        assert!(example("echo one", "two").run(&home).is_err());
    }
}
