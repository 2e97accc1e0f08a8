//! Laying settings over each other, key by key, and judging each one where its origin is still known.
//!
//! The default file is the list of keys: what it does not hold does not exist.

use std::path::Path;

use toml::{Table, Value};

use super::error::{ConfigError, Origin};
use super::raw::Raw;

/// The commented defaults, as compiled in.
pub(crate) const DEFAULT_FILE: &str = include_str!("../../config/default.toml");

/// Keys whose value is a path, so that a relative one can be read against its origin.
const PATH_KEYS: &[&str] = &[
    "a2e.auth_token_file",
    "a2e.http.bearer_token_file",
    "a2e.http.tls_cert",
    "a2e.http.tls_key",
    "a2e.audit.path",
    "runtime.state_dir",
];

/// One value for one key, from one place.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Setting {
    /// Section and key, joined by dots.
    pub(crate) key: String,
    pub(crate) value: Value,
    pub(crate) origin: Origin,
}

/// All keys that exist, with their defaults.
#[derive(Clone, Debug)]
pub(crate) struct Schema {
    defaults: Table,
}

impl Schema {
    /// Reads the default file.
    #[expect(clippy::expect_used, reason = "the file is compiled in, and a test parses it")]
    pub(crate) fn new() -> Self {
        Self { defaults: DEFAULT_FILE.parse().expect("the default file is valid TOML") }
    }

    /// Every key with its default, in the order of their names.
    pub(crate) fn keys(&self) -> Vec<(String, &Value)> {
        let mut keys = Vec::new();
        collect_keys(&self.defaults, "", &mut keys);
        keys
    }

    /// The default of a key, or the section of this name.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        let mut words = key.split('.');
        let first = self.defaults.get(words.next()?)?;
        words.try_fold(first, |value, word| value.as_table()?.get(word))
    }

    /// The known key that is most like an unknown one. A key of the same name in another section comes first.
    pub(crate) fn nearest_key(&self, unknown: &str) -> String {
        let keys = self.keys();
        let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
        let moved = keys.iter().find(|(key, _)| last(key) == last(unknown));
        if let Some((key, _)) = moved {
            return key.clone();
        }
        let section = |key: &str| key.rsplit_once('.').map(|(section, _)| section.to_owned());
        let neighbours: Vec<String> = keys
            .iter()
            .filter(|(key, _)| section(key) == section(unknown))
            .map(|(key, _)| key.clone())
            .collect();
        if neighbours.is_empty() {
            nearest(unknown, keys.into_iter().map(|(key, _)| key))
        } else {
            nearest(unknown, neighbours.into_iter())
        }
    }

    /// The known section that is most like an unknown one.
    pub(crate) fn nearest_section(&self, unknown: &str) -> String {
        let sections =
            self.keys().into_iter().filter_map(|(key, _)| Some(key.rsplit_once('.')?.0.to_owned()));
        nearest(unknown, sections)
    }
}

/// The candidate with the fewest changes to `wanted`, in proportion to the length.
pub(crate) fn nearest(wanted: &str, candidates: impl Iterator<Item = String>) -> String {
    candidates
        .map(|candidate| (strsim::normalized_damerau_levenshtein(wanted, &candidate), candidate))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
        .unwrap_or_default()
}

fn collect_keys<'a>(table: &'a Table, prefix: &str, keys: &mut Vec<(String, &'a Value)>) {
    for (name, value) in table {
        let key = join(prefix, name);
        match value.as_table() {
            Some(section) => collect_keys(section, &key, keys),
            None => keys.push((key, value)),
        }
    }
}

/// Section and name as one key.
pub(crate) fn join(section: &str, name: &str) -> String {
    if section.is_empty() { name.to_owned() } else { format!("{section}.{name}") }
}

/// Lays the settings over the defaults in their order. All keys must be known.
///
/// Each one is parsed on its own, so that an error belongs to one origin.
pub(crate) fn merge(schema: &Schema, settings: &[Setting]) -> Result<Raw, ConfigError> {
    let mut table = schema.defaults.clone();
    let mut raw = parse(&table, None)?;
    for setting in settings {
        let value = absolute(setting)?;
        set(&mut table, &setting.key, value);
        raw = parse(&table, Some(setting))?;
    }
    Ok(raw)
}

fn parse(table: &Table, last: Option<&Setting>) -> Result<Raw, ConfigError> {
    Value::Table(table.clone()).try_into::<Raw>().map_err(|error| {
        let (key, origin) = match last {
            Some(setting) => (setting.key.clone(), setting.origin.clone()),
            None => (String::new(), Origin::Default),
        };
        ConfigError::NotAllowed { origin, key, reason: error.message().to_owned() }
    })
}

fn set(table: &mut Table, key: &str, value: Value) {
    match key.split_once('.') {
        Some((section, rest)) => {
            if let Some(Value::Table(inner)) = table.get_mut(section) {
                set(inner, rest, value);
            }
        }
        None => {
            table.insert(key.to_owned(), value);
        }
    }
}

/// Reads a relative path against the folder of the file that holds it.
fn absolute(setting: &Setting) -> Result<Value, ConfigError> {
    let relative = setting.value.as_str().filter(|text| is_relative(text));
    let Some(relative) = relative.filter(|_| PATH_KEYS.contains(&setting.key.as_str())) else {
        return Ok(setting.value.clone());
    };
    let folder = match &setting.origin {
        Origin::File { path, .. } => path.parent().and_then(Path::to_str),
        Origin::Default | Origin::Variable(_) | Origin::Flag(_) | Origin::Sdk { .. } => None,
    };
    match folder {
        Some(folder) => Ok(Value::String(format!("{}/{relative}", folder.trim_end_matches('/')))),
        None => Err(ConfigError::RelativePath {
            origin: setting.origin.clone(),
            key: setting.key.clone(),
            path: relative.to_owned(),
        }),
    }
}

fn is_relative(text: &str) -> bool {
    !text.is_empty() && !text.starts_with('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_refuse_a_relative_path_are_the_path_keys() {
        let schema = Schema::new();
        let takes = |key: &str, text: &str| {
            let mut table = schema.defaults.clone();
            set(&mut table, key, Value::String(text.into()));
            Value::Table(table).try_into::<Raw>().is_ok()
        };
        let keys = schema.keys();
        let paths: Vec<_> = keys
            .iter()
            .map(|(key, _)| key.as_str())
            .filter(|k| takes(k, "/some/where") && !takes(k, "x/y"))
            .collect();
        let mut known = PATH_KEYS.to_vec();
        known.sort_unstable();
        assert_eq!(paths, known);
    }

    #[test]
    fn the_nearest_name_is_found_in_spite_of_typing_errors() {
        let schema = Schema::new();
        assert_eq!(schema.nearest_key("a2e.max_proceses"), "a2e.max_processes");
        assert_eq!(schema.nearest_key("a2e.stop_grace_ms"), "runtime.processes.stop_grace_ms");
        assert_eq!(schema.nearest_key("allowed_comands"), "a2e.allowed_commands");
        assert_eq!(schema.nearest_section("runtme.output"), "runtime.output");
        assert_eq!(schema.nearest_section("logs"), "log");
    }
}
