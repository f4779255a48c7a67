use std::time::Duration;

use queue_core::backend::Token;

/// The completion of the message within a transaction of the application's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Promise {
    /// There was none.
    None,
    /// The outcome of the transaction is not known yet.
    Open {
        token: Token,
        /// When the completion was written, on the monotonic clock.
        written_at: Duration,
    },
    Committed,
    RolledBack,
}
