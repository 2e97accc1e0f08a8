//! Waiting for a command as long as its client is patient, and showing it that something happens.

use std::time::{Duration, Instant};

use hostler_core::sys::clock;
use hostler_shell::{Answer, Detach, Foreground};
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, RoleServer};
use tokio::task::JoinHandle;

use crate::{McpOptions, OnClientTimeout};

/// Between two notifications of progress while there is output.
const SHORTEST: Duration = Duration::from_millis(250);
/// The same while there is none.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// Characters of a line that clients show.
const LONGEST_MESSAGE: usize = 200;

/// Who asks, and how it is shown progress.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) peer: Peer<RoleServer>,
    pub(crate) token: Option<ProgressToken>,
}

/// Waits for the end of a command. `None`: the call was cancelled, and nobody is to be answered.
pub(crate) async fn foreground(
    command: Foreground,
    caller: Caller,
    cancelled: impl Future<Output = Option<String>>,
    options: &McpOptions,
) -> Option<Answer> {
    let begun = clock::now();
    let (until, why) = patience(begun, command.deadline(), caller.token.is_some().then_some(()), options);
    let mut progress = Progress::new(caller, begun);
    let mut seen = 0;
    tokio::pin!(cancelled);
    let answer = loop {
        tokio::select! {
            biased;
            reason = &mut cancelled => {
                give_up(command, reason.as_deref(), options).await;
                return None;
            }
            () = command.ended() => break command.finish().await,
            () = tokio::time::sleep_until(until.into()) => break command.detach(why).await,
            () = command.more_output(&mut seen), if progress.waits_for_news() => progress.pace.news(),
            () = tokio::time::sleep_until(progress.pace.due().into()), if progress.is_wanted() => {
                progress.show(command.last_line()).await;
            }
        }
    };
    progress.end().await;
    Some(answer)
}

/// Until when a client waits, and why no longer: without a token it is not known to be patient.
fn patience(begun: Instant, deadline: Instant, token: Option<()>, options: &McpOptions) -> (Instant, Detach) {
    let short = begun + options.max_wait_without_progress;
    if token.is_some() || deadline <= short {
        (deadline, Detach::Timeout)
    } else {
        (short, Detach::ShortPatience)
    }
}

async fn give_up(command: Foreground, reason: Option<&str>, options: &McpOptions) {
    if options.on_client_timeout == OnClientTimeout::Detach && reason.is_some_and(is_timeout) {
        command.detach(Detach::ClientTimeout).await;
    } else {
        command.stop();
    }
}

/// Whether the reason of a cancellation is that the client has waited for too long: "Request timed out", "timeout", "timed
/// out after 0.8s".
fn is_timeout(reason: &str) -> bool {
    let reason = reason.to_ascii_lowercase();
    ["timed out", "timed-out", "timedout", "time out", "time-out", "timeout"]
        .iter()
        .any(|word| reason.contains(word))
}

/// When the next notification is due. Pure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pace {
    last: Instant,
    has_news: bool,
}

impl Pace {
    fn news(&mut self) {
        self.has_news = true;
    }

    fn due(&self) -> Instant {
        self.last + if self.has_news { SHORTEST } else { HEARTBEAT }
    }

    fn shown(&mut self, now: Instant) {
        *self = Self { last: now, has_news: false };
    }
}

#[derive(Debug)]
struct Progress {
    caller: Caller,
    begun: Instant,
    pace: Pace,
    /// At most one is on its way: a client that does not read is told less.
    sending: Option<JoinHandle<()>>,
}

impl Progress {
    fn new(caller: Caller, begun: Instant) -> Self {
        Self { caller, begun, pace: Pace { last: begun, has_news: false }, sending: None }
    }

    fn is_wanted(&self) -> bool {
        self.caller.token.is_some()
    }

    fn waits_for_news(&self) -> bool {
        self.is_wanted() && !self.pace.has_news
    }

    async fn show(&mut self, line: Option<String>) {
        let now = clock::now();
        self.pace.shown(now);
        let Some(token) = self.caller.token.clone() else { return };
        if self.sending.as_ref().is_some_and(|sending| !sending.is_finished()) {
            return;
        }
        let mut shown = ProgressNotificationParam::new(token, (now - self.begun).as_secs_f64());
        if let Some(line) = line {
            shown = shown.with_message(line.chars().take(LONGEST_MESSAGE).collect::<String>());
        }
        let peer = self.caller.peer.clone();
        self.sending = Some(tokio::spawn(async move {
            // A client that is gone hears nothing.
            let _ = peer.notify_progress(shown).await;
        }));
        // What goes out at once stands before the answer.
        tokio::task::yield_now().await;
    }

    /// No progress comes after the answer.
    async fn end(self) {
        if let Some(sending) = self.sending {
            let _ = sending.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_of_clients_that_have_waited_too_long_are_known() {
        for reason in [
            "MCP error -32001: Request timed out",
            "timed out after 0.8s",
            "Timeout",
            "request time-out",
            "TIME OUT",
        ] {
            assert!(is_timeout(reason), "{reason}");
        }
        for reason in ["", "user pressed escape", "caller cancelled", "out of time"] {
            assert!(!is_timeout(reason), "{reason}");
        }
    }

    #[test]
    fn progress_is_shown_four_times_a_second_while_there_is_output_and_every_fifteen_seconds_otherwise() {
        let start = clock::now();
        let mut pace = Pace { last: start, has_news: false };
        assert_eq!(pace.due(), start + HEARTBEAT);
        pace.news();
        assert_eq!(pace.due(), start + SHORTEST);
        pace.shown(start + Duration::from_secs(1));
        assert_eq!(pace.due(), start + Duration::from_secs(16));
    }

    #[test]
    fn a_client_without_a_token_is_not_kept_waiting() {
        let start = clock::now();
        let options = McpOptions::default();
        let check = |deadline: u64, token: Option<()>, until: u64, why: Detach| {
            let at = |seconds| start + Duration::from_secs(seconds);
            assert_eq!(patience(start, at(deadline), token, &options), (at(until), why));
        };
        check(120, Some(()), 120, Detach::Timeout);
        check(120, None, 50, Detach::ShortPatience);
        check(30, None, 30, Detach::Timeout);
    }
}
