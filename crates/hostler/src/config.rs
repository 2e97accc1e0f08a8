//! The configuration: layers of settings become one validated [`Config`], which is all that the rest sees.
//!
//! Defaults < `$XDG_CONFIG_HOME/hostler/config.toml` < `--config` or `$HOSTLER_CONFIG` < `--sdk-config` < `HOSTLER_*` < flags. Nothing is
//! read from the working directory. The keys and their defaults stand once, in `config/default.toml`; their types and
//! ranges once, in [`raw`]. This module reads files only in [`load`], and takes the environment as a value.

mod environment;
mod error;
mod file;
mod layers;
mod raw;
mod sdk;
mod token;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;

pub(crate) use environment::{lookup, without_secrets};
pub(crate) use error::{ConfigError, Origin, SdkProblem};
pub(crate) use layers::{DEFAULT_FILE, Schema, Setting};
use raw::{Raw, RawHttp};
pub(crate) use sdk::SdkTransport;
pub(crate) use token::Token;
use token::TokenPlace;

/// Everything that can be configured, checked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Config {
    pub(crate) a2e: A2e,
    pub(crate) mcp: Mcp,
    pub(crate) runtime: Runtime,
    pub(crate) log: Log,
}

/// The A2E host.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct A2e {
    /// Words that a command may begin with.
    pub(crate) allowed_commands: Vec<String>,
    /// Live processes of a session.
    pub(crate) max_processes: usize,
    /// Live processes of all sessions.
    pub(crate) max_processes_total: usize,
    /// For processes that are started without a timeout.
    pub(crate) default_timeout: Option<Duration>,
    /// What an agent must show in its handshake.
    pub(crate) auth_token: Option<Token>,
    pub(crate) event_data: EventData,
    /// Whether events leave out the id of the request that started their process.
    pub(crate) push_events: bool,
    pub(crate) http: Http,
    pub(crate) audit: Option<Audit>,
}

/// The A2E host over HTTP.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Http {
    /// What every request must bring.
    pub(crate) bearer_token: Option<Token>,
    pub(crate) tls: Option<Tls>,
    pub(crate) allowed_hosts: Vec<String>,
    pub(crate) allowed_origins: Vec<String>,
    pub(crate) max_sessions: usize,
    pub(crate) max_connections: usize,
    /// Messages of a session that can be had again, in bytes.
    pub(crate) replay_bytes: u64,
    /// Replies before these.
    pub(crate) replay_replies: usize,
    pub(crate) handshake_timeout: Duration,
    /// For a session without live processes.
    pub(crate) idle_timeout: Duration,
    /// For a session with live processes.
    pub(crate) busy_timeout: Duration,
}

/// Files in PEM.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tls {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

/// The record of handled `proc/*` requests.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Audit {
    pub(crate) path: PathBuf,
    /// Size at which a new file is begun.
    pub(crate) max_bytes: u64,
    /// Older files that are kept.
    pub(crate) backup_count: usize,
    pub(crate) folder: AuditFolder,
}

/// Whether the folder of the audit is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuditFolder {
    /// It must be there.
    MustExist,
    /// It is, as a host of the Python SDK does.
    Made,
}

/// The shell tools over MCP.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mcp {
    /// Whether a call fails whose command exits with another code than 0.
    pub(crate) nonzero_exit_is_error: bool,
    /// For a client that asks for no progress.
    pub(crate) max_wait_without_progress: Duration,
    pub(crate) on_client_timeout: OnClientTimeout,
}

/// What holds for processes of every face.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Runtime {
    /// Where state lives; `None` leaves the choice to the usual folders.
    pub(crate) state_dir: Option<PathBuf>,
    /// Time between asking a process to end and killing it.
    pub(crate) stop_grace: Duration,
    /// Commands of a shell session at a time.
    pub(crate) max_running: usize,
    /// Those that wait.
    pub(crate) max_queued: usize,
    pub(crate) cgroup: Cgroup,
    pub(crate) shell: ShellPolicy,
    /// Folders with skills.
    pub(crate) skills: Vec<PathBuf>,
    pub(crate) output: Output,
}

/// How much output is held, in bytes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Output {
    /// In memory, a stream.
    pub(crate) buffer_bytes: usize,
    /// Not yet taken by the session's reader, a process.
    pub(crate) relay_bytes_per_process: u64,
    /// Not yet taken by the session's reader, all processes of a session.
    pub(crate) relay_bytes_per_session: u64,
    /// Saved, a shell command.
    pub(crate) artifact_bytes_per_process: u64,
    /// Saved, all commands of a session.
    pub(crate) artifact_bytes_per_session: u64,
    /// Saved, all sessions.
    pub(crate) artifact_bytes_total: u64,
}

/// Messages on standard error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Log {
    pub(crate) level: LogLevel,
    pub(crate) format: LogFormat,
}

/// The shape of `data` in events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EventData {
    /// JSON text in a string.
    String,
    /// A JSON object.
    Object,
}

/// Whether processes get control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Cgroup {
    /// Where they can be made.
    Auto,
    /// Never.
    Off,
}

/// What becomes of a command whose client has stopped waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnClientTimeout {
    /// It goes on.
    Detach,
    /// It is stopped.
    Kill,
}

/// Whether agents may use the shell tools that act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ShellPolicy {
    /// They may.
    Allow,
    /// A person is asked.
    Ask,
    /// They may not.
    Deny,
}

/// The least serious message that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// The form of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// A line for people.
    Text,
    /// An object a line.
    Json,
}

/// Where settings may come from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources {
    /// The variables of this process.
    pub(crate) variables: Vec<(OsString, OsString)>,
    /// The file of `--config`, absolute.
    pub(crate) file: Option<PathBuf>,
    /// The file of `--sdk-config`, absolute.
    pub(crate) sdk_file: Option<PathBuf>,
    /// What other flags set.
    pub(crate) flags: Vec<Setting>,
}

/// A configuration and what it was made of.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    pub(crate) config: Config,
    /// Files that were read, in the order of their layers.
    pub(crate) files: Vec<PathBuf>,
    /// What the Python SDK's configuration says of the transport.
    pub(crate) sdk_transport: Option<SdkTransport>,
    /// What is to be said of it once there is a log.
    pub(crate) warnings: Vec<String>,
    effective: Raw,
}

impl Loaded {
    /// The effective value of every key as TOML, without secrets; comments say which of those are in force.
    pub(crate) fn to_toml(&self) -> Result<String, toml::ser::Error> {
        let mut text = toml::to_string(&self.effective)?;
        let a2e = &self.config.a2e;
        for (token, asked_of) in
            [(&a2e.auth_token, "a handshake"), (&a2e.http.bearer_token, "every request over HTTP")]
        {
            if token.is_some() {
                text += &format!("# A token, not shown here, is asked of {asked_of}.\n");
            }
        }
        Ok(text)
    }
}

/// Reads all layers and checks them.
pub(crate) fn load(sources: &Sources) -> Result<Loaded, ConfigError> {
    let schema = Schema::new();
    let mut settings = Vec::new();
    let mut files = Vec::new();
    let user = user_file(&sources.variables);
    let explicit = explicit_file(sources)?;
    for (path, missing) in
        user.iter().map(|p| (p, Missing::Fine)).chain(explicit.iter().map(|p| (p, Missing::Error)))
    {
        let Some(text) = file::read(path)? else {
            match missing {
                Missing::Fine => continue,
                Missing::Error => {
                    let source = rustix::io::Errno::NOENT.into();
                    return Err(ConfigError::ReadFile { path: path.clone(), source });
                }
            }
        };
        settings.extend(file::settings(&schema, path, &text)?);
        files.push(path.clone());
    }
    let mut sdk = sources.sdk_file.as_deref().map(sdk::read).transpose()?.unwrap_or_default();
    settings.append(&mut sdk.settings);
    files.extend(sources.sdk_file.clone());
    settings.extend(environment::settings(&schema, &sources.variables)?);
    settings.extend(sources.flags.iter().cloned());
    let effective = layers::merge(&schema, &settings)?;
    let origins = Origins(&settings);
    let a2e = &effective.a2e;
    let tokens = Tokens {
        auth: find_token(&token::AUTH, a2e.auth_token_file.get(), sdk.auth_token, &origins, sources)?,
        bearer: find_token(&token::BEARER, a2e.http.bearer_token_file.get(), None, &origins, sources)?,
    };
    let config = validate(&effective, tokens, &origins)?;
    Ok(Loaded { config, files, sdk_transport: sdk.transport, warnings: sdk.warnings, effective })
}

/// The secrets of a configuration.
struct Tokens {
    auth: Option<Token>,
    bearer: Option<Token>,
}

/// The variable wins, then the file that a variable names, then the Python SDK's configuration, then any other file.
fn find_token(
    place: &TokenPlace,
    file: Option<&Path>,
    in_sdk: Option<Token>,
    origins: &Origins<'_>,
    sources: &Sources,
) -> Result<Option<Token>, ConfigError> {
    if let Some(token) = place.in_variable(&sources.variables)? {
        return Ok(Some(token));
    }
    let origin = origins.of(place.key);
    match (file, in_sdk) {
        (Some(path), Some(token)) => match origin {
            Origin::Variable(_) => place.in_file(path, &origin).map(Some),
            Origin::Default | Origin::File { .. } | Origin::Sdk { .. } | Origin::Flag(_) => Ok(Some(token)),
        },
        (Some(path), None) => place.in_file(path, &origin).map(Some),
        (None, token) => Ok(token),
    }
}

#[derive(Clone, Copy)]
enum Missing {
    Fine,
    Error,
}

/// `$XDG_CONFIG_HOME/hostler/config.toml` or the same below `~/.config`; relative folders are ignored, as the XDG base
/// directory specification wants it.
fn user_file(variables: &environment::Variables) -> Option<PathBuf> {
    let folder = |name| lookup(variables, name).map(Path::new).filter(|path| path.is_absolute());
    let config =
        folder("XDG_CONFIG_HOME").map(Path::to_owned).or_else(|| Some(folder("HOME")?.join(".config")))?;
    Some(config.join("hostler/config.toml"))
}

fn explicit_file(sources: &Sources) -> Result<Option<PathBuf>, ConfigError> {
    if sources.file.is_some() {
        return Ok(sources.file.clone());
    }
    match lookup(&sources.variables, environment::CONFIG_VARIABLE).map(Path::new) {
        Some(path) if path.is_relative() => Err(ConfigError::RelativeFile { path: path.into() }),
        path => Ok(path.map(Path::to_owned)),
    }
}

/// Who set what: the last setting of a key is the one that holds.
struct Origins<'a>(&'a [Setting]);

impl Origins<'_> {
    fn of(&self, key: &str) -> Origin {
        self.0
            .iter()
            .rfind(|setting| setting.key == key)
            .map_or(Origin::Default, |setting| setting.origin.clone())
    }
}

fn validate(raw: &Raw, tokens: Tokens, origins: &Origins<'_>) -> Result<Config, ConfigError> {
    let a2e = &raw.a2e;
    let output = &raw.runtime.output;
    let audit = match (a2e.audit.enabled.get(), a2e.audit.path.get()) {
        (false, _) => None,
        (true, None) => {
            return Err(ConfigError::AuditWithoutPath { origin: origins.of("a2e.audit.enabled") });
        }
        (true, Some(path)) => Some(Audit {
            path: path.to_owned(),
            max_bytes: a2e.audit.max_bytes.get(),
            backup_count: count(a2e.audit.backup_count.get()),
            folder: match origins.of("a2e.audit.path") {
                Origin::Sdk { .. } => AuditFolder::Made,
                Origin::Default | Origin::File { .. } | Origin::Variable(_) | Origin::Flag(_) => {
                    AuditFolder::MustExist
                }
            },
        }),
    };
    Ok(Config {
        a2e: A2e {
            allowed_commands: a2e.allowed_commands.get().to_vec(),
            max_processes: count(a2e.max_processes.get()),
            max_processes_total: count(a2e.max_processes_total.get()),
            default_timeout: Some(a2e.default_timeout_s.get()).filter(|s| *s > 0).map(Duration::from_secs),
            auth_token: tokens.auth,
            event_data: a2e.event_data.get(),
            push_events: a2e.push_events.get(),
            http: http(&a2e.http, tokens.bearer, origins)?,
            audit,
        },
        mcp: Mcp {
            nonzero_exit_is_error: raw.mcp.nonzero_exit_is_error.get(),
            max_wait_without_progress: Duration::from_millis(raw.mcp.max_wait_without_progress_ms.get()),
            on_client_timeout: raw.mcp.on_client_timeout.get(),
        },
        runtime: Runtime {
            state_dir: raw.runtime.state_dir.get().map(Path::to_owned),
            stop_grace: Duration::from_millis(raw.runtime.processes.stop_grace_ms.get()),
            max_running: count(raw.runtime.processes.max_running.get()),
            max_queued: count(raw.runtime.processes.max_queued.get()),
            cgroup: raw.runtime.processes.cgroup.get(),
            shell: raw.runtime.tools.shell.get(),
            skills: raw.runtime.skills.paths.get().iter().map(PathBuf::from).collect(),
            output: Output {
                buffer_bytes: count(output.buffer_bytes.get()),
                relay_bytes_per_process: output.relay_bytes_per_process.get(),
                relay_bytes_per_session: output.relay_bytes_per_session.get(),
                artifact_bytes_per_process: output.artifact_bytes_per_process.get(),
                artifact_bytes_per_session: output.artifact_bytes_per_session.get(),
                artifact_bytes_total: output.artifact_bytes_total.get(),
            },
        },
        log: Log { level: raw.log.level.get(), format: raw.log.format.get() },
    })
}

fn http(raw: &RawHttp, bearer_token: Option<Token>, origins: &Origins<'_>) -> Result<Http, ConfigError> {
    const CERT: &str = "a2e.http.tls_cert";
    const KEY: &str = "a2e.http.tls_key";
    let half = |set, missing| ConfigError::HalfOfTls { origin: origins.of(set), set, missing };
    let tls = match (raw.tls_cert.get(), raw.tls_key.get()) {
        (None, None) => None,
        (Some(_), None) => return Err(half(CERT, KEY)),
        (None, Some(_)) => return Err(half(KEY, CERT)),
        (Some(certificate), Some(key)) => {
            Some(Tls { certificate: certificate.to_owned(), key: key.to_owned() })
        }
    };
    Ok(Http {
        bearer_token,
        tls,
        allowed_hosts: raw.allowed_hosts.get().to_vec(),
        allowed_origins: raw.allowed_origins.get().to_vec(),
        max_sessions: count(raw.max_sessions.get()),
        max_connections: count(raw.max_connections.get()),
        replay_bytes: raw.replay_bytes.get(),
        replay_replies: count(raw.replay_replies.get()),
        handshake_timeout: Duration::from_secs(raw.handshake_timeout_s.get()),
        idle_timeout: Duration::from_secs(raw.idle_timeout_s.get()),
        busy_timeout: Duration::from_secs(raw.busy_timeout_s.get()),
    })
}

/// The ranges of counts fit any machine that this runs on; where they did not, the largest count would do.
fn count(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;
