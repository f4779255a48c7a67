//! The statements on messages. One statement carries out many operations, and answers each: a refusal is a row, not an
//! error.

use std::str::FromStr as _;

use bytes::Bytes;
use queue_core::backend::{
    BrowsedMessage, ItemSet, NewMessage, PopReceipt, PutReceipt, ReceivedMessage, StorageId,
};
use queue_core::internal::as_count;
use queue_core::store_clock::{lifespan, timestamp};
use queue_core::{MessageId, QueueName};
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

/// The start of each statement: its time.
macro_rules! clock {
    () => {
        "WITH clock AS MATERIALIZED (SELECT greatest($1::bigint, now_us()) AS now), "
    };
}
pub(crate) use clock;

/// Puts messages on queues, in order, as far as the queues exist. The ids are given in order.
macro_rules! put {
    ($given:literal, $columns:literal, $nonce:literal, $place:literal, $group:expr, $answer:literal) => {
        concat!(
            clock!(),
            "placed AS MATERIALIZED (
                SELECT given.place, given.queue, nextval('message_ids') AS seq, ",
            $nonce,
            " AS nonce, now + delay AS visible_at, now + lifetime AS expires_at, body",
            $place,
            " FROM clock, (
                    SELECT g.*, queues.id AS queue, queues.group_limit
                    FROM unnest($2::text[], $3::bytea[], $4::bigint[], $5::bigint[]",
            $given,
            ") WITH ORDINALITY AS g (name, body, delay, lifetime",
            $columns,
            ", place) LEFT JOIN queues ON queues.name = g.name ORDER BY place
                ) AS given
            ), ",
            $group,
            "counted AS (
                INSERT INTO totals SELECT queue, count(*), 0 FROM placed WHERE queue IS NOT NULL GROUP BY queue
            )
            SELECT now, queue IS NOT NULL, seq",
            $answer,
            " FROM placed, clock ORDER BY place"
        )
    };
}

/// [`BEHIND`](queue_core::store_clock::BEHIND), in a statement.
macro_rules! behind {
    () => {
        "253402207200000000"
    };
}
/// When a message is scheduled that lies behind others in a group that takes turns, if its place is at 0: in the year 9860.
/// All such messages, in the order of their places, are scheduled before the messages that are in order, and no others after this time.
pub(crate) const IN_TURNS: i64 = 249_000_000_000_000_000;

/// [`IN_TURNS`], in a statement.
macro_rules! in_turns {
    () => {
        "249000000000000000"
    };
}
pub(crate) use in_turns;

/// Inserts messages that have no groups.
macro_rules! insert {
    () => {
        "put AS (
            INSERT INTO messages (seq, queue, visible_at, nonce, inserted_at, expires_at, body)
            SELECT seq, queue, visible_at, nonce, now, expires_at, body FROM placed, clock WHERE queue IS NOT NULL
        ), "
    };
}

/// Inserts messages that may be tracked, those that have a group behind others of their group, although there may be none.
macro_rules! insert_with_keys {
    () => {
        concat!(r#"put AS (
            INSERT INTO messages (seq, queue, visible_at, nonce, inserted_at, expires_at, body, "group", place, tracked)
            SELECT seq, queue, CASE WHEN name IS NULL THEN visible_at WHEN group_limit IS NULL THEN "#, behind!(), r#"
                ELSE "#, in_turns!(), r#" + visible_at END, nonce, now, expires_at, body, name,
                CASE WHEN name IS NOT NULL THEN visible_at END, tracked
            FROM placed, clock WHERE queue IS NOT NULL
        ), due AS (
            INSERT INTO groups_due SELECT DISTINCT queue, name FROM placed WHERE queue IS NOT NULL AND name IS NOT NULL
        ), "#)
    };
}

/// With nonces of this process: the server takes longer to make one than to insert a row.
const PUT: &str = put!(", $6::uuid[]", ", nonce", "given.nonce", "", insert!(), "");
const PUT_WITH_KEYS: &str = put!(
    ", $6::uuid[], $7::text[], $8::text[]",
    ", nonce, in_group, tracked",
    "given.nonce",
    ", given.in_group AS name, given.group_limit, given.tracked",
    insert_with_keys!(),
    ""
);
/// As the function `put_all`.
pub(crate) const PUT_ALL: &str = put!(
    ", $6::text[], $7::text[]",
    ", in_group, tracked",
    "gen_random_uuid()",
    ", given.in_group AS name, given.group_limit, given.tracked",
    insert_with_keys!(),
    ", nonce, visible_at, expires_at"
);

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
    let nonces: Vec<Uuid> = nonces().take(puts.len()).collect();
    let groups: Vec<_> = puts
        .iter()
        .map(|(_, message)| message.group.as_deref())
        .collect();
    let tracked = puts.iter().map(|(_, message)| message.tracked.as_deref());
    let tracked: Vec<_> = tracked.map(|id| id.map(MessageId::as_str)).collect();
    let parameters: [Parameter<'_>; 7] = [
        &names, &bodies, &delays, &lifetimes, &nonces, &groups, &tracked,
    ];
    let (now, rows) = if groups.iter().chain(&tracked).all(Option::is_none) {
        session.timed(PUT, &parameters[..5]).await?
    } else {
        session.timed(PUT_WITH_KEYS, &parameters).await?
    };
    if rows.len() != puts.len() {
        return Err(Failure::Corrupt("not every put was answered"));
    }
    let answer = |(at, row): (usize, &Row)| {
        if !column::<bool>(row, 1)? {
            return Ok(Err(Failure::QueueNotFound));
        }
        let seq = column(row, 2)?;
        let visible_at = timestamp(now.saturating_add(delays[at]));
        let receipt = pop_receipt(nonces[at]);
        let mut put = PutReceipt::new(storage_id(seq), receipt, timestamp(now), visible_at);
        put.expires_at = lifetimes[at].map(|lifetime| timestamp(now.saturating_add(lifetime)));
        Ok(Ok((seq, put)))
    };
    rows.iter().enumerate().map(answer).collect()
}

/// Numbers that no two messages have.
fn nonces() -> impl Iterator<Item = Uuid> {
    let first = Uuid::now_v7().as_u128();
    (0..).map(move |at: u128| Uuid::from_u128(first.wrapping_add(at)))
}

/// The columns of a message `m`, as [`read`] reads them.
macro_rules! columns {
    () => {
        "m.seq, m.nonce, m.visible_at, m.dequeue_count, m.inserted_at, m.expires_at, m.deleted_items, m.body, m.place"
    };
}
pub(crate) use columns;

/// Returns what is shown of a message, from its [columns] after the first two and what was [read].
pub(crate) fn browsed(row: &Row, message: ReceivedMessage) -> Result<BrowsedMessage> {
    let is_behind = message.visible_at.as_microsecond() >= IN_TURNS;
    let place = column::<Option<i64>>(row, 10)?.filter(|_| is_behind);
    let browsed = BrowsedMessage::from(message);
    Ok(match place {
        Some(place) => browsed.behind(timestamp(place)),
        None => browsed,
    })
}

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
    use queue_core::store_clock::BEHIND;

    use super::*;

    #[test]
    fn the_time_behind_is_that_of_all_engines() {
        assert_eq!(behind!(), BEHIND.to_string());
        assert_eq!(in_turns!(), IN_TURNS.to_string());
    }

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
