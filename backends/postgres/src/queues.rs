//! The statements on queues, and those that only read.

use std::collections::BTreeSet;

use queue_core::backend::{
    Created, Located, MessageHolder, MessageState, Metadata, Page, PageMark, PeekedMessage,
    QueueProperties, QueueTotals, ReceivedMessage,
};
use queue_core::internal::as_count;
use queue_core::store_clock::timestamp;
use queue_core::{ClientId, MessageId, QueueName};
use tokio_postgres::Row;

use crate::failure::{Failure, Result};
use crate::messages::{browsed, clock, columns, in_turns, read};
use crate::session::{Session, column};
use crate::values::Parameter;

/// Creates a queue, or returns the one that is there; nothing if another transaction has created one meanwhile.
const CREATE: &str = "WITH new AS (
        INSERT INTO queues (name, metadata) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING RETURNING metadata
    ) SELECT metadata, true FROM new UNION ALL SELECT metadata, false FROM queues WHERE name = $1";
const DELETE: &str = "WITH gone AS (DELETE FROM queues WHERE name = $1 RETURNING id)
    INSERT INTO dropped (queue) SELECT id FROM gone RETURNING queue";
const CLEAR: &str =
    "WITH old AS MATERIALIZED (SELECT id, first FROM queues WHERE name = $1 FOR UPDATE),
    new AS (UPDATE queues SET id = nextval('queue_ids') FROM old WHERE name = $1)
    INSERT INTO dropped (queue, first) SELECT id, first FROM old RETURNING queue";
const LIST: &str = "SELECT name FROM queues WHERE starts_with(name, $1) ORDER BY name";
const METADATA: &str = "SELECT metadata FROM queues WHERE name = $1";
/// Answers whether it has not, because messages are in groups that the queue would keep in another way.
const SET_METADATA: &str = concat!(
    "WITH target AS MATERIALIZED (
        SELECT id, name, group_limit AS before, group_limit($2) AS after FROM queues WHERE name = $1 FOR UPDATE
    ), refused AS MATERIALIZED (
        SELECT FROM target WHERE (before IS NULL) <> (after IS NULL)
            AND (SELECT true FROM messages WHERE queue = id AND \"group\" IS NOT NULL LIMIT 1)
    ), changed AS (
        UPDATE queues SET metadata = $2 FROM target WHERE queues.name = target.name AND NOT EXISTS (SELECT FROM refused)
    ), due AS (
        INSERT INTO groups_due SELECT DISTINCT queue, \"group\" FROM messages, target
        WHERE queue = target.id AND \"group\" IS NOT NULL AND before <> after AND visible_at < ",
    in_turns!(),
    " )
    SELECT EXISTS (SELECT FROM refused) FROM target"
);
/// All that was put under an id that a clear has replaced is gone.
const PROPERTIES: &str = "SELECT metadata, coalesce(sum(put)::bigint, 0),
        coalesce(sum(CASE WHEN totals.queue = queues.id THEN gone ELSE put END)::bigint, 0)
    FROM queues CROSS JOIN LATERAL (
        SELECT queues.id UNION ALL SELECT queue FROM dropped WHERE dropped.first = queues.first
    ) AS ids (id) LEFT JOIN totals ON totals.queue = ids.id
    WHERE name = $1 GROUP BY name";

/// Makes messages visible whose turn it is in their groups.
const ADVANCE: &str = concat!(
    clock!(),
    "target AS MATERIALIZED (SELECT id FROM queues WHERE name = $2)
    SELECT now, looked_at, last FROM clock LEFT JOIN target ON true LEFT JOIN LATERAL advance_groups(id, now, $3, $4) ON true"
);
/// How many groups a transaction looks at: each takes a lock of the server, of which there are few.
pub(crate) const GROUPS: i64 = 200;
/// How many transactions advance the groups of a queue that is looked at.
const ADVANCES: usize = 50;

/// The messages of a queue after a position, in any state or only the visible ones.
const MESSAGES: &str = concat!(
    clock!(),
    "target AS MATERIALIZED (SELECT id FROM queues WHERE name = $2),
    m AS (
        SELECT * FROM messages
        WHERE queue = (SELECT id FROM target) AND (visible_at, seq) > ($3, $4)
            AND visible_at <= (SELECT CASE WHEN $5 THEN now ELSE 9223372036854775807 END FROM clock)
            AND coalesce(expires_at > (SELECT now FROM clock), true)
        ORDER BY visible_at, seq LIMIT $6
    )
    SELECT now, id, ",
    columns!(),
    " FROM clock LEFT JOIN target ON true LEFT JOIN m ON true ORDER BY visible_at, seq"
);

/// The tracked messages with an id.
const LOCATE: &str = concat!(
    clock!(),
    "m AS MATERIALIZED (
        SELECT messages.*, queues.name FROM messages JOIN queues ON queues.id = messages.queue
        WHERE tracked = $2 AND coalesce(expires_at > (SELECT now FROM clock), true) LIMIT $3
    )
    SELECT now, name, ",
    columns!(),
    ", received_at, client FROM clock LEFT JOIN m ON true"
);

/// Removes messages that are no queue's any more.
const REMOVE_MESSAGES: &str = "WITH gone AS MATERIALIZED (
        SELECT m.seq FROM dropped CROSS JOIN LATERAL (
            SELECT seq FROM messages WHERE queue = dropped.queue LIMIT $1 FOR UPDATE SKIP LOCKED
        ) AS m LIMIT $1
    ), removed AS (DELETE FROM messages m USING gone WHERE m.seq = gone.seq RETURNING 1)
    SELECT count(*) FROM removed";
/// Forgets ids to which no transaction can add a message any more. The totals of one that a clear has replaced become the
/// queue's.
const REMOVE_DROPPED: &str = "WITH gone AS (
        DELETE FROM dropped WHERE at < (SELECT now_us() - $1) AND transaction < pg_snapshot_xmin(pg_current_snapshot())
            AND NOT EXISTS (SELECT FROM messages WHERE messages.queue = dropped.queue) RETURNING queue, first
    ), taken AS (
        DELETE FROM totals USING gone WHERE totals.queue = gone.queue RETURNING first, put
    ), forgotten AS (
        DELETE FROM groups_due USING gone WHERE groups_due.queue = gone.queue
    )
    INSERT INTO totals SELECT id, sum(put), sum(put) FROM taken JOIN queues USING (first) GROUP BY id";

/// Adds up the changes of queues that have many, each to one row.
const ADD_UP: &str = "WITH picked AS MATERIALIZED (
        SELECT ctid AS place FROM totals
        WHERE queue IN (SELECT queue FROM totals GROUP BY queue HAVING count(*) > $1 LIMIT $2) FOR UPDATE SKIP LOCKED
    ), taken AS (
        DELETE FROM totals WHERE ctid = ANY (ARRAY (SELECT place FROM picked)) RETURNING *
    )
    INSERT INTO totals SELECT queue, sum(put), sum(gone) FROM taken GROUP BY queue";
/// How many changes are left as they are.
pub(crate) const FEW: i64 = 64;

/// How often a queue is created that others create and delete meanwhile.
const ATTEMPTS: usize = 10;
/// The number of messages that one step removes.
const STEP: i64 = 1000;
/// How long a dropped queue is remembered, in microseconds: a put that began before may be committed later.
const REMEMBERED: i64 = 60 * 60 * 1_000_000;

/// The position of a message in its queue: when it becomes visible, and its number.
pub(crate) type Position = (i64, i64);

pub(crate) async fn create(
    session: &mut Session,
    queue: &QueueName,
    metadata: &Metadata,
) -> Result<Created> {
    for _ in 0..ATTEMPTS {
        let rows = session
            .query(CREATE, &[&queue.as_str(), &entries(metadata)])
            .await?;
        let Some(row) = rows.first() else { continue };
        return if column(row, 1)? {
            Ok(Created::New)
        } else if parse(column(row, 0)?)? == *metadata {
            Ok(Created::Existed)
        } else {
            Err(Failure::QueueExists)
        };
    }
    Err(Failure::Busy)
}

/// Deletes a queue. Its messages are removed [later](remove_dropped).
pub(crate) async fn delete(session: &mut Session, queue: &QueueName) -> Result<()> {
    only(&session.query(DELETE, &[&queue.as_str()]).await?).map(drop)
}

/// Gives a queue another id, so that it has no messages.
pub(crate) async fn clear(session: &mut Session, queue: &QueueName) -> Result<()> {
    only(&session.query(CLEAR, &[&queue.as_str()]).await?).map(drop)
}

pub(crate) async fn list(session: &mut Session, prefix: &str) -> Result<Vec<QueueName>> {
    let rows = session.query(LIST, &[&prefix]).await?;
    rows.iter().map(|row| name(row, 0)).collect()
}

fn name(row: &Row, at: usize) -> Result<QueueName> {
    let name = QueueName::new(column::<&str>(row, at)?);
    name.map_err(|_| Failure::Corrupt("the name of a queue is invalid"))
}

pub(crate) async fn metadata(session: &mut Session, queue: &QueueName) -> Result<Metadata> {
    let rows = session.query(METADATA, &[&queue.as_str()]).await?;
    parse(column(only(&rows)?, 0)?)
}

pub(crate) async fn set_metadata(
    session: &mut Session,
    queue: &QueueName,
    metadata: &Metadata,
) -> Result<()> {
    let parameters: [Parameter<'_>; 2] = [&queue.as_str(), &entries(metadata)];
    let rows = session.query(SET_METADATA, &parameters).await?;
    if column(only(&rows)?, 0)? {
        return Err(Failure::GroupsInUse);
    }
    Ok(())
}

pub(crate) async fn properties(
    session: &mut Session,
    queue: &QueueName,
) -> Result<QueueProperties> {
    let rows = session.query(PROPERTIES, &[&queue.as_str()]).await?;
    let row = only(&rows)?;
    let (put, gone): (i64, i64) = (column(row, 1)?, column(row, 2)?);
    let count = as_count(put.saturating_sub(gone));
    let properties = QueueProperties::new(parse(column(row, 0)?)?, count);
    Ok(properties.with_totals(QueueTotals::new(as_count(put), as_count(gone))))
}

/// Makes messages visible whose turn it is in their groups, from the group after a name on. Returns at how many groups it
/// has looked, up to `most`, and the name of the last.
pub(crate) async fn advance_groups(
    session: &mut Session,
    queue: &QueueName,
    most: i64,
    after: &str,
) -> Result<(i64, String)> {
    let parameters: [Parameter<'_>; 3] = [&queue.as_str(), &most, &after];
    let (_, rows) = session.timed(ADVANCE, &parameters).await?;
    let looked_at = column::<Option<i64>>(&rows[0], 1)?.unwrap_or(0);
    let last = column::<Option<String>>(&rows[0], 2)?.unwrap_or_default();
    Ok((looked_at, last))
}

async fn advance_all_groups(session: &mut Session, queue: &QueueName) -> Result<()> {
    let mut after = String::new();
    for _ in 0..ADVANCES {
        let (looked_at, last) = advance_groups(session, queue, GROUPS, &after).await?;
        if looked_at < GROUPS {
            break;
        }
        after = last;
    }
    Ok(())
}

/// Returns the first visible messages.
pub(crate) async fn peek(
    session: &mut Session,
    queue: &QueueName,
    max: usize,
) -> Result<Vec<PeekedMessage>> {
    advance_all_groups(session, queue).await?;
    let (_, found) = messages(session, queue, START, true, rows_of(max)).await?;
    Ok(found.into_iter().map(|(_, one)| one.into()).collect())
}

/// Returns the first messages in any state that come after a position.
pub(crate) async fn browse(
    session: &mut Session,
    queue: &QueueName,
    after: Option<Position>,
    max: usize,
) -> Result<Page> {
    // Later pages would leave out what becomes visible before their start.
    if after.is_none() {
        advance_all_groups(session, queue).await?;
    }
    // One message more than wanted shows whether there is another page.
    let limit = rows_of(max).saturating_add(1);
    let (now, mut found) = messages(session, queue, after.unwrap_or(START), false, limit).await?;
    let is_last = found.len() <= max;
    found.truncate(max);
    let mark = found
        .last()
        .filter(|_| !is_last)
        .map(|(_, last)| mark(last));
    let messages: Result<Vec<_>> = found
        .into_iter()
        .map(|(row, one)| browsed(&row, one))
        .collect();
    let mut page = Page::new(messages?, timestamp(now));
    page.next = mark;
    Ok(page)
}

/// Returns the tracked messages with an id.
pub(crate) async fn locate(
    session: &mut Session,
    id: &MessageId,
    max: usize,
) -> Result<Vec<Located>> {
    let located = locate_once(session, id, max).await?;
    let is_behind = |one: &&Located| one.message.state == MessageState::Behind;
    let behind: BTreeSet<QueueName> = located
        .iter()
        .filter(is_behind)
        .map(|one| one.queue.clone())
        .collect();
    if behind.is_empty() {
        return Ok(located);
    }
    // It may be the turn of a message since the last receive.
    for queue in &behind {
        advance_all_groups(session, queue).await?;
    }
    locate_once(session, id, max).await
}

async fn locate_once(session: &mut Session, id: &MessageId, max: usize) -> Result<Vec<Located>> {
    let parameters: [Parameter<'_>; 2] = [&id.as_str(), &rows_of(max)];
    let (now, rows) = session.timed(LOCATE, &parameters).await?;
    let mut located = Vec::with_capacity(rows.len());
    for row in &rows {
        if let Some(message) = read(row, now)? {
            let client = column::<Option<&str>>(row, 12)?.and_then(|one| ClientId::new(one).ok());
            let since: Option<i64> = column(row, 11)?;
            let holder = since.map(|since| MessageHolder::new(timestamp(since), client));
            let found = Located::new(name(row, 1)?, browsed(row, message)?);
            located.push(found.with_holder(holder));
        }
    }
    Ok(located)
}

/// Removes some messages of queues that were deleted or cleared, and returns whether there may be more.
pub(crate) async fn remove_dropped(session: &mut Session) -> Result<bool> {
    let rows = session.query(REMOVE_MESSAGES, &[&STEP]).await?;
    let removed: i64 = column(only(&rows)?, 0)?;
    if removed == 0 {
        session.query(REMOVE_DROPPED, &[&REMEMBERED]).await?;
    }
    Ok(removed > 0)
}

/// Adds up the totals of queues with many changes.
pub(crate) async fn add_up_totals(session: &mut Session) -> Result<()> {
    session.query(ADD_UP, &[&FEW, &STEP]).await?;
    Ok(())
}

/// The position before a queue's first message.
const START: Position = (i64::MIN, i64::MIN);

async fn messages(
    session: &mut Session,
    queue: &QueueName,
    (visible_at, seq): Position,
    only_visible: bool,
    limit: i64,
) -> Result<(i64, Vec<(Row, ReceivedMessage)>)> {
    let parameters: [Parameter<'_>; 5] =
        [&queue.as_str(), &visible_at, &seq, &only_visible, &limit];
    let (now, rows) = session.timed(MESSAGES, &parameters).await?;
    if column::<Option<i64>>(&rows[0], 1)?.is_none() {
        return Err(Failure::QueueNotFound);
    }
    let mut found = Vec::with_capacity(rows.len());
    for row in rows {
        if let Some(message) = read(&row, now)? {
            found.push((row, message));
        }
    }
    Ok((now, found))
}

fn rows_of(max: usize) -> i64 {
    i64::try_from(max).unwrap_or(i64::MAX)
}

/// The mark of the page after a message: when it becomes visible, in microseconds, and its number.
fn mark(message: &ReceivedMessage) -> PageMark {
    let visible_at = message.visible_at.as_microsecond();
    PageMark::new(format!("{visible_at}/{}", message.id))
}

/// Returns the position that a mark stands for; `None` if no page has returned it.
pub(crate) fn parse_mark(mark: &PageMark) -> Option<Position> {
    let (visible_at, seq) = mark.as_str().split_once('/')?;
    Some((visible_at.parse().ok()?, seq.parse().ok()?))
}

/// The one row of a statement on a queue, without which there is no such queue.
fn only(rows: &[Row]) -> Result<&Row> {
    rows.first().ok_or(Failure::QueueNotFound)
}

/// Metadata as it is stored: names and values in turn, sorted by name.
fn entries(metadata: &Metadata) -> Vec<&str> {
    metadata
        .iter()
        .flat_map(|(name, value)| [name, value])
        .collect()
}

fn parse(entries: Vec<&str>) -> Result<Metadata> {
    const INVALID: Failure = Failure::Corrupt("the metadata of a queue is invalid");
    let mut metadata = Metadata::new();
    let (pairs, rest) = entries.as_chunks();
    for [name, value] in pairs {
        metadata.insert(name, value).map_err(|_| INVALID)?;
    }
    if rest.is_empty() {
        Ok(metadata)
    } else {
        Err(INVALID)
    }
}
