//! The record of store time in the file.

use queue_core::store_clock::{Anchor, Moment, StoreClock};
use rusqlite::{Connection, TransactionBehavior, params};

use crate::failure::Result;
use crate::rows::schema::Lazy;

/// The interval at which the time is recorded, in microseconds.
const RECORD_INTERVAL: i64 = 1_000_000;

/// Reads and writes the record of store time.
pub(super) struct StoreTime<'c> {
    read: Lazy<'c>,
    record: Lazy<'c>,
    set_anchor: Lazy<'c>,
    recorded: i64,
    unrecorded: Option<Anchor>,
}

/// Follows the store time of a file that has just been opened. In a new boot, records the anchor from which
/// all processes of this boot compute the store time.
pub(super) fn follow(connection: &mut Connection, store_clock: &StoreClock) -> Result<()> {
    if StoreTime::new(connection).follow(store_clock)? {
        return Ok(());
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    {
        let mut store_time = StoreTime::new(&transaction);
        // Another process may have recorded an anchor before this one got the lock.
        store_time.follow(store_clock)?;
        store_time.write(store_clock.now())?;
    }
    Ok(transaction.commit()?)
}

impl<'c> StoreTime<'c> {
    pub(super) fn new(connection: &'c Connection) -> Self {
        Self {
            read: Lazy::new(
                connection,
                "SELECT latest, boot, anchor_elapsed, anchor_time FROM queue_store",
            ),
            record: Lazy::new(
                connection,
                "UPDATE queue_store SET latest = max(latest, ?1)",
            ),
            set_anchor: Lazy::new(
                connection,
                "UPDATE queue_store SET boot = ?1, anchor_elapsed = ?2, anchor_time = ?3",
            ),
            recorded: i64::MIN,
            unrecorded: None,
        }
    }

    /// Follows the recorded store time. Returns `false` if the next transaction records another anchor.
    pub(super) fn follow(&mut self, store_clock: &StoreClock) -> Result<bool> {
        let (latest, anchor) = self.read.query_row([], |row| {
            let boot: Option<[u8; 16]> = row.get(1)?;
            let anchor = match boot {
                None => None,
                Some(boot) => Some(Anchor {
                    moment: Moment {
                        boot: Some(u128::from_be_bytes(boot)),
                        elapsed: row.get(2)?,
                    },
                    store_time: row.get(3)?,
                }),
            };
            Ok((row.get(0)?, anchor))
        })?;
        self.unrecorded = store_clock.follow(anchor, latest);
        Ok(self.unrecorded.is_none())
    }

    /// Records the time within a transaction, if that is due.
    pub(super) fn write(&mut self, now: i64) -> Result<()> {
        if let Some(Anchor { moment, store_time }) = self.unrecorded.take() {
            let boot = moment.boot.map(u128::to_be_bytes);
            self.set_anchor
                .execute(params![boot, moment.elapsed, store_time])?;
            self.recorded = i64::MIN;
        }
        if now.saturating_sub(self.recorded) >= RECORD_INTERVAL {
            self.record.execute([now])?;
            self.recorded = now;
        }
        Ok(())
    }

    /// Forgets what a transaction that was rolled back has recorded.
    pub(super) fn forget(&mut self) {
        self.recorded = i64::MIN;
    }
}
