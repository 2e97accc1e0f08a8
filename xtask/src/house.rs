//! Where things are: the workspace, what cargo builds, and cargo itself.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// The folder of the workspace: the one above this crate.
pub(crate) fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// The folder that cargo builds into.
pub(crate) fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |set| root().join(set))
}

/// The optimised binary that users get.
pub(crate) fn release_binary() -> PathBuf {
    target().join("release").join("hostler")
}

/// Builds the optimised binary.
pub(crate) fn build_release() -> Result<()> {
    run(&mut release_build())
}

/// The command that builds it.
pub(crate) fn release_build() -> Command {
    cargo(&["build", "--release", "--locked", "--package", "hostler"])
}

/// Brings the sources of all dependencies here, so that what follows needs no network: those of the workspace, and those
/// of the fuzz targets, which have a lock file of their own.
pub(crate) fn fetch() -> Result<()> {
    run(&mut cargo(&["fetch", "--locked"]))?;
    run(&mut cargo(&["fetch", "--locked", "--manifest-path", FUZZ_MANIFEST]))
}

/// Checks that the fuzz targets still compile, by the compiler at hand: only running them needs a nightly one.
pub(crate) fn fuzz_check() -> Command {
    let mut command = cargo(&["check", "--locked", "--offline", "--manifest-path", FUZZ_MANIFEST]);
    // Nothing is linked, so libFuzzer need not be built, nor a C++ compiler be there.
    command.env("CUSTOM_LIBFUZZER_PATH", target().join("none/libfuzzer.a"));
    command.arg("--target-dir").arg(target().join("fuzz"));
    command
}

const FUZZ_MANIFEST: &str = "fuzz/Cargo.toml";

/// A cargo command in the workspace, by the cargo that called us.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(cargo);
    command.args(arguments).current_dir(root());
    command
}

/// Runs a command with our own stdin, stdout and stderr; an error names it and how it ended.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("failed to start {}", shown(command)))?;
    ensure!(status.success(), "{} ended with {status}", shown(command));
    Ok(())
}

/// Whether a command can be started and says that all is well; what it prints is dropped.
pub(crate) fn works(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// The command as one would type it, near enough for a message.
pub(crate) fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
