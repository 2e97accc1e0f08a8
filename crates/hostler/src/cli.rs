//! The command line. Each flag that sets a key names it in its help, with the default from the default file.

use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args, CommandFactory, Parser, Subcommand, ValueEnum};
use hostler_http::ClearText;
use toml::Value;

use crate::config::{ConfigError, EventData, LogLevel, Origin, Schema, SdkProblem, SdkTransport, Setting};

const EXIT_STATUS: &str = "\
Exit status:
  0  done
  1  failed while running
  2  the command line or the configuration cannot be used";

/// Run, feed, watch and stop the processes of AI agents.
#[derive(Debug, Parser)]
#[command(name = "hostler", version, after_help = EXIT_STATUS, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct Common {
    /// Read this configuration file too, instead of the one that HOSTLER_CONFIG names
    #[arg(long, global = true, value_name = "FILE", display_order = 100)]
    config: Option<PathBuf>,
    /// Write messages from this level on to standard error
    #[arg(long, global = true, value_enum, value_name = "LEVEL", display_order = 101)]
    log_level: Option<LogLevel>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Host processes for an agent over A2E
    #[command(
        after_help = EXIT_STATUS,
        override_usage = "hostler a2e <--stdio | --http ADDR | --sdk-config FILE> [OPTIONS]"
    )]
    A2e(A2eArgs),
    /// Give an agent a shell over MCP, on standard input and output
    #[command(after_help = EXIT_STATUS)]
    Mcp(McpArgs),
    /// Print the configuration
    #[command(after_help = EXIT_STATUS)]
    Config(ConfigArgs),
    /// Show what this machine offers and what will be used
    #[command(after_help = EXIT_STATUS)]
    Doctor(DoctorArgs),
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("transport").required(true).multiple(true).args(["stdio", "http", "sdk_config"]))]
pub(crate) struct A2eArgs {
    /// Talk to the agent over standard input and output, one JSON object a line
    #[arg(long, conflicts_with = "http")]
    stdio: bool,
    /// Serve agents over HTTP at HOST:PORT, or at a socket: unix:PATH
    #[arg(long, value_name = "ADDR")]
    http: Option<String>,
    /// Serve other machines in clear text, tokens too
    #[arg(long, conflicts_with = "stdio")]
    insecure_http: bool,
    /// Read the configuration of a Python SDK host; its transport is used unless another one is named
    #[arg(long, value_name = "FILE")]
    sdk_config: Option<PathBuf>,
    /// Allow these commands and no others
    #[arg(long, value_name = "CMD,...", value_delimiter = ',')]
    allow: Option<Vec<String>>,
    /// Allow a session this many live processes
    #[arg(long, value_name = "N")]
    max_processes: Option<i64>,
    /// Write `data` of events in this shape
    #[arg(long, value_enum, value_name = "SHAPE")]
    event_data: Option<EventData>,
    /// Leave `req_id` of events empty
    #[arg(long)]
    push_events: bool,
    /// Append a JSON line for each handled `proc/*` request to this file
    #[arg(long, value_name = "FILE")]
    audit: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct McpArgs {
    /// Work in this directory, instead of the current one
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
}

impl McpArgs {
    /// Where commands start, and below which the working directory is kept.
    pub(crate) fn workspace(&self) -> PathBuf {
        self.workspace.clone().unwrap_or_else(|| PathBuf::from("."))
    }
}

#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    pub(crate) command: ConfigCommand,
}

#[derive(Clone, Copy, Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print the commented defaults
    Default,
    /// Print the values in force, secrets left out
    Show,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A flag and the key that it sets.
struct Flag {
    /// The field's name above.
    id: &'static str,
    name: &'static str,
    key: &'static str,
}

const LOG_LEVEL: Flag = Flag { id: "log_level", name: "--log-level", key: "log.level" };
const ALLOW: Flag = Flag { id: "allow", name: "--allow", key: "a2e.allowed_commands" };
const MAX_PROCESSES: Flag = Flag { id: "max_processes", name: "--max-processes", key: "a2e.max_processes" };
const EVENT_DATA: Flag = Flag { id: "event_data", name: "--event-data", key: "a2e.event_data" };
const PUSH_EVENTS: Flag = Flag { id: "push_events", name: "--push-events", key: "a2e.push_events" };
const AUDIT: Flag = Flag { id: "audit", name: "--audit", key: "a2e.audit.path" };
/// The same flag also switches the audit on.
const AUDIT_ENABLED: Flag = Flag { id: "audit", name: "--audit", key: "a2e.audit.enabled" };

impl Flag {
    fn set(&self, value: impl Into<Value>) -> Setting {
        Setting { key: self.key.to_owned(), value: value.into(), origin: Origin::Flag(self.name) }
    }

    /// Adds key and default to the help of the flag.
    fn describe(&self, arg: clap::Arg, schema: &Schema) -> clap::Arg {
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let default = schema.get(self.key).map(ToString::to_string).unwrap_or_default();
        arg.help(format!("{help} [{}, default: {default}]", self.key))
    }
}

impl Cli {
    /// Reads the arguments of this process.
    pub(crate) fn parse_arguments() -> Result<Self, clap::Error> {
        let mut command = command();
        let matches = command.try_get_matches_from_mut(std::env::args_os())?;
        <Self as clap::FromArgMatches>::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
    }

    /// The file of `--config`.
    pub(crate) fn config_file(&self) -> Option<PathBuf> {
        self.common.config.as_deref().map(from_working_directory)
    }

    /// The file of `--sdk-config`.
    pub(crate) fn sdk_file(&self) -> Option<PathBuf> {
        match &self.command {
            Command::A2e(args) => args.sdk_config.as_deref().map(from_working_directory),
            Command::Mcp(_) | Command::Config(_) | Command::Doctor(_) => None,
        }
    }

    /// What the flags set.
    pub(crate) fn settings(&self) -> Result<Vec<Setting>, ConfigError> {
        let mut settings: Vec<_> =
            self.common.log_level.iter().map(|level| LOG_LEVEL.set(word(level))).collect();
        match &self.command {
            Command::A2e(args) => settings.extend(args.settings()?),
            Command::Mcp(_) | Command::Config(_) | Command::Doctor(_) => {}
        }
        Ok(settings)
    }
}

/// How an A2E host is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// Standard input and output.
    Stdio,
    /// HTTP, at this address.
    Http(String),
}

impl A2eArgs {
    /// The transport that was named, or else the one of the Python SDK's configuration.
    pub(crate) fn transport(&self, in_sdk: Option<SdkTransport>) -> Result<Transport, ConfigError> {
        match (&self.http, self.stdio, in_sdk) {
            (Some(address), ..) => Ok(Transport::Http(address.clone())),
            (None, false, Some(SdkTransport::Http(address))) => Ok(Transport::Http(address)),
            // The parser has refused the flag beside --stdio; what the file says it could not know.
            (None, false, Some(SdkTransport::Stdio)) if self.insecure_http => {
                let path = self.sdk_config.as_deref().map(from_working_directory).unwrap_or_default();
                let origin = Origin::Sdk { path, key: "transport.type".to_owned() };
                Err(ConfigError::Sdk { origin, problem: SdkProblem::NotHttp })
            }
            (None, true, _) | (None, false, Some(SdkTransport::Stdio) | None) => Ok(Transport::Stdio),
        }
    }

    /// Whether other machines may be served in clear text.
    pub(crate) fn clear_text(&self) -> ClearText {
        if self.insecure_http { ClearText::Allowed } else { ClearText::Refused }
    }

    fn settings(&self) -> Result<Vec<Setting>, ConfigError> {
        let mut settings = Vec::new();
        settings.extend(self.allow.as_ref().map(|names| ALLOW.set(names.clone())));
        settings.extend(self.max_processes.map(|n| MAX_PROCESSES.set(n)));
        settings.extend(self.event_data.as_ref().map(|shape| EVENT_DATA.set(word(shape))));
        settings.extend(self.push_events.then(|| PUSH_EVENTS.set(true)));
        if let Some(path) = &self.audit {
            let path = from_working_directory(path);
            let text = path.to_str().ok_or(ConfigError::NotText { origin: Origin::Flag(AUDIT.name) })?;
            settings.extend([AUDIT_ENABLED.set(true), AUDIT.set(text)]);
        }
        Ok(settings)
    }
}

/// The parser, with keys and defaults in the help.
fn command() -> clap::Command {
    let schema = Schema::new();
    let describe =
        |command: clap::Command, flag: &Flag| command.mut_arg(flag.id, |arg| flag.describe(arg, &schema));
    let root = describe(Cli::command(), &LOG_LEVEL);
    root.mut_subcommand("a2e", |a2e| {
        [ALLOW, MAX_PROCESSES, EVENT_DATA, PUSH_EVENTS, AUDIT].iter().fold(a2e, describe)
    })
}

/// A path of the command line starts where the user stands. What cannot be resolved stays as it is, and fails when used.
fn from_working_directory(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn word(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_has_no_contradictions() {
        command().debug_assert();
    }

    #[test]
    fn every_flag_sets_a_known_key() {
        let schema = Schema::new();
        for flag in [LOG_LEVEL, ALLOW, MAX_PROCESSES, EVENT_DATA, PUSH_EVENTS, AUDIT, AUDIT_ENABLED] {
            assert!(schema.get(flag.key).is_some_and(|value| !value.is_table()), "{}", flag.key);
        }
    }
}
