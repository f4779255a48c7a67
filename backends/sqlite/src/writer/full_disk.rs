//! Going on while the disk is full, or nearly.

use super::Writer;
use crate::command::{Change, Command};
use crate::failure::Failure;
use crate::file::space;

impl Writer<'_> {
    /// Refuses what adds messages while too little space is left. Returns the other commands.
    pub(super) fn admit(&mut self, batch: Vec<Command>) -> Vec<Command> {
        self.has_made_room = false;
        let (path, min_free) = (self.files.path(), self.min_free_space);
        self.space_is_low = space::free(path).is_some_and(|free| space::is_low(free, min_free));
        if !self.space_is_low {
            return batch;
        }
        // If the file cannot be read, the commands find that out.
        let left = space::left(self.connection, path, min_free).unwrap_or(u64::MAX);
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
        if matches!(space::missing(self.connection, self.files.path()), Ok(1..)) {
            self.log.move_into_database(self.connection);
        }
    }

    /// Makes room in the log after a transaction found none, but once for each batch only: it may have to wait for
    /// readers. Returns whether there is some now.
    pub(super) fn make_room(&mut self, failure: &Failure) -> bool {
        let wanted = failure.is_full_disk() && !self.has_made_room;
        self.has_made_room |= wanted;
        wanted && self.empty_log()
    }

    /// Moves the log into the database, and starts it anew. Returns whether that succeeded.
    pub(super) fn empty_log(&mut self) -> bool {
        let emptied = self.log.checkpoint(self.connection, self.space_is_low);
        if emptied {
            self.files.allocate_log();
        }
        emptied
    }
}
