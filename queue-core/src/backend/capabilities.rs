use std::time::Duration;

/// What a backend allows and promises.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The largest body, in bytes.
    pub max_body: usize,
    /// The most messages that one receive or peek may ask for.
    pub max_receive: u32,
    /// The shortest visibility timeout of a receive. Timeouts are rounded up to a multiple of it.
    pub min_visibility: Duration,
    /// The longest visibility timeout, of a put, a receive or an update.
    pub max_visibility: Duration,
    /// How long a poller of an empty queue should sleep at most, by default: what a poll costs decides.
    pub idle_cap: Duration,
    /// What bodies may hold.
    pub body: BodyForm,
    /// What [`apply`](super::Backend::apply) promises.
    pub atomicity: Atomicity,
    /// In which order messages are received.
    pub ordering: Ordering,
    /// What a pop receipt names.
    pub receipts: ReceiptScope,
    /// What happens to a message's time to live when the store is reopened.
    pub expiry: Expiry,
}

/// What bodies may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BodyForm {
    /// Any bytes.
    Bytes,
    /// Text that XML allows; other bodies travel as Base64.
    Text,
}

/// What several operations given together amount to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Atomicity {
    /// All or none of them happen.
    Atomic,
    /// They happen in order; the first failure stops the rest.
    InOrder,
}

/// In which order messages that are visible are received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ordering {
    /// By the time at which they became visible, then in the order of the puts.
    ByVisibility,
    /// Roughly by age; nothing is promised.
    BestEffort,
}

/// What a pop receipt names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReceiptScope {
    /// One message's one receive or update.
    Message,
    /// One receive: messages of a batch share it.
    Batch,
}

/// What happens to a message's time to live when the store is reopened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Expiry {
    /// It is stored with the message.
    Kept,
    /// The store forgets it.
    ForgottenOnReopen,
}

impl Capabilities {
    /// Azure Queue Storage's limits on an engine that stores bytes atomically in order, which is what
    /// a local engine offers: 48 KiB of body, the raw size of 64 KiB in Base64, and 7 days of
    /// visibility.
    #[must_use]
    pub fn local() -> Self {
        Self {
            max_body: 48 * 1024,
            max_receive: 256,
            min_visibility: Duration::from_millis(1),
            max_visibility: Duration::from_secs(7 * 24 * 60 * 60),
            idle_cap: Duration::from_millis(250),
            body: BodyForm::Bytes,
            atomicity: Atomicity::Atomic,
            ordering: Ordering::ByVisibility,
            receipts: ReceiptScope::Message,
            expiry: Expiry::Kept,
        }
    }
}
