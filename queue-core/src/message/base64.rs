//! Bytes of a message as Base64: `#[serde(with = "queue_runtime::message::base64")]`.
//!
//! serde writes a `Vec<u8>` to JSON as an array of numbers, which takes 3.6 bytes for each byte and is slow to read. A
//! field with this attribute is a string, of 1.33 bytes for each. It may have any type that is `AsRef<[u8]>` and
//! `From<Vec<u8>>`, such as `Vec<u8>` and `bytes::Bytes`. An array of numbers is read, too, so that a type can get the
//! attribute while messages without it wait.
//!
//! ```
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Debug, PartialEq, Serialize, Deserialize)]
//! struct Thumbnail {
//!     // In a program that uses `queue_runtime`: "queue_runtime::message::base64".
//!     #[serde(with = "queue_core::message::base64")]
//!     png: Vec<u8>,
//! }
//!
//! # fn main() -> Result<(), serde_json::Error> {
//! let thumbnail = Thumbnail { png: b"\x89PNG".to_vec() };
//! assert_eq!(serde_json::to_string(&thumbnail)?, r#"{"png":"iVBORw=="}"#);
//! assert_eq!(serde_json::from_str::<Thumbnail>(r#"{"png":"iVBORw=="}"#)?, thumbnail);
//! assert_eq!(serde_json::from_str::<Thumbnail>(r#"{"png":[137,80,78,71]}"#)?, thumbnail);
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::marker::PhantomData;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserializer, Serializer};

use crate::wire::encoding::{to_base64, unwrap_base64};

/// Writes bytes as a string.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<T: AsRef<[u8]>, S: Serializer>(bytes: &T, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&to_base64(bytes.as_ref()))
}

/// Reads bytes from a string of Base64, or from an array of numbers.
///
/// # Errors
/// If the value is another one. The error does not repeat it.
pub fn deserialize<'de, T: From<Vec<u8>>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    from.deserialize_any(Bytes(PhantomData))
}

struct Bytes<T>(PhantomData<T>);

impl<'de, T: From<Vec<u8>>> Visitor<'de> for Bytes<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string of Base64, or an array of numbers from 0 to 255")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        if text.is_empty() {
            return Ok(Vec::new().into());
        }
        let bytes = unwrap_base64(text.as_bytes());
        bytes.map(T::from).ok_or_else(|| {
            E::custom(format_args!(
                "a string of {} bytes is not Base64; allowed are letters, digits, `+`, `/`, and `=` at the end",
                text.len()
            ))
        })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut numbers: A) -> Result<T, A::Error> {
        let mut bytes = Vec::new();
        while let Some(byte) = numbers.next_element::<u8>()? {
            bytes.push(byte);
        }
        Ok(bytes.into())
    }

    fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<T, E> {
        Ok(bytes.to_vec().into())
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Parts {
        #[serde(with = "super")]
        vec: Vec<u8>,
        #[serde(with = "super")]
        bytes: bytes::Bytes,
    }

    #[test]
    fn all_bytes_come_back_and_take_four_thirds() {
        let all: Vec<u8> = (0..=255).cycle().take(9_000).collect();
        let parts = Parts {
            vec: all.clone(),
            bytes: all.into(),
        };
        let text = serde_json::to_string(&parts).expect("JSON");
        assert_eq!(text.len(), 2 * 12_000 + r#"{"vec":"","bytes":""}"#.len());
        assert_eq!(serde_json::from_str::<Parts>(&text).expect("read"), parts);
        let value = serde_json::to_value(&parts).expect("JSON");
        assert_eq!(serde_json::from_value::<Parts>(value).expect("read"), parts);
    }

    #[test]
    fn what_is_no_bytes_is_refused_without_being_repeated() {
        let read = |vec: &str| {
            let text = format!(r#"{{"vec":{vec},"bytes":""}}"#);
            serde_json::from_str::<Parts>(&text).map_err(|error| error.to_string())
        };
        assert_eq!(read("\"\"").expect("empty").vec, b"");
        assert_eq!(read("[0, 255]").expect("numbers").vec, [0, 255]);
        let refused = read(r#""sec*ret""#).expect_err("no Base64");
        assert!(
            refused.contains("7 bytes is not Base64") && !refused.contains("sec*ret"),
            "{refused}"
        );
        for other in ["[256]", "[-1]", "7", "null", "{}"] {
            read(other).expect_err(other);
        }
    }
}
