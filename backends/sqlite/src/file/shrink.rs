//! Giving space back to the file system after queues were drained.
//!
//! SQLite reuses the pages of deleted messages, but does not shorten the file by itself. While there is nothing
//! else to do, the writer moves pages from the end of the file to free places and cuts it, in small steps.

use rusqlite::{Connection, Statement};

use crate::failure::Result;

/// The number of pages that one step moves.
const STEP: i64 = 256;

/// The number of free pages that remain, so that a queue that fills and empties does not move pages all the
/// time.
const KEPT: i64 = 1024;

/// The free pages of a file.
pub(crate) struct Shrink<'c> {
    connection: &'c Connection,
    /// Whether the file can be shortened: an adopted one only if the application has set it up so.
    possible: bool,
    /// Whether it is being shortened.
    under_way: bool,
    pages: Statement<'c>,
    free: Statement<'c>,
}

impl<'c> Shrink<'c> {
    pub(crate) fn prepare(connection: &'c Connection) -> Result<Self> {
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
    pub(crate) fn step(&mut self) -> Result<bool> {
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

    /// Does no more until the file is opened again.
    pub(crate) fn give_up(&mut self) {
        self.possible = false;
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
            // Also pages that say which page refers to which, one for several hundred.
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
