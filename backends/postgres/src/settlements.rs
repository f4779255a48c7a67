//! The statements that settle messages by their receipts.

use bytes::Bytes;
use queue_core::QueueName;
use queue_core::backend::{ItemSet, Lease};
use queue_core::internal::as_count;
use queue_core::store_clock::timestamp;
use uuid::Uuid;

use crate::failure::{Failure, Result};
use crate::messages::{Handle, clock, in_turns, pop_receipt};
use crate::session::{Session, column};
use crate::values::Parameter;

/// A change to one message.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change<'a> {
    Delete,
    Update {
        /// In microseconds; `None` if the message goes back to its place.
        delay: Option<i64>,
        body: Option<&'a Bytes>,
        /// Whether the lease ends.
        is_put_back: bool,
    },
}

/// What settlements have in common: the messages that they are about.
macro_rules! given {
    ($given:literal, $columns:literal) => {
        concat!(
            clock!(),
            "given AS MATERIALIZED (
                SELECT g.*, queues.id AS queue, queues.group_limit
                FROM unnest($2::text[], $3::bigint[], $4::uuid[]",
            $given,
            ") WITH ORDINALITY AS g (name, seq, receipt",
            $columns,
            ", place) LEFT JOIN queues ON queues.name = g.name
            )"
        )
    };
}

/// Changes messages by their receipts. Answers with a row for each that was changed, and with one row at least.
macro_rules! settle {
    ($given:literal, $columns:literal, $change:expr, $answer:literal) => {
        concat!(
            given!($given, $columns),
            ", held AS MATERIALIZED (
                SELECT given.* FROM given JOIN messages USING (seq), clock
                WHERE messages.queue = given.queue AND nonce = receipt AND coalesce(expires_at > now, true)
                FOR UPDATE OF messages SKIP LOCKED
            ), ",
            $change,
            " SELECT now, place",
            $answer,
            " FROM clock LEFT JOIN changed ON true"
        )
    };
}

/// Deletes messages, and makes the next one visible of each group whose visible message goes. A group is due, so that a
/// receive looks at it, wherever that is not done: in a group that takes turns; if a message goes that lies behind others;
/// if no next one is seen, because another transaction may have put one and not be committed; and if another transaction
/// has changed the next one. Answers also from which time on what it has made visible is scheduled.
const DELETE: &str = settle!(
    "",
    "",
    concat!(
        r#"changed AS (
        DELETE FROM messages m USING held WHERE m.seq = held.seq
        RETURNING held.place, m.queue, m."group", m.seq,
            -- By the newest version of the row: it may have become visible after the snapshot.
            held.group_limit IS NULL AND m.visible_at < "#,
        in_turns!(),
        r#" AS was_first
    ), counted AS (
        INSERT INTO totals SELECT queue, 0, count(*) FROM changed GROUP BY queue
    ), next AS MATERIALIZED (
        SELECT changed.queue, changed."group", first.seq FROM changed LEFT JOIN LATERAL (
            SELECT seq FROM messages n
            WHERE n.queue = changed.queue AND n."group" >= changed."group" AND n."group" <= changed."group" AND n.seq <> changed.seq
            ORDER BY n."group", visible_at, seq LIMIT 1
        ) AS first ON was_first WHERE changed."group" IS NOT NULL
    ), free AS MATERIALIZED (
        SELECT n.seq FROM next JOIN messages n USING (seq), clock
        WHERE n.visible_at >= "#,
        in_turns!(),
        r#" AND coalesce(n.expires_at > now, true) AND n.seq <> ALL (ARRAY(SELECT seq FROM held))
        FOR UPDATE OF n SKIP LOCKED
    ), freed AS (
        UPDATE messages n SET visible_at = n.place FROM free WHERE n.seq = free.seq RETURNING n.seq, n.place
    ), due AS (
        INSERT INTO groups_due SELECT DISTINCT queue, "group" FROM next
        WHERE coalesce(seq <> ALL (ARRAY(SELECT seq FROM freed)), true)
    )"#
    ),
    ", (SELECT min(freed.place) FROM freed)"
);
/// When a message becomes visible that is updated, and does not lie behind others.
macro_rules! new_place {
    () => {
        "least(coalesce(now + delay, least(now, m.inserted_at)), CASE WHEN m.place IS NOT NULL THEN m.expires_at END)"
    };
}
/// Whether an update lays a message behind others: one that nobody has received, or that is put back.
macro_rules! takes_turn {
    () => {
        concat!(
            "m.place IS NOT NULL AND group_limit IS NOT NULL AND (is_put_back OR m.visible_at = m.place OR m.visible_at >= ",
            in_turns!(),
            ")"
        )
    };
}
/// A message that is put back where groups take turns lies behind others, until its turn is decided.
const UPDATE: &str = settle!(
    ", $5::bigint[], $6::bytea[], $7::boolean[]",
    ", delay, body, is_put_back",
    concat!(
        // By the newest version of a row: a receive may have made the message visible meanwhile.
        r#"changed AS (
        UPDATE messages m SET nonce = gen_random_uuid(), body = coalesce(held.body, m.body),
            received_at = CASE WHEN NOT is_put_back THEN received_at END, client = CASE WHEN NOT is_put_back THEN client END,
            visible_at = CASE WHEN "#,
        takes_turn!(),
        " THEN ",
        in_turns!(),
        " + ",
        new_place!(),
        " WHEN m.visible_at >= ",
        in_turns!(),
        " THEN m.visible_at ELSE ",
        new_place!(),
        " END, place = CASE WHEN ",
        takes_turn!(),
        " OR m.visible_at >= ",
        in_turns!(),
        " THEN ",
        new_place!(),
        r#" ELSE m.place END
        FROM held, clock WHERE m.seq = held.seq
        RETURNING held.place, "#,
        new_place!(),
        r#" AS new_place, m.nonce, m.queue, m."group", m.visible_at, group_limit
    ), due AS (
        INSERT INTO groups_due SELECT DISTINCT changed.queue, "group" FROM changed
            WHERE "group" IS NOT NULL AND group_limit IS NOT NULL AND visible_at >= "#,
        in_turns!(),
        "
    )"
    ),
    ", new_place, nonce"
);
/// Tells why messages were not changed. Answers with a row for each: whether its queue exists, and the message; and with
/// another for each that could be locked: whether it is alive, and the receipt its own.
const WHY: &str = concat!(
    given!("", ""),
    ", held AS MATERIALIZED (
        SELECT given.place, coalesce(messages.queue = given.queue, false) AND coalesce(expires_at > now, true) AS alive,
            nonce = receipt AS is_own
        FROM given JOIN messages USING (seq), clock FOR UPDATE OF messages SKIP LOCKED
    )
    SELECT now, place, queue IS NOT NULL,
        -- Not `EXISTS`, which would be planned as a scan of the whole index if the table seems small.
        (SELECT true FROM messages WHERE messages.seq = given.seq) IS NOT NULL, NULL::boolean, NULL::boolean
    FROM given, clock
    UNION ALL SELECT now, place, NULL, NULL, alive, is_own FROM held, clock"
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
const REMOVE: &str = r#"WITH gone AS (DELETE FROM messages WHERE seq = $1 RETURNING queue, "group"),
    due AS (INSERT INTO groups_due SELECT queue, "group" FROM gone WHERE "group" IS NOT NULL)
    INSERT INTO totals SELECT queue, 0, count(*) FROM gone GROUP BY queue"#;

/// What is known of a message that was not changed.
#[derive(Default, Clone, Copy)]
struct Unchanged {
    queue_exists: bool,
    was_seen: bool,
    /// Of a message that could be locked: whether it is alive, and the receipt its own.
    held: Option<(bool, bool)>,
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
    let (mut delays, mut bodies, mut put_backs) = (Vec::new(), Vec::new(), Vec::new());
    for (.., change) in settlements {
        if let Change::Update {
            delay,
            body,
            is_put_back,
        } = change
        {
            delays.push(*delay);
            bodies.push(body.map(|body| &body[..]));
            put_backs.push(*is_put_back);
        }
    }
    let is_delete = delays.is_empty();
    let (now, rows) = if is_delete {
        session.timed(DELETE, &[&names, &seqs, &nonces]).await?
    } else {
        let parameters: [Parameter<'_>; 6] = [&names, &seqs, &nonces, &delays, &bodies, &put_backs];
        session.timed(UPDATE, &parameters).await?
    };
    let mut leases: Vec<Option<Lease>> = vec![None; settlements.len()];
    for row in &rows {
        let Some(place) = column::<Option<i64>>(row, 1)? else {
            break;
        };
        let (visible_at, nonce) = if is_delete {
            if let Some(from) = column::<Option<i64>>(row, 2)? {
                session.note_freed(settlements.iter().map(|(queue, ..)| *queue), from);
            }
            (now, Uuid::nil())
        } else {
            (column(row, 2)?, column(row, 3)?)
        };
        *of_place(&mut leases, place)? =
            Some(Lease::new(pop_receipt(nonce), timestamp(visible_at)));
    }
    let is_changed: Vec<bool> = leases.iter().map(Option::is_some).collect();
    let mut failures = if is_changed.contains(&false) {
        why(session, settlements, &is_changed).await?
    } else {
        Vec::new()
    }
    .into_iter();
    let answer = |lease: Option<Lease>| lease.ok_or_else(|| failures.next().unwrap_or(UNANSWERED));
    Ok(leases.into_iter().map(answer).collect())
}

const UNANSWERED: Failure = Failure::Corrupt("not every settlement was answered");

/// The entry of a place in a statement's arrays, which the server counts from 1.
fn of_place<T>(all: &mut [T], place: i64) -> Result<&mut T> {
    all.get_mut(as_count(place - 1)).ok_or(UNANSWERED)
}

/// Tells of each message that was not changed why. If the statement fails, what was changed stays so, unless a transaction
/// is open.
async fn why(
    session: &mut Session,
    settlements: &[(&QueueName, Handle, Change<'_>)],
    is_changed: &[bool],
) -> Result<Vec<Failure>> {
    let left = settlements.iter().zip(is_changed);
    let left: Vec<_> = left.filter(|(_, is_changed)| !**is_changed).collect();
    let names: Vec<_> = left.iter().map(|((queue, ..), _)| queue.as_str()).collect();
    let seqs: Vec<_> = left.iter().map(|((_, handle, _), _)| handle.seq).collect();
    let nonces: Vec<_> = left
        .iter()
        .map(|((_, handle, _), _)| handle.nonce)
        .collect();
    let (_, rows) = match session.timed(WHY, &[&names, &seqs, &nonces]).await {
        Err(failure) if !session.is_in_transaction() => {
            return Ok(vec![failure.not_done(); left.len()]);
        }
        answered => answered?,
    };
    let mut unchanged = vec![Unchanged::default(); left.len()];
    for row in &rows {
        let one = of_place(&mut unchanged, column(row, 1)?)?;
        match column::<Option<bool>>(row, 2)? {
            Some(exists) => (one.queue_exists, one.was_seen) = (exists, column(row, 3)?),
            None => one.held = Some((column(row, 4)?, column(row, 5)?)),
        }
    }
    Ok(unchanged.into_iter().map(Unchanged::why).collect())
}

impl Unchanged {
    fn why(self) -> Failure {
        match self.held {
            _ if !self.queue_exists => Failure::QueueNotFound,
            Some((true, false)) => Failure::ReceiptMismatch,
            // Another transaction had it until now.
            Some((true, true)) => Failure::Busy,
            Some((false, _)) => Failure::MessageNotFound,
            // Locked by another transaction, or deleted by one that was committed meanwhile.
            None if self.was_seen => Failure::Busy,
            None => Failure::MessageNotFound,
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
