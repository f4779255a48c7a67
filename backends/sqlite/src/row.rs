//! Reading a message from a row.

use bytes::Bytes;
use rusqlite::Row;

use super::command::{Claimed, Placed};
use super::failure::Result;

/// Reads the first columns of a row, those of the schedule, for a receive at `now`.
pub(super) fn scheduled(row: &Row<'_>, now: i64) -> Result<Claimed> {
    Ok(Claimed {
        placed: Placed {
            visible_at: row.get(0)?,
            seq: row.get(1)?,
            expires_at: row.get(3)?,
            salt: 0,
            inserted_at: row.get(0)?,
            nonce: 0,
        },
        received_at: now,
        dequeue_count: row.get(2)?,
        body: Err("the body is missing"),
        checksum: None,
    })
}

/// Reads the columns of a body. If they are not what was written, there is no body.
pub(super) fn read_body(claimed: &mut Claimed, row: &Row<'_>, first: usize) -> Result<()> {
    let salt = row.get_ref(first)?.as_i64();
    let inserted_at = row.get_ref(first + 1)?.as_i64();
    let body = row.get_ref(first + 2)?.as_bytes();
    if let (Ok(salt), Ok(inserted_at), Ok(body)) = (salt, inserted_at, body) {
        claimed.placed.salt = salt;
        claimed.placed.inserted_at = inserted_at;
        claimed.body = Ok(Bytes::copy_from_slice(body));
        claimed.checksum = row.get_ref(first + 3)?.as_i64().ok();
    }
    Ok(())
}
