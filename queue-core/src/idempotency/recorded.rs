//! What a result store has recorded, for those who look after the store.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use super::{Owner, WorkKey};
use crate::backend::PageMark;
use crate::clock::Timestamp;
use crate::error::{Error, ErrorKind, Operation};
use crate::wire::encoding::{from_hex, to_hex};

/// The most records that a page of [`list`](super::ResultStore::list) holds.
pub const MAX_RECORDS: usize = 1000;

/// A record of a store, as [`list`](super::ResultStore::list) and [`find`](super::ResultStore::find)
/// return it.
///
/// `Debug` hides the key and the value, which are the application's data.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recorded {
    /// The key.
    pub key: WorkKey,
    /// The state of the record.
    pub state: RecordState,
    /// The end of the lease, or of the retention, in the store's time. A claim whose lease has ended may still be
    /// finished.
    pub ends_at: Timestamp,
    /// The result or the recorded value of a record that is [`Done`](RecordState::Done); `None` in a listing.
    pub value: Option<Bytes>,
}

/// The state of the record of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordState {
    /// The work of the key has begun.
    InFlight {
        /// Who has begun the work.
        owner: Owner,
    },
    /// The work is done, or a [swap](crate::backend::Swap) has recorded a value.
    Done {
        /// The size of the result or value, in bytes.
        size: u64,
    },
    /// The record cannot be read, and [`begin`](super::ResultStore::begin) of its key fails until the record is
    /// [forgotten](super::ResultStore::forget) or its retention is over.
    Damaged {
        /// What is wrong with the record.
        problem: Box<str>,
    },
}

/// A page of a result store's records.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordedPage {
    /// The records, sorted by scope and then by key.
    pub records: Vec<Recorded>,
    /// The store's time.
    pub now: Timestamp,
    /// Where the next page starts; `None` on the last page. The mark contains a key, in hexadecimal digits.
    pub next: Option<PageMark>,
}

/// The answer to [`forget`](super::ResultStore::forget).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Forgotten {
    /// The record was removed.
    Removed,
    /// Nothing is recorded under the key.
    Missing,
    /// The work is in flight, so its record was not removed.
    InFlight {
        /// The time until the work's lease ends, if not renewed.
        remaining: Duration,
    },
}

impl Recorded {
    /// Creates a record without a value.
    #[must_use]
    pub fn new(key: WorkKey, state: RecordState, ends_at: Timestamp) -> Self {
        Self {
            key,
            state,
            ends_at,
            value: None,
        }
    }

    /// Adds the recorded value.
    #[must_use]
    pub fn with_value(mut self, value: impl Into<Bytes>) -> Self {
        self.value = Some(value.into());
        self
    }
}

impl fmt::Debug for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorded")
            .field("key", &self.key)
            .field("state", &self.state)
            .field("ends_at", &self.ends_at)
            .finish_non_exhaustive()
    }
}

impl RecordedPage {
    /// Creates the last page, as it was at `now`.
    #[must_use]
    pub fn new(records: Vec<Recorded>, now: Timestamp) -> Self {
        Self {
            records,
            now,
            next: None,
        }
    }
}

/// The error of a store that cannot list, show or remove records.
pub(super) fn unsupported() -> Error {
    Error::new(ErrorKind::Unsupported, Operation::Results)
        .with_detail("this result store cannot list, show or remove single records")
        .unsent()
}

/// Returns the mark of the page that starts with this scope and key. The fields of a damaged record may not be text.
#[must_use]
pub fn record_mark(scope: &[u8], key: &[u8]) -> PageMark {
    PageMark::new(format!("{}/{}", to_hex(scope), to_hex(key)))
}

/// Returns the scope and the key at which a page starts. The marks of first pages sort before all keys of the scope.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for a mark that no listing of the scope has returned.
pub fn record_start(
    scope: Option<&str>,
    from: Option<&PageMark>,
) -> Result<(Vec<u8>, Vec<u8>), Error> {
    let Some(mark) = from else {
        return Ok((scope.unwrap_or_default().into(), Vec::new()));
    };
    let parsed = mark.as_str().split_once('/').and_then(|(of, key)| {
        let start = (from_hex(of)?, from_hex(key)?);
        let is_of_scope = scope.is_none_or(|scope| scope.as_bytes() == start.0);
        is_of_scope.then_some(start)
    });
    parsed.ok_or_else(|| {
        Error::new(ErrorKind::InvalidInput, Operation::Results)
            .with_detail("the mark is not one that a listing of these records has returned")
            .unsent()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_names_the_key_it_was_made_of_and_nothing_else_is_one() {
        for (scope, key) in [
            ("", &b""[..]),
            ("queue a/b", b"\xff\x00 "),
            ("\u{fc}", b"/"),
        ] {
            let mark = record_mark(scope.as_bytes(), key);
            let start = (scope.as_bytes().to_vec(), key.to_vec());
            for scope in [None, Some(scope)] {
                let parsed = record_start(scope, Some(&mark));
                assert_eq!(parsed.expect("a mark"), start);
            }
            record_start(Some("other"), Some(&mark)).expect_err("of another scope");
        }
        for no_mark in ["", "6", "61", "6/61", "61/6", "+1/61", "zz/61", "61/61/61"] {
            let refused = record_start(None, Some(&PageMark::new(no_mark)));
            let refused = refused.expect_err(no_mark);
            assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{no_mark}");
        }
        let first = record_start(Some("once"), None).expect("the first page");
        assert_eq!(first, (b"once".to_vec(), Vec::new()));
    }

    #[test]
    fn a_record_is_shown_without_key_and_value() {
        let key = WorkKey::new("charge", "secret-key");
        let state = RecordState::Done { size: 6 };
        let record = Recorded::new(key, state, Timestamp::UNIX_EPOCH).with_value("secret");
        let shown = format!("{record:?}");
        assert!(
            shown.contains("charge #") && !shown.contains("secret"),
            "{shown}"
        );
    }
}
