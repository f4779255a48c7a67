//! Comparing a file's tables with each other.

mod attachments;

use std::collections::{HashMap, HashSet};

use queue_core::store_clock::BEHIND;
use queue_core::{QueueName, Timestamp};
use rusqlite::{Connection, OptionalExtension as _, Row};

use super::check::{CheckReport, ProblemKind, Progress, text};
use crate::care::salvage::{Rows, has_table};
use crate::failure::{Failure, Result};
use crate::rows::queues::parse_metadata;
use crate::rows::stored::{checksum, storage_id};

/// How far times are ahead of those that are recorded at most, in microseconds: 7 days and an hour.
const LATE: i64 = (7 * 24 + 1) * 60 * 60 * 1_000_000;

/// How long after it was put or received a message is hidden at most: the longest
/// [`max_delay`](crate::SqliteBuilder::max_delay), and an hour for times that are recorded late.
const HIDDEN: i64 = (3650 * 24 + 1) * 60 * 60 * 1_000_000;

/// What is known of a queue.
#[derive(Default)]
struct Queue {
    name: String,
    /// What is recorded: the number of messages, and whether any expires.
    recorded: Option<(i64, bool)>,
    /// How many places the schedule has.
    scheduled: i64,
    expiring: bool,
}

struct Examination<'c, 'r> {
    connection: &'c Connection,
    /// Whether checksums are compared.
    sums: bool,
    progress: &'r mut Progress,
    report: &'r mut CheckReport,
    queues: HashMap<i64, Queue>,
    /// The queues whose messages are to be removed.
    dropped: HashSet<i64>,
    /// The highest store time that was recorded.
    latest: i64,
    /// Whether all places of the schedule were read.
    schedule_is_whole: bool,
}

type Step<'c, 'r> = fn(&mut Examination<'c, 'r>) -> Result<()>;

/// Compares the tables.
pub(super) fn examine<'c, 'r>(
    connection: &'c Connection,
    is_quick: bool,
    progress: &'r mut Progress,
    report: &'r mut CheckReport,
) -> Result<()> {
    let mut examination = Examination {
        connection,
        sums: !is_quick,
        progress,
        report,
        queues: HashMap::new(),
        dropped: HashSet::new(),
        latest: Timestamp::MAX.as_microsecond(),
        schedule_is_whole: true,
    };
    examination.expect_rows();
    let steps: [(&str, Step<'c, 'r>); 11] = [
        ("queue_store", Examination::time),
        ("queue_queues", Examination::queues),
        ("queue_counts", Examination::recorded_counts),
        ("queue_messages", Examination::messages),
        ("queue_schedule", Examination::schedule),
        ("queue_schedule", Examination::unscheduled),
        ("queue_grouped", Examination::groups),
        ("queue_tracked", Examination::tracked),
        ("queue_attachments", attachments::check),
        ("queue_deleted_items", Examination::items),
        ("queue_results", Examination::results),
    ];
    for (table, step) in steps {
        // Older versions have not all tables; what is missing of this version is reported already.
        if !has_table(connection, table)? {
            continue;
        }
        match step(&mut examination) {
            // A table that another step needs may be missing, too.
            Err(failure) if failure.is_damage() || is_of_missing(&failure) => {
                examination.unreadable(table, &failure);
            }
            done => done?,
        }
    }
    Ok(())
}

fn is_of_missing(failure: &Failure) -> bool {
    let Failure::Sqlite(error) = failure else {
        return false;
    };
    error.sqlite_error_code() == Some(rusqlite::ErrorCode::Unknown)
}

impl Examination<'_, '_> {
    /// Estimates the number of rows, without reading those of messages.
    fn expect_rows(&mut self) {
        let count = |sql: &str| {
            let counted = self.connection.query_row(sql, [], |row| row.get(0));
            counted.map_or(0, |rows: i64| usize::try_from(rows).unwrap_or(0))
        };
        let messages = count("SELECT coalesce(sum(messages), 0) FROM queue_counts");
        let mut expected = messages.saturating_mul(2);
        for table in ["attachment_parts", "attached", "deleted_items", "results"] {
            let rows = count(&format!("SELECT count(*) FROM queue_{table}"));
            expected = expected.saturating_add(rows);
        }
        self.progress.expect(expected);
    }

    fn unreadable(&mut self, table: &str, failure: &Failure) {
        self.report.add(ProblemKind::Unreadable, || {
            format!("`{table}`: {}", text(failure))
        });
    }

    /// Calls `check` with each readable row of a table, whose first column is its id.
    fn each(
        &mut self,
        (table, id, columns): (&str, &str, &str),
        mut check: impl FnMut(&mut Self, &Row<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut rows = Rows::of(self.connection, table, id, columns)?;
        let unreadable = rows.each(|row| {
            self.progress.row();
            check(self, row)
        })?;
        for _ in 0..unreadable {
            self.report.add(ProblemKind::Unreadable, || {
                format!("`{table}`: a row, or the rows of a page")
            });
        }
        Ok(())
    }

    fn time(&mut self) -> Result<()> {
        let latest = self
            .connection
            .query_row("SELECT latest FROM queue_store", [], |row| row.get(0));
        match latest.optional()? {
            Some(latest) if is_time(latest) => self.latest = latest,
            _ => self.report.add(ProblemKind::Time, || {
                "the file's own time is missing, or out of range".to_owned()
            }),
        }
        Ok(())
    }

    fn queues(&mut self) -> Result<()> {
        let mut dropped = self.connection.prepare("SELECT queue FROM queue_dropped")?;
        let ids = dropped.query_map([], |row| row.get(0))?;
        self.dropped = ids.collect::<rusqlite::Result<_>>()?;
        self.each(("queue_queues", "id", "id, name, metadata"), |this, row| {
            let (id, name): (i64, String) = (row.get(0)?, row.get(1)?);
            this.report.queues += 1;
            let metadata: String = row.get(2)?;
            let problem = if QueueName::new(&name).is_err() {
                Some("its name is invalid")
            } else if parse_metadata(&metadata).is_err() {
                Some("its metadata is invalid")
            } else if this.dropped.contains(&id) {
                Some("its messages are recorded as to be removed")
            } else {
                None
            };
            if let Some(problem) = problem {
                let queue = name.escape_debug();
                let example = || format!("queue `{queue}`: {problem}");
                this.report.add(ProblemKind::Queue, example);
            }
            let queue = Queue {
                name,
                ..Queue::default()
            };
            this.queues.insert(id, queue);
            Ok(())
        })
    }

    fn recorded_counts(&mut self) -> Result<()> {
        let columns = "queue, messages, expiring";
        self.each(("queue_counts", "queue", columns), |this, row| {
            let id: i64 = row.get(0)?;
            let recorded = Some((row.get(1)?, row.get(2)?));
            match this.queues.get_mut(&id) {
                Some(queue) => queue.recorded = recorded,
                None => this.report.add(ProblemKind::Count, || {
                    format!("queue number {id}, which does not exist, has a count")
                }),
            }
            Ok(())
        })
    }

    fn messages(&mut self) -> Result<()> {
        let body = if self.sums { "body" } else { "NULL" };
        let columns = format!("seq, queue, salt, inserted_at, expires_at, checksum, {body}");
        self.each(("queue_messages", "seq", &columns), |this, row| {
            let (seq, queue, salt): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let (inserted_at, expires_at): (i64, Option<i64>) = (row.get(3)?, row.get(4)?);
            let sum: i64 = row.get(5)?;
            this.report.messages += 1;
            let example = || format!("message {}", storage_id(seq, salt));
            this.check_queue(queue, example);
            if let Some(body) = bytes(row, 6)?
                && checksum(salt, body) != sum
            {
                this.report.add(ProblemKind::Body, example);
            }
            let is_late = inserted_at > this.latest.saturating_add(LATE);
            let expires = expires_at.unwrap_or(i64::MAX);
            let lives = expires > inserted_at && expires_at.is_none_or(is_time);
            if !is_time(inserted_at) || is_late || !lives {
                this.report.add(ProblemKind::Time, example);
            }
            Ok(())
        })
    }

    fn check_queue(&mut self, queue: i64, example: impl FnOnce() -> String) {
        if !self.queues.contains_key(&queue) && !self.dropped.contains(&queue) {
            self.report.add(ProblemKind::NoQueue, || {
                format!("{}, of queue number {queue}", example())
            });
        }
    }

    fn schedule(&mut self) -> Result<()> {
        // The schedule is not whole until its last place was read.
        self.schedule_is_whole = false;
        let connection = self.connection;
        let mut message = connection
            .prepare("SELECT queue, expires_at, inserted_at FROM queue_messages WHERE seq = ?1")?;
        let has_groups = has_table(connection, "queue_grouped")?;
        let grouped = if has_groups {
            "queue_grouped"
        } else {
            "queue_messages"
        };
        let mut groups = connection.prepare(&format!(
            "SELECT 1 FROM {grouped} WHERE seq = ?1 AND {has_groups}"
        ))?;
        let mut places = connection.prepare(
            "SELECT queue, seq, visible_at, dequeue_count, expires_at FROM queue_schedule \
             ORDER BY queue, visible_at, seq",
        )?;
        let mut places = places.query([])?;
        while let Some(row) = places.next()? {
            self.progress.row();
            let (queue, seq, visible_at): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let (received, expires_at): (i64, Option<i64>) = (row.get(3)?, row.get(4)?);
            let example = || format!("number {seq} at {visible_at} of queue number {queue}");
            let found = message.query_row([seq], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
            let mut hidden_from = self.latest;
            match found.optional().map_err(Failure::from) {
                Ok(None) => self.report.add(ProblemKind::NoMessage, example),
                Ok(Some((of, expires, inserted_at))) => {
                    hidden_from = hidden_from.max(inserted_at);
                    if (queue, expires_at) != (of, expires) {
                        self.report.add(ProblemKind::Schedule, example);
                    }
                }
                // The walk of the messages has reported the damage.
                Err(failure) if failure.is_damage() => {}
                Err(failure) => return Err(failure),
            }
            if u32::try_from(received).is_err() {
                self.report.add(ProblemKind::Schedule, example);
            }
            let is_behind = visible_at == BEHIND && groups.exists([seq])?;
            let is_late = visible_at > hidden_from.saturating_add(HIDDEN);
            if !is_time(visible_at) || is_late && !is_behind {
                self.report.add(ProblemKind::Time, example);
            }
            self.check_queue(queue, example);
            if let Some(queue) = self.queues.get_mut(&queue) {
                queue.scheduled += 1;
                queue.expiring |= expires_at.is_some();
            }
        }
        self.schedule_is_whole = true;
        self.compare_counts();
        Ok(())
    }

    fn compare_counts(&mut self) {
        for queue in self.queues.values() {
            let (name, scheduled) = (queue.name.escape_debug(), queue.scheduled);
            match queue.recorded {
                None => self.report.add(ProblemKind::Count, || {
                    format!("queue `{name}` has no count")
                }),
                Some((recorded, _)) if recorded != scheduled => {
                    self.report.add(ProblemKind::Count, || {
                        format!(
                            "queue `{name}` has {scheduled} messages, and {recorded} are recorded"
                        )
                    });
                }
                Some((_, false)) if queue.expiring => self.report.add(ProblemKind::Count, || {
                    format!("queue `{name}` has messages that expire, which is not recorded")
                }),
                Some(_) => {}
            }
        }
    }

    /// Finds the messages that are not in the schedule, and those that are there twice.
    fn unscheduled(&mut self) -> Result<()> {
        if !self.schedule_is_whole {
            return Ok(());
        }
        let twice = "SELECT seq, 0 FROM queue_schedule GROUP BY seq HAVING count(*) > 1";
        self.add_all(ProblemKind::Schedule, twice, |seq, _| {
            format!("number {seq} has several places")
        })?;
        // Discarded messages stay where they are, because of damage beside them.
        let unscheduled = "SELECT seq, salt FROM queue_messages \
            WHERE seq NOT IN (SELECT seq FROM queue_schedule) \
            AND seq NOT IN (SELECT seq FROM queue_discarded)";
        self.add_all(ProblemKind::NotScheduled, unscheduled, |seq, salt| {
            format!("message {}", storage_id(seq, salt))
        })
    }

    /// Finds rows of groups without a message, and messages that lie behind others or do not, and should not or should.
    fn groups(&mut self) -> Result<()> {
        let lost =
            "SELECT seq, 0 FROM queue_grouped WHERE seq NOT IN (SELECT seq FROM queue_messages)";
        self.add_all(ProblemKind::NoMessage, lost, |seq, _| {
            format!("number {seq}, which has a group, is missing")
        })?;
        if !self.schedule_is_whole {
            return Ok(());
        }
        // Of a group that takes turns, all lie behind if it is nobody's turn for ever.
        let placed = format!(
            "SELECT seq, visible_at = {BEHIND} AS is_behind, state, \
             min(seq) OVER (PARTITION BY g.queue, name, state IS NULL) = seq AS is_first, \
             min(visible_at) OVER (PARTITION BY g.queue, name) = {BEHIND} AS is_stuck \
             FROM queue_grouped g JOIN queue_schedule USING (seq) WHERE g.queue IN (SELECT id FROM queue_queues)"
        );
        let wrong = format!(
            "SELECT seq, 0 FROM ({placed}) WHERE is_behind = iif(state IS NULL, is_first, state <> 1) OR is_stuck"
        );
        self.add_all(ProblemKind::Schedule, &wrong, |seq, _| {
            format!("number {seq} is not in its place in its group")
        })
    }

    /// Finds tracked messages that are missing.
    fn tracked(&mut self) -> Result<()> {
        let lost =
            "SELECT seq, 0 FROM queue_tracked WHERE seq NOT IN (SELECT seq FROM queue_messages)";
        self.add_all(ProblemKind::NoMessage, lost, |seq, _| {
            format!("number {seq}, which is tracked, is missing")
        })
    }

    fn items(&mut self) -> Result<()> {
        self.each(("queue_deleted_items", "seq", "seq, salt"), |this, row| {
            let (seq, salt): (i64, i64) = (row.get(0)?, row.get(1)?);
            let mut find = this
                .connection
                .prepare_cached("SELECT 1 FROM queue_messages WHERE seq = ?1 AND salt = ?2")?;
            if !find.exists([seq, salt])? {
                let example = || format!("message {}", storage_id(seq, salt));
                this.report.add(ProblemKind::Items, example);
            }
            Ok(())
        })
    }

    fn results(&mut self) -> Result<()> {
        let result = if self.sums { "result" } else { "NULL" };
        let columns = format!("id, scope, key, ends_at, checksum, {result}");
        self.each(("queue_results", "id", &columns), |this, row| {
            let (id, ends_at, sum): (i64, i64, Option<i64>) =
                (row.get(0)?, row.get(3)?, row.get(4)?);
            this.report.results += 1;
            let text = |column| {
                let bytes = row.get_ref(column)?.as_bytes()?;
                Ok::<_, rusqlite::Error>(std::str::from_utf8(bytes).ok())
            };
            let example = || format!("result number {id}");
            let is_text = text(1)?.is_some() && text(2)?.is_some();
            let result = bytes(row, 5)?;
            let is_intact = result.is_none_or(|result| sum == Some(checksum(id, result)));
            if !is_text || !is_intact {
                this.report.add(ProblemKind::Result, example);
            }
            if !is_time(ends_at) {
                this.report.add(ProblemKind::Time, example);
            }
            Ok(())
        })
    }

    fn exists(&self, rows: &str, id: i64) -> Result<bool> {
        let mut find = self
            .connection
            .prepare_cached(&format!("SELECT 1 FROM {rows}"))?;
        Ok(find.exists([id])?)
    }

    /// Adds a problem for each row of two numbers.
    fn add_all(
        &mut self,
        kind: ProblemKind,
        select: &str,
        example: impl Fn(i64, i64) -> String,
    ) -> Result<()> {
        let mut statement = self.connection.prepare(select)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let (first, second) = (row.get(0)?, row.get(1)?);
            self.report.add(kind, || example(first, second));
        }
        Ok(())
    }
}

/// Reads a column of bytes.
fn bytes<'r>(row: &'r Row<'_>, column: usize) -> rusqlite::Result<Option<&'r [u8]>> {
    Ok(row.get_ref(column)?.as_bytes_or_null()?)
}

/// Whether microseconds since 1970 are a time that can be shown.
fn is_time(micros: i64) -> bool {
    (0..=Timestamp::MAX.as_microsecond()).contains(&micros)
}
