use std::fmt;
use std::time::Duration;

use super::RAW_KIND;
use super::body::Body;
use super::event::{Event, Payload};
use crate::envelope::MessageId;
use crate::name::QueueName;

/// The kind of a message whose payload is not stored yet, so that it is not submitted.
pub(crate) const PENDING_KIND: &str = "queue.pending";

/// How every [`PayloadRef`] begins.
const PREFIX: &str = "urn:queue:payload:";

/// How often a message can have been moved as it was, from poison queue to poison queue.
const MAX_MOVES: usize = 16;

/// What an event says about where its data is, in a [`PayloadStore`](crate::payload_store::PayloadStore): all but the
/// event's own id, which belongs to the name.
///
/// Its text is a URN: `urn:queue:payload:STORE:QUEUE:SECONDS:RANDOM`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PayloadRef {
    /// What identifies the store.
    store: u128,
    /// The queue that the message was submitted to.
    queue: QueueName,
    /// The time to live of the message in seconds, unless that is unlimited.
    lifetime: Option<u64>,
    /// What nobody guesses.
    random: u128,
}

/// Where a payload is: in which store, and under which name.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredPayload {
    /// What identifies the store.
    pub store: u128,
    /// The name of the payload. Those of the marks that belong to it end in the same way.
    pub name: String,
    /// The time to live of the message that it was stored for, unless that is unlimited.
    pub lifetime: Option<Duration>,
}

impl PayloadRef {
    /// Creates a reference. No two may have the same `random` number.
    #[must_use]
    pub fn new(store: u128, queue: QueueName, lifetime: Option<u64>, random: u128) -> Self {
        Self {
            store,
            queue,
            lifetime,
            random,
        }
    }

    /// Returns where the data of the event with this id is.
    #[must_use]
    pub fn of_event(&self, id: &MessageId) -> StoredPayload {
        let (queue, id, random) = (&self.queue, name_of(id), self.random);
        let lifetime = Lifetime(self.lifetime);
        StoredPayload {
            store: self.store,
            name: format!("{queue}/{id}.{lifetime}.{random:032x}"),
            lifetime: self.lifetime.map(Duration::from_secs),
        }
    }

    pub(super) fn parse(reference: &str) -> Option<Self> {
        let mut parts = reference.strip_prefix(PREFIX)?.split(':');
        let mut next = || parts.next();
        let parsed = Self {
            store: hex(next()?)?,
            queue: next()?.parse().ok()?,
            lifetime: match next()? {
                "never" => None,
                seconds => Some(seconds.parse().ok()?),
            },
            random: hex(next()?)?,
        };
        // There is one text for each reference.
        (parsed.to_string() == reference).then_some(parsed)
    }
}

impl fmt::Display for PayloadRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            store,
            queue,
            lifetime,
            random,
        } = self;
        let lifetime = Lifetime(*lifetime);
        write!(f, "{PREFIX}{store:032x}:{queue}:{lifetime}:{random:032x}")
    }
}

struct Lifetime(Option<u64>);

impl fmt::Display for Lifetime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(seconds) => write!(f, "{seconds}"),
            None => f.write_str("never"),
        }
    }
}

impl StoredPayload {
    /// Returns the payload of this name. `None` if it is not the name of one.
    #[must_use]
    pub fn new(store: u128, name: &str) -> Option<Self> {
        let mut parts = name.rsplit('.');
        hex(parts.next()?)?;
        let lifetime = match parts.next()? {
            "never" => None,
            seconds => Some(Duration::from_secs(seconds.parse().ok()?)),
        };
        Some(Self {
            store,
            name: name.to_owned(),
            lifetime,
        })
    }

    /// Whether the payload is of a message that was submitted to this queue.
    #[must_use]
    pub fn is_of(&self, queue: &QueueName) -> bool {
        let rest = self.name.strip_prefix(queue.as_str());
        rest.is_some_and(|rest| rest.starts_with('/'))
    }

    /// Returns where the data is of the message with this body, which was received from `queue`. Returns `None` if it is not
    /// in a store, or if the message says so of a payload that was submitted to another queue.
    ///
    /// A message on a poison queue keeps the payload of the queue that its record names.
    #[must_use]
    pub fn of(body: &Body, queue: &QueueName) -> Option<Self> {
        match body {
            Body::Event(event) => Self::of_moved(event, &mut vec![queue.to_string()]),
            Body::Bare(_) | Body::Malformed(_) => None,
        }
    }

    fn of_moved(event: &Event, queues: &mut Vec<String>) -> Option<Self> {
        let poison = event.envelope.poison.as_ref();
        queues.extend(poison.map(|record| record.queue.clone()));
        if let Payload::Attached(attached) = &event.payload {
            let reference = attached.stored()?;
            let is_own = queues
                .iter()
                .any(|queue| *queue == *reference.queue.as_str());
            return is_own.then(|| reference.of_event(&event.envelope.id));
        }
        let is_wrapped = event.envelope.kind == RAW_KIND && poison.is_some_and(|record| record.raw);
        if !is_wrapped || queues.len() > MAX_MOVES {
            return None;
        }
        let inner = bytes::Bytes::copy_from_slice(event.payload.as_bytes());
        match Body::read(&inner, usize::MAX) {
            Body::Event(inner) => Self::of_moved(&inner, queues),
            Body::Bare(_) | Body::Malformed(_) => None,
        }
    }
}

/// Returns the reference of a message that was put before its payload, and is not submitted.
#[must_use]
pub fn pending(body: &Body) -> Option<(&MessageId, PayloadRef)> {
    match body {
        Body::Event(event) if event.envelope.kind == PENDING_KIND => match &event.payload {
            Payload::Elsewhere(reference) => {
                Some((&event.envelope.id, PayloadRef::parse(reference)?))
            }
            _ => None,
        },
        _ => None,
    }
}

/// Returns an id as a part of a name: any id may be of any characters.
fn name_of(id: &MessageId) -> String {
    let id = id.as_str();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let plain = id.bytes().filter(|byte| is_plain(*byte)).take(64);
    // For whoever reads a list of names; it is the random number that tells two apart.
    let name: String = plain.map(char::from).collect();
    if name.is_empty() {
        "-".to_owned()
    } else {
        name
    }
}

/// Returns the number that exactly 32 hexadecimal digits say. Fewer are no number: the rest was lost on the way.
#[must_use]
pub fn hex(digits: &str) -> Option<u128> {
    let is_whole = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_whole.then(|| u128::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_has_exactly_32_digits() {
        let whole = format!("{:032x}", u128::MAX / 3);
        assert_eq!(hex(&whole), Some(u128::MAX / 3));
        for other in [
            &whole[..21],
            &format!("+{}", &whole[1..]),
            &format!("{whole}\n"),
            &format!(" {}", &whole[1..]),
            &format!("{whole}0"),
            &"g".repeat(32),
            "",
        ] {
            assert_eq!(hex(other), None, "{other:?}");
        }
    }
}
