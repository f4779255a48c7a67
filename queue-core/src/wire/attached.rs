use std::borrow::Cow;

use bytes::Bytes;

use super::compressed::{Compressed, ExpandError};
use super::stored::PayloadRef;

/// The value of `dataref` of an event whose data is [attached](crate::backend::Attachment) to its message.
pub(super) const ATTACHED: &str = "urn:queue:attachment";

/// What an event says about its data, which is attached to its message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// Of the data once it is expanded.
    pub(super) size: u32,
    pub(super) is_compressed: bool,
    /// The SHA-256 of the data once it is expanded, as hexadecimal digits.
    pub(super) digest: String,
    /// Where it is, unless the storage of the message has it.
    pub(super) stored: Option<PayloadRef>,
}

impl Attached {
    /// Returns what an event says about this data, and the data as it is attached: compressed, if that is shorter.
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
    /// [`ExpandError`] if it is larger than `limit`, in bytes, or is not what the event declares.
    pub fn open(&self, attached: Bytes, limit: usize) -> Result<Bytes, ExpandError> {
        let size = self.size;
        let data = if self.is_compressed {
            Compressed {
                data: attached,
                size,
            }
            .expand(limit)?
        } else if size as usize > limit {
            return Err(ExpandError::TooLarge { size, limit });
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
        Err(ExpandError::Damaged { size, problem })
    }
}

#[cfg(feature = "payloads")]
fn digest(data: &[u8]) -> String {
    use std::fmt::Write as _;

    use sha2::Digest as _;

    let mut digits = String::with_capacity(64);
    for byte in sha2::Sha256::digest(data) {
        write!(digits, "{byte:02x}").expect("a string takes any text");
    }
    digits
}

#[cfg(not(feature = "payloads"))]
fn digest(_: &[u8]) -> String {
    String::new()
}
