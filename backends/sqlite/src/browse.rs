//! Reading messages in any state, page by page.

use bytes::Bytes;
use queue_core::backend::{BrowsedMessage, MessageState, Page, PageMark};
use queue_core::store_clock::timestamp;
use rusqlite::{Connection, Row, params};

use super::command::PageEnd;
use super::convert::verified;
use super::failure::Result;
use super::receipt;

/// Reads a range of the schedule's key, whatever the number of messages before it.
const PAGE: &str = "SELECT visible_at, seq, nonce, dequeue_count, queue_schedule.expires_at, \
    salt, inserted_at, body, checksum FROM queue_schedule LEFT JOIN queue_messages USING (seq) \
    WHERE queue_schedule.queue = ?1 AND (visible_at, seq) > (?2, ?3) \
    AND (queue_schedule.expires_at IS NULL OR queue_schedule.expires_at > ?4) \
    ORDER BY visible_at, seq LIMIT ?5";

pub(super) fn page(
    connection: &Connection,
    queue: i64,
    after: Option<PageEnd>,
    max: u32,
    now: i64,
) -> Result<Page> {
    let mut statement = connection.prepare_cached(PAGE)?;
    let (visible_at, seq) = after.unwrap_or((i64::MIN, i64::MIN));
    // One more than wanted shows whether there is another page.
    let mut rows = statement.query(params![queue, visible_at, seq, now, i64::from(max) + 1])?;
    let mut page = Page::new(Vec::new(), timestamp(now));
    let mut last = None;
    while let Some(row) = rows.next()? {
        if page.messages.len() == max as usize {
            page.next = last.map(mark);
            break;
        }
        last = Some((row.get(0)?, row.get(1)?));
        page.messages.push(read(row, now)?);
    }
    Ok(page)
}

/// Reads the mark of a page.
pub(super) fn parse(mark: &PageMark) -> Option<PageEnd> {
    receipt::parse_pair(mark.as_str())
}

fn mark((visible_at, seq): PageEnd) -> PageMark {
    PageMark::new(receipt::format_pair(visible_at, seq))
}

fn read(row: &Row<'_>, now: i64) -> Result<BrowsedMessage> {
    let (visible_at, seq): (i64, i64) = (row.get(0)?, row.get(1)?);
    // Null if the body is lost.
    let salt = row.get::<_, Option<i64>>(5)?.unwrap_or(0);
    let inserted_at = row.get::<_, Option<i64>>(6)?.unwrap_or(visible_at);
    let body = row.get_ref(7)?.as_bytes();
    let body = body.map(Bytes::copy_from_slice);
    let body = body.map_err(|_| "the body is missing");
    let (body, damage) = verified(body, salt, row.get(8)?);
    let (id, receipt) = (
        receipt::storage_id(seq, salt),
        receipt::pop_receipt(visible_at, row.get(2)?),
    );
    let mut browsed = BrowsedMessage::new(id, receipt, body, timestamp(inserted_at));
    browsed.dequeue_count = row.get(3)?;
    browsed.visible_at = timestamp(visible_at);
    browsed.expires_at = row.get::<_, Option<i64>>(4)?.map(timestamp);
    let count = browsed.dequeue_count;
    browsed.state = MessageState::at(timestamp(now), browsed.visible_at, count);
    browsed.damage = damage;
    Ok(browsed)
}
