//! Memory and disk of a host over time, looked at from a thread of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::process;

const INTERVAL: Duration = Duration::from_millis(50);

/// Files below this size in the state folder are locks and marks, not spools.
const SMALLEST_SPOOL: u64 = 4096;

/// One look at the host.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Duration,
    rss_kib: u64,
    disk: u64,
}

/// All looks of one run.
#[derive(Debug)]
pub(crate) struct Samples(Vec<Sample>);

/// A sampler at work.
#[derive(Debug)]
pub(crate) struct Sampler {
    bell: Sender<()>,
    thread: JoinHandle<Samples>,
}

impl Sampler {
    /// Looks at the host's own processes and at the files below `state`, 20 times a second.
    pub(crate) fn start(host: u32, state: PathBuf) -> Self {
        let (bell, over) = mpsc::channel::<()>();
        let thread = thread::spawn(move || {
            let started = Instant::now();
            let mut samples = Vec::new();
            loop {
                let own = process::own_processes(host).unwrap_or_default();
                let rss_kib = process::rss_kib(&own);
                samples.push(Sample { at: started.elapsed(), rss_kib, disk: bytes_below(&state) });
                match over.recv_timeout(INTERVAL) {
                    Err(RecvTimeoutError::Timeout) => {}
                    Ok(()) | Err(RecvTimeoutError::Disconnected) => return Samples(samples),
                }
            }
        });
        Self { bell, thread }
    }

    /// Ends the run and hands over what was seen.
    pub(crate) fn stop(self) -> Result<Samples> {
        drop(self.bell);
        self.thread.join().ok().context("the sampler broke")
    }
}

impl Samples {
    /// How far memory rose, in MiB, above what it was after the first tenth of the run.
    pub(crate) fn growth_mib(&self) -> f64 {
        let length = self.0.last().map_or(Duration::ZERO, |sample| sample.at);
        let mut settled =
            self.0.iter().filter(|sample| sample.at * 10 >= length).map(|sample| sample.rss_kib);
        let Some(first) = settled.next() else { return f64::NAN };
        settled.max().unwrap_or(first).saturating_sub(first) as f64 / 1024.0
    }

    /// The highest memory in MiB.
    pub(crate) fn peak_mib(&self) -> f64 {
        self.0.iter().map(|sample| sample.rss_kib).max().unwrap_or(0) as f64 / 1024.0
    }

    /// The most that lay on disk at once, in MiB.
    pub(crate) fn disk_mib(&self) -> f64 {
        self.0.iter().map(|sample| sample.disk).max().unwrap_or(0) as f64 / (1024.0 * 1024.0)
    }
}

/// The sizes of all files below a folder; what vanishes meanwhile has none.
fn bytes_below(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let sizes = entries.filter_map(|entry| {
        let found = entry.metadata().ok()?;
        if found.is_dir() { Some(bytes_below(&entry.path())) } else { Some(found.len()) }
    });
    sizes.filter(|size| *size >= SMALLEST_SPOOL).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn growth(rss: &[u64]) -> f64 {
        let sample =
            |(n, &rss_kib): (usize, &u64)| Sample { at: Duration::from_secs(n as u64), rss_kib, disk: 0 };
        Samples(rss.iter().enumerate().map(sample).collect()).growth_mib()
    }

    #[test]
    fn growth_counts_from_the_end_of_the_first_tenth() {
        // Eleven samples, one a second: the second one ends the first tenth.
        assert_eq!(growth(&[0, 1024, 1024, 3072, 1024, 1024, 1024, 1024, 1024, 1024, 1024]), 2.0);
        assert_eq!(growth(&[9999, 1024, 1000, 900, 900, 900, 900, 900, 900, 900, 900]), 0.0);
        assert!(growth(&[]).is_nan());
    }

    #[test]
    fn the_disk_is_counted_through_all_folders_without_small_marks() {
        let folder = crate::ci::clean_home("sampler-test").expect("a folder below target");
        fs::create_dir(folder.join("deep")).expect("made");
        fs::write(folder.join("deep/spool"), vec![0; 8192]).expect("written");
        fs::write(folder.join("lock"), "boot").expect("written");
        assert_eq!(bytes_below(&folder), 8192);
    }
}
