//! Signals and stops of one process, and what their callers are told.

use std::time::Duration;

use super::{Mail, Process};
use crate::keeper::link::Ticket;
use crate::keeper::receipt::{Doubt, Receipt};
use crate::lifecycle::{End, Input, StopCause};
use crate::sys::clock;
use crate::sys::signal::Signal;

/// How long a keeper may take to answer beyond the time that the request allows, before it is given up.
const ANSWER_SLACK: Duration = Duration::from_secs(5);

/// What a signal came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Signalled {
    /// The process has ended, by this or otherwise.
    Ended {
        /// How.
        end: End,
        /// Who was signalled and who is left.
        receipt: Receipt,
    },
    /// It was signalled and still lives.
    Alive {
        /// Who was signalled.
        receipt: Receipt,
    },
    /// It had ended before; nothing was sent.
    AlreadyEnded {
        /// How.
        end: End,
    },
}

impl Process {
    /// Sends exactly this signal, now: SIGINT and SIGTERM to the process group, SIGKILL to the tree (what left the group
    /// too). The future waits for the end, at most for `patience`, and then says what came of it.
    pub fn signal(&self, signal: Signal, patience: Duration) -> impl Future<Output = Signalled> + use<> {
        let process = self.clone();
        let before = process.end();
        let had_survivors = self.0.has_survivors();
        let acts = before.is_none() || (signal == Signal::Kill && had_survivors);
        let ticket = if acts { process.0.step(Input::Signal(signal)) } else { None };
        async move {
            if let (Some(end), false) = (before, acts) {
                return Signalled::AlreadyEnded { end };
            }
            let deadline = tokio::time::sleep_until(clock::after(patience).into());
            let mut receipt = process.receipt(ticket, process.0.kill_limit).await;
            tokio::select! {
                biased;
                end = process.ended() => {
                    // The keeper may have been lost after it had answered.
                    receipt.doubt = receipt.doubt.or(process.doubt());
                    Signalled::Ended { end, receipt }
                }
                () = deadline => {
                    let _ = process.0.step(Input::SignalSettled);
                    Signalled::Alive { receipt }
                }
            }
        }
    }

    /// Stops the tree, now: SIGTERM, and SIGKILL to whatever lives after `grace`. The future waits until that is done and says
    /// what was signalled and what survived.
    pub fn stop(&self, cause: StopCause, grace: Duration) -> impl Future<Output = Receipt> + use<> {
        let process = self.clone();
        let ticket = process.0.step(Input::Stop { cause, grace });
        let _ = process.0.mail.send(Mail::Deadline);
        async move {
            let mut receipt = process.receipt(ticket, process.0.kill_limit).await;
            let done = async {
                process.ended().await;
                process.without_survivors().await;
            };
            let patience = grace.saturating_add(process.0.kill_limit).saturating_add(ANSWER_SLACK);
            if tokio::time::timeout(patience, done).await.is_err() {
                receipt.survivors = process.0.facts.lock().survivors.clone();
                if process.end().is_none() {
                    receipt.survivors.total += 1;
                    receipt.survivors.pids.extend(process.pid());
                }
            }
            // The SIGKILL after the grace has been answered elsewhere, and what was seen then counts.
            receipt.doubt = process.doubt();
            receipt
        }
    }

    async fn receipt(&self, ticket: Option<Ticket>, limit: Duration) -> Receipt {
        let Some(ticket) = ticket else { return Receipt::default() };
        let receipt = self.0.link.answer(ticket, limit.saturating_add(ANSWER_SLACK)).await;
        self.heard(receipt.doubt);
        if receipt.survivors.total > 0 || receipt.doubt.is_some() {
            let _ = self.0.step(Input::KillSettled);
        }
        receipt
    }

    /// The last answer counts, but none that is heard after the keeper was lost.
    fn heard(&self, doubt: Option<Doubt>) {
        let mut facts = self.0.facts.lock();
        if facts.doubt != Some(Doubt::KeeperLost) {
            facts.doubt = doubt;
        }
    }

    fn doubt(&self) -> Option<Doubt> {
        self.0.facts.lock().doubt
    }

    /// Waits until nothing that it started lives, as far as is known.
    async fn without_survivors(&self) {
        self.until(|process| (!process.0.has_survivors() || process.0.is_closed()).then_some(())).await;
    }

    /// Sees to it that a request that nobody waits for is answered, or its keeper given up.
    pub(crate) fn see_to(&self, ticket: Option<Ticket>) {
        if ticket.is_none() {
            return;
        }
        let process = self.clone();
        tokio::spawn(async move {
            process.receipt(ticket, process.0.kill_limit).await;
        });
    }
}
