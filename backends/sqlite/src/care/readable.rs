//! Reading the rows of a file that may be damaged.

use rusqlite::{Connection, OptionalExtension as _, Row, Statement};

use crate::failure::{Failure, Result};

/// Whether the file has a table of this name.
pub(crate) fn has_table(source: &Connection, name: &str) -> Result<bool> {
    let tables = "SELECT 1 FROM sqlite_schema WHERE name = ?1";
    Ok(source.prepare(tables)?.exists([name])?)
}

/// The readable rows of a table, by row id.
pub(crate) struct Rows<'c> {
    rows: Statement<'c>,
    first: Statement<'c>,
}

impl<'c> Rows<'c> {
    pub(crate) fn of(source: &'c Connection, table: &str, id: &str, columns: &str) -> Result<Self> {
        let from = format!("FROM {table} WHERE {id} >= ?1 ORDER BY {id}");
        Ok(Self {
            rows: source.prepare(&format!("SELECT {columns} {from}"))?,
            first: source.prepare(&format!("SELECT {id} {from} LIMIT 1"))?,
        })
    }

    /// Calls `copy` with each readable row, whose first column is its id. Returns how often a row or page was not readable.
    pub(crate) fn each(&mut self, mut copy: impl FnMut(&Row<'_>) -> Result<()>) -> Result<u64> {
        let (mut from, mut unreadable) = (i64::MIN, 0);
        loop {
            let mut rows = self.rows.query([from])?;
            let damaged = loop {
                match rows.next().map_err(Failure::from) {
                    Ok(Some(row)) => {
                        // A row that does not have the columns' types is damaged, too.
                        let id: i64 = row.get(0)?;
                        match copy(row) {
                            Ok(()) => {}
                            Err(failure) if failure.is_damage() => unreadable += 1,
                            Err(failure) => return Err(failure),
                        }
                        // An altered id may be lower than the one before.
                        from = from.max(id.saturating_add(1));
                    }
                    Ok(None) => break false,
                    Err(failure) if failure.is_damage() => break true,
                    Err(failure) => return Err(failure),
                }
            };
            drop(rows);
            unreadable += u64::from(damaged);
            if !damaged || from == i64::MAX {
                return Ok(unreadable);
            }
            from = match self.first_from(from)? {
                // The row is there, but not what belongs to it on other pages.
                Ok(Some(id)) => id.saturating_add(1),
                Ok(None) => return Ok(unreadable),
                Err(()) => match self.after_damage(from)? {
                    Some(id) => id,
                    None => return Ok(unreadable),
                },
            };
        }
    }

    /// Returns the id of the first readable row behind a damaged page.
    ///
    /// The steps grow with the distance, by an eighth of it, so that readable rows between two damaged pages are not
    /// stepped over, while the number of steps has a bound of some hundreds.
    fn after_damage(&mut self, damaged: i64) -> Result<Option<i64>> {
        // Few ids are negative: from far below, the steps would be too wide for the others.
        let damaged = if damaged < 0 && self.first_from(0)?.is_err() {
            0
        } else {
            damaged
        };
        let mut low = damaged;
        let (mut high, mut found) = loop {
            if low == i64::MAX {
                return Ok(None);
            }
            let step = (low.saturating_sub(damaged) / 8).max(1);
            let next = low.saturating_add(step);
            match self.first_from(next)? {
                Ok(found) => break (next, found),
                Err(()) => low = next,
            }
        };
        while low.saturating_add(1) < high {
            let middle = i64::midpoint(low, high);
            match self.first_from(middle)? {
                Ok(first) => (high, found) = (middle, first),
                Err(()) => low = middle,
            }
        }
        Ok(found)
    }

    /// Looks for the first row from this id on. The inner error is damage.
    fn first_from(&mut self, id: i64) -> Result<Result<Option<i64>, ()>> {
        let found = self.first.query_row([id], |row| row.get(0)).optional();
        match found.map_err(Failure::from) {
            Ok(found) => Ok(Ok(found)),
            Err(failure) if failure.is_damage() => Ok(Err(())),
            Err(failure) => Err(failure),
        }
    }
}
