//! Which crate may use which: arrows point from the binary over the adapters and the shell to the core, and never
//! back or sideways. The manifests are read as they are, so a new arrow fails here before it is used anywhere.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the whole file is a test; its helpers may fail it too"
)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

/// The crates of the house and what each may use of the house in the code that ships.
const ARROWS: &[(&str, &[&str])] = &[
    ("hostler-core", &[]),
    ("hostler-shell", &["hostler-core"]),
    ("hostler-mcp", &["hostler-core", "hostler-http", "hostler-shell"]),
    ("hostler-acp", &["hostler-core", "hostler-shell"]),
    // What is the same for everything that is served over HTTP, with dependencies that nothing else has.
    ("hostler-http", &[]),
    ("hostler-a2e", &["hostler-core", "hostler-http"]),
    (
        "hostler",
        &["hostler-core", "hostler-http", "hostler-shell", "hostler-mcp", "hostler-acp", "hostler-a2e"],
    ),
    // For tests alone: nothing that ships may use it.
    ("hostler-testkit", &["hostler-core"]),
    // The commands of the house measure the core and drive the binary from outside.
    ("xtask", &["hostler-core"]),
    ("hostler-fuzz", &["hostler-core", "hostler-shell", "hostler-a2e"]),
];

/// What the core must not even know by way of other people's crates: wire formats and command lines.
const UNKNOWN_TO_CORE: &[&str] = &["serde", "serde_json", "toml", "clap"];

const TESTKIT: &str = "hostler-testkit";

/// What a dependency is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Ships: `dependencies` and `build-dependencies`.
    Shipped,
    /// Tests, examples and benches: `dev-dependencies`.
    Dev,
}

/// The crates that a manifest names, by their real names, renames undone.
fn dependencies(manifest: &Table, workspace: &Table) -> Vec<(Kind, String)> {
    let per_target = manifest.get("target").and_then(Value::as_table).into_iter().flat_map(Table::values);
    let tables = per_target.filter_map(Value::as_table).chain([manifest]);
    tables.flat_map(|table| named_in(table, workspace)).collect()
}

fn named_in(table: &Table, workspace: &Table) -> Vec<(Kind, String)> {
    let kinds = [
        ("dependencies", Kind::Shipped),
        ("build-dependencies", Kind::Shipped),
        ("dev-dependencies", Kind::Dev),
    ];
    let mut found = Vec::new();
    for (key, kind) in kinds {
        for (name, spec) in table.get(key).and_then(Value::as_table).into_iter().flatten() {
            let inherited = spec.get("workspace").is_some().then(|| workspace.get(name)).flatten();
            let real = inherited.unwrap_or(spec).get("package").and_then(Value::as_str).unwrap_or(name);
            found.push((kind, real.to_owned()));
        }
    }
    found
}

/// Every arrow of the manifest of `krate` that [`ARROWS`] does not allow, as a sentence.
fn violations(krate: &str, manifest: &Table, workspace: &Table) -> Vec<String> {
    let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == krate) else {
        return vec![format!("{krate} is no crate of the house: give it a line in ARROWS, with a reason")];
    };
    let mut wrong = Vec::new();
    for (kind, target) in dependencies(manifest, workspace) {
        let ours = ARROWS.iter().any(|(name, _)| *name == target);
        let fine = match kind {
            Kind::Shipped => allowed.contains(&target.as_str()),
            Kind::Dev => allowed.contains(&target.as_str()) || target == TESTKIT,
        };
        if ours && !fine {
            wrong.push(format!("{krate} -> {target} ({kind:?})"));
        }
        if krate == "hostler-core" && kind == Kind::Shipped && UNKNOWN_TO_CORE.contains(&target.as_str()) {
            wrong.push(format!("{krate} -> {target}: the core knows no wire format and no command line"));
        }
    }
    wrong
}

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("the crate lies two folders below the workspace").to_owned()
}

fn read(manifest: &Path) -> Table {
    let text = fs::read_to_string(manifest).unwrap_or_else(|e| panic!("{}: {e}", manifest.display()));
    text.parse().unwrap_or_else(|e| panic!("{}: {e}", manifest.display()))
}

fn name_of(manifest: &Table) -> &str {
    manifest["package"]["name"].as_str().expect("a package has a name")
}

fn workspace_dependencies() -> Table {
    read(&root().join("Cargo.toml"))["workspace"]["dependencies"].as_table().expect("a table").clone()
}

/// Every manifest of the repository that stands for a crate, by crate name.
fn manifests() -> BTreeMap<String, Table> {
    let mut folders: Vec<PathBuf> = ["xtask", "fuzz"].map(|folder| root().join(folder)).into();
    let crates = fs::read_dir(root().join("crates")).expect("the folder of the crates");
    folders.extend(crates.map(|entry| entry.expect("a readable folder").path()));
    let files = folders.into_iter().map(|folder| folder.join("Cargo.toml")).filter(|file| file.is_file());
    files.map(|file| read(&file)).map(|manifest| (name_of(&manifest).to_owned(), manifest)).collect()
}

fn check(krate: &str, manifest: &str, expected: &[&str]) {
    let workspace: Table =
        r#"renamed = { path = "crates/hostler-shell", package = "hostler-shell" }"#.parse().unwrap();
    assert_eq!(violations(krate, &manifest.parse().unwrap(), &workspace), expected, "{krate}: {manifest}");
}

#[test]
fn arrows_point_from_the_binary_over_the_adapters_to_the_core() {
    let workspace = workspace_dependencies();
    let all = manifests();
    assert!(all.contains_key("hostler-core") && all.contains_key("hostler"), "found only {:?}", all.keys());
    let wrong: Vec<String> = all.iter().flat_map(|(name, text)| violations(name, text, &workspace)).collect();
    assert!(wrong.is_empty(), "arrows that the house does not have:\n{}", wrong.join("\n"));
}

#[test]
fn a_new_arrow_is_caught() {
    check(
        "hostler-core",
        "[dependencies]\nhostler-a2e.workspace = true",
        &["hostler-core -> hostler-a2e (Shipped)"],
    );
    check("hostler-a2e", "[dependencies]\nhostler-mcp = '1'", &["hostler-a2e -> hostler-mcp (Shipped)"]);
    check("hostler-shell", "[build-dependencies]\nhostler = '1'", &["hostler-shell -> hostler (Shipped)"]);
    check("hostler-a2e", "[dev-dependencies]\nhostler-shell = '1'", &["hostler-a2e -> hostler-shell (Dev)"]);
}

#[test]
fn the_testkit_is_for_tests_alone() {
    check("hostler-core", "[dev-dependencies]\nhostler-testkit.workspace = true", &[]);
    check("hostler", "[dependencies]\nhostler-testkit = '1'", &["hostler -> hostler-testkit (Shipped)"]);
}

#[test]
fn an_arrow_does_not_hide_behind_a_rename_or_a_target() {
    let renamed = "[dependencies]\ntools = { path = '../hostler-shell', package = 'hostler-shell' }";
    check("hostler-a2e", renamed, &["hostler-a2e -> hostler-shell (Shipped)"]);
    let inherited = "[dependencies]\nrenamed.workspace = true";
    check("hostler-a2e", inherited, &["hostler-a2e -> hostler-shell (Shipped)"]);
    let target = "[target.'cfg(unix)'.dependencies]\nhostler = '1'";
    check("hostler-core", target, &["hostler-core -> hostler (Shipped)"]);
}

#[test]
fn the_core_knows_no_wire_format() {
    let wanted = "hostler-core -> serde_json: the core knows no wire format and no command line";
    check("hostler-core", "[dependencies]\nserde_json = '1'", &[wanted]);
    check("hostler-core", "[dev-dependencies]\nserde_json = '1'", &[]);
}

#[test]
fn a_crate_that_nobody_knows_needs_a_line() {
    let wanted = "hostler-nats is no crate of the house: give it a line in ARROWS, with a reason";
    check("hostler-nats", "[dependencies]\nhostler-core = '1'", &[wanted]);
}
