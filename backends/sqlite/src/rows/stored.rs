//! A message as it is stored, converted to the contract's types on the caller's thread, to keep the writer's free.
//!
//! A storage id is the message's row number and a random salt, because SQLite reuses the number of the last row
//! if that was deleted. A receipt is the message's visibility time, which every receive and update changes,
//! and a random nonce of 64 bits: a stale receipt matches no row, and a valid one cannot be guessed.

use std::cell::OnceCell;

use bytes::Bytes;
use queue_core::QueueName;
use queue_core::backend::{
    BrowsedMessage, ItemSet, Lease, NewMessage, PopReceipt, PutReceipt, ReceivedMessage, StorageId,
};
use queue_core::internal::{as_count, hex};
use queue_core::store_clock::timestamp;
use rusqlite::{Connection, Row, params};

use crate::failure::{Failure, Result};

/// What is attached to a message that is put.
#[derive(Debug)]
pub(crate) enum Attaching {
    /// Data that is not staged.
    Whole(Bytes),
    /// What was staged under this id.
    Staged(i64),
    /// The attachment of another message, if it has one.
    Of {
        queue: QueueName,
        seq: i64,
        salt: i64,
    },
}

/// A message to put.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(crate) message: NewMessage,
    pub(crate) salt: i64,
    pub(crate) checksum: i64,
    pub(crate) attachment: Option<Attaching>,
}

/// The number and the salt of a message.
pub(crate) type MessageRef = (i64, i64);

/// A message that was put.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) seq: i64,
    pub(crate) salt: i64,
    pub(crate) nonce: i64,
    pub(crate) inserted_at: i64,
    pub(crate) visible_at: i64,
    pub(crate) expires_at: Option<i64>,
    /// When the message would be visible without its group, if it lies behind another.
    pub(crate) place: Option<i64>,
}

/// A message that was updated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Updated {
    pub(crate) visible_at: i64,
    pub(crate) nonce: i64,
    /// When the message becomes visible, unless it lies behind others.
    pub(crate) place: i64,
}

/// A message that was read.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) placed: Placed,
    /// The store time of the read.
    pub(crate) read_at: i64,
    pub(crate) dequeue_count: u32,
    /// The body, or why it cannot be read.
    pub(crate) body: Result<Bytes, &'static str>,
    /// The checksum of the body that was put, if readable.
    pub(crate) checksum: Option<i64>,
    pub(crate) deleted_items: ItemSet,
    /// The fence number of this receive, if the message has a group.
    pub(crate) fence: Option<u64>,
}

impl Placed {
    pub(crate) fn into_receipt(self) -> PutReceipt {
        let mut put = PutReceipt::new(
            storage_id(self.seq, self.salt),
            pop_receipt(self.visible_at, self.nonce),
            timestamp(self.inserted_at),
            timestamp(self.place.unwrap_or(self.visible_at)),
        );
        put.expires_at = self.expires_at.map(timestamp);
        put
    }
}

impl Updated {
    pub(crate) fn into_lease(self) -> Lease {
        let receipt = pop_receipt(self.visible_at, self.nonce);
        Lease::new(receipt, timestamp(self.place))
    }
}

impl Stored {
    /// Reads a row of the schedule and its body: visible_at, seq, nonce, dequeue_count, expires_at, and the columns of
    /// [`read_body`](Self::read_body).
    pub(crate) fn read(row: &Row<'_>, now: i64) -> Result<Self> {
        let mut stored = Self::scheduled(row, now)?;
        stored.read_body(row, 5)?;
        Ok(stored)
    }

    /// Reads the first columns of a row, those of the schedule.
    pub(crate) fn scheduled(row: &Row<'_>, now: i64) -> Result<Self> {
        Ok(Self {
            placed: Placed {
                visible_at: row.get(0)?,
                seq: row.get(1)?,
                nonce: row.get(2)?,
                expires_at: row.get(4)?,
                salt: 0,
                inserted_at: row.get(0)?,
                place: None,
            },
            read_at: now,
            dequeue_count: row.get(3)?,
            body: Err("the body is missing"),
            checksum: None,
            deleted_items: ItemSet::default(),
            fence: None,
        })
    }

    /// Reads the columns of a body: salt, inserted_at, body, checksum; if they are not what was written, there is no
    /// body.
    pub(crate) fn read_body(&mut self, row: &Row<'_>, first: usize) -> Result<()> {
        let salt = row.get_ref(first)?.as_i64();
        let inserted_at = row.get_ref(first + 1)?.as_i64();
        let body = row.get_ref(first + 2)?.as_bytes();
        if let (Ok(salt), Ok(inserted_at), Ok(body)) = (salt, inserted_at, body) {
            self.placed.salt = salt;
            self.placed.inserted_at = inserted_at;
            self.body = Ok(Bytes::copy_from_slice(body));
            self.checksum = row.get_ref(first + 3)?.as_i64().ok();
        }
        Ok(())
    }

    /// Returns the position in the queue: when the message becomes visible, and its number.
    pub(crate) fn position(&self) -> (i64, i64) {
        (self.placed.visible_at, self.placed.seq)
    }

    pub(crate) fn into_browsed(self) -> BrowsedMessage {
        let place = self.placed.place;
        let browsed = BrowsedMessage::from(self.into_received());
        match place {
            Some(place) => browsed.behind(timestamp(place)),
            None => browsed,
        }
    }

    pub(crate) fn into_received(self) -> ReceivedMessage {
        let (body, damage) = verified(self.body, self.placed.salt, self.checksum);
        let put = self.placed.into_receipt();
        let received_at = timestamp(self.read_at);
        let mut received =
            ReceivedMessage::new(put.id, put.receipt, body, put.inserted_at, received_at);
        received.damage = damage;
        received.deleted_items = self.deleted_items;
        received.fence = self.fence;
        received.dequeue_count = as_count(self.dequeue_count);
        received.expires_at = put.expires_at;
        received.visible_at = put.visible_at;
        received
    }
}

/// Compares a body with its checksum, and returns it with what is wrong with it.
fn verified(
    body: Result<Bytes, &'static str>,
    salt: i64,
    expected: Option<i64>,
) -> (Bytes, Option<Box<str>>) {
    match body {
        Ok(body) if expected == Some(checksum(salt, &body)) => (body, None),
        Ok(body) => {
            let damage = "the stored body does not match its checksum";
            (body, Some(damage.into()))
        }
        Err(damage) => (Bytes::new(), Some(damage.into())),
    }
}

/// The bits of a salt that say whether the message may have a group, and may be tracked. Those of older programs are random.
const GROUPED: i64 = 2;
const TRACKED: i64 = 4;

/// Returns a salt for a message that has a group, or has none, and is tracked, or is not.
pub(crate) fn new_salt(has_group: bool, is_tracked: bool) -> i64 {
    let bits = [(GROUPED, has_group), (TRACKED, is_tracked)];
    let set = bits.into_iter().filter(|(_, is_set)| *is_set);
    rand::random::<i64>() & !(GROUPED | TRACKED) | set.map(|(bit, _)| bit).sum::<i64>()
}

/// Whether a message with this salt may be tracked.
pub(crate) fn may_be_tracked(salt: i64) -> bool {
    salt & TRACKED != 0
}

/// Whether a message with this salt may have a group.
pub(crate) fn may_have_group(salt: i64) -> bool {
    salt & GROUPED != 0
}

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

/// Returns number and salt of a message: those of an invalid id are no message's.
pub(crate) fn parse_id(id: &StorageId) -> (i64, i64) {
    parse_pair(id.as_str()).unwrap_or((i64::MIN, 0))
}

pub(crate) fn storage_id(seq: i64, salt: i64) -> StorageId {
    StorageId::new(format_pair(seq, salt))
}

fn pop_receipt(visible_at: i64, nonce: i64) -> PopReceipt {
    PopReceipt::new(format_pair(visible_at, nonce))
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
    let bits = hex(text)?;
    // Text with upper-case digits was never given out.
    if text.bytes().any(|digit| digit.is_ascii_uppercase()) {
        return None;
    }
    let (a, b) = ((bits >> 64) as u64, bits as u64);
    Some((a.cast_signed(), b.cast_signed()))
}

/// Returns the checksum of a message's salt and body. With the salt, which no other message has, the body
/// of another message has another checksum.
pub(crate) fn checksum(salt: i64, body: &[u8]) -> i64 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&salt.to_be_bytes());
    hasher.update(body);
    hasher.finalize().into()
}

/// Reads around damage, by a connection that is opened when damage is met for the first time.
///
/// Once a connection has read a damaged page within a write transaction, SQLite refuses every further write
/// of that transaction. So the writer finds out on another connection what can be read. While the writer
/// holds the lock, both connections see the same.
pub(crate) struct Probe {
    open: Box<dyn Fn() -> Result<Connection>>,
    connection: OnceCell<Connection>,
}

impl Probe {
    pub(crate) fn new(open: impl Fn() -> Result<Connection> + 'static) -> Self {
        Self {
            open: Box::new(open),
            connection: OnceCell::new(),
        }
    }

    fn connection(&self) -> Result<&Connection> {
        if let Some(connection) = self.connection.get() {
            return Ok(connection);
        }
        let opened = (self.open)()?;
        Ok(self.connection.get_or_init(|| opened))
    }

    /// Returns the first visible messages before a damaged page of the schedule, those with a damaged body
    /// without it. Fails if the first page is damaged.
    pub(super) fn first_visible(&self, queue: i64, now: i64, max: usize) -> Result<Vec<Stored>> {
        let mut statement = self.connection()?.prepare_cached(
            "SELECT visible_at, seq, nonce, dequeue_count, expires_at FROM queue_schedule \
             WHERE queue = ?1 AND visible_at <= ?2 ORDER BY visible_at, seq LIMIT ?3",
        )?;
        let mut rows = statement.query(params![queue, now, max as i64])?;
        let mut found = Vec::new();
        loop {
            match rows.next().map_err(Failure::from) {
                Ok(Some(row)) => found.push(Stored::scheduled(row, now)?),
                Ok(None) => break,
                Err(failure) if failure.is_damage() && !found.is_empty() => break,
                Err(failure) => return Err(failure),
            }
        }
        for stored in &mut found {
            match self.read_body(stored) {
                Err(failure) if failure.is_damage() => {
                    stored.body = Err("the page of the body is damaged");
                }
                other => other?,
            }
        }
        Ok(found)
    }

    fn read_body(&self, stored: &mut Stored) -> Result<()> {
        let select = "SELECT salt, inserted_at, body, checksum FROM queue_messages WHERE seq = ?1";
        let mut statement = self.connection()?.prepare_cached(select)?;
        let mut rows = statement.query([stored.placed.seq])?;
        match rows.next()? {
            Some(row) => stored.read_body(row, 0),
            None => Ok(()),
        }
    }
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

    #[test]
    fn a_flipped_bit_or_another_salt_changes_it() {
        let body = b"{\"amount\":100}".to_vec();
        let expected = checksum(7, &body);
        assert_eq!(expected, 0x168f_e95e, "files depend on it");
        assert_ne!(checksum(8, &body), expected);
        for bit in 0..body.len() * 8 {
            let mut flipped = body.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(checksum(7, &flipped), expected, "bit {bit}");
        }
    }
}
