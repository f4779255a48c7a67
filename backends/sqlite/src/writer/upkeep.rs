//! What the writer does besides commands.

use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use super::Writer;
use crate::batch::Pending;
use crate::command::Command;
use crate::failure::{Failure, Result};
use crate::rows::messages::Place;
use crate::rows::purge::Found;

/// The pause between two transactions of upkeep while there is nothing else to do, so that other processes get
/// the lock.
const PAUSE: Duration = Duration::from_millis(1);

/// The pause after a failure, in microseconds.
const PAUSE_AFTER_FAILURE: i64 = 1_000_000;

/// Something that is removed in steps.
#[derive(Default)]
pub(super) struct Chore {
    /// Whether there may be more to remove at once.
    more: bool,
    /// When it may be tried again, after a failure.
    rests_until: i64,
}

impl Chore {
    /// Begins a step, if it may be tried at this time.
    fn begin(&mut self, now: i64) -> bool {
        self.more = false;
        now >= self.rests_until
    }

    /// Tries again: at once if another process is writing, not before the file is opened again if it is damaged, and in a
    /// second otherwise.
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
        let purged = self.purge.find(now).and_then(|found| {
            let mut removed = self.try_remove(&found);
            if removed.as_ref().is_err_and(Failure::is_damage) {
                removed = self.around_damage(|writer| writer.try_remove(&found));
            }
            if let Err(failure) = &removed {
                self.purge.not_removed(found, failure, now);
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
            self.attachments.failed(&failure, now, what);
        }
        if let Err(failure) = self.sweep_results(now) {
            let what = "results and keys whose time is over";
            self.results.failed(&failure, now, what);
        }
        self.purged_at = Instant::now();
    }

    /// Whether there may be more to remove at once.
    pub(super) fn has_work(&self) -> bool {
        self.attachments.more || self.results.more || self.purge.has_work()
    }

    /// Removes some of an attachment that no message has, in a transaction of its own.
    fn remove_attachments(&mut self, now: i64) -> Result<()> {
        if !self.attachments.begin(now) {
            return Ok(());
        }
        let Some(unused) = self.tables.messages.attachments.unused(now)? else {
            return Ok(());
        };
        self.begin.execute([])?;
        // Meanwhile another process may have used or removed it.
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
        self.attachments.more = true;
        self.tables.messages.forget();
        self.transact(&[]).map(drop)
    }

    /// Removes some of the results that are over, in a transaction of its own.
    fn sweep_results(&mut self, now: i64) -> Result<()> {
        if !self.results.begin(now) || !self.tables.results(now).any_over()? {
            return Ok(());
        }
        self.begin.execute([])?;
        match self.tables.results(now).sweep() {
            Ok(swept) => self.results.more = swept.more,
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
        finished.map_or(Ok(()), |queue| self.purge.forget(queue))
    }

    /// Waits for a command, but not for long. Other processes get the lock meanwhile.
    pub(super) fn let_others_write(&self, commands: &Receiver<Command>, pending: &mut Pending) {
        if let Ok(command) = commands.recv_timeout(PAUSE) {
            pending.push(command);
        }
    }

    /// Shortens the file, if most of it is free. Returns whether there is more to do.
    pub(super) fn shrink(&mut self) -> bool {
        match self.shrink.step() {
            Ok(more) => more,
            // At another time.
            Err(failure) if failure.is_busy() => false,
            Err(failure) => {
                tracing::error!(?failure, "failed to shorten the file");
                self.shrink.give_up();
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
