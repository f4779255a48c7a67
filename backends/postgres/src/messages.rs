//! The statements on messages. One statement carries out many operations, and answers each: a refusal is a row, not an
//! error.

use std::str::FromStr as _;

use bytes::Bytes;
use queue_core::QueueName;
use queue_core::backend::{
    ItemSet, Lease, NewMessage, PopReceipt, PutReceipt, ReceivedMessage, StorageId,
};
use queue_core::internal::as_count;
use queue_core::store_clock::{lifespan, timestamp};
use tokio_postgres::Row;
use uuid::Uuid;

use crate::failure::{Failure, Result};
use crate::session::{Session, column};
use crate::values::Parameter;

/// A storage id and a pop receipt, parsed. Invalid text is parsed to values that no message has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Handle {
    pub(crate) seq: i64,
    pub(crate) nonce: Uuid,
}

/// A change to one message.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change<'a> {
    Delete,
    Update {
        /// In microseconds; `None` if the message goes back to its place.
        delay: Option<i64>,
        body: Option<&'a Bytes>,
    },
}

/// The start of each statement: its time.
macro_rules! clock {
    () => {
        "WITH clock AS MATERIALIZED (SELECT greatest($1::bigint, now_us()) AS now), "
    };
}
pub(crate) use clock;

/// Puts messages on queues, in order, as far as the queues exist. The ids are given in order.
pub(crate) const PUT: &str = concat!(
    clock!(),
    "placed AS MATERIALIZED (
        SELECT given.place, given.queue, nextval('message_ids') AS seq, gen_random_uuid() AS nonce,
            now + delay AS visible_at, now + lifetime AS expires_at, body
        FROM clock, (
            SELECT g.*, queues.id AS queue
            FROM unnest($2::text[], $3::bytea[], $4::bigint[], $5::bigint[])
                WITH ORDINALITY AS g (name, body, delay, lifetime, place)
            LEFT JOIN queues ON queues.name = g.name ORDER BY place
        ) AS given
    ), put AS (
        INSERT INTO messages (seq, queue, visible_at, nonce, inserted_at, expires_at, body)
        SELECT seq, queue, visible_at, nonce, now, expires_at, body FROM placed, clock WHERE queue IS NOT NULL
    ), counted AS (
        INSERT INTO totals SELECT queue, count(*), 0 FROM placed WHERE queue IS NOT NULL GROUP BY queue
    )
    SELECT now, queue IS NOT NULL, seq, nonce, visible_at, expires_at FROM placed, clock ORDER BY place"
);

/// Changes messages by their receipts. Answers with up to three rows for each, which tell: 0, whether the queue exists,
/// and the message, before the statement; 1, of a message that could be locked, whether the message is alive; 2, that
/// the message was changed. No result is joined with another, which would take the square of their number.
macro_rules! settle {
    ($given:literal, $columns:literal, $change:literal, $counted:literal) => {
        concat!(
            clock!(),
            "given AS MATERIALIZED (
                SELECT g.*, queues.id AS queue
                FROM unnest($2::text[], $3::bigint[], $4::uuid[]",
            $given,
            ") WITH ORDINALITY AS g (name, seq, receipt",
            $columns,
            ", place) LEFT JOIN queues ON queues.name = g.name
            ), held AS MATERIALIZED (
                SELECT given.*, nonce,
                    coalesce(messages.queue = given.queue, false) AND coalesce(expires_at > now, true) AS alive
                FROM given JOIN messages USING (seq), clock FOR UPDATE OF messages SKIP LOCKED
            ), changed AS (",
            $change,
            " WHERE m.seq = held.seq AND alive AND held.nonce = receipt
                RETURNING place, m.queue, m.visible_at, m.nonce
            )",
            $counted,
            "
            SELECT now, place, 0 AS stage, queue IS NOT NULL AS is_so,
                -- Not `EXISTS`, which would be planned as a scan of the whole index if the table seems small.
                (SELECT true FROM messages WHERE messages.seq = given.seq) IS NOT NULL, NULL::bigint, NULL::uuid
            FROM given, clock
            UNION ALL SELECT now, place, 1, alive, NULL, NULL, NULL FROM held, clock
            UNION ALL SELECT now, place, 2, NULL, NULL, visible_at, nonce FROM changed, clock"
        )
    };
}

const DELETE: &str = settle!(
    "",
    "",
    "DELETE FROM messages m USING held",
    ", counted AS (INSERT INTO totals SELECT queue, 0, count(*) FROM changed GROUP BY queue)"
);
const UPDATE: &str = settle!(
    ", $5::bigint[], $6::bytea[]",
    ", delay, body",
    "UPDATE messages m SET nonce = gen_random_uuid(), body = coalesce(held.body, m.body),
        visible_at = coalesce(now + delay, least(now, m.inserted_at))
    FROM held, clock",
    ""
);
const ITEMS: &str = concat!(
    clock!(),
    "target AS MATERIALIZED (SELECT id FROM queues WHERE name = $2),
    held AS MATERIALIZED (
        SELECT nonce, deleted_items FROM messages, target, clock
        WHERE seq = $3 AND queue = target.id AND coalesce(expires_at > now, true)
        FOR UPDATE OF messages SKIP LOCKED
    ) SELECT now, target.id IS NOT NULL, held.nonce, held.deleted_items,
        (SELECT true FROM messages WHERE seq = $3) IS NOT NULL
    FROM clock LEFT JOIN target ON true LEFT JOIN held ON true"
);
const SET_ITEMS: &str = "UPDATE messages SET deleted_items = $2 WHERE seq = $1";
const REMOVE: &str = "WITH gone AS (DELETE FROM messages WHERE seq = $1 RETURNING queue)
    INSERT INTO totals SELECT queue, 0, count(*) FROM gone GROUP BY queue";

/// What a settlement has learnt of one message.
#[derive(Default, Clone, Copy)]
struct Learnt {
    queue_exists: bool,
    was_seen: bool,
    /// Of a message that was locked: whether it is alive.
    held: Option<bool>,
    changed: Option<(i64, Uuid)>,
}

impl Handle {
    pub(crate) fn parse(id: &StorageId, receipt: &PopReceipt) -> Self {
        Self {
            seq: parse_id(id),
            nonce: Uuid::from_str(receipt.reveal()).unwrap_or_default(),
        }
    }
}

/// Returns the number of a message: that of an invalid id is no message's.
pub(crate) fn parse_id(id: &StorageId) -> i64 {
    let number = id.as_str().parse::<i64>();
    let number = number
        .ok()
        .filter(|number| number.to_string() == id.as_str());
    number.unwrap_or(i64::MIN)
}

pub(crate) fn storage_id(seq: i64) -> StorageId {
    StorageId::new(seq.to_string())
}

pub(crate) fn pop_receipt(nonce: Uuid) -> PopReceipt {
    PopReceipt::new(nonce.simple().encode_lower(&mut Uuid::encode_buffer()))
}

/// Puts messages. Returns for each its number and the receipt, or why it was not put.
pub(crate) async fn put(
    session: &mut Session,
    puts: &[(&QueueName, &NewMessage)],
) -> Result<Vec<Result<(i64, PutReceipt)>>> {
    let names: Vec<_> = puts.iter().map(|(queue, _)| queue.as_str()).collect();
    let bodies: Vec<_> = puts.iter().map(|(_, message)| &message.body[..]).collect();
    let spans = puts.iter().map(|(_, message)| lifespan(0, message));
    let (delays, lifetimes): (Vec<i64>, Vec<Option<i64>>) = spans.unzip();
    let parameters: [Parameter<'_>; 4] = [&names, &bodies, &delays, &lifetimes];
    let (now, rows) = session.timed(PUT, &parameters).await?;
    if rows.len() != puts.len() {
        return Err(Failure::Corrupt("not every put was answered"));
    }
    let answer = |row: &Row| {
        if !column::<bool>(row, 1)? {
            return Ok(Err(Failure::QueueNotFound));
        }
        let seq = column(row, 2)?;
        let mut put = PutReceipt::new(
            storage_id(seq),
            pop_receipt(column(row, 3)?),
            timestamp(now),
            timestamp(column(row, 4)?),
        );
        put.expires_at = column::<Option<i64>>(row, 5)?.map(timestamp);
        Ok(Ok((seq, put)))
    };
    rows.iter().map(answer).collect()
}

/// Changes messages, each another one, all in the same way. Returns for each the new lease, which means nothing for a
/// delete, or why it was not changed.
pub(crate) async fn settle(
    session: &mut Session,
    settlements: &[(&QueueName, Handle, Change<'_>)],
) -> Result<Vec<Result<Lease>>> {
    let names: Vec<_> = settlements
        .iter()
        .map(|(queue, ..)| queue.as_str())
        .collect();
    let seqs: Vec<_> = settlements
        .iter()
        .map(|(_, handle, _)| handle.seq)
        .collect();
    let nonces: Vec<_> = settlements
        .iter()
        .map(|(_, handle, _)| handle.nonce)
        .collect();
    let mut updates: (Vec<Option<i64>>, Vec<Option<&[u8]>>) = Default::default();
    for (.., change) in settlements {
        if let Change::Update { delay, body } = change {
            updates.0.push(*delay);
            updates.1.push(body.map(|body| &body[..]));
        }
    }
    let (_, rows) = if updates.0.is_empty() {
        session.timed(DELETE, &[&names, &seqs, &nonces]).await?
    } else {
        let (delays, bodies) = &updates;
        session
            .timed(UPDATE, &[&names, &seqs, &nonces, delays, bodies])
            .await?
    };
    let mut learnt = vec![Learnt::default(); settlements.len()];
    for row in &rows {
        let place: i64 = column(row, 1)?;
        let one = learnt.get_mut(as_count(place - 1));
        let one = one.ok_or(Failure::Corrupt(
            "a settlement was answered that was not asked for",
        ))?;
        match column::<i32>(row, 2)? {
            0 => (one.queue_exists, one.was_seen) = (column(row, 3)?, column(row, 4)?),
            1 => one.held = Some(column(row, 3)?),
            _ => one.changed = Some((column(row, 5)?, column(row, 6)?)),
        }
    }
    Ok(learnt.into_iter().map(|one| one.answer()).collect())
}

impl Learnt {
    fn answer(self) -> Result<Lease> {
        match (self.changed, self.held) {
            _ if !self.queue_exists => Err(Failure::QueueNotFound),
            (Some((visible_at, nonce)), _) => {
                Ok(Lease::new(pop_receipt(nonce), timestamp(visible_at)))
            }
            (None, Some(true)) => Err(Failure::ReceiptMismatch),
            (None, Some(false)) => Err(Failure::MessageNotFound),
            // Locked by another transaction, or deleted by one that was committed meanwhile.
            (None, None) if self.was_seen => Err(Failure::Busy),
            (None, None) => Err(Failure::MessageNotFound),
        }
    }
}

/// Deletes items of a message that has `of` of them, and the message with the last of them.
pub(crate) async fn delete_items(
    session: &mut Session,
    queue: &QueueName,
    handle: Handle,
    (items, of): (&ItemSet, u32),
) -> Result<Result<()>> {
    let parameters: [Parameter<'_>; 2] = [&queue.as_str(), &handle.seq];
    let (_, rows) = session.timed(ITEMS, &parameters).await?;
    let row = &rows[0];
    if !column::<bool>(row, 1)? {
        return Ok(Err(Failure::QueueNotFound));
    }
    let Some(nonce) = column::<Option<Uuid>>(row, 2)? else {
        let is_busy = column(row, 4)?;
        return Ok(Err(if is_busy {
            Failure::Busy
        } else {
            Failure::MessageNotFound
        }));
    };
    let deleted: Option<&[u8]> = column(row, 3)?;
    let mut deleted = ItemSet::from_bytes(deleted.unwrap_or_default());
    // An item that was deleted is nobody's, whatever the receipt.
    if !deleted.insert_all(items) {
        return Ok(Err(Failure::MessageNotFound));
    }
    if nonce != handle.nonce {
        return Ok(Err(Failure::ReceiptMismatch));
    }
    if deleted.len() >= of {
        session.query(REMOVE, &[&handle.seq]).await?;
    } else {
        session
            .query(SET_ITEMS, &[&handle.seq, &deleted.as_bytes()])
            .await?;
    }
    Ok(Ok(()))
}

/// The columns of a message `m`, as [`read`] reads them.
macro_rules! columns {
    () => {
        "m.seq, m.nonce, m.visible_at, m.dequeue_count, m.inserted_at, m.expires_at, m.deleted_items, m.body"
    };
}
pub(crate) use columns;

/// Reads a message, from its [columns] after the first two; `None` if the row has none.
pub(crate) fn read(row: &Row, now: i64) -> Result<Option<ReceivedMessage>> {
    let Some(seq) = column::<Option<i64>>(row, 2)? else {
        return Ok(None);
    };
    let body: &[u8] = column(row, 9)?;
    let mut message = ReceivedMessage::new(
        storage_id(seq),
        pop_receipt(column(row, 3)?),
        Bytes::copy_from_slice(body),
        timestamp(column(row, 6)?),
        timestamp(now),
    );
    message.visible_at = timestamp(column(row, 4)?);
    message.dequeue_count = as_count(column::<i32>(row, 5)?);
    message.expires_at = column::<Option<i64>>(row, 7)?.map(timestamp);
    let deleted: Option<&[u8]> = column(row, 8)?;
    message.deleted_items = ItemSet::from_bytes(deleted.unwrap_or_default());
    Ok(Some(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ids_that_were_given_out_name_a_message() {
        assert_eq!(parse_id(&storage_id(17)), 17);
        for invalid in [
            "",
            "+17",
            "017",
            " 17",
            "17x",
            "0x11",
            "99999999999999999999",
        ] {
            assert_eq!(parse_id(&StorageId::new(invalid)), i64::MIN, "{invalid}");
        }
        let handle = Handle::parse(&storage_id(17), &PopReceipt::new("no receipt"));
        assert!(handle.nonce.is_nil());
    }
}
