//! What the writer does besides commands: removing what can no longer be received, giving space back to the file system
//! after queues were drained, and going on while the disk is full or others keep the write lock.

use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use queue_core::RetryAdvice;
use rusqlite::{Connection, Statement};

use super::Writer;
use crate::batch::Pending;
use crate::command::{Change, Command};
use crate::failure::{Failure, Holder, Result};
use crate::file::disk;
use crate::file::files::Files;
use crate::rows::messages::Place;
use crate::rows::purge::{Found, Purge};

/// The pause between two transactions of upkeep while there is nothing else to do, so that other processes get
/// the lock.
const PAUSE: Duration = Duration::from_millis(1);

/// The pause after a failure, in microseconds.
const PAUSE_AFTER_FAILURE: i64 = 1_000_000;

/// What is done while there is nothing else to do.
pub(super) struct Upkeep<'c> {
    pub(super) purge: Purge<'c>,
    pub(super) purged_at: Instant,
    attachments: Chore,
    results: Chore,
    shrink: Shrink<'c>,
}

impl<'c> Upkeep<'c> {
    pub(super) fn prepare(connection: &'c Connection) -> Result<Self> {
        Ok(Self {
            purge: Purge::prepare(connection)?,
            purged_at: Instant::now(),
            attachments: Chore::default(),
            results: Chore::default(),
            shrink: Shrink::prepare(connection)?,
        })
    }
}

/// The space on the disk, as the last batch has found it.
pub(super) struct Space {
    /// How many bytes puts leave free.
    min_free: u64,
    pub(super) is_low: bool,
    has_made_room: bool,
}

impl Space {
    pub(super) fn new(min_free: u64) -> Self {
        Self {
            min_free,
            is_low: false,
            has_made_room: false,
        }
    }
}

/// Something that is removed in steps.
#[derive(Default)]
struct Chore {
    /// Whether there may be more to remove at once.
    more: bool,
    /// When the removal may be tried again, after a failure.
    rests_until: i64,
}

impl Chore {
    /// Begins a step, if it may be tried at this time.
    fn begin(&mut self, now: i64) -> bool {
        self.more = false;
        now >= self.rests_until
    }

    /// Has the removal tried again: at once if another process is writing, not before the file is opened again if it is
    /// damaged, and in a second otherwise.
    fn failed(&mut self, failure: &Failure, now: i64, what: &str) {
        if failure.is_busy() {
            self.more = true;
            return;
        }
        self.rests_until = if failure.is_damage() {
            i64::MAX
        } else {
            now.saturating_add(PAUSE_AFTER_FAILURE)
        };
        tracing::error!(?failure, "failed to remove {what}");
    }
}

impl Writer<'_> {
    /// Removes some of what can no longer be received, in a transaction of its own.
    pub(super) fn purge(&mut self) {
        let now = self.store_clock.now();
        let purged = self.upkeep.purge.find(now).and_then(|found| {
            let mut removed = self.try_remove(&found);
            if removed.as_ref().is_err_and(Failure::is_damage) {
                removed = self.around_damage(|writer| writer.try_remove(&found));
            }
            if let Err(failure) = &removed {
                self.upkeep.purge.not_removed(found, failure, now);
            }
            removed
        });
        if let Err(failure) = purged
            && !failure.is_busy()
        {
            tracing::error!(?failure, "failed to remove expired or deleted messages");
        }
        if let Err(failure) = self.remove_attachments(now) {
            let what = "attachments that no message has";
            self.upkeep.attachments.failed(&failure, now, what);
        }
        if let Err(failure) = self.sweep_results(now) {
            let what = "results and keys whose time is over";
            self.upkeep.results.failed(&failure, now, what);
        }
        self.upkeep.purged_at = Instant::now();
    }

    pub(super) fn has_work(&self) -> bool {
        self.upkeep.attachments.more || self.upkeep.results.more || self.upkeep.purge.has_work()
    }

    /// Removes some of an attachment that no message has, in a transaction of its own.
    fn remove_attachments(&mut self, now: i64) -> Result<()> {
        if !self.upkeep.attachments.begin(now) {
            return Ok(());
        }
        let Some(unused) = self.tables.messages.attachments.unused(now)? else {
            return Ok(());
        };
        self.begin.execute([])?;
        // Meanwhile another process may have used or removed the attachment.
        let removed = match self.tables.messages.attachments.unused(now) {
            Ok(Some(still)) if still == unused => {
                self.tables.messages.attachments.remove_some(unused)
            }
            other => other.map(drop),
        };
        if removed.is_err() {
            self.roll_back();
            return removed;
        }
        self.upkeep.attachments.more = true;
        self.tables.messages.forget();
        self.transact(&[]).map(drop)
    }

    /// Removes some of the results that are over, in a transaction of its own.
    fn sweep_results(&mut self, now: i64) -> Result<()> {
        if !self.upkeep.results.begin(now) || !self.tables.results(now).any_over()? {
            return Ok(());
        }
        self.begin.execute([])?;
        match self.tables.results(now).sweep() {
            Ok(swept) => self.upkeep.results.more = swept.more,
            Err(failure) => {
                self.roll_back();
                return Err(failure);
            }
        }
        self.transact(&[]).map(drop)
    }

    fn try_remove(&mut self, found: &Found) -> Result<()> {
        if found.places.is_empty() && found.finished.is_none() {
            return Ok(());
        }
        self.begin.execute([])?;
        // Another process may have written since this one has looked.
        self.tables.messages.forget();
        let removed = self.remove(&found.places, found.finished);
        if removed.is_err() {
            self.roll_back();
            return removed;
        }
        self.transact(&[]).map(drop)
    }

    fn remove(&mut self, places: &[Place], finished: Option<i64>) -> Result<()> {
        for place in places {
            self.tables.messages.drop_at(place)?;
        }
        finished.map_or(Ok(()), |queue| self.upkeep.purge.forget(queue))
    }

    /// Waits for a command, but not for long. Other processes get the lock meanwhile.
    pub(super) fn let_others_write(&self, commands: &Receiver<Command>, pending: &mut Pending) {
        if let Ok(command) = commands.recv_timeout(PAUSE) {
            pending.push(command);
        }
    }

    pub(super) fn shrink(&mut self) -> bool {
        match self.upkeep.shrink.step() {
            Ok(more) => more,
            // The file is shortened at another time.
            Err(failure) if failure.is_busy() => false,
            Err(failure) => {
                tracing::error!(?failure, "failed to shorten the file");
                self.upkeep.shrink.give_up();
                false
            }
        }
    }

    /// Starts the log anew if it cannot be relied on.
    ///
    /// # Errors
    /// The failure that made it unreliable, if the log cannot be started anew now.
    pub(super) fn mend_log(&mut self) -> Result<()> {
        let Some(failure) = self.sync.suspect().cloned() else {
            return Ok(());
        };
        if !self.empty_log() {
            return Err(failure);
        }
        self.sync.started_anew();
        Ok(())
    }

    /// Brings the receives to the disk that were committed without waiting for it.
    pub(super) fn sync_log(&mut self) {
        if let Err(failure) = self.files.sync_log() {
            tracing::error!(
                ?failure,
                "failed to sync the log; a power failure may undo receives"
            );
            return self.sync.failed(failure);
        }
        self.sync.finished();
    }
}

/// The number of pages that one step moves.
const STEP: i64 = 256;

/// The number of free pages that remain, so that a queue that fills and empties does not move pages all the
/// time.
const KEPT: i64 = 1024;

/// The free pages of a file.
///
/// SQLite reuses the pages of deleted messages, but does not shorten the file by itself. While there is nothing
/// else to do, the writer moves pages from the end of the file to free places and cuts it, in small steps.
struct Shrink<'c> {
    connection: &'c Connection,
    /// Whether the file can be shortened: an adopted one only if the application has set it up so.
    possible: bool,
    /// Whether the file is being shortened.
    under_way: bool,
    pages: Statement<'c>,
    free: Statement<'c>,
}

impl<'c> Shrink<'c> {
    fn prepare(connection: &'c Connection) -> Result<Self> {
        const INCREMENTAL: i64 = 2;
        let mode: i64 = connection.pragma_query_value(None, "auto_vacuum", |row| row.get(0))?;
        Ok(Self {
            connection,
            possible: mode == INCREMENTAL,
            under_way: false,
            pages: connection.prepare("PRAGMA page_count")?,
            free: connection.prepare("PRAGMA freelist_count")?,
        })
    }

    /// Shortens the file by some pages, in a transaction, if most of it is free. Returns whether there is more
    /// to do.
    fn step(&mut self) -> Result<bool> {
        if !self.possible {
            return Ok(false);
        }
        let free: i64 = self.free.query_row([], |row| row.get(0))?;
        let pages: i64 = self.pages.query_row([], |row| row.get(0))?;
        self.under_way = free > KEPT && (self.under_way || free > pages / 2);
        if !self.under_way {
            return Ok(false);
        }
        let step = format!("PRAGMA incremental_vacuum({})", STEP.min(free - KEPT));
        let mut step = self.connection.prepare(&step)?;
        // Each row is a page; the last one ends the transaction.
        let mut moved = step.query([])?;
        while moved.next()?.is_some() {}
        Ok(true)
    }

    /// Shortens the file no more until it is opened again.
    fn give_up(&mut self) {
        self.possible = false;
    }
}

impl Writer<'_> {
    /// Refuses what adds messages while too little space is left. Returns the other commands.
    pub(super) fn admit(&mut self, batch: Vec<Command>) -> Vec<Command> {
        self.space.has_made_room = false;
        let (path, min_free) = (self.files.path(), self.space.min_free);
        self.space.is_low = disk::free(path).is_some_and(|free| disk::is_low(free, min_free));
        if !self.space.is_low {
            return batch;
        }
        // If the file cannot be read, the commands find that out.
        let left = disk::left(self.connection, path, min_free).unwrap_or(u64::MAX);
        let mut admitted = Vec::with_capacity(batch.len());
        for command in batch {
            match Change::of(&command.request).check(left, min_free) {
                Ok(()) => admitted.push(command),
                Err(failure) => command.fail(&failure),
            }
        }
        admitted
    }

    /// Brings the database to its full length on the disk.
    pub(super) fn lengthen(&mut self) {
        if matches!(disk::missing(self.connection, self.files.path()), Ok(1..)) {
            self.log.move_into_database(self.connection);
        }
    }

    /// Makes room in the log after a transaction found none, but once for each batch only: it may have to wait for
    /// readers. Returns whether there is room now.
    pub(super) fn make_room(&mut self, failure: &Failure) -> bool {
        let wanted = failure.is_full_disk() && !self.space.has_made_room;
        self.space.has_made_room |= wanted;
        wanted && self.empty_log()
    }

    /// Moves the log into the database, and starts it anew. Returns whether that succeeded.
    pub(super) fn empty_log(&mut self) -> bool {
        let emptied = self.log.checkpoint(self.connection, self.space.is_low);
        if emptied {
            self.files.allocate_log();
        }
        emptied
    }
}

/// Answers commands that have waited for the write lock in vain. A put is not to be repeated while one transaction of
/// this process keeps the lock: that may be the caller's, which goes on only after the put.
pub(super) fn fail_locked(commands: Vec<Command>, files: &Files, waited: Duration) {
    if commands.is_empty() {
        return;
    }
    let holder = Holder::of(files.path());
    let is_one = holder == Holder::ThisProcess && files.is_log_unchanged_for(waited);
    for command in commands {
        let change = Change::of(&command.request);
        let retry = if is_one && change.puts > 0 && change.removals == 0 {
            RetryAdvice::Permanent
        } else {
            RetryAdvice::Temporary
        };
        command.fail(&Failure::Locked {
            waited,
            holder,
            retry,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(connection: &Connection) -> (i64, i64) {
        let pragma = |name| connection.pragma_query_value(None, name, |row| row.get(0));
        let pages = pragma("page_count").expect("pages");
        (pages, pragma("freelist_count").expect("free pages"))
    }

    fn filled(auto_vacuum: &str) -> Connection {
        let connection = Connection::open_in_memory().expect("open");
        let mode = connection.pragma_update(None, "auto_vacuum", auto_vacuum);
        mode.expect("configure");
        let fill = "CREATE TABLE t (id INTEGER PRIMARY KEY, body BLOB);
            WITH RECURSIVE row (id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM row LIMIT 4000)
            INSERT INTO t SELECT id, zeroblob(3000) FROM row";
        connection.execute_batch(fill).expect("fill");
        connection
    }

    #[test]
    fn a_drained_file_is_shortened_in_steps() {
        let connection = filled("INCREMENTAL");
        let mut shrink = Shrink::prepare(&connection).expect("prepare");
        let few = "DELETE FROM t WHERE id % 4 = 0";
        connection.execute_batch(few).expect("delete");
        let (before, _) = numbers(&connection);
        assert!(!shrink.step().expect("step"), "most of it is in use");
        assert_eq!(numbers(&connection).0, before);

        let drain = "DELETE FROM t WHERE id < 3990";
        connection.execute_batch(drain).expect("delete");
        let expected = (numbers(&connection).1 - KEPT + STEP - 1) / STEP;
        let mut steps = 0;
        loop {
            let (pages, _) = numbers(&connection);
            if !shrink.step().expect("step") {
                break;
            }
            let removed = pages - numbers(&connection).0;
            // Pages that say which page refers to which count, too: one for several hundred.
            assert!((1..=STEP + 2).contains(&removed), "{removed} pages at once");
            steps += 1;
        }
        let (pages, free) = numbers(&connection);
        assert!((6..=expected).contains(&steps), "{steps} steps");
        assert!(
            free <= KEPT && pages < KEPT + 100,
            "{pages} pages, {free} free"
        );
        let kept = "SELECT count(*) FROM t WHERE length(body) = 3000";
        assert_eq!(connection.query_row(kept, [], |row| row.get(0)), Ok(8));
        let check = "PRAGMA integrity_check";
        let checked: String = connection
            .query_row(check, [], |row| row.get(0))
            .expect("a check");
        assert_eq!(checked, "ok");
    }

    #[test]
    fn a_file_that_was_not_set_up_for_it_stays_as_it_is() {
        let connection = filled("NONE");
        connection.execute_batch("DELETE FROM t").expect("delete");
        let before = numbers(&connection);
        let mut shrink = Shrink::prepare(&connection).expect("prepare");
        assert!(!shrink.step().expect("nothing to do"));
        assert_eq!(numbers(&connection), before);
    }
}
