use queue_core::backend::Token;

/// The completion of the message within a transaction of the application's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Promise {
    /// There was none.
    None,
    /// The outcome of the transaction is not known yet.
    Open(Token),
    Committed,
    RolledBack,
}
