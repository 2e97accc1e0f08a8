//! The counter that `hostler-evil fork-chain` and `fork-bomb` keep in a shared file: proof of life where scanning
//! `/proc` would miss a process.

use std::fs;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::wait_until;

/// Length of the file: the count, then the stop mark, each a native-endian `u64`.
pub const FILE_BYTES: usize = 16;
const STOP_OFFSET: u64 = 8;

/// A file that the helper child maps shared and counts in.
///
/// Dropping it stops the chain that counts in it, so that no failing test leaves one behind.
#[derive(Debug)]
pub struct SharedCounter {
    file: fs::File,
    path: PathBuf,
}

impl SharedCounter {
    /// A counter at 0 in a new file `name` in `folder`, which every user may write to.
    ///
    /// # Panics
    /// When the file cannot be made.
    pub fn create(folder: &Path, name: &str) -> Self {
        let path = folder.join(name);
        let file = fs::File::options().read(true).write(true).create_new(true).open(&path);
        let file = file.unwrap_or_else(|error| panic!("failed to create {}: {error}", path.display()));
        file.set_permissions(fs::Permissions::from_mode(0o666)).expect("our own file");
        file.write_all_at(&[0; FILE_BYTES], 0).expect("16 bytes fit onto the disk");
        Self { file, path }
    }

    /// The argument for the helper child.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How often it was counted up.
    pub fn value(&self) -> u64 {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, 0).expect("the file has 16 bytes");
        u64::from_ne_bytes(bytes)
    }

    /// Waits until it is counted up once more: somebody lives.
    ///
    /// # Panics
    /// After `max`.
    #[track_caller]
    pub fn wait_for_life(&self, max: Duration) {
        let before = self.value();
        wait_until("the counter to move", max, || match self.value() {
            value if value > before => Ok(()),
            value => Err(value),
        });
    }

    /// Waits until it has stood still for `quiet`: nobody lives. A link of a fork chain counts about once a
    /// millisecond; choose `quiet` a few hundred times as long.
    ///
    /// # Panics
    /// After `max`, with the count.
    #[track_caller]
    pub fn wait_for_silence(&self, quiet: Duration, max: Duration) {
        let mut last = (self.value(), Instant::now());
        wait_until("the counter to stand still", max, || {
            let value = self.value();
            if value != last.0 {
                last = (value, Instant::now());
            }
            if last.1.elapsed() >= quiet { Ok(()) } else { Err(value) }
        });
    }

    /// Asks every process that counts here to exit at its next step.
    pub fn stop(&self) {
        self.file.write_all_at(&1_u64.to_ne_bytes(), STOP_OFFSET).expect("the file has 16 bytes");
    }
}

impl Drop for SharedCounter {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    const MAX: Duration = Duration::from_secs(10);
    const SHORT: Duration = Duration::from_millis(30);

    fn count_once(counter: &SharedCounter) {
        counter.file.write_all_at(&(counter.value() + 1).to_ne_bytes(), 0).unwrap();
    }

    #[test]
    fn a_counter_that_stands_still_is_silent_and_without_life() {
        let folder = tempfile::tempdir().unwrap();
        let counter = SharedCounter::create(folder.path(), "counter");
        count_once(&counter);
        assert_eq!(counter.value(), 1);
        counter.wait_for_silence(SHORT, MAX);
        assert!(catch_unwind(AssertUnwindSafe(|| counter.wait_for_life(SHORT))).is_err());
    }

    #[test]
    fn a_counter_that_moves_is_alive_and_not_silent() {
        let folder = tempfile::tempdir().unwrap();
        let counter = SharedCounter::create(folder.path(), "counter");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Until the stop mark, as the helper child does it.
                while fs::read(counter.path()).unwrap()[8..] == [0; 8] {
                    count_once(&counter);
                }
            });
            counter.wait_for_life(MAX);
            let silence = || counter.wait_for_silence(Duration::from_secs(5), SHORT);
            assert!(catch_unwind(AssertUnwindSafe(silence)).is_err());
            counter.stop();
        });
    }
}
