//! `HOSTLER_*` variables as settings.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use toml::Value;

use super::error::{ConfigError, Origin};
use super::layers::{Schema, Setting, nearest};
use super::token::TOKENS;

/// What all of them begin with.
const PREFIX: &str = "HOSTLER_";

/// Names the file that `--config` would.
pub(crate) const CONFIG_VARIABLE: &str = "HOSTLER_CONFIG";

/// Variables that are no keys, besides those that hold tokens. Keepers set the last one in what they start; it says nothing
/// to a host that finds it.
const RESERVED: [&str; 2] = [CONFIG_VARIABLE, hostler_core::PROCESS_ID_VARIABLE];

/// Whether a variable holds a token.
fn is_secret(name: &OsStr) -> bool {
    TOKENS.iter().any(|token| name == token.variable)
}

/// The variables of a process, in their order.
pub(crate) type Variables = [(OsString, OsString)];

/// The value of a variable; an empty one counts as not set.
pub(crate) fn lookup<'a>(variables: &'a Variables, name: &str) -> Option<&'a OsStr> {
    let found = variables.iter().find(|(key, _)| key == name)?;
    Some(found.1.as_os_str()).filter(|value| !value.is_empty())
}

/// What processes may inherit: everything but secrets.
pub(crate) fn without_secrets(variables: &Variables) -> Vec<(OsString, OsString)> {
    variables.iter().filter(|(name, _)| !is_secret(name)).cloned().collect()
}

/// The variable of a key.
pub(crate) fn variable_name(key: &str) -> String {
    format!("{PREFIX}{}", key.replace('.', "_").to_uppercase())
}

/// Finds the settings among the variables.
///
/// An empty variable is as good as none, so that a script may pass one on that it does not have, and none of these switches
/// a token off that a file asks for. For a list it is the empty list: there is no other way to write one, and a list of
/// what is allowed must not turn into its default because somebody's variable was empty.
pub(crate) fn settings(schema: &Schema, variables: &Variables) -> Result<Vec<Setting>, ConfigError> {
    let keys: BTreeMap<String, (String, &Value)> =
        schema.keys().into_iter().map(|(key, default)| (variable_name(&key), (key, default))).collect();
    let mut found = Vec::new();
    for (name, value) in variables.iter().filter(|(name, _)| name.as_bytes().starts_with(PREFIX.as_bytes())) {
        let name = name.to_string_lossy().into_owned();
        if RESERVED.contains(&name.as_str()) || is_secret(OsStr::new(&name)) {
            continue;
        }
        let Some((key, default)) = keys.get(&name) else {
            let others = TOKENS.iter().map(|token| token.variable).chain([CONFIG_VARIABLE]);
            let known = keys.into_keys().chain(others.map(str::to_owned));
            return Err(ConfigError::UnknownVariable { nearest: nearest(&name, known), name });
        };
        let origin = Origin::Variable(name);
        let Some(text) = value.to_str() else { return Err(ConfigError::NotText { origin }) };
        if text.is_empty() && !default.is_array() {
            continue;
        }
        found.push(Setting { key: key.clone(), value: value_like(default, text), origin });
    }
    Ok(found)
}

/// Reads text as the type that the key has. What cannot be read stays text, and is refused with its type's own words.
fn value_like(default: &Value, text: &str) -> Value {
    let as_text = || Value::String(text.to_owned());
    match default {
        Value::Integer(_) => text.parse().map_or_else(|_| as_text(), Value::Integer),
        Value::Boolean(_) => text.parse().map_or_else(|_| as_text(), Value::Boolean),
        Value::Array(_) if text.is_empty() => Value::Array(Vec::new()),
        Value::Array(_) => Value::Array(text.split(',').map(|item| Value::String(item.to_owned())).collect()),
        Value::String(_) | Value::Float(_) | Value::Datetime(_) | Value::Table(_) => as_text(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_a_variable_of_its_own() {
        let schema = Schema::new();
        let names: std::collections::BTreeSet<_> =
            schema.keys().iter().map(|(key, _)| variable_name(key)).collect();
        assert_eq!(names.len(), schema.keys().len());
        assert!(names.contains("HOSTLER_RUNTIME_OUTPUT_RELAY_BYTES_PER_SESSION"));
        for reserved in RESERVED.into_iter().chain(TOKENS.iter().map(|token| token.variable)) {
            assert!(!names.contains(reserved), "{reserved}");
        }
    }

    #[test]
    fn tokens_are_not_inherited_and_everything_else_is() {
        let given = [
            ("HOSTLER_A2E_AUTH_TOKEN", "x"),
            ("PATH", "/bin"),
            ("HOSTLER_A2E_HTTP_BEARER_TOKEN", "y"),
            ("HOSTLER_LOG_LEVEL", "info"),
        ]
        .map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let names: Vec<_> = without_secrets(&given).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["PATH", "HOSTLER_LOG_LEVEL"]);
    }
}
