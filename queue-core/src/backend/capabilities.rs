use std::time::Duration;

/// The limits and guarantees of a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The largest body, in bytes.
    pub max_body: usize,
    /// The most messages that one receive or peek can return.
    pub max_receive: u32,
    /// The shortest visibility timeout of a receive. Timeouts are rounded up to a multiple of it.
    pub min_visibility: Duration,
    /// The longest visibility timeout, of a put, a receive or an update.
    pub max_visibility: Duration,
    /// The default for the longest pause between polls of an empty queue, which depends on the cost of a
    /// poll.
    pub idle_cap: Duration,
    /// What a body may contain.
    pub body: BodyForm,
    /// The guarantee of [`apply`](super::Backend::apply).
    pub atomicity: Atomicity,
}

/// What a body may contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BodyForm {
    /// Any bytes.
    Bytes,
    /// Text that XML can carry. Other bodies must be encoded as Base64.
    Text,
}

/// The guarantee of several operations applied together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Atomicity {
    /// All or none of them happen.
    Atomic,
    /// They happen in order until one fails.
    InOrder,
}

impl Capabilities {
    /// The capabilities of a local backend: bodies of any bytes, atomic operations, and the limits of Azure
    /// Queue Storage, which are 48 KiB per body (64 KiB in Base64) and 7 days of visibility.
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
        }
    }
}
