//! The core's outcomes in the words of the wire.

use std::io;

use hostler_core::sys::signal::Signal;
use hostler_core::{
    CommandLine, End, Exit, ExitStatus, Limit, Outcome, Pids, Process, ProcessId, Receipt, Signalled,
    SpawnError, WriteError,
};

use crate::wire::{Fate, Left, ProcId, Reply, ReqId, SpawnRefusal, WriteRefusal, shown_command};

/// A process's id as the wire shows it: in UUID form.
pub(super) fn proc_id(id: ProcessId) -> ProcId {
    let bits = id.to_u128();
    ProcId::new(format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        bits >> 96,
        (bits >> 80) & 0xffff,
        (bits >> 64) & 0xffff,
        (bits >> 48) & 0xffff,
        bits & 0xffff_ffff_ffff
    ))
}

/// Reads exactly what `proc_id` writes; anything else names no process.
pub(super) fn process_id(text: &ProcId) -> Option<ProcessId> {
    let text = text.as_str();
    let dashes = [8, 13, 18, 23];
    if text.len() != 36 || text.bytes().enumerate().any(|(i, b)| (b == b'-') != dashes.contains(&i)) {
        return None;
    }
    text.replace('-', "").parse().ok()
}

/// A command line for a reader, in at most so many bytes on the wire and `…` where it is cut.
pub(super) fn command(command: &CommandLine, most: usize) -> String {
    let mut line = shown_command(command.words().map(std::ffi::OsStr::to_string_lossy), most);
    // One that was cut before has lost its end, so it is never shown as if it were whole.
    if command.is_cut() && !line.ends_with('…') {
        line.push('…');
    }
    line
}

pub(super) fn pid_of(process: &Process) -> u32 {
    process.pid().and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0)
}

pub(super) fn stream_type(stream: hostler_core::Stream) -> &'static str {
    match stream {
        hostler_core::Stream::Stdout => "stdout",
        hostler_core::Stream::Stderr => "stderr",
    }
}

fn code_of(status: ExitStatus) -> i32 {
    match status {
        ExitStatus::Code(code) => code,
        ExitStatus::Signal { number, .. } => -number,
        ExitStatus::KeeperLost => 0,
    }
}

/// What is known of a process. Whole output is part of a success.
pub(super) fn fate(process: &Process) -> Fate {
    whole(fate_of(process.end()), process)
}

fn whole(fate: Fate, process: &Process) -> Fate {
    if fate == (Fate::Exited { code: 0 }) && process.lost_output() > 0 { Fate::Torn } else { fate }
}

/// The core's ends in the words of the wire.
fn fate_of(end: Option<End>) -> Fate {
    match end {
        None => Fate::Running,
        Some(End::Exited(Exit { status, outcome })) => match outcome {
            Outcome::Completed | Outcome::Failed => Fate::Exited { code: code_of(status) },
            Outcome::Killed => Fate::Killed { code: code_of(status) },
            Outcome::TimedOut => Fate::TimedOut { code: code_of(status) },
            Outcome::Lost => Fate::Lost,
        },
        // Never listed: a program that did not start has no process on the wire.
        Some(End::NotStarted | End::Canceled { .. }) => Fate::Killed { code: -Signal::Kill.number() },
    }
}

pub(super) fn spawn_refusal(error: SpawnError) -> SpawnRefusal {
    match error {
        SpawnError::Limit(Limit::Session { max }) => SpawnRefusal::Limit { limit: max },
        SpawnError::Limit(Limit::Host { max }) => SpawnRefusal::HostLimit { limit: max },
        SpawnError::Limit(Limit::OpenFiles { limit }) => SpawnRefusal::OpenFiles { limit },
        SpawnError::Limit(Limit::SystemFiles) => SpawnRefusal::SystemFiles,
        SpawnError::Resources(reason) => SpawnRefusal::Resources { reason },
        SpawnError::Cwd { cwd, source } => {
            SpawnRefusal::WorkingDirectory { cwd: cwd.to_string_lossy().into_owned(), reason: source }
        }
        SpawnError::Exec { program, source } => {
            let command = program.to_string_lossy().into_owned();
            if source.kind() == io::ErrorKind::NotFound && !command.contains('/') {
                SpawnRefusal::NotFound { command }
            } else {
                SpawnRefusal::Start { command, reason: source }
            }
        }
        SpawnError::SessionClosed => SpawnRefusal::SessionEnding,
        error @ (SpawnError::Spec(_)
        | SpawnError::TooLarge { .. }
        | SpawnError::NoKeeper(_)
        | SpawnError::KeeperLost
        | SpawnError::Canceled) => SpawnRefusal::NotStarted { reason: io::Error::other(error) },
    }
}

pub(super) fn write_refusal(error: WriteError) -> WriteRefusal {
    match error {
        WriteError::NoStdin => WriteRefusal::NoStdin,
        WriteError::Closed => WriteRefusal::AfterEof,
        WriteError::ClosedByProcess => WriteRefusal::ClosedByProcess,
        WriteError::Ended => WriteRefusal::ProcDead,
        WriteError::Full { .. } | WriteError::SessionFull { .. } | WriteError::Unwatched => {
            WriteRefusal::Write { reason: io::Error::other(error) }
        }
    }
}

pub(super) fn kill_reply(req_id: ReqId, process: &Process, result: Signalled) -> Reply {
    let pids = |pids: Pids| pids.pids.into_iter().filter_map(|pid| u32::try_from(pid).ok()).collect();
    let (fate, receipt) = match result {
        // What ended by or during a kill counts as killed, whatever its own status says.
        Signalled::Ended { end, receipt } => (fate_of(Some(end)), receipt),
        Signalled::Alive { receipt } => (Fate::Running, receipt),
        Signalled::AlreadyEnded { end } => {
            return Reply::kill_ended(req_id, whole(fate_of(Some(end)), process));
        }
    };
    let Receipt { signalled: _, survivors, unattributed, doubt } = receipt;
    let left = Left { survivors: pids(survivors), unattributed: pids(unattributed) };
    match doubt {
        Some(doubt) => Reply::kill_unconfirmed(req_id, fate, io::Error::other(doubt), left),
        None => Reply::kill_settled(req_id, fate, left),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_ids_are_written_as_uuids_and_read_back() {
        let id: ProcessId = "0123456789abcdef0123456789abcdef".parse().unwrap();
        let text = proc_id(id);
        assert_eq!(text.as_str(), "01234567-89ab-cdef-0123-456789abcdef");
        assert_eq!(process_id(&text), Some(id));
        for bad in
            ["", "x", "0123456789abcdef0123456789abcdef", "01234567-89AB-cdef-0123-456789abcdef", "../x"]
        {
            assert_eq!(process_id(&ProcId::new(bad)), None, "{bad}");
        }
    }
}
