//! Who goes first when memory runs out: the programs, before the keeper that starts them.
//!
//! A child is born with its parent's score. So the keeper raises its own for the moment of a clone, and the child lowers
//! the keeper's again before it does anything else: two writes to a file that is kept open. A child that raised its own
//! score would have to open a file of its own in /proc, which costs several times as much.
//!
//! Source: proc_pid_oom_score_adj(5).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;

/// This process's score, and the one that its children are to have.
#[derive(Debug)]
pub struct OomScore {
    file: File,
    own: Vec<u8>,
    children: Vec<u8>,
}

impl OomScore {
    /// Tries to raise this process's score to that of its children, and to lower it again.
    ///
    /// # Errors
    /// When one or the other is refused, as in some containers. Where it cannot be lowered, children get the raised
    /// score all the same: it is this process's own from then on.
    pub fn new(children: &[u8]) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open("/proc/self/oom_score_adj")?;
        let own = std::fs::read_to_string("/proc/self/oom_score_adj")?.trim().as_bytes().to_vec();
        let score = Self { file, own, children: children.to_vec() };
        score.file.write_all_at(&score.children, 0)?;
        score.file.write_all_at(&score.own, 0)?;
        Ok(score)
    }

    /// To be called right before a child is made.
    pub(super) fn raise(&self) {
        // It has worked before; a child with a lower score is no reason to start nothing.
        let _ = self.file.write_all_at(&self.children, 0);
    }

    /// To be called once the child is made, unless that did what [`OomScore::lowering`] says.
    pub(super) fn lower(&self) {
        let _ = self.file.write_all_at(&self.own, 0);
    }

    /// The descriptor to write to, and what: for the child of a vfork.
    pub(super) fn lowering(&self) -> (RawFd, &[u8]) {
        (self.file.as_raw_fd(), &self.own)
    }
}
