//! The recipes: `check` for while one writes, `ci` for everything. Cheap steps come first, so that a slip in the
//! format is told before the optimised build has begun.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::steps::Steps;
use crate::{clients, house, smoke, tidy};

/// An external driver that checks the A2E host from outside. It does not belong to the repository: where it lies
/// beside it, or where the variable says, it is run.
const A2E_DRIVER: &str = "../shared/a2e/a2e_conformance.py";
const A2E_DRIVER_VARIABLE: &str = "A2E_DRIVER";

/// The same for the shell tools over MCP.
const SHELL_DRIVER: &str = "../shared/shell/shell_conformance.py";
const SHELL_DRIVER_VARIABLE: &str = "SHELL_DRIVER";

/// Its checks of what there is: not of named services, terminals, guards and addresses in commands, nor those others that use
/// one of these (F06, W06, B09, E, V02, S01).
const SHELL_CHECKS: &str = "A*,F0[!6],F10,W0[!6],D*,C*,B0[!9],B10,I*,K*,V0[!2],S0[!1],S1*,N*,L*,Q*";

/// Format, lints, unit tests.
pub(crate) fn check() -> Result<()> {
    let mut steps = Steps::default();
    let result = quick(&mut steps);
    report(&steps, result)
}

/// Every check there is.
pub(crate) fn ci() -> Result<()> {
    let mut steps = Steps::default();
    let result = everything(&mut steps);
    report(&steps, result)
}

/// The error comes before the list of steps, because the summary of the tests has the last word.
fn report(steps: &Steps, result: Result<()>) -> Result<()> {
    if let Err(error) = &result {
        eprintln!("error: {error:#}");
    }
    steps.report();
    result.map_err(|_| anyhow::anyhow!("not every check passed"))
}

fn quick(steps: &mut Steps) -> Result<()> {
    format_and_lints(steps)?;
    steps.tests("unit tests", &mut house::cargo(&["test", "--workspace", "--lib", "--bins"]))
}

fn everything(steps: &mut Steps) -> Result<()> {
    format_and_lints(steps)?;
    let mut doc = house::cargo(&["doc", "--workspace", "--no-deps", "--locked"]);
    steps.command("doc", doc.env("RUSTDOCFLAGS", "-D warnings"))?;
    // Needs the network only after a new dependency; then also what other systems would build must be here to be read.
    steps.step("fetch", house::fetch)?;
    let deny = ["deny", "--locked", "--offline", "check", "bans", "licenses", "sources"];
    steps.command("deny", &mut house::cargo(&deny))?;
    steps.command("fuzz targets", &mut house::fuzz_check())?;
    tests(steps)?;
    steps.command("release build", &mut house::release_build())?;
    steps.step("readme", smoke::readme)?;
    a2e_conformance(steps)?;
    shell_conformance(steps)?;
    clients::run(steps)
}

fn format_and_lints(steps: &mut Steps) -> Result<()> {
    steps.command("format", &mut house::cargo(&["fmt", "--all", "--check"]))?;
    steps.step("tidy", tidy::tidy)?;
    let clippy = ["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
    steps.command("clippy", &mut house::cargo(&clippy))
}

/// All tests by nextest, which gives each its own process, or by the standard runner where it is missing. Examples
/// in documentation go first: nextest does not know them, and its summary should be the one that is kept.
fn tests(steps: &mut Steps) -> Result<()> {
    steps.command("doc tests", &mut house::cargo(&["test", "--workspace", "--doc", "--locked"]))?;
    let runner: &[&str] = if house::works(&mut house::cargo(&["nextest", "--version"])) {
        &["nextest", "run", "--workspace", "--locked", "--no-fail-fast"]
    } else {
        &["test", "--workspace", "--all-targets", "--locked", "--no-fail-fast"]
    };
    steps.tests("tests", &mut house::cargo(runner))
}

/// The external driver, where there is one; says so where there is none. One that was named must be there.
fn driver(steps: &mut Steps, name: &str, path: &str, variable: &str) -> Result<Option<PathBuf>> {
    let named = std::env::var_os(variable).map(|path| house::root().join(path));
    let driver = named.clone().unwrap_or_else(|| house::root().join(path));
    if driver.is_file() {
        return Ok(Some(driver));
    }
    if named.is_some() {
        let missing = || bail!("{variable} names no file: {}", driver.display());
        return steps.step(name, missing).map(|()| None);
    }
    steps.left_out(name, &format!("no driver at {path}; {variable}=FILE names another"));
    Ok(None)
}

fn a2e_conformance(steps: &mut Steps) -> Result<()> {
    const NAME: &str = "a2e conformance";
    let Some(driver) = driver(steps, NAME, A2E_DRIVER, A2E_DRIVER_VARIABLE)? else { return Ok(()) };
    let stdio = format!("{} a2e --stdio", house::release_binary().display());
    steps.step(NAME, || {
        house::run(at_home("a2e-conformance", "python3")?.arg(&driver).args(["--stdio", &stdio]))
    })?;
    steps.step("a2e conformance over HTTP", || over_http(&driver, None))?;
    steps.step("a2e conformance over HTTP with a token", || over_http(&driver, Some("sesame")))
}

fn shell_conformance(steps: &mut Steps) -> Result<()> {
    const NAME: &str = "shell conformance";
    let Some(driver) = driver(steps, NAME, SHELL_DRIVER, SHELL_DRIVER_VARIABLE)? else { return Ok(()) };
    let mcp = format!("{} mcp", house::release_binary().display());
    steps.step(NAME, || {
        let mut command = at_home("shell-conformance", "python3")?;
        house::run(command.arg(&driver).args(["--mcp", &mcp, "--only", SHELL_CHECKS]))
    })
}

/// The same driver against a host that listens, which is ended afterwards. Its token is that of the handshake.
fn over_http(driver: &Path, token: Option<&str>) -> Result<()> {
    let mut host = at_home("a2e-conformance-http", house::release_binary())?;
    host.args(["a2e", "--http", "127.0.0.1:0"]).stdin(Stdio::null()).stdout(Stdio::piped());
    if let Some(token) = token {
        host.env("HOSTLER_A2E_AUTH_TOKEN", token);
    }
    let mut host = host.spawn().context("failed to start the host")?;
    let checked = check_over_http(&mut host, driver, token);
    let pid = i32::try_from(host.id()).ok().and_then(rustix::process::Pid::from_raw).context("no pid")?;
    // A child of ours that nobody has waited for.
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).context("failed to end the host")?;
    let status = host.wait().context("failed to wait for the host")?;
    checked?;
    ensure!(status.success(), "the host ended with {status}");
    Ok(())
}

fn check_over_http(host: &mut Child, driver: &Path, token: Option<&str>) -> Result<()> {
    let mut announced = String::new();
    let stdout = host.stdout.as_mut().context("a host without stdout")?;
    BufReader::new(stdout).read_line(&mut announced).context("failed to read where the host listens")?;
    let url = announced.trim_end().strip_prefix("listening on ").context("no address")?.to_owned();
    let mut command = at_home("a2e-conformance", "python3")?;
    command.arg(driver).args(["--http", &url, "--host-pid", &host.id().to_string()]);
    if let Some(token) = token {
        command.args(["--token", token]);
    }
    house::run(&mut command)
}

/// A command in an empty home of its own, which is where it works.
pub(crate) fn at_home(name: &str, program: impl AsRef<OsStr>) -> Result<Command> {
    let home = clean_home(name)?;
    let mut command = Command::new(program);
    command
        .env("HOME", &home)
        .env("XDG_CONFIG_HOME", home.join("config"))
        .env("XDG_STATE_HOME", home.join("state"))
        .current_dir(&home);
    Ok(command)
}

/// An empty folder below the target folder, to be somebody's home for the length of one step.
pub(crate) fn clean_home(name: &str) -> Result<PathBuf> {
    let home = house::target().join("homes").join(name);
    if home.exists() {
        fs::remove_dir_all(&home).with_context(|| format!("failed to empty {}", home.display()))?;
    }
    fs::create_dir_all(&home).with_context(|| format!("failed to make {}", home.display()))?;
    Ok(home)
}
