//! Payloads that an event does not have as they are: compressed, attached to its message, or in a store beside it.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use super::encoding::hex;
use crate::envelope::MessageId;
use crate::name::QueueName;

/// The largest payload, in bytes, that a service accepts unless it sets another limit: 64 MiB.
pub const DEFAULT_MAX_PAYLOAD: usize = 64 * 1024 * 1024;

/// The level of quick compression. Level 0 is Zstandard's default.
const FAST: i32 = 1;

/// The value of `dataencoding`.
pub(super) const ZSTD: &str = "zstd";

/// The compressed data of an event (Zstandard), and the size to which it expands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compressed {
    pub(crate) data: Bytes,
    pub(super) size: u32,
}

/// An error of expanding data, compressed or attached.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .kind.text(*size))]
#[non_exhaustive]
pub struct ExpandError {
    /// The size that the event declares, in bytes.
    pub size: u32,
    /// What is wrong with the data.
    pub kind: ExpandErrorKind,
}

/// Why data was not expanded: the kind of an [`ExpandError`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExpandErrorKind {
    /// The event declares a larger size than this limit, in bytes, so nothing was expanded.
    TooLarge(usize),
    /// The data is not compressed data, or does not expand to the size that the event declares. The text says what is
    /// wrong with the payload.
    Damaged(String),
    /// The data of a [pack](super::Pack) does not have the declared number of events.
    NoBatch {
        /// The number of events that the event declares.
        items: u32,
        /// What the data is instead of a batch.
        problem: String,
    },
    /// The program is built without the feature `payloads`.
    Unsupported,
}

crate::debug_as_text!(ExpandError);

impl ExpandErrorKind {
    fn text(&self, size: u32) -> String {
        match self {
            Self::TooLarge(limit) => {
                format!("its data expands to {size} bytes, and {limit} are allowed")
            }
            Self::Damaged(problem) => {
                format!(
                    "its data does not expand to the {size} bytes that the event declares: {problem}"
                )
            }
            Self::NoBatch { items, problem } => {
                format!(
                    "its data is not the batch of {items} events that it is said to be: {problem}"
                )
            }
            Self::Unsupported => {
                "its data is compressed, which this program cannot read: it is built without the \
                                  feature `payloads`"
                    .to_owned()
            }
        }
    }
}

impl Compressed {
    /// Compresses data. Returns `None` if the data is larger than CloudEvents can tell, and without the feature
    /// `payloads`.
    #[must_use]
    pub fn new(data: &[u8]) -> Option<Self> {
        let size = i32::try_from(data.len()).ok()?.unsigned_abs();
        let data = compress(data, 0)?.into();
        Some(Self { data, size })
    }

    /// Compresses data quickly, to a little more than [`new`](Self::new) does.
    pub(super) fn fast(data: &[u8]) -> Option<Self> {
        let size = i32::try_from(data.len()).ok()?.unsigned_abs();
        let data = compress(data, FAST)?.into();
        Some(Self { data, size })
    }

    /// The size of the expanded data, in bytes, as the event declares it.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Returns the data as it was before it was compressed, in time and memory in proportion to the declared size, and
    /// no more.
    ///
    /// # Errors
    /// [`ExpandError`] if the data is larger than `limit`, in bytes, or does not expand to what the event declares.
    pub fn expand(&self, limit: usize) -> Result<Bytes, ExpandError> {
        let size = self.size;
        if size as usize > limit {
            let kind = ExpandErrorKind::TooLarge(limit);
            return Err(ExpandError { size, kind });
        }
        let expanded = expand(&self.data, size)?;
        if expanded.len() == size as usize {
            Ok(expanded.into())
        } else {
            let kind = ExpandErrorKind::Damaged(format!("it has {} bytes", expanded.len()));
            Err(ExpandError { size, kind })
        }
    }
}

#[cfg(feature = "payloads")]
fn compress(data: &[u8], level: i32) -> Option<Vec<u8>> {
    zstd::bulk::compress(data, level).ok()
}

#[cfg(feature = "payloads")]
fn expand(data: &[u8], size: u32) -> Result<Vec<u8>, ExpandError> {
    let expanded = zstd::bulk::decompress(data, size as usize);
    expanded.map_err(|error| {
        let kind = ExpandErrorKind::Damaged(error.to_string());
        ExpandError { size, kind }
    })
}

#[cfg(not(feature = "payloads"))]
fn compress(_: &[u8], _: i32) -> Option<Vec<u8>> {
    None
}

#[cfg(not(feature = "payloads"))]
fn expand(_: &[u8], size: u32) -> Result<Vec<u8>, ExpandError> {
    let kind = ExpandErrorKind::Unsupported;
    Err(ExpandError { size, kind })
}

/// The value of `dataref` of an event whose data is [attached](crate::backend::Attachment) to its message.
pub(super) const ATTACHED: &str = "urn:queue:attachment";

/// The description, in an event, of data that is attached to the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// The size of the expanded data.
    pub(super) size: u32,
    pub(super) is_compressed: bool,
    /// The SHA-256 of the data once it is expanded, as hexadecimal digits.
    pub(super) digest: String,
    /// Where the data is, unless the storage of the message has it.
    pub(super) stored: Option<PayloadRef>,
}

impl Attached {
    /// Returns what an event says about this data, and the data as attached: compressed, if that is shorter.
    #[must_use]
    pub fn new(data: &[u8], compressed: Compressed) -> (Self, Bytes) {
        let is_compressed = compressed.data.len() < data.len();
        let attached = Self {
            size: compressed.size,
            is_compressed,
            digest: digest(data),
            stored: None,
        };
        let data = if is_compressed {
            compressed.data
        } else {
            Bytes::copy_from_slice(data)
        };
        (attached, data)
    }

    /// The size of the data in bytes, once it is expanded, as the event declares it.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Where the data is, if it is in a [`PayloadStore`](crate::payload_store::PayloadStore) and not in the storage of the
    /// message.
    #[must_use]
    pub fn stored(&self) -> Option<&PayloadRef> {
        self.stored.as_ref()
    }

    /// Returns the value of `dataref`.
    pub(super) fn reference(&self) -> Cow<'static, str> {
        match &self.stored {
            Some(stored) => stored.to_string().into(),
            None => ATTACHED.into(),
        }
    }

    /// Returns the data of the event from what is attached to its message.
    ///
    /// # Errors
    /// [`ExpandError`] if the data is larger than `limit`, in bytes, or is not what the event declares.
    pub fn open(&self, attached: Bytes, limit: usize) -> Result<Bytes, ExpandError> {
        let size = self.size;
        let data = if self.is_compressed {
            Compressed {
                data: attached,
                size,
            }
            .expand(limit)?
        } else if size as usize > limit {
            let kind = ExpandErrorKind::TooLarge(limit);
            return Err(ExpandError { size, kind });
        } else {
            attached
        };
        let problem = if data.len() != size as usize {
            format!("it has {} bytes", data.len())
        } else if digest(&data) == self.digest {
            return Ok(data);
        } else {
            "it has another digest".to_owned()
        };
        let kind = ExpandErrorKind::Damaged(problem);
        Err(ExpandError { size, kind })
    }
}

#[cfg(feature = "payloads")]
fn digest(data: &[u8]) -> String {
    use sha2::Digest as _;

    super::encoding::to_hex(&sha2::Sha256::digest(data))
}

#[cfg(not(feature = "payloads"))]
fn digest(_: &[u8]) -> String {
    String::new()
}

/// The kind of a message whose payload is not stored yet, so that it is not submitted.
pub(crate) const PENDING_KIND: &str = "queue.pending";

/// How every [`PayloadRef`] begins.
const PREFIX: &str = "urn:queue:payload:";

/// What an event says about where its data is, in a [`PayloadStore`](crate::payload_store::PayloadStore): all but the
/// event's own id, which is part of the payload's name.
///
/// The text of a reference is a URN: `urn:queue:payload:STORE:QUEUE:SECONDS:RANDOM`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PayloadRef {
    /// The identity of the store.
    store: u128,
    /// The queue that the message was submitted to.
    pub(super) queue: QueueName,
    /// The time to live of the message in seconds, unless that is unlimited.
    lifetime: Option<u64>,
    /// A number that nobody guesses.
    random: u128,
}

/// Where a payload is: in which store, and under which name.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredPayload {
    /// The identity of the store.
    pub store: u128,
    /// The name of the payload. The names of a payload's marks end with the payload's name.
    pub name: String,
    /// The time to live of the message that the payload was stored for, unless unlimited.
    pub lifetime: Option<Duration>,
}

impl PayloadRef {
    /// Creates a reference. No two references may have the same `random` number.
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
    /// Returns the payload of this name; `None` if the text is not the name of a payload.
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
}

/// Returns an id as a part of a name: any id may be of any characters.
fn name_of(id: &MessageId) -> String {
    let id = id.as_str();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let plain = id.bytes().filter(|byte| is_plain(*byte)).take(64);
    // For whoever reads a list of names; the random number tells two names apart.
    let name: String = plain.map(char::from).collect();
    if name.is_empty() {
        "-".to_owned()
    } else {
        name
    }
}

#[cfg(all(test, feature = "payloads"))]
mod tests {
    use super::*;

    #[test]
    fn data_is_expanded_to_the_declared_size_and_no_further() {
        let data = [7; 100_000];
        let compressed = Compressed::new(&data).expect("small enough");
        assert!(compressed.data.len() < 100);
        assert_eq!(
            compressed.expand(data.len()).expect("it is whole"),
            data[..]
        );
        let (size, limit) = (compressed.size, 99_999);
        let kind = ExpandErrorKind::TooLarge(limit);
        assert_eq!(compressed.expand(limit), Err(ExpandError { size, kind }));
        for size in [0, 99_999, 100_001] {
            let lie = Compressed {
                size,
                ..compressed.clone()
            };
            let error = lie.expand(200_000).expect_err("it is a lie");
            assert!(matches!(error.kind, ExpandErrorKind::Damaged(_)) && error.size == size);
        }
        let other = Compressed {
            data: Bytes::from_static(b"something else"),
            size: 14,
        };
        let error = other.expand(14).expect_err("no such data").to_string();
        assert!(
            error.ends_with("event declares: Unknown frame descriptor"),
            "{error}"
        );
    }
}
