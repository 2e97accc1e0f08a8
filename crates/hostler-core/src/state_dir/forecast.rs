//! Which place a host would use, for whoever asks before there is one (`hostler doctor`).

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

use super::{Places, StateDir, StateDirError, candidates};

/// What [`StateHome::open`](super::StateHome::open) would find, told without leaving anything behind.
#[derive(Debug)]
pub struct StateForecast {
    /// The base folder that would be used; it need not exist yet.
    pub chosen: Option<PathBuf>,
    /// The places that come before it, and why each would be refused.
    pub refused: Vec<StateDirError>,
}

impl StateForecast {
    /// Tries the places in the order in which a host tries them.
    pub fn of(configured: Option<&Path>, places: &Places) -> Self {
        let mut refused = Vec::new();
        for base in candidates(configured, places) {
            match would_do(&base) {
                Ok(()) => return Self { chosen: Some(base), refused },
                Err(error) => refused.push(error),
            }
        }
        Self { chosen: None, refused }
    }
}

/// A base folder that is there is tried as a host does it, with a folder that goes again at once. One that is missing
/// is not made: it can be if the nearest folder above it can be written.
fn would_do(base: &Path) -> Result<(), StateDirError> {
    let is_missing = |path: &Path| matches!(path.symlink_metadata(), Err(error) if error.kind() == io::ErrorKind::NotFound);
    if !base.is_absolute() || !is_missing(base) {
        return StateDir::below(base).map(drop);
    }
    let above = base.ancestors().find(|folder| !is_missing(folder)).unwrap_or(Path::new("/"));
    // The trailing slash asks for a folder.
    rustix::fs::access(above.join(""), Access::WRITE_OK | Access::EXEC_OK)
        .map_err(|error| StateDirError::Make { path: base.to_owned(), source: error.into() })
}
