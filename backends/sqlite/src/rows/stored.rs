//! A message as it is stored. It is converted to the contract's types on the caller's thread, to keep the writer's free.

use bytes::Bytes;
use queue_core::backend::{ItemSet, NewMessage, PutReceipt, ReceivedMessage};
use queue_core::store_clock::timestamp;
use rusqlite::Row;

use crate::failure::Result;
use crate::rows::attachments::Attaching;
use crate::rows::checksum::checksum;
use crate::rows::receipt;

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
    /// The checksum of the body that was put. `None` if it cannot be read.
    pub(crate) checksum: Option<i64>,
    pub(crate) deleted_items: ItemSet,
}

impl Placed {
    pub(crate) fn into_receipt(self) -> PutReceipt {
        let mut put = PutReceipt::new(
            receipt::storage_id(self.seq, self.salt),
            receipt::pop_receipt(self.visible_at, self.nonce),
            timestamp(self.inserted_at),
            timestamp(self.visible_at),
        );
        put.expires_at = self.expires_at.map(timestamp);
        put
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
            },
            read_at: now,
            dequeue_count: row.get(3)?,
            body: Err("the body is missing"),
            checksum: None,
            deleted_items: ItemSet::default(),
        })
    }

    /// Reads the columns of a body: salt, inserted_at, body, checksum. If they are not what was written, there is no body.
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

    pub(crate) fn into_received(self) -> ReceivedMessage {
        let (body, damage) = verified(self.body, self.placed.salt, self.checksum);
        let put = self.placed.into_receipt();
        let received_at = timestamp(self.read_at);
        let mut received =
            ReceivedMessage::new(put.id, put.receipt, body, put.inserted_at, received_at);
        received.damage = damage;
        received.deleted_items = self.deleted_items;
        received.dequeue_count = self.dequeue_count;
        received.expires_at = put.expires_at;
        received.visible_at = put.visible_at;
        received
    }
}

/// Compares a body with its checksum. Returns it with what is wrong with it.
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
