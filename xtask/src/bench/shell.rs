//! The shell tools over MCP: what a call costs beyond its command, that many calls leave nothing, and that a command that
//! prints far more than is saved is none the worse for it.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::Bench;
use super::process::{open_files, own_processes, rss_kib};
use super::sampler::Sampler;
use super::table::{Bound, Row, median};

const MEBI: f64 = 1_048_576.0;

/// A server and its client.
#[derive(Debug)]
struct Server {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    home: PathBuf,
    next: u64,
}

impl Server {
    fn start(bench: &Bench) -> Result<Self> {
        let home = bench.programs.home()?;
        let mut command = Command::new(&bench.binary);
        command.arg("mcp").arg("--workspace").arg(&home).current_dir(&home);
        command.env("HOME", &home).env("XDG_STATE_HOME", home.join("state")).env("TMPDIR", &home);
        command.env_remove("XDG_RUNTIME_DIR").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("failed to start the server")?;
        let input = child.stdin.take().context("a server without stdin")?;
        let output = BufReader::new(child.stdout.take().context("a server without stdout")?);
        let mut server = Self { child, input, output, home, next: 0 };
        let about = json!({"name": "bench", "version": "1"});
        server.request(
            "initialize",
            json!({"protocolVersion": "2025-11-25", "clientInfo": about, "capabilities": {}}),
        )?;
        server.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))?;
        Ok(server)
    }

    fn send(&mut self, message: &Value) -> Result<()> {
        writeln!(self.input, "{message}").context("failed to write to the server")
    }

    fn request(&mut self, method: &str, params: Value) -> Result<Value> {
        self.next += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": self.next, "method": method, "params": params}))?;
        let mut line = String::new();
        loop {
            line.clear();
            ensure!(self.output.read_line(&mut line).context("failed to read")? > 0, "the server has ended");
            let mut message: Value = serde_json::from_str(&line).context("a line that is no JSON")?;
            if message["id"] == self.next {
                ensure!(message["error"].is_null(), "{line}");
                return Ok(message["result"].take());
            }
        }
    }

    /// Calls a tool; the structure of its result.
    fn call(&mut self, tool: &str, arguments: Value) -> Result<Value> {
        let mut result = self.request("tools/call", json!({"name": tool, "arguments": arguments}))?;
        Ok(result["structuredContent"].take())
    }

    fn run(&mut self, command: &str) -> Result<()> {
        let result = self.call("bash", json!({"command": command}))?;
        ensure!(result["details"]["status"] == "completed", "{result}");
        Ok(())
    }

    fn end(self) -> Result<()> {
        let Self { mut child, input, .. } = self;
        drop(input);
        let status = child.wait().context("failed to wait for the server")?;
        ensure!(status.success(), "the server ended with {status}");
        Ok(())
    }
}

/// What a call costs beyond a bare bash, in milliseconds, state capture included.
pub(crate) fn call(bench: &Bench) -> Result<Vec<Row>> {
    const CALLS: usize = 200;
    let mut server = Server::start(bench)?;
    let (mut bare, mut called) = (Vec::new(), Vec::new());
    for _ in 0..bench.rounds * CALLS {
        let begun = Instant::now();
        let status = Command::new("bash").args(["-c", "true"]).stdin(Stdio::null()).status();
        ensure!(status.context("failed to start bash")?.success(), "bash has failed");
        bare.push(begun.elapsed().as_secs_f64() * 1e3);
        let begun = Instant::now();
        server.run("true")?;
        called.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    server.end()?;
    let (bare, called) = (median(&bare), median(&called));
    Ok(vec![Row {
        bar: "a call of bash beyond bash -c true",
        measured: called - bare,
        bound: Bound::AtMost(2.0),
        unit: "ms",
        note: format!(
            "{called:.2} ms a call, {bare:.2} ms a bare bash; medians of {} in turns",
            bench.rounds * CALLS
        ),
    }])
}

/// What many calls leave behind.
pub(crate) fn calls(bench: &Bench) -> Result<Vec<Row>> {
    const CALLS: usize = 10_000;
    let mut server = Server::start(bench)?;
    let pid = server.child.id();
    let state = |server: &Server| -> Result<(u64, u64, usize)> {
        let own = own_processes(pid)?;
        let files = own.iter().map(|pid| open_files(*pid)).sum::<Result<u64>>()?;
        Ok((rss_kib(&own), files, count_files(&server.home)))
    };
    for _ in 0..CALLS / 10 {
        server.run("echo x")?;
    }
    let first = state(&server)?;
    for _ in 0..CALLS * 9 / 10 {
        server.run("echo x")?;
    }
    let last = state(&server)?;
    server.end()?;
    let row = |bar, measured, bound, unit, note| Row { bar, measured, bound, unit, note };
    let grown = |from: u64, to: u64| to as f64 - from as f64;
    Ok(vec![
        row(
            "memory after 10,000 calls",
            grown(first.0, last.0) / 1024.0,
            Bound::AtMost(32.0),
            "MiB",
            format!("{} KiB after a tenth, {} KiB after all", first.0, last.0),
        ),
        row(
            "descriptors after 10,000 calls",
            grown(first.1, last.1),
            // One start or end may be under way.
            Bound::AtMost(4.0),
            "",
            format!("{} after a tenth, {} after all", first.1, last.1),
        ),
        row(
            "files after 10,000 calls",
            last.2 as f64 - first.2 as f64,
            Bound::AtMost(0.0),
            "",
            format!("{} after a tenth, {} after all", first.2, last.2),
        ),
    ])
}

fn count_files(folder: &Path) -> usize {
    let entries =
        std::fs::read_dir(folder).map(|entries| entries.flatten().collect::<Vec<_>>()).unwrap_or_default();
    entries.iter().map(|entry| if entry.path().is_dir() { count_files(&entry.path()) } else { 1 }).sum()
}

/// A gigabyte from one command at the default quotas: exit code, counts, memory, disk.
pub(crate) fn gigabyte(bench: &Bench) -> Result<Vec<Row>> {
    const BYTES: u64 = 1_000_000_000;
    const QUOTA: f64 = 64.0;
    let mut server = Server::start(bench)?;
    let sampler = Sampler::start(server.child.id(), server.home.join("state"));
    let line = "x".repeat(99);
    let command = format!("yes {line} | head -c {BYTES}; exit 7");
    let started = server.call("bash", json!({"command": command, "run_in_background": true}))?;
    let id = started["details"]["process_id"].clone();
    let end = loop {
        let peek = server.call("bash_output", json!({"process_id": id, "peek": true, "wait_ms": 1000}))?;
        if peek["details"]["status"] != "running" {
            break peek;
        }
    };
    ensure!(end["details"]["exit_code"] == 7, "{end}");
    ensure!(end["details"]["total_bytes"] == BYTES, "{}", end["details"]);
    let (mut delivered, mut dropped) = (0, 0);
    loop {
        let next = server.call("bash_output", json!({"process_id": id}))?;
        delivered += next["output"].as_str().context("no output")?.len() as u64;
        dropped += next["details"]["dropped_bytes"].as_u64().unwrap_or(0);
        if next["details"]["more"] != true {
            break;
        }
    }
    let samples = sampler.stop()?;
    server.end()?;
    Ok(vec![
        Row {
            bar: "bytes of a gigabyte not accounted for",
            measured: BYTES as f64 - (delivered + dropped) as f64,
            bound: Bound::AtMost(0.0),
            unit: "",
            note: format!("{delivered} delivered, {dropped} counted as dropped, exit code kept"),
        },
        Row {
            bar: "memory of the host meanwhile",
            measured: samples.growth_mib(),
            bound: Bound::AtMost(32.0),
            unit: "MiB",
            note: format!("{:.1} MiB at most", samples.peak_mib()),
        },
        Row {
            bar: "disk meanwhile",
            measured: samples.disk_mib(),
            bound: Bound::AtMost(QUOTA + 1.0),
            unit: "MiB",
            note: format!("the quota is {QUOTA} MiB, {} bytes", QUOTA * MEBI),
        },
    ])
}
