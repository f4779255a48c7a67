//! The task that receives. The receives of one queue that wait, and ask for the same lease, share a claim; the claims of
//! several queues share a commit.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::{Introduced, ReceivedMessage};
use queue_core::store_clock::after;
use queue_core::{ClientId, QueueName};
use tokio::sync::{mpsc, oneshot};
use tokio::task::yield_now;
use tokio::time::Instant;
use tracing::debug;

use crate::failure::{Failure, Result};
use crate::marks::Marks;
use crate::messages::{clock, columns, read};
use crate::queues::{GROUPS, advance_groups};
use crate::session::{Link, Session, column};
use crate::values::Parameter;

/// The most messages that one statement claims.
const MAX: usize = 1024;

/// The most claims that share a commit.
const MAX_CLAIMS: usize = 16;

/// Claims the first visible messages of a queue, and removes those among them that have expired; none if it is to wait for
/// groups in which it may be another message's turn, and there are any. The time is a scalar subquery, so that it bounds
/// the range of the index that is read. Answers with one row at least.
const CLAIM: &str = concat!(
    clock!(),
    "target AS MATERIALIZED (SELECT id, group_limit FROM queues WHERE name = $2),
    due AS MATERIALIZED (SELECT FROM groups_due WHERE queue = (SELECT id FROM target) LIMIT 1),
    picked AS MATERIALIZED (
        SELECT seq, visible_at, coalesce(expires_at <= (SELECT now FROM clock), false) AS is_over FROM messages
        WHERE queue = (SELECT id FROM target) AND visible_at >= $3 AND visible_at <= (SELECT now FROM clock)
        ORDER BY visible_at, seq LIMIT CASE WHEN $6 AND (SELECT true FROM due) THEN 0 ELSE $4::bigint END FOR UPDATE SKIP LOCKED
    ), expired AS (
        DELETE FROM messages m USING picked WHERE m.seq = picked.seq AND is_over RETURNING queue
    ), counted AS (
        INSERT INTO totals SELECT queue, 0, count(*) FROM expired GROUP BY queue
    ), m AS (
        UPDATE messages claimed SET visible_at = least(now + $5, CASE WHEN place IS NOT NULL THEN expires_at END), nonce = gen_random_uuid(),
            received_at = CASE WHEN tracked IS NOT NULL THEN now END, client = CASE WHEN tracked IS NOT NULL THEN $7 END,
            dequeue_count = least(dequeue_count, 2147483646) + 1
        FROM picked, clock WHERE claimed.seq = picked.seq AND NOT is_over
        RETURNING claimed.*, picked.visible_at AS was_visible_at,
            CASE WHEN claimed.place IS NOT NULL THEN nextval('fences') END AS fence
    ), next AS (
        INSERT INTO groups_due SELECT DISTINCT queue, \"group\" FROM m
            WHERE \"group\" IS NOT NULL AND (SELECT group_limit FROM target) IS NOT NULL
    )
    SELECT now, id, ",
    columns!(),
    ", was_visible_at, (SELECT count(*) FROM expired), fence, (SELECT true FROM due), group_limit IS NOT NULL
    FROM clock LEFT JOIN target ON true LEFT JOIN m ON true ORDER BY was_visible_at, seq"
);

/// Removes messages that have expired, from the head of the queue: what comes behind is not looked at.
const REMOVE_EXPIRED: &str = "WITH head AS MATERIALIZED (
        SELECT seq FROM messages WHERE queue = (SELECT id FROM queues WHERE name = $1)
            AND visible_at >= $2 AND visible_at <= $3
        ORDER BY visible_at, seq LIMIT $4
    ), picked AS MATERIALIZED (
        SELECT messages.seq FROM messages JOIN head USING (seq) WHERE expires_at <= $3
        FOR UPDATE OF messages SKIP LOCKED
    ), expired AS (
        DELETE FROM messages m USING picked WHERE m.seq = picked.seq RETURNING queue
    )
    INSERT INTO totals SELECT queue, 0, count(*) FROM expired GROUP BY queue";

/// How often a receive makes messages of groups visible before it answers, at most.
const ADVANCES: usize = 50;

/// How many messages a statement looks at that may have expired.
const EXPIRED: i64 = 1000;

/// The way to the task, which ends with the last clone.
#[derive(Debug, Clone)]
pub(crate) struct Receiver(mpsc::UnboundedSender<Receive>);

#[derive(Debug)]
struct Receive {
    queue: QueueName,
    max: usize,
    visibility: Duration,
    reply: oneshot::Sender<Result<Vec<ReceivedMessage>>>,
}

/// What a claim has found.
struct Claimed {
    now: i64,
    messages: Vec<ReceivedMessage>,
    /// When the last message became visible.
    end: Option<i64>,
    expired: i64,
    /// Whether there are groups in which it may be another message's turn.
    has_groups_due: bool,
    /// Whether there are now, because of what was claimed.
    made_groups_due: bool,
}

impl Receiver {
    pub(crate) fn start(mut link: Link, marks: Marks, introduced: Arc<Introduced>) -> Self {
        let (receives, mut requests) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut waiting = VecDeque::new();
            loop {
                if waiting.is_empty() {
                    match requests.recv().await {
                        Some(receive) => waiting.push_back(receive),
                        None => return,
                    }
                }
                // Whoever was answered by the last claim may ask again at once, and shares this one.
                yield_now().await;
                while let Ok(receive) = requests.try_recv() {
                    waiting.push_back(receive);
                }
                let mut shares = Vec::new();
                while !waiting.is_empty() && shares.len() < MAX_CLAIMS {
                    shares.extend(share(&mut waiting));
                }
                answer(&mut link, &marks, &introduced, shares).await;
            }
        });
        Self(receives)
    }

    pub(crate) async fn ask(
        &self,
        queue: &QueueName,
        max: usize,
        visibility: Duration,
    ) -> Result<Vec<ReceivedMessage>> {
        let (reply, answer) = oneshot::channel();
        let receive = Receive {
            queue: queue.clone(),
            max,
            visibility,
            reply,
        };
        self.0.send(receive).map_err(|_| Failure::Closed)?;
        answer.await.unwrap_or(Err(Failure::Unanswered))
    }
}

/// Receives of one queue, with one lease.
struct Share {
    queue: QueueName,
    visibility: Duration,
    receives: Vec<Receive>,
}

/// Takes the first receive, and those that can share its claim. A receive whose caller is gone is left out, because
/// nobody would handle its messages.
fn share(waiting: &mut VecDeque<Receive>) -> Option<Share> {
    waiting.retain(|receive| !receive.reply.is_closed());
    let first = waiting.front()?;
    let (queue, visibility) = (first.queue.clone(), first.visibility);
    let (mut receives, mut room) = (Vec::new(), MAX);
    for receive in std::mem::take(waiting) {
        let is_alike = queue == receive.queue && visibility == receive.visibility;
        if is_alike && receive.max <= room {
            room -= receive.max;
            receives.push(receive);
        } else {
            waiting.push_back(receive);
        }
    }
    Some(Share {
        queue,
        visibility,
        receives,
    })
}

async fn answer(link: &mut Link, marks: &Marks, introduced: &Introduced, shares: Vec<Share>) {
    let client = introduced.client();
    let received = match link.session().await {
        Ok(session) => receive_all(session, marks, client.as_ref(), &shares).await,
        Err(failure) => Err(failure),
    };
    match received {
        Ok(received) => {
            for (share, received) in shares.into_iter().zip(received) {
                share.answer(received);
            }
        }
        Err(failure) => {
            for share in shares {
                marks.forget(&share.queue);
                share.answer(Err(failure.clone()));
            }
        }
    }
}

impl Share {
    fn answer(self, received: Result<Vec<ReceivedMessage>>) {
        let mut received = received.map(Vec::into_iter);
        for Receive { max, reply, .. } in self.receives {
            let part = match &mut received {
                Ok(messages) => Ok(messages.by_ref().take(max).collect()),
                Err(failure) => Err(failure.clone()),
            };
            // A caller that stopped waiting meanwhile leaves its messages leased.
            drop(reply.send(part));
        }
    }
}

/// Receives what the shares ask for, and commits. Fails only if the transaction did.
async fn receive_all(
    session: &mut Session,
    marks: &Marks,
    client: Option<&ClientId>,
    shares: &[Share],
) -> Result<Vec<Result<Vec<ReceivedMessage>>>> {
    let mut locks = GROUPS;
    if let [share] = shares {
        let received = receive(session, marks, client, share, Commit::Each, &mut locks).await;
        return Ok(vec![received]);
    }
    session.begin().await?;
    let mut received = Vec::with_capacity(shares.len());
    for share in shares {
        match receive(session, marks, client, share, Commit::Together, &mut locks).await {
            Err(failure @ (Failure::Trouble(_) | Failure::Corrupt(_))) => {
                session.roll_back().await;
                return Err(failure.not_done());
            }
            other => received.push(other),
        }
    }
    session.commit().await?;
    Ok(received)
}

/// Whether each claim is committed by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Commit {
    Each,
    Together,
}

/// Receives as many messages as are visible, up to as many as are asked for. `locks` is how many locks of groups the
/// transaction may take.
async fn receive(
    session: &mut Session,
    marks: &Marks,
    client: Option<&ClientId>,
    share: &Share,
    commit: Commit,
    locks: &mut i64,
) -> Result<Vec<ReceivedMessage>> {
    let Share {
        queue,
        visibility,
        receives,
    } = share;
    let max: usize = receives.iter().map(|receive| receive.max).sum();
    let mut start = marks.start(queue);
    let mut messages: Vec<ReceivedMessage> = Vec::new();
    let mut advances = 0;
    loop {
        let wanted = max - messages.len();
        let begun = Instant::now();
        let waits = advances == 0 && *locks > 0;
        let claimed = match claim(session, client, (queue, start), wanted, *visibility, waits).await
        {
            Ok(claimed) => claimed,
            // What was claimed before is leased, and is not to be lost.
            Err(failure) if !messages.is_empty() && commit == Commit::Each => {
                debug!(?failure, %queue, "a receive from PostgreSQL ended early");
                return Ok(messages);
            }
            Err(failure) => return Err(failure),
        };
        let is_all = claimed.expired == 0;
        if !is_all && messages.is_empty() && claimed.messages.is_empty() {
            // Usually there are more of them.
            let from = start.unwrap_or(i64::MIN);
            let parameters: [Parameter<'_>; 4] = [&queue.as_str(), &from, &claimed.now, &EXPIRED];
            session.query(REMOVE_EXPIRED, &parameters).await?;
        }
        messages.extend(claimed.messages);
        match claimed.end {
            Some(end) => marks.set(queue, start, end, begun.elapsed()),
            None if is_all => marks.forget(queue),
            None => {}
        }
        let is_due = claimed.has_groups_due && (advances == 0 || messages.is_empty())
            || claimed.made_groups_due && messages.len() < max;
        if is_due && advances < ADVANCES && *locks > 0 {
            advances += 1;
            let after = marks.last_group(queue);
            match advance_groups(session, queue, *locks, &after).await {
                Ok((looked_at, last)) => {
                    marks.set_last_group(queue, last);
                    if commit == Commit::Together {
                        *locks -= looked_at;
                    }
                    // They have the places of their puts.
                    marks.forget(queue);
                    start = None;
                    if messages.len() < max {
                        continue;
                    }
                }
                Err(failure) if !messages.is_empty() && commit == Commit::Each => {
                    debug!(?failure, %queue, "a receive from PostgreSQL ended early");
                    return Ok(messages);
                }
                Err(failure) => return Err(failure),
            }
        }
        if messages.is_empty() && is_all && start.take().is_some() {
            continue;
        }
        if is_all || messages.len() >= max {
            return Ok(messages);
        }
    }
}

async fn claim(
    session: &mut Session,
    client: Option<&ClientId>,
    (queue, start): (&QueueName, Option<i64>),
    max: usize,
    visibility: Duration,
    waits_for_groups: bool,
) -> Result<Claimed> {
    let start = start.unwrap_or(i64::MIN);
    let max = i64::try_from(max).unwrap_or(i64::MAX);
    let lease = after(0, visibility);
    let client = client.map(ClientId::as_str);
    let parameters: [Parameter<'_>; 6] = [
        &queue.as_str(),
        &start,
        &max,
        &lease,
        &waits_for_groups,
        &client,
    ];
    let (now, rows) = session.timed(CLAIM, &parameters).await?;
    if column::<Option<i64>>(&rows[0], 1)?.is_none() {
        return Err(Failure::QueueNotFound);
    }
    let mut claimed = Claimed {
        now,
        messages: Vec::with_capacity(rows.len()),
        end: None,
        expired: column(&rows[0], 12)?,
        has_groups_due: column::<Option<bool>>(&rows[0], 14)?.is_some(),
        made_groups_due: false,
    };
    let takes_turns: bool = column(&rows[0], 15)?;
    for row in &rows {
        let Some(mut message) = read(row, now)? else {
            break;
        };
        message.fence = column::<Option<i64>>(row, 13)?.map(i64::unsigned_abs);
        claimed.made_groups_due |= takes_turns && message.fence.is_some();
        claimed.messages.push(message);
        claimed.end = column::<Option<i64>>(row, 11)?.or(claimed.end);
    }
    Ok(claimed)
}
