//! What a caller is told of a signal, a stop or the end of a session, and what nobody can tell.

use super::protocol::Pids;

/// What a signal or a stop did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// Who got a signal.
    pub signalled: Pids,
    /// Who of the target was still alive at the end of the limit.
    pub survivors: Pids,
    /// Who lives in the session without a sign of which process started it: ended with the session.
    pub unattributed: Pids,
    /// Why there may be survivors that are not named; `None` when nobody can have been missed.
    pub doubt: Option<Doubt>,
}

impl Receipt {
    /// Of a request of which nothing is known but this.
    pub(crate) fn after_loss(doubt: Option<Doubt>) -> Self {
        Self { doubt, ..Self::default() }
    }
}

/// Why nobody can say that nothing is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Doubt {
    /// The keeper was lost, or did not answer and was given up, and nobody has confirmed that everything below it is
    /// dead. Whom it had signalled by then is not known either.
    #[error(
        "the session's keeper was lost, and whether everything that it had started is dead is not confirmed"
    )]
    KeeperLost,
    /// Processes could not be looked at, up to the end of the limit.
    #[error("processes of the session could not be looked at ({})", std::io::Error::from_raw_os_error(*.errno))]
    Unseen {
        /// The errno value, see errno(3). EACCES where /proc hides processes, as with `hidepid=2`.
        errno: i32,
    },
}
