//! What a fresh Debian machine lacks: a few packages, two cargo tools at pinned versions, and the sources of the
//! dependencies, so that the checks themselves need no network.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

use crate::house;

/// Programs that the tests and benches call, and the Debian packages that bring them.
const PROGRAMS: &[(&str, &[&str])] = &[
    ("cc", &["gcc", "libc6-dev"]),
    ("git", &["git"]),
    // The default allowlist of the A2E host names it, so its tests start it.
    ("python3", &["python3"]),
    ("setpriv", &["util-linux"]),
    // Public clients come from there.
    ("npm", &["npm"]),
];

/// Cargo tools: the subcommand, its crate, and the version that the checks were written with.
const TOOLS: &[(&str, &str, &str)] =
    &[("nextest", "cargo-nextest", "0.9.143"), ("deny", "cargo-deny", "0.20.2")];

/// Installs what is missing and leaves alone what is there.
pub(crate) fn setup() -> Result<()> {
    packages()?;
    for (subcommand, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        if !house::works(&mut house::cargo(&[subcommand, "--version"])) {
            house::run(Command::new("rustup").args(["component", "add", component]))?;
        }
    }
    for (subcommand, name, version) in TOOLS {
        if house::works(&mut house::cargo(&[subcommand, "--version"])) {
            println!("--- {name} is there");
        } else {
            house::run(&mut house::cargo(&["install", "--locked", name, "--version", version]))?;
        }
    }
    house::fetch()
}

fn packages() -> Result<()> {
    let mut missing: Vec<&str> = PROGRAMS
        .iter()
        .filter(|(program, _)| !on_path(program))
        .flat_map(|(_, names)| *names)
        .copied()
        .collect();
    // Debian's Python comes without what a virtual environment needs.
    if !house::works(Command::new("python3").args(["-c", "import ensurepip, venv"])) {
        missing.push("python3-venv");
    }
    if missing.is_empty() {
        return Ok(());
    }
    let listed = missing.join(" ");
    ensure!(on_path("apt-get"), "missing programs; install what your system calls: {listed}");
    ensure!(rustix::process::geteuid().is_root(), "missing packages; run as root: apt-get install {listed}");
    house::run(Command::new("apt-get").args(["update", "-q"]))?;
    house::run(Command::new("apt-get").args(["install", "-y", "--no-install-recommends"]).args(missing))
}

/// Whether there is such a program.
pub(crate) fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| is_program(&folder.join(program)))
}

fn is_program(file: &Path) -> bool {
    rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok() && file.is_file()
}
