//! A configuration file as settings with the lines they stand in.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

use super::error::{ConfigError, Origin};
use super::layers::{Schema, Setting, join};

const LIMIT: u64 = 1 << 20;

/// Reads a file; `None` when there is none.
pub(crate) fn read(path: &Path) -> Result<Option<String>, ConfigError> {
    let failed = |source| ConfigError::ReadFile { path: path.to_owned(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(failed(error)),
    };
    let mut bytes = Vec::new();
    file.take(LIMIT + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > LIMIT {
        return Err(ConfigError::FileTooLarge { path: path.to_owned(), limit: LIMIT });
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let line =
            1 + error.as_bytes()[..error.utf8_error().valid_up_to()].iter().filter(|b| **b == b'\n').count();
        ConfigError::NotText { origin: Origin::File { path: path.to_owned(), line } }
    })?;
    Ok(Some(text))
}

/// Finds the settings in the text of a file. The first mistake, by line, is the one reported.
pub(crate) fn settings(schema: &Schema, path: &Path, text: &str) -> Result<Vec<Setting>, ConfigError> {
    let reader = Reader { schema, path, text };
    let table: Table = text.parse().map_err(|error| reader.syntax(&error))?;
    // The same again with positions, which the plain values do not carry.
    let spans = DeTable::parse(text).map_err(|error| reader.syntax(&error))?;
    let mut found = Vec::new();
    reader.walk(&table, spans.get_ref(), "", &mut found);
    found.sort_by_key(|(offset, _)| *offset);
    found.into_iter().map(|(_, item)| item).collect()
}

struct Reader<'a> {
    schema: &'a Schema,
    path: &'a Path,
    text: &'a str,
}

type Found = Vec<(usize, Result<Setting, ConfigError>)>;

impl Reader<'_> {
    fn origin(&self, offset: usize) -> Origin {
        let before = self.text.as_bytes().iter().take(offset);
        Origin::File { path: self.path.to_owned(), line: 1 + before.filter(|b| **b == b'\n').count() }
    }

    fn syntax(&self, error: &toml::de::Error) -> ConfigError {
        let offset = error.span().map_or(0, |span| span.start);
        ConfigError::Syntax { origin: self.origin(offset), reason: error.message().replace('\n', "; ") }
    }

    fn walk(&self, table: &Table, spans: &DeTable<'_>, section: &str, found: &mut Found) {
        for (name, span) in spans {
            let offset = name.span().start;
            let Some(value) = table.get(name.get_ref().as_ref()) else { continue };
            let key = join(section, name.get_ref());
            match (self.schema.get(&key), value, span.get_ref()) {
                (Some(Value::Table(_)), Value::Table(inner), DeValue::Table(inner_spans)) => {
                    self.walk(inner, inner_spans, &key, found);
                }
                (known, value, _) => found.push((offset, self.judge(known, key, value, offset))),
            }
        }
    }

    /// Turns what is no section into a setting, if its key is known.
    fn judge(
        &self,
        known: Option<&Value>,
        key: String,
        value: &Value,
        offset: usize,
    ) -> Result<Setting, ConfigError> {
        let origin = self.origin(offset);
        match known {
            Some(Value::Table(_)) => Err(ConfigError::NotASection { origin, key }),
            Some(_) => Ok(Setting { key, value: value.clone(), origin }),
            None => {
                let nearest = if value.is_table() {
                    self.schema.nearest_section(&key)
                } else {
                    self.schema.nearest_key(&key)
                };
                Err(ConfigError::UnknownKey { origin, key, nearest })
            }
        }
    }
}
