//! The token that an agent must show: a secret from a variable or a file.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::environment::{TOKEN_VARIABLE, Variables};
use super::error::{ConfigError, Origin, TokenProblem};

const LIMIT: usize = 4096;

/// A token. It has no `Display`, and `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct AuthToken {
    text: String,
    source: TokenSource,
}

/// Where a token came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenSource {
    /// A variable, which stands in this process's memory where others of the same user could read it.
    Variable,
    /// A file.
    File,
}

impl AuthToken {
    /// The token itself.
    pub(crate) fn reveal(&self) -> &str {
        &self.text
    }

    pub(crate) fn source(&self) -> TokenSource {
        self.source
    }

    fn parse(bytes: &[u8], source: TokenSource, origin: &Origin) -> Result<Self, ConfigError> {
        let bad = |problem| ConfigError::BadToken { origin: origin.clone(), problem };
        if bytes.len() > LIMIT {
            return Err(bad(TokenProblem::TooLong { limit: LIMIT }));
        }
        let text = std::str::from_utf8(bytes).map_err(|_| bad(TokenProblem::NotText))?;
        if text.is_empty() {
            return Err(bad(TokenProblem::Empty));
        }
        Ok(Self { text: text.to_owned(), source })
    }
}

impl fmt::Debug for AuthToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthToken").field("source", &self.source).finish_non_exhaustive()
    }
}

/// The token of the variable. One that is set and empty is a mistake: it must not open the door.
pub(crate) fn from_variable(variables: &Variables) -> Result<Option<AuthToken>, ConfigError> {
    let Some((_, value)) = variables.iter().find(|(name, _)| name == TOKEN_VARIABLE) else { return Ok(None) };
    let origin = Origin::Variable(TOKEN_VARIABLE.to_owned());
    AuthToken::parse(value.as_bytes(), TokenSource::Variable, &origin).map(Some)
}

/// The token of a file, without the line end at its end.
pub(crate) fn from_file(path: &Path, origin: &Origin) -> Result<AuthToken, ConfigError> {
    let mut bytes = Vec::new();
    // Room for the longest token, its line end, and one byte that shows that it was longer.
    File::open(path)
        .and_then(|file| file.take(LIMIT as u64 + 3).read_to_end(&mut bytes))
        .map_err(|source| ConfigError::ReadToken { origin: origin.clone(), path: path.to_owned(), source })?;
    let line = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    AuthToken::parse(line.strip_suffix(b"\r").unwrap_or(line), TokenSource::File, origin)
}
