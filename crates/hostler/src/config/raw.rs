//! The configuration as it is written: one field a key, with the name and the unit of the file.
//!
//! The types refuse what is not allowed and say what is, so that a value is checked in one place wherever it came from.

use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::de::{Error as _, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Cgroup, EventData, LogFormat, LogLevel, OnClientTimeout, ShellPolicy};

/// All keys. There are no optional ones: defaults come from the default file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Raw {
    pub(crate) a2e: RawA2e,
    pub(crate) mcp: RawMcp,
    pub(crate) runtime: RawRuntime,
    pub(crate) log: RawLog,
}

/// `[a2e]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawA2e {
    pub(crate) allowed_commands: List<CommandName>,
    pub(crate) max_processes: Whole<1, 1_000_000>,
    pub(crate) max_processes_total: Whole<1, 1_000_000>,
    pub(crate) default_timeout_s: Whole<0, 1_000_000_000>,
    pub(crate) auth_token_file: FilePath,
    pub(crate) event_data: Word<EventData>,
    pub(crate) push_events: Switch,
    pub(crate) http: RawHttp,
    pub(crate) audit: RawAudit,
}

/// `[a2e.http]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawHttp {
    pub(crate) bearer_token_file: FilePath,
    pub(crate) tls_cert: FilePath,
    pub(crate) tls_key: FilePath,
    pub(crate) allowed_hosts: List<HostName>,
    pub(crate) allowed_origins: List<PageOrigin>,
    pub(crate) max_sessions: Whole<1, 1_000_000>,
    pub(crate) max_connections: Whole<1, 1_000_000>,
    pub(crate) replay_bytes: Whole<0, TIB>,
    pub(crate) replay_replies: Whole<0, 1_000_000>,
    pub(crate) handshake_timeout_s: Whole<1, 86_400>,
    pub(crate) idle_timeout_s: Whole<1, 1_000_000_000>,
    pub(crate) busy_timeout_s: Whole<1, 1_000_000_000>,
}

/// `[a2e.audit]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawAudit {
    pub(crate) enabled: Switch,
    pub(crate) path: FilePath,
    /// The largest entry there can be, with an `id` and a `proc_id` of escapes alone, takes 48 KiB of it.
    pub(crate) max_bytes: Whole<65_536, TIB>,
    pub(crate) backup_count: Whole<0, 1000>,
}

/// `[mcp]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawMcp {
    pub(crate) nonzero_exit_is_error: Switch,
    pub(crate) max_wait_without_progress_ms: Whole<1, 600_000>,
    pub(crate) on_client_timeout: Word<OnClientTimeout>,
}

/// `[runtime]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawRuntime {
    pub(crate) state_dir: FilePath,
    pub(crate) processes: RawProcesses,
    pub(crate) tools: RawTools,
    pub(crate) skills: RawSkills,
    pub(crate) output: RawOutput,
}

/// `[runtime.tools]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawTools {
    pub(crate) shell: Word<ShellPolicy>,
}

/// `[runtime.skills]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawSkills {
    pub(crate) paths: List<Folder>,
}

/// `[runtime.processes]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawProcesses {
    pub(crate) stop_grace_ms: Whole<0, 600_000>,
    pub(crate) max_running: Whole<1, 1_000_000>,
    pub(crate) max_queued: Whole<0, 1_000_000>,
    pub(crate) cgroup: Word<Cgroup>,
}

/// `[runtime.output]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawOutput {
    pub(crate) buffer_bytes: Whole<4096, 16_777_216>,
    pub(crate) relay_bytes_per_process: Whole<65_536, TIB>,
    pub(crate) relay_bytes_per_session: Whole<65_536, TIB>,
    pub(crate) artifact_bytes_per_process: Whole<0, TIB>,
    pub(crate) artifact_bytes_per_session: Whole<0, TIB>,
    pub(crate) artifact_bytes_total: Whole<0, TIB>,
}

/// `[log]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawLog {
    pub(crate) level: Word<LogLevel>,
    pub(crate) format: Word<LogFormat>,
}

const TIB: u64 = 1 << 40;

/// A whole number from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Whole<const MIN: u64, const MAX: u64>(u64);

impl<const MIN: u64, const MAX: u64> Whole<MIN, MAX> {
    pub(crate) fn get(self) -> u64 {
        self.0
    }
}

impl<const MIN: u64, const MAX: u64> Serialize for Whole<MIN, MAX> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Whole<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Number<const MIN: u64, const MAX: u64>;
        impl<const MIN: u64, const MAX: u64> Visitor<'_> for Number<MIN, MAX> {
            type Value = Whole<MIN, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a whole number from {MIN} to {MAX}")
            }

            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Self::Value, E> {
                u64::try_from(number)
                    .ok()
                    .filter(|n| (MIN..=MAX).contains(n))
                    .map(Whole)
                    .ok_or_else(|| E::invalid_value(Unexpected::Signed(number), &self))
            }
        }
        deserializer.deserialize_i64(Number)
    }
}

/// An absolute path, or none where the text is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FilePath(Option<PathBuf>);

impl FilePath {
    pub(crate) fn get(&self) -> Option<&Path> {
        self.0.as_deref()
    }
}

impl Serialize for FilePath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // It was made from text, so nothing is lost here.
        serializer.serialize_str(&self.get().unwrap_or(Path::new("")).to_string_lossy())
    }
}

impl<'de> Deserialize<'de> for FilePath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.as_str() {
            "" => Ok(Self(None)),
            path if path.starts_with('/') && !path.contains('\0') => Ok(Self(Some(PathBuf::from(path)))),
            path => Err(D::Error::invalid_value(Unexpected::Str(path), &"an absolute path, or nothing")),
        }
    }
}

/// What the texts of a list are.
pub(crate) trait Item {
    /// How a list of them is called.
    const LIST: &'static str;

    fn is_allowed(text: &str) -> bool;
}

/// A word that an agent's command may begin with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CommandName {}

impl Item for CommandName {
    const LIST: &'static str = "a list of names of commands, none of them empty or with a blank at an end";

    fn is_allowed(text: &str) -> bool {
        !text.is_empty() && !text.contains('\0') && text.trim() == text
    }
}

/// A folder, by its absolute path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Folder {}

impl Item for Folder {
    const LIST: &'static str = "a list of absolute paths of folders";

    fn is_allowed(text: &str) -> bool {
        text.starts_with('/') && !text.contains('\0')
    }
}

/// A name that a `Host` header may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HostName {}

impl Item for HostName {
    const LIST: &'static str = "a list of host names, such as \"build.example\", without scheme or port";

    fn is_allowed(text: &str) -> bool {
        let is_of_a_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
        !text.is_empty() && text.bytes().all(is_of_a_name)
    }
}

/// What a web page comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PageOrigin {}

impl Item for PageOrigin {
    const LIST: &'static str =
        "a list of origins, such as \"https://tool.example\" or \"http://localhost:3000\", without a path";

    fn is_allowed(text: &str) -> bool {
        let is_of_a_host =
            |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'/' | b'?' | b'#' | b'@' | b'*');
        text.split_once("://").is_some_and(|(scheme, host)| {
            scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'))
                && !scheme.is_empty()
                && !host.is_empty()
                && host.bytes().all(is_of_a_host)
        })
    }
}

/// A list of texts of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct List<I>(Vec<String>, PhantomData<I>);

impl<I> List<I> {
    pub(crate) fn get(&self) -> &[String] {
        &self.0
    }
}

impl<I> Serialize for List<I> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de, I: Item> Deserialize<'de> for List<I> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Texts<I>(PhantomData<I>);
        impl<'de, I: Item> Visitor<'de> for Texts<I> {
            type Value = List<I>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(I::LIST)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
                let mut texts = Vec::new();
                while let Some(text) = items.next_element::<String>()? {
                    if !I::is_allowed(&text) {
                        return Err(A::Error::invalid_value(Unexpected::Str(&text), &self));
                    }
                    texts.push(text);
                }
                Ok(List(texts, PhantomData))
            }
        }
        deserializer.deserialize_seq(Texts(PhantomData))
    }
}

/// One of the words that the enum's values are called by on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word<T>(T);

impl<T: ValueEnum + Copy> Word<T> {
    pub(crate) fn get(self) -> T {
        self.0
    }
}

impl<T: ValueEnum> Serialize for Word<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.to_possible_value().as_ref().map_or("", |word| word.get_name()))
    }
}

impl<'de, T: ValueEnum> Deserialize<'de> for Word<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Words<T>(PhantomData<T>);
        impl<T: ValueEnum> Visitor<'_> for Words<T> {
            type Value = Word<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let words = T::value_variants().iter().filter_map(ValueEnum::to_possible_value);
                let words: Vec<_> = words.map(|word| format!("\"{}\"", word.get_name())).collect();
                match words.split_last() {
                    Some((last, others)) if !others.is_empty() => {
                        write!(f, "{} or {last}", others.join(", "))
                    }
                    Some((only, _)) => f.write_str(only),
                    None => f.write_str("nothing"),
                }
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
                let found = T::from_str(text, false);
                found.map(Word).map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_str(Words(PhantomData))
    }
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(crate) struct Switch(bool);

impl Switch {
    pub(crate) fn get(self) -> bool {
        self.0
    }
}

impl<'de> Deserialize<'de> for Switch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OnOff;
        impl Visitor<'_> for OnOff {
            type Value = Switch;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true or false")
            }

            fn visit_bool<E>(self, on: bool) -> Result<Self::Value, E> {
                Ok(Switch(on))
            }
        }
        deserializer.deserialize_bool(OnOff)
    }
}
