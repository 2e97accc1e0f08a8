//! The page about failures names tests that are there.
#![expect(clippy::unwrap_used, reason = "the whole file is a test")]

use std::fs;
use std::path::Path;

/// The text of all Rust files below a folder.
fn sources(folder: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            text += &sources(&path);
        } else if path.extension().is_some_and(|end| end == "rs") {
            text += &fs::read_to_string(path).unwrap();
        }
    }
    text
}

#[test]
fn every_failure_has_a_test_that_is_there_or_is_open() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let page = fs::read_to_string(root.join("docs/failures.md")).unwrap();
    let all = sources(&root.join("crates")) + &sources(&root.join("xtask/src"));
    let rows: Vec<Vec<&str>> = page
        .lines()
        .filter(|line| line.starts_with("| B"))
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    assert!(rows.len() > 90);
    for row in rows {
        let [_, id, kind, behaviour, shown_by, _] = row[..] else { panic!("{row:?}") };
        assert!(!kind.is_empty() && !behaviour.is_empty() && !shown_by.is_empty(), "{id}");
        assert!(shown_by != "none" || behaviour.starts_with("OPEN"), "{id}");
        for name in shown_by.split('`').skip(1).step_by(2) {
            let is_there = all.contains(&format!("fn {name}(")) || all.contains(&format!("(\"{name}\", "));
            assert!(is_there, "{id}: {name}");
        }
    }
}
