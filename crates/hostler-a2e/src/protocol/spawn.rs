//! What of a spawn request can be judged without the system.

use std::path::PathBuf;
use std::time::Duration;

use super::{ConnectionOptions, MAX_TIMEOUT, SpawnRequest, StdinSource};
use crate::encode::EventForm;
use crate::wire::{FieldPath, ProcSpawnRequest, SpawnRefusal};

/// The request with every field checked, or the first thing that is wrong with it.
pub(super) fn checked(
    request: ProcSpawnRequest,
    options: &ConnectionOptions,
    events: EventForm,
) -> Result<SpawnRequest, SpawnRefusal> {
    let ProcSpawnRequest { req_id, session_id, cmd, cwd, env, stdin_mode, timeout_s } = request;
    if !session_id.is_empty() && session_id != options.session_id.as_str() {
        return Err(SpawnRefusal::OtherSession { session_id });
    }
    check_command(&cmd, &options.allowed_commands)?;
    if has_nul(&cwd) {
        return Err(SpawnRefusal::Nul { place: FieldPath::Whole("cwd") });
    }
    let env = env.into_iter().map(checked_variable).collect::<Result<_, _>>()?;
    let stdin = match stdin_mode.as_str() {
        "pipe" => StdinSource::Pipe,
        "null" => StdinSource::Null,
        _ => return Err(SpawnRefusal::StdinMode { word: stdin_mode }),
    };
    let timeout = time_limit(timeout_s, options.default_timeout)?;
    let cwd = (!cwd.is_empty()).then(|| PathBuf::from(cwd));
    Ok(SpawnRequest { req_id, argv: cmd, cwd, env, stdin, timeout, events })
}

fn check_command(cmd: &[String], allowed: &[String]) -> Result<(), SpawnRefusal> {
    let Some(command) = cmd.first() else { return Err(SpawnRefusal::EmptyCommand) };
    if let Some(index) = cmd.iter().position(|word| has_nul(word)) {
        return Err(SpawnRefusal::Nul { place: FieldPath::Element("cmd", index) });
    }
    if !allowed.contains(command) {
        return Err(SpawnRefusal::NotAllowed { command: command.clone(), allowed: allowed.to_vec() });
    }
    Ok(())
}

fn checked_variable((name, value): (String, String)) -> Result<(String, String), SpawnRefusal> {
    if has_nul(&name) || has_nul(&value) {
        return Err(SpawnRefusal::Nul { place: FieldPath::Member("env", name) });
    }
    if name.is_empty() || name.contains('=') {
        return Err(SpawnRefusal::EnvName { name });
    }
    Ok((name, value))
}

fn time_limit(seconds: i64, default: Option<Duration>) -> Result<Option<Duration>, SpawnRefusal> {
    let Ok(asked) = u64::try_from(seconds) else { return Err(SpawnRefusal::NegativeTimeout { seconds }) };
    let limit = if asked == 0 { default } else { Some(Duration::from_secs(asked)) };
    Ok(limit.map(|limit| limit.min(MAX_TIMEOUT)))
}

fn has_nul(text: &str) -> bool {
    text.contains('\0')
}
