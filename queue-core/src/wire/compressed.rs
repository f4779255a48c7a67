use bytes::Bytes;

/// The largest payload, in bytes, that a service takes unless it sets another limit: 64 MiB.
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

/// Why compressed data was not expanded.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExpandError {
    /// The event declares a larger size than is allowed. Nothing was expanded.
    #[error("its data expands to {size} bytes, and {limit} are allowed")]
    TooLarge {
        /// The declared size, in bytes.
        size: u32,
        /// The limit, in bytes.
        limit: usize,
    },
    /// It is not compressed data, or does not expand to the size that the event declares.
    #[error("its data does not expand to the {size} bytes that the event declares: {problem}")]
    Damaged {
        /// The declared size, in bytes.
        size: u32,
        /// What is wrong with it.
        problem: String,
    },
    /// The program is built without the feature `payloads`.
    #[error(
        "its data is compressed, which this program cannot read: it is built without the feature `payloads`"
    )]
    Unsupported,
}

crate::debug_as_text!(ExpandError);

impl Compressed {
    /// Compresses data. Returns `None` if it is larger than CloudEvents can tell, and without the feature `payloads`.
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

    /// Returns the data as it was. Takes time and memory in proportion to the declared size, and no more.
    ///
    /// # Errors
    /// [`ExpandError`] if it is larger than `limit`, in bytes, or does not expand to what the event declares.
    pub fn expand(&self, limit: usize) -> Result<Bytes, ExpandError> {
        let size = self.size;
        if size as usize > limit {
            return Err(ExpandError::TooLarge { size, limit });
        }
        let expanded = expand(&self.data, size)?;
        if expanded.len() == size as usize {
            Ok(expanded.into())
        } else {
            let problem = format!("it has {} bytes", expanded.len());
            Err(ExpandError::Damaged { size, problem })
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
        let problem = error.to_string();
        ExpandError::Damaged { size, problem }
    })
}

#[cfg(not(feature = "payloads"))]
fn compress(_: &[u8], _: i32) -> Option<Vec<u8>> {
    None
}

#[cfg(not(feature = "payloads"))]
fn expand(_: &[u8], _: u32) -> Result<Vec<u8>, ExpandError> {
    Err(ExpandError::Unsupported)
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
        assert_eq!(
            compressed.expand(limit),
            Err(ExpandError::TooLarge { size, limit })
        );
        for size in [0, 99_999, 100_001] {
            let lie = Compressed {
                size,
                ..compressed.clone()
            };
            let error = lie.expand(200_000).expect_err("it is a lie");
            assert!(matches!(error, ExpandError::Damaged { size: of, .. } if of == size));
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
