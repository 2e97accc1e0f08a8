//! The programs that the benches start: baselines in C, compiled on the spot, and small children without a library.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::house;

/// Where the compiled programs lie.
#[derive(Debug)]
pub(crate) struct Programs {
    folder: PathBuf,
}

/// Programs with a C library around them.
const HOSTED: &[&str] = &["spawn_loop", "producer", "linger", "ping_pong", "kill_loop"];

/// Programs that are nothing but their system calls, static and about nine kilobytes.
const BARE: &[&str] = &["exit_only", "one_line"];

impl Programs {
    /// Compiles all of them into `target/bench`.
    pub(crate) fn build() -> Result<Self> {
        let folder = house::target().join("bench");
        fs::create_dir_all(&folder).with_context(|| format!("failed to make {}", folder.display()))?;
        // Allowlists compare the path as it is written, and the host's keepers have another working folder.
        let folder = folder.canonicalize().context("failed to resolve the folder of the benches")?;
        let programs = Self { folder };
        for name in HOSTED {
            programs.compile(name, &["-pthread", "-D_GNU_SOURCE"])?;
        }
        let bare = ["-static", "-nostdlib", "-ffreestanding", "-fno-stack-protector", "-fno-pie", "-no-pie"];
        for name in BARE {
            programs.compile(name, &bare)?;
        }
        Ok(programs)
    }

    fn compile(&self, name: &str, flags: &[&str]) -> Result<()> {
        let source = house::root().join("xtask/src/bench/baseline").join(format!("{name}.c"));
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-Wall", "-Wextra", "-Werror"])
            .args(flags)
            .arg("-o")
            .arg(self.path(name))
            .arg(source);
        house::run(&mut cc)
    }

    /// The absolute path of a compiled program.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The same as text, for an allowlist or a message.
    pub(crate) fn text(&self, name: &str) -> Result<String> {
        utf8(&self.path(name))
    }

    /// A folder of its own for one host, empty, below `target/bench`.
    pub(crate) fn home(&self) -> Result<PathBuf> {
        let home = self.folder.join("home");
        if home.exists() {
            fs::remove_dir_all(&home).with_context(|| format!("failed to empty {}", home.display()))?;
        }
        fs::create_dir_all(&home).with_context(|| format!("failed to make {}", home.display()))?;
        Ok(home)
    }
}

fn utf8(path: &Path) -> Result<String> {
    path.to_str().map(str::to_owned).with_context(|| format!("{} is no UTF-8", path.display()))
}

/// Runs a program that prints `NAME NUMBER` lines and picks one of the numbers.
pub(crate) fn number(command: &mut Command, name: &str) -> Result<f64> {
    let output = command.output().with_context(|| format!("failed to start {}", house::shown(command)))?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{} ended with {}: {complaint}", house::shown(command), output.status);
    let printed = String::from_utf8_lossy(&output.stdout);
    picked(&printed, name).with_context(|| format!("{} printed no {name}: {printed}", house::shown(command)))
}

fn picked(printed: &str, name: &str) -> Option<f64> {
    let value = printed.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    value.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_picked_by_its_whole_name() {
        let printed = "cpu_us_per_spawn 64.9\nspawns_per_s 14624.871\n";
        assert_eq!(picked(printed, "spawns_per_s"), Some(14_624.871));
        assert_eq!(picked(printed, "cpu_us_per_spawn"), Some(64.9));
        assert_eq!(picked(printed, "cpu_us"), None);
        assert_eq!(picked("n many", "n"), None);
    }

    #[test]
    fn a_program_that_fails_is_an_error_with_what_it_said() {
        let mut command = Command::new("sh");
        let error = number(command.args(["-c", "echo sorry >&2; exit 4"]), "n").expect_err("it fails");
        assert!(error.to_string().contains("exit status: 4: sorry"), "{error}");
    }
}
