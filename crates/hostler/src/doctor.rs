//! `hostler doctor`: what the machine offers, one line a probe, with what follows from it.

use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::path::PathBuf;

use hostler_core::sys::probe::{Feature, Finding, Probe, Probes};
use hostler_core::{Places, StateForecast};
use serde_json::{Value, json};

use crate::config::{Cgroup, Loaded, lookup};

/// What was found out.
#[derive(Debug)]
pub(crate) struct Report {
    files: Vec<PathBuf>,
    probes: Probes,
    cgroup: Cgroup,
}

/// Probes the machine. `variables` tell where state would go.
pub(crate) fn examine(loaded: &Loaded, variables: &[(OsString, OsString)]) -> Report {
    let places = Places::of(|name| lookup(variables, name).map(OsStr::to_owned));
    let state = StateForecast::of(loaded.config.runtime.state_dir.as_deref(), &places);
    Report { files: loaded.files.clone(), probes: Probes::run(&state), cgroup: loaded.config.runtime.cgroup }
}

impl Report {
    /// What is missing and cannot be done without.
    pub(crate) fn lacking(&self) -> Vec<&'static str> {
        self.probes.all.iter().filter(|probe| probe.is_fatal()).map(|probe| probe.feature.name()).collect()
    }

    /// What follows from a probe under this configuration.
    fn used(&self, probe: &Probe) -> &'static str {
        match (probe.feature, self.cgroup) {
            (Feature::Cgroup, Cgroup::Off) => {
                "switched off by runtime.processes.cgroup: trees are killed by walking descendants"
            }
            (_, Cgroup::Auto | Cgroup::Off) => probe.used(),
        }
    }

    /// A table for people.
    pub(crate) fn to_text(&self) -> String {
        let files: Vec<_> = self.files.iter().map(|path| path.display().to_string()).collect();
        let layers =
            if files.is_empty() { "defaults".to_owned() } else { format!("defaults, {}", files.join(", ")) };
        let mut text = format!("hostler {}\nconfiguration: {layers}\n\n", env!("CARGO_PKG_VERSION"));
        let width = self.probes.all.iter().map(|probe| probe.feature.name().len()).max().unwrap_or(0);
        for probe in &self.probes.all {
            let (mark, detail) = match &probe.finding {
                Finding::Available(detail) => ("yes", detail),
                Finding::Missing(reason) => ("no ", reason),
            };
            let detail = if detail.is_empty() { String::new() } else { format!(" ({detail})") };
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{mark}  {:width$}  {}{detail}", probe.feature.name(), self.used(probe));
        }
        text
    }

    /// The same for programs.
    pub(crate) fn to_json(&self) -> String {
        let probes: Vec<Value> = self.probes.all.iter().map(|probe| self.probe_json(probe)).collect();
        let files: Vec<_> = self.files.iter().map(|path| path.to_string_lossy()).collect();
        let report = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "configuration": { "files": files },
            "usable": self.lacking().is_empty(),
            "probes": probes,
        });
        format!("{report:#}\n")
    }

    fn probe_json(&self, probe: &Probe) -> Value {
        let (available, detail) = match &probe.finding {
            Finding::Available(detail) => (true, detail),
            Finding::Missing(reason) => (false, reason),
        };
        json!({
            "name": probe.feature.name(),
            "available": available,
            "detail": detail,
            "used": self.used(probe),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(finding: Finding) -> Report {
        let probe = Probe { feature: Feature::Proc, finding };
        Report { files: Vec::new(), probes: Probes { all: vec![probe] }, cgroup: Cgroup::Auto }
    }

    #[test]
    fn a_machine_without_proc_is_not_usable() {
        let without = report(Finding::Missing("gone".into()));
        assert_eq!(without.lacking(), ["proc"]);
        assert!(without.to_json().contains("\"usable\": false"));
        let line = "no   proc  no processes can be hosted: descendants cannot be found (gone)\n";
        assert!(without.to_text().ends_with(line), "{}", without.to_text());
        assert!(report(Finding::Available(String::new())).lacking().is_empty());
    }
}
