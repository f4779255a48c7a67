//! Putting the damaged part of a queue's schedule aside.
//!
//! Rows cannot be removed from a page that cannot be read, and a scan cannot step over it. So the queue gets
//! a new id, and the rows before and after the damage are copied to it. The unreadable rest stays behind under
//! the old id.

use queue_core::QueueName;
use rusqlite::{Connection, Statement, params};

use super::failure::{Failure, Result};

/// More rows than a page of the schedule can hold. If more are missing, the damage is not that of a leaf.
const MAX_LOST: i64 = 512;

/// A key of the schedule within a queue: `visible_at` and `seq`.
type Key = (i64, i64);

const FIRST: Key = (i64::MIN, i64::MIN);

/// A row of the schedule: key, nonce, dequeue count, and expiry.
type Row = (i64, i64, i64, i64, Option<i64>);

/// Where the rows go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// To the end of the schedule.
    Last,
    /// To its start, in case the last page is the damaged one.
    First,
}

/// Gives a queue a new id with the readable rows of its schedule, within a transaction of `writer`, if its
/// schedule is damaged, or the page beside it may be. Returns whether it did. `probe` is another connection, for
/// what may be damaged.
///
/// A change can fail because of a damaged page beside the queue's own. To move away from it once is enough; if
/// that does not help, the damage is elsewhere.
///
/// # Errors
/// [`Failure::Corrupt`] if more is damaged than single leaves.
pub(super) fn put_aside(
    writer: &Connection,
    probe: &Connection,
    queue: &QueueName,
    place: Place,
    now: i64,
) -> Result<bool> {
    let (id, counted, beside): (i64, i64, bool) = writer.query_row(
        "SELECT id, coalesce(messages, 0), NOT EXISTS (SELECT 1 FROM queue_moved WHERE queue_moved.queue = id) \
         FROM queue_queues LEFT JOIN queue_counts ON queue_counts.queue = id WHERE name = ?1",
        [queue.as_str()],
        |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
    )?;
    let (rows, gaps) = readable_rows(probe, id)?;
    if gaps == 0 && !beside {
        return Ok(false);
    }
    let lost = (counted - rows.len() as i64).max(0);
    if gaps > 0 && lost > gaps * MAX_LOST {
        return Err(Failure::Corrupt("more than single pages are damaged"));
    }
    let new = match place {
        Place::Last => "SELECT seq + 1 FROM sqlite_sequence WHERE name = 'queue_queues'",
        Place::First => {
            "SELECT min(0, min(id)) - 1 FROM (SELECT id FROM queue_queues UNION SELECT queue FROM queue_dropped \
             UNION SELECT old FROM queue_moved)"
        }
    };
    let new: i64 = writer.query_row(new, [], |row| row.get(0))?;
    for (change, values) in [
        ("UPDATE queue_queues SET id = ?2 WHERE id = ?1", [id, new]),
        (
            "UPDATE sqlite_sequence SET seq = max(seq, ?2) WHERE name = 'queue_queues' AND ?1 IS NOT NULL",
            [id, new],
        ),
        (
            "UPDATE queue_moved SET queue = ?2 WHERE queue = ?1",
            [id, new],
        ),
        ("INSERT INTO queue_moved VALUES (?1, ?2)", [id, new]),
        (
            "UPDATE queue_counts SET queue = ?2 WHERE queue = ?1",
            [id, new],
        ),
        (
            "UPDATE queue_counts SET messages = ?2 WHERE queue = ?1",
            [new, rows.len() as i64],
        ),
    ] {
        writer.execute(change, values)?;
    }
    let mut insert =
        writer.prepare("INSERT INTO queue_schedule VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?;
    for (visible_at, seq, nonce, dequeue_count, expires_at) in &rows {
        insert.execute(params![
            new,
            visible_at,
            seq,
            nonce,
            dequeue_count,
            expires_at
        ])?;
    }
    if gaps == 0 {
        return Ok(true);
    }
    writer.execute(
        "INSERT INTO queue_damage (found_at, queue, what, messages) VALUES (?1, ?2, 'schedule', ?3)",
        params![now, queue.as_str(), lost],
    )?;
    tracing::error!(%queue, lost, "put a damaged part of a queue aside");
    Ok(true)
}

/// Returns the readable rows of a queue's schedule, some 40 bytes each, and the number of gaps between them.
pub(super) fn readable_rows(connection: &Connection, queue: i64) -> Result<(Vec<Row>, i64)> {
    let mut scan = Scan::prepare(connection, queue)?;
    let (mut rows, mut gaps, mut from) = (Vec::new(), 0, FIRST);
    while let Some(last) = scan.read_on(from, &mut rows)? {
        gaps += 1;
        let Some(next) = scan.after_damage(last)? else {
            break;
        };
        scan.read_back(last, next, &mut rows)?;
        from = next;
    }
    Ok((rows, gaps))
}

fn read(row: &rusqlite::Row<'_>) -> Result<Row> {
    Ok((
        row.get(0)?,
        row.get(1)?,
        row.get(2)?,
        row.get(3)?,
        row.get(4)?,
    ))
}

/// Looks for the first position after `damaged` that `read` can read. Returns it with what was read; `None` if
/// there is none. The inner error of `read` is damage.
///
/// The steps grow with the distance, by an eighth of it, so that readable rows between two damaged pages are not
/// stepped over, while the number of steps has a bound of some hundreds.
pub(super) fn search<T>(
    damaged: i64,
    mut read: impl FnMut(i64) -> Result<Result<T, ()>>,
) -> Result<Option<(i64, T)>> {
    let mut low = damaged;
    let (mut high, mut found) = loop {
        if low == i64::MAX {
            return Ok(None);
        }
        let step = (low.saturating_sub(damaged) / 8).max(1);
        let next = low.saturating_add(step);
        match read(next)? {
            Ok(found) => break (next, found),
            Err(()) => low = next,
        }
    };
    while low.saturating_add(1) < high {
        let middle = i64::midpoint(low, high);
        match read(middle)? {
            Ok(first) => (high, found) = (middle, first),
            Err(()) => low = middle,
        }
    }
    Ok(Some((high, found)))
}

/// Reads a queue's schedule around damage.
struct Scan<'c> {
    queue: i64,
    rows: Statement<'c>,
    first: Statement<'c>,
    before: Statement<'c>,
    /// Times at which the queue may have had messages, the earliest first.
    times: [Statement<'c>; 2],
}

impl<'c> Scan<'c> {
    fn prepare(connection: &'c Connection, queue: i64) -> Result<Self> {
        const ROWS: &str =
            "SELECT visible_at, seq, nonce, dequeue_count, expires_at FROM queue_schedule";
        const FROM: &str =
            "WHERE queue = ?1 AND (visible_at, seq) >= (?2, ?3) ORDER BY visible_at, seq";
        Ok(Self {
            queue,
            rows: connection.prepare(&format!("{ROWS} {FROM}"))?,
            first: connection.prepare(&format!("{ROWS} {FROM} LIMIT 1"))?,
            before: connection.prepare(&format!(
                "{ROWS} WHERE queue = ?1 AND (visible_at, seq) < (?2, ?3) \
                 ORDER BY visible_at DESC, seq DESC"
            ))?,
            times: [
                connection
                    .prepare("SELECT inserted_at FROM queue_messages ORDER BY seq LIMIT 1")?,
                connection.prepare("SELECT latest FROM queue_store")?,
            ],
        })
    }

    /// Reads rows until the end of the queue or until damage. Returns the last key before the damage, if there is any.
    fn read_on(&mut self, from: Key, found: &mut Vec<Row>) -> Result<Option<Key>> {
        let mut last = from;
        let mut rows = self.rows.query(params![self.queue, from.0, from.1])?;
        loop {
            match rows.next().map_err(Failure::from) {
                Ok(Some(row)) => {
                    let row = read(row)?;
                    last = (row.0, row.1);
                    found.push(row);
                }
                Ok(None) => return Ok(None),
                Err(failure) if failure.is_damage() => return Ok(Some(last)),
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Reads rows backwards from `next` until damage. The row between a damaged page and the next one is in
    /// their parent, and a search from the front enters the damaged page first.
    fn read_back(&mut self, last: Key, next: Key, between: &mut Vec<Row>) -> Result<()> {
        let mut rows = self.before.query(params![self.queue, next.0, next.1])?;
        loop {
            let row = match rows.next().map_err(Failure::from) {
                Ok(Some(row)) => read(row)?,
                Ok(None) => return Ok(()),
                Err(failure) if failure.is_damage() => return Ok(()),
                Err(failure) => return Err(failure),
            };
            if (row.0, row.1) <= last {
                return Ok(());
            }
            between.push(row);
        }
    }

    /// Returns the first readable key after damage that begins after `last`: where a search for a key no
    /// longer ends on the damaged page.
    fn after_damage(&mut self, last: Key) -> Result<Option<Key>> {
        let start = match last {
            FIRST => self.start()?,
            _ => last,
        };
        // Many messages may have become visible at the same time.
        let at_once = search(start.1, |seq| self.probe((start.0, seq)))?;
        let found = match at_once {
            Some((_, found)) => found,
            None => {
                let later = search(start.0, |visible_at| self.probe((visible_at, i64::MIN)))?;
                let Some((visible_at, found)) = later else {
                    return Ok(None);
                };
                let before = visible_at.saturating_sub(1);
                let seq = match self.probe((before, start.1))? {
                    Ok(_) => i64::MIN,
                    Err(()) => start.1,
                };
                match search(seq, |seq| self.probe((before, seq)))? {
                    Some((_, earlier)) => earlier,
                    None => found,
                }
            }
        };
        Ok(found.filter(|key| *key > last))
    }

    /// Returns where to search if the first row is damaged already: a time close to those of the rows, so that
    /// the steps are not too wide.
    fn start(&mut self) -> Result<Key> {
        for time in &mut self.times {
            let start = match time.query_row([], |row| row.get(0)).map_err(Failure::from) {
                Ok(time) => (time, 0),
                Err(failure) if failure.is_damage() => continue,
                Err(failure) => return Err(failure),
            };
            let mut rows = self.first.query(params![self.queue, start.0, start.1])?;
            match rows.next().map_err(Failure::from) {
                Ok(_) => {}
                Err(failure) if failure.is_damage() => return Ok(start),
                Err(failure) => return Err(failure),
            }
        }
        Ok(FIRST)
    }

    /// Looks for the first key from `from` on. The inner error is damage.
    fn probe(&mut self, from: Key) -> Result<Result<Option<Key>, ()>> {
        let mut rows = self.first.query(params![self.queue, from.0, from.1])?;
        match rows.next().map_err(Failure::from) {
            Ok(None) => Ok(Ok(None)),
            Ok(Some(row)) => Ok(Ok(Some((row.get(0)?, row.get(1)?)))),
            Err(failure) if failure.is_damage() => Ok(Err(())),
            Err(failure) => Err(failure),
        }
    }
}
