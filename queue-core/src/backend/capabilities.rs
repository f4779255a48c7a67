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
        }
    }
}
