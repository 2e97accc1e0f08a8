//! Tokens: secrets from a variable or a file.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::environment::Variables;
use super::error::{ConfigError, Origin, TokenProblem};

const LIMIT: usize = 4096;

/// Where a token may be written, and what it may be made of.
#[derive(Debug)]
pub(crate) struct TokenPlace {
    /// Holds the token itself.
    pub(crate) variable: &'static str,
    /// Names a file that holds it.
    pub(crate) key: &'static str,
    alphabet: Alphabet,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Alphabet {
    /// Any text.
    Text,
    /// What a header can carry.
    Header,
}

/// What an agent shows in its handshake.
pub(crate) const AUTH: TokenPlace =
    TokenPlace { variable: "HOSTLER_A2E_AUTH_TOKEN", key: "a2e.auth_token_file", alphabet: Alphabet::Text };

/// What every request over HTTP brings.
pub(crate) const BEARER: TokenPlace = TokenPlace {
    variable: "HOSTLER_A2E_HTTP_BEARER_TOKEN",
    key: "a2e.http.bearer_token_file",
    alphabet: Alphabet::Header,
};

/// All of them.
pub(crate) const TOKENS: [&TokenPlace; 2] = [&AUTH, &BEARER];

/// A token. It has no `Display`, and `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token(String);

impl Token {
    /// The token itself.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl TokenPlace {
    /// The token of the variable. One that is set and empty is a mistake: it must not open the door.
    pub(crate) fn in_variable(&self, variables: &Variables) -> Result<Option<Token>, ConfigError> {
        let Some((_, value)) = variables.iter().find(|(name, _)| name == self.variable) else {
            return Ok(None);
        };
        let origin = Origin::Variable(self.variable.to_owned());
        self.parse(value.as_bytes(), &origin).map(Some)
    }

    /// The token of a file, without the line end at its end.
    pub(crate) fn in_file(&self, path: &Path, origin: &Origin) -> Result<Token, ConfigError> {
        let mut bytes = Vec::new();
        let failed = |source| ConfigError::ReadToken {
            origin: origin.clone(),
            path: path.to_owned(),
            variable: self.variable,
            source,
        };
        // Room for the longest token, its line end, and one byte that shows that it was longer.
        File::open(path)
            .and_then(|file| file.take(LIMIT as u64 + 3).read_to_end(&mut bytes))
            .map_err(failed)?;
        let line = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        self.parse(line.strip_suffix(b"\r").unwrap_or(line), origin)
    }

    /// A token as it was written somewhere.
    pub(crate) fn parse(&self, bytes: &[u8], origin: &Origin) -> Result<Token, ConfigError> {
        let bad = |problem| ConfigError::BadToken { origin: origin.clone(), problem };
        if bytes.len() > LIMIT {
            return Err(bad(TokenProblem::TooLong { limit: LIMIT }));
        }
        let text = std::str::from_utf8(bytes).map_err(|_| bad(TokenProblem::NotText))?;
        if text.is_empty() {
            return Err(bad(TokenProblem::Empty));
        }
        if self.alphabet == Alphabet::Header && !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(bad(TokenProblem::NotForAHeader));
        }
        Ok(Token(text.to_owned()))
    }
}
