//! The configuration of the Python SDK's host, for those who move from it: `docs/sdk.md`.
//!
//! Its keys become settings of ours, above all files and below variables and flags. What has no effect here is said, key
//! by key, and what cannot be honoured keeps the host from starting: nothing is ignored in silence.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use serde_saphyr::UserMessageFormatter;

use super::error::{ConfigError, Origin, SdkProblem};
use super::file;
use super::layers::Setting;
use super::token::{AUTH, Token};

/// How the SDK's host would be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SdkTransport {
    /// As a child, by standard input and output.
    Stdio,
    /// By HTTP, at this address.
    Http(String),
}

/// What a file says.
#[derive(Debug, Default)]
pub(crate) struct Sdk {
    pub(crate) settings: Vec<Setting>,
    pub(crate) auth_token: Option<Token>,
    pub(crate) transport: Option<SdkTransport>,
    pub(crate) warnings: Vec<String>,
}

/// The smallest values that ours have where the SDK has smaller ones.
const MIN_ROTATE_BYTES: i64 = 65_536;
const MIN_RELAY_BYTES: i64 = 65_536;

/// More values than any configuration has, counted with those that aliases repeat.
const MAX_NODES: usize = 20_000;

/// Reads a file, which must be there.
pub(crate) fn read(path: &Path) -> Result<Sdk, ConfigError> {
    let text = file::read(path)?.ok_or_else(|| ConfigError::ReadFile {
        path: path.to_owned(),
        source: rustix::io::Errno::NOENT.into(),
    })?;
    parse(path, &text)
}

fn parse(path: &Path, text: &str) -> Result<Sdk, ConfigError> {
    let reader = Reader { path: path.to_owned() };
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let document = yaml(text).map_err(|reason| reader.problem("", SdkProblem::Syntax { reason }))?;
    let mut sdk = Sdk::default();
    reader.document(document, &mut sdk)?;
    Ok(sdk)
}

/// The one document of a text, or what is wrong with it. It quotes no text of the file but names of keys: that may
/// be a token.
fn yaml(text: &str) -> Result<Value, String> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_nodes: MAX_NODES },
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| error.render_with_formatter(&UserMessageFormatter).replace('\n', "; "))
}

/// A mapping whose keys are taken out as they are read; what is left at the end has no effect.
struct Section<'r> {
    reader: &'r Reader,
    at: String,
    keys: Map<String, Value>,
}

struct Reader {
    path: PathBuf,
}

impl Reader {
    fn problem(&self, key: &str, problem: SdkProblem) -> ConfigError {
        ConfigError::Sdk { origin: self.origin(key), problem }
    }

    fn origin(&self, key: &str) -> Origin {
        Origin::Sdk { path: self.path.clone(), key: key.to_owned() }
    }

    fn section(&self, at: &str, value: Value) -> Result<Section<'_>, ConfigError> {
        match value {
            Value::Object(keys) => Ok(Section { reader: self, at: at.to_owned(), keys }),
            // An empty file, or a key with nothing behind it.
            Value::Null => Ok(Section { reader: self, at: at.to_owned(), keys: Map::new() }),
            Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                Err(self.problem(at, SdkProblem::Expected { what: "keys and values" }))
            }
        }
    }

    fn document(&self, document: Value, sdk: &mut Sdk) -> Result<(), ConfigError> {
        let mut root = self.section("", document)?;
        // Its clients take events for replies otherwise, and nothing but objects in them.
        for (key, value) in
            [("a2e.event_data", "object".into()), ("a2e.push_events", toml::Value::Boolean(true))]
        {
            sdk.settings.push(Setting { key: key.to_owned(), value, origin: self.origin("") });
        }
        sdk.auth_token = match root.text("auth_token")? {
            Some(token) if !token.is_empty() => {
                Some(AUTH.parse(token.as_bytes(), &self.origin("auth_token"))?)
            }
            Some(_) | None => None,
        };
        self.transport(&mut root, sdk)?;
        self.audit(&mut root, sdk)?;
        self.plugins(&mut root, sdk)?;
        root.warn_of_the_rest(sdk);
        Ok(())
    }

    fn transport(&self, root: &mut Section<'_>, sdk: &mut Sdk) -> Result<(), ConfigError> {
        let mut server = root.section("server")?;
        let host = server.text("host")?;
        let port = server.whole("port", 0..=65_535, "a port, 0 to 65535")?;
        server.warn_of_the_rest(sdk);
        let mut transport = root.section("transport")?;
        let kind = transport.text("type")?;
        transport.warn_of_the_rest(sdk);
        sdk.transport = Some(match kind.as_deref() {
            None | Some("http") => {
                let (host, port) = (host.as_deref().unwrap_or("127.0.0.1"), port.unwrap_or(8765));
                SdkTransport::Http(if host.contains(':') {
                    format!("[{host}]:{port}")
                } else {
                    format!("{host}:{port}")
                })
            }
            Some("direct" | "subprocess") => {
                let unused = [("server.host", host.is_some()), ("server.port", port.is_some())];
                sdk.warnings
                    .extend(unused.iter().filter(|(_, set)| *set).map(|(key, _)| self.no_effect(key)));
                SdkTransport::Stdio
            }
            Some(_) => return Err(self.problem("transport.type", SdkProblem::Transport)),
        });
        Ok(())
    }

    fn audit(&self, root: &mut Section<'_>, sdk: &mut Sdk) -> Result<(), ConfigError> {
        let mut audit = root.section("audit")?;
        let (enabled, path) = (audit.switch("enabled")?, audit.text("path")?);
        match (enabled, &path) {
            // There it goes to the log then, which is for people here.
            (Some(true), None) => sdk.warnings.push(self.no_effect("audit.enabled, without audit.path,")),
            (Some(enabled), _) => {
                audit.set(sdk, "enabled", "a2e.audit.enabled", toml::Value::Boolean(enabled));
            }
            (None, _) => {}
        }
        if let Some(path) = path {
            // Relative to the working directory, as the SDK has it. What cannot be resolved stays as it is, and is refused
            // by those who judge settings.
            let path = std::path::absolute(&path).unwrap_or_else(|_| path.into());
            let origin = self.origin("audit.path");
            let path = path.to_str().ok_or(ConfigError::NotText { origin })?;
            audit.set(sdk, "path", "a2e.audit.path", path.into());
        }
        let mut rotate = audit.section("rotate")?;
        if let Some(bytes) = rotate.whole("max_bytes", 0..=i64::MAX, "a number of bytes")? {
            let bytes = rotate.at_least(sdk, "max_bytes", bytes, MIN_ROTATE_BYTES);
            rotate.set(sdk, "max_bytes", "a2e.audit.max_bytes", bytes.into());
        }
        if let Some(count) = rotate.whole("backup_count", 0..=i64::MAX, "a number of files")? {
            rotate.set(sdk, "backup_count", "a2e.audit.backup_count", count.into());
        }
        rotate.warn_of_the_rest(sdk);
        audit.warn_of_the_rest(sdk);
        Ok(())
    }

    fn plugins(&self, root: &mut Section<'_>, sdk: &mut Sdk) -> Result<(), ConfigError> {
        let plugins = match root.keys.remove("plugins") {
            Some(Value::Array(plugins)) => plugins,
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_)) => {
                return Err(self.problem("plugins", SdkProblem::Expected { what: "a list of plugins" }));
            }
        };
        let (mut hosted, mut switched_off) = (None, None);
        for (number, plugin) in plugins.into_iter().enumerate() {
            let at = format!("plugins[{number}]");
            let mut plugin = self.section(&at, plugin)?;
            let kind = plugin.text("type")?;
            let class = plugin.text("cls")?;
            // A name of its own, which says nothing.
            plugin.text("name")?;
            if hosted.is_none() && is_proc(kind.as_deref(), class.as_deref()) {
                let mut metadata = plugin.section("metadata")?;
                if metadata.switch("enabled")? != Some(false) {
                    plugin.warn_of_the_rest(sdk);
                    hosted = Some(metadata);
                    continue;
                }
                switched_off.get_or_insert(metadata.key("enabled"));
            }
            sdk.warnings.push(self.no_effect(&at));
        }
        let mut metadata = hosted.ok_or_else(|| {
            self.problem(switched_off.as_deref().unwrap_or("plugins"), SdkProblem::NoProcPlugin)
        })?;
        self.proc_plugin(&mut metadata, sdk)?;
        metadata.warn_of_the_rest(sdk);
        Ok(())
    }

    fn proc_plugin(&self, metadata: &mut Section<'_>, sdk: &mut Sdk) -> Result<(), ConfigError> {
        let off = metadata.either("DISABLE_NETWORK", "network_disabled")?;
        if let Some((key, value)) = off
            && Section::as_switch(&value).ok_or_else(|| metadata.expected(key, "true or false"))?
        {
            return Err(self.problem(&metadata.key(key), SdkProblem::DisableNetwork));
        }
        if let Some((key, value)) = metadata.either("ALLOWED_COMMANDS", "allowed_commands")? {
            let names = Section::as_texts(&value).ok_or_else(|| metadata.expected(key, "a list of texts"))?;
            metadata.set(sdk, key, "a2e.allowed_commands", names.into());
        }
        for (upper, lower, ours, least) in [
            ("DEFAULT_TIMEOUT", "timeout", "a2e.default_timeout_s", 0),
            ("MAX_PROCS", "max_procs", "a2e.max_processes", 0),
            (
                "MAX_OUTPUT_BYTES",
                "max_output_bytes",
                "runtime.output.relay_bytes_per_process",
                MIN_RELAY_BYTES,
            ),
        ] {
            let Some((key, value)) = metadata.either(upper, lower)? else { continue };
            let whole = Section::as_whole(&value).filter(|number| *number >= 0);
            let number = whole.ok_or_else(|| metadata.expected(key, "a whole number, not negative"))?;
            let number = metadata.at_least(sdk, key, number, least);
            metadata.set(sdk, key, ours, number.into());
        }
        Ok(())
    }

    fn no_effect(&self, key: &str) -> String {
        // A name may be any text; the message stays one line.
        format!("{}: {} has no effect here", self.path.display(), key.escape_debug())
    }
}

/// Whether type or class of a plugin are those of the one for processes. Anything that is merely like them is another
/// plugin: were it taken for this one, its allowlist, or the default, would hold instead of the one that was written.
fn is_proc(kind: Option<&str>, class: Option<&str>) -> bool {
    let class = class.and_then(|path| path.rsplit(['.', ':']).next());
    matches!(kind, Some("proc" | "procs")) || matches!(class, Some("ProcPlugin" | "ProcsPlugin"))
}

impl Section<'_> {
    /// The full name of a key.
    fn key(&self, name: &str) -> String {
        if self.at.is_empty() { name.to_owned() } else { format!("{}.{name}", self.at) }
    }

    fn expected(&self, name: &str, what: &'static str) -> ConfigError {
        self.reader.problem(&self.key(name), SdkProblem::Expected { what })
    }

    fn section(&mut self, name: &str) -> Result<Self, ConfigError> {
        let value = self.keys.remove(name).unwrap_or_default();
        self.reader.section(&self.key(name), value)
    }

    /// A key that is there and not null.
    fn take(&mut self, name: &str) -> Option<Value> {
        self.keys.remove(name).filter(|value| !value.is_null())
    }

    fn text(&mut self, name: &str) -> Result<Option<String>, ConfigError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.expected(name, "a text")),
        }
    }

    fn switch(&mut self, name: &str) -> Result<Option<bool>, ConfigError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        Self::as_switch(&value).map(Some).ok_or_else(|| self.expected(name, "true or false"))
    }

    fn whole(
        &mut self,
        name: &str,
        range: std::ops::RangeInclusive<i64>,
        what: &'static str,
    ) -> Result<Option<i64>, ConfigError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = Self::as_whole(&value).filter(|number| range.contains(number));
        number.map(Some).ok_or_else(|| self.expected(name, what))
    }

    /// A key that has two spellings, which must not differ.
    fn either(
        &mut self,
        upper: &'static str,
        lower: &'static str,
    ) -> Result<Option<(&'static str, Value)>, ConfigError> {
        match (self.take(upper), self.take(lower)) {
            (Some(a), Some(b)) if a != b => {
                let other = self.key(lower);
                Err(self.reader.problem(&self.key(upper), SdkProblem::TwoValues { other }))
            }
            (Some(value), _) => Ok(Some((upper, value))),
            (None, Some(value)) => Ok(Some((lower, value))),
            (None, None) => Ok(None),
        }
    }

    fn as_switch(value: &Value) -> Option<bool> {
        value.as_bool()
    }

    fn as_whole(value: &Value) -> Option<i64> {
        #[expect(clippy::cast_possible_truncation, reason = "only where it is a whole number in that range")]
        let of_float = || value.as_f64().filter(|f| f.fract() == 0.0 && f.abs() < 1e15).map(|f| f as i64);
        value.as_i64().or_else(of_float)
    }

    fn as_texts(value: &Value) -> Option<Vec<String>> {
        value.as_array()?.iter().map(|item| Some(item.as_str()?.to_owned())).collect()
    }

    fn set(&self, sdk: &mut Sdk, name: &str, ours: &str, value: toml::Value) {
        let origin = self.reader.origin(&self.key(name));
        sdk.settings.push(Setting { key: ours.to_owned(), value, origin });
    }

    /// A number that is not smaller than ours may be.
    fn at_least(&self, sdk: &mut Sdk, name: &str, number: i64, least: i64) -> i64 {
        if number < least {
            let (path, key) = (self.reader.path.display(), self.key(name));
            sdk.warnings.push(format!("{path}: {key} is {number}; the least here is {least}, which is used"));
        }
        number.max(least)
    }

    fn warn_of_the_rest(self, sdk: &mut Sdk) {
        let rest = self.keys.keys().map(|name| self.reader.no_effect(&self.key(name)));
        sdk.warnings.extend(rest);
    }
}

#[cfg(test)]
mod tests;
