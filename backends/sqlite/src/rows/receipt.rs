//! Storage ids and pop receipts as text.
//!
//! A storage id is the row's number and a random salt, because SQLite reuses the number of the last row
//! if that was deleted. A receipt is the row's visibility time, which every receive and update changes,
//! and a random nonce of 64 bits: a stale receipt matches no row, and a valid one cannot be guessed.

use queue_core::backend::{Lease, PopReceipt, StorageId};
use queue_core::store_clock::timestamp;

/// A storage id and a pop receipt, parsed. Invalid text is parsed to numbers that no row has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Handle {
    pub(crate) seq: i64,
    pub(crate) salt: i64,
    pub(crate) visible_at: i64,
    pub(crate) nonce: i64,
}

impl Handle {
    pub(crate) fn parse(id: &StorageId, receipt: &PopReceipt) -> Self {
        let (seq, salt) = parse_id(id);
        let (visible_at, nonce) = parse_pair(receipt.reveal()).unwrap_or((i64::MIN, 0));
        Self {
            seq,
            salt,
            visible_at,
            nonce,
        }
    }
}

/// Returns number and salt of a message. Those of an invalid id are no message's.
pub(crate) fn parse_id(id: &StorageId) -> (i64, i64) {
    parse_pair(id.as_str()).unwrap_or((i64::MIN, 0))
}

pub(crate) fn storage_id(seq: i64, salt: i64) -> StorageId {
    StorageId::new(format_pair(seq, salt))
}

pub(crate) fn pop_receipt(visible_at: i64, nonce: i64) -> PopReceipt {
    PopReceipt::new(format_pair(visible_at, nonce))
}

pub(crate) fn lease(visible_at: i64, nonce: i64) -> Lease {
    Lease::new(pop_receipt(visible_at, nonce), timestamp(visible_at))
}

pub(crate) fn format_pair(a: i64, b: i64) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(32);
    for byte in a.to_be_bytes().into_iter().chain(b.to_be_bytes()) {
        text.push(DIGITS[usize::from(byte >> 4)].into());
        text.push(DIGITS[usize::from(byte & 15)].into());
    }
    text
}

pub(crate) fn parse_pair(text: &str) -> Option<(i64, i64)> {
    let digits = |part: &str| part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if text.len() != 32 || !digits(text) {
        return None;
    }
    let bits = u128::from_str_radix(text, 16).ok()?;
    let (a, b) = ((bits >> 64) as u64, bits as u64);
    Some((a.cast_signed(), b.cast_signed()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formatting_and_parsing_round_trip() {
        for (a, b) in [(0, 0), (1, -1), (i64::MAX, i64::MIN), (12_345, 67_890)] {
            let text = format_pair(a, b);
            assert_eq!(text.len(), 32);
            assert_eq!(parse_pair(&text), Some((a, b)), "{text}");
        }
    }

    #[test]
    fn invalid_text_matches_no_row() {
        let good = format_pair(1, 2);
        for bad in [
            "",
            "1",
            &good[1..],
            &good.replace('0', "G"),
            &good.to_uppercase().replace('1', "A"),
            &format!("{good}0"),
            &format!("+{}", &good[1..]),
            "ééééééééééééééé\u{0}\u{0}",
        ] {
            let handle = Handle::parse(&StorageId::new(bad), &PopReceipt::new(bad));
            assert_eq!(handle.seq, i64::MIN, "{bad}");
            assert_eq!(handle.visible_at, i64::MIN, "{bad}");
        }
    }
}
