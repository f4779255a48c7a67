use std::time::Duration;

use rusqlite::{Connection, Statement, params};

use crate::command::Port;
use crate::failure::Result;

/// The interval at which a process renews its registration.
pub(crate) const RENEWAL: Duration = Duration::from_secs(5 * 60);

/// The age at which a registration counts as left behind by a process that has ended, in microseconds.
const EXPIRY: i64 = 3 * RENEWAL.as_micros() as i64;

/// The most registrations. Processes beyond that find messages by polling.
const MAX: i64 = 256;

/// The statements on the table of the processes that wait for messages.
pub(crate) struct Consumers<'c> {
    read: Statement<'c>,
    register: Statement<'c>,
    remove: Statement<'c>,
    remove_old: Statement<'c>,
    /// The store time of the last read.
    read_at: i64,
    warned: bool,
}

impl<'c> Consumers<'c> {
    pub(crate) fn prepare(connection: &'c Connection) -> Result<Self> {
        Ok(Self {
            read: connection.prepare(
                "SELECT token, port FROM queue_consumers WHERE renewed_at BETWEEN ?1 AND ?2
                    ORDER BY renewed_at DESC LIMIT ?3",
            )?,
            register: connection
                .prepare("INSERT OR REPLACE INTO queue_consumers VALUES (?1, ?2, ?3)")?,
            remove: connection.prepare("DELETE FROM queue_consumers WHERE token = ?1")?,
            remove_old: connection.prepare(
                "DELETE FROM queue_consumers WHERE renewed_at NOT BETWEEN ?1 AND ?2 OR token NOT IN
                    (SELECT token FROM queue_consumers ORDER BY renewed_at DESC LIMIT ?3)",
            )?,
            read_at: i64::MIN,
            warned: false,
        })
    }

    /// Returns whether registrations that were read may be too old now.
    pub(crate) fn is_outdated(&self, now: i64) -> bool {
        now.saturating_sub(self.read_at) > EXPIRY
    }

    /// Returns the registrations that are not too old. None if they cannot be read: without them, processes poll.
    pub(crate) fn read_or_none(&mut self, now: i64) -> Vec<Port> {
        self.read_at = now;
        let read = self.read(now);
        if let Err(failure) = &read
            && !std::mem::replace(&mut self.warned, true)
        {
            tracing::warn!(
                ?failure,
                "failed to read which processes to wake; they find messages by polling"
            );
        }
        read.unwrap_or_default()
    }

    /// Returns the registrations that are not too old.
    fn read(&mut self, now: i64) -> Result<Vec<Port>> {
        let rows = self.read.query_map(valid(now), |row| {
            Ok(Port {
                token: row.get(0)?,
                number: row.get(1)?,
            })
        })?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// Registers a process or renews its registration, and removes those that are too old.
    pub(crate) fn register(&mut self, port: Port, now: i64) -> Result<()> {
        self.register
            .execute(params![port.token, port.number, now])?;
        self.remove_old.execute(valid(now))?;
        Ok(())
    }

    pub(crate) fn remove(&mut self, port: Port) -> Result<()> {
        self.remove.execute([port.token])?;
        Ok(())
    }
}

/// The parameters of the statements: the oldest and newest valid registration, and their number. One of the future
/// is of a time before the clock was set back.
fn valid(now: i64) -> [i64; 3] {
    [now.saturating_sub(EXPIRY), now.saturating_add(EXPIRY), MAX]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::schema;

    const MINUTE: i64 = 60_000_000;

    fn port(token: i64) -> Port {
        Port { token, number: 7 }
    }

    #[test]
    fn what_is_left_behind_is_not_used_and_is_removed() {
        let mut connection = Connection::open_in_memory().expect("open");
        schema::migrate(&mut connection, false).expect("create");
        let mut consumers = Consumers::prepare(&connection).expect("prepare");
        consumers.register(port(1), 0).expect("registered");
        consumers.register(port(2), 10 * MINUTE).expect("ok");
        assert_eq!(
            consumers.read(10 * MINUTE).expect("read"),
            [port(2), port(1)]
        );
        assert_eq!(consumers.read(16 * MINUTE).expect("read"), [port(2)]);
        assert_eq!(consumers.read(-6 * MINUTE).expect("read"), [port(1)]);

        let count = || {
            let count = "SELECT count(*) FROM queue_consumers";
            connection.query_row(count, [], |row| row.get::<_, i64>(0))
        };
        consumers.register(port(3), 16 * MINUTE).expect("ok");
        assert_eq!(count(), Ok(2), "the first is removed");
        consumers.remove(port(2)).expect("removed");
        assert_eq!(consumers.read(16 * MINUTE).expect("read"), [port(3)]);
        for token in 0..2 * MAX {
            consumers.register(port(token), 17 * MINUTE).expect("ok");
        }
        assert_eq!(count(), Ok(MAX));
    }
}
