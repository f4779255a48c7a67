use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::Swap;
use queue_core::clock::Timestamp;
use queue_core::idempotency::WorkKey;
use queue_core::{Error, ErrorKind, Operation, Result};
use serde::{Deserialize, Serialize};

/// How long the last tick of a schedule is kept after it: longer than any pause between two ticks.
const RETENTION: Duration = Duration::from_secs(30 * 366 * 24 * 60 * 60);

/// The scope of the records of schedules.
pub(super) const SCOPE: &str = "schedule ticks";

/// The last tick that was submitted.
#[derive(Debug, Clone)]
pub(super) struct Last {
    pub(super) tick: Timestamp,
    /// What is recorded of it.
    pub(super) value: Bytes,
}

/// What is recorded of the last tick.
#[derive(Serialize, Deserialize)]
struct Record {
    tick: Timestamp,
    /// A random number of the try, so that no two tries record the same.
    token: u64,
}

/// Returns the key under which a schedule is recorded.
pub(super) fn key(schedule: &str) -> WorkKey {
    WorkKey::new(SCOPE, schedule)
}

impl Last {
    pub(super) fn new(tick: Timestamp) -> Self {
        let token = rand::random();
        let record = serde_json::to_vec(&Record { tick, token });
        Self {
            tick,
            value: record.expect("a time and a number are JSON").into(),
        }
    }

    /// Returns the swap that records it for a schedule of which nothing is recorded.
    pub(super) fn swap(&self, schedule: &str) -> Swap {
        Swap::new(key(schedule), self.value.clone(), RETENTION)
    }

    pub(super) fn read(current: Option<Bytes>) -> Result<Self> {
        let record = current.as_deref().map(serde_json::from_slice::<Record>);
        match (record, current) {
            (Some(Ok(record)), Some(value)) => Ok(Self {
                tick: record.tick,
                value,
            }),
            _ => {
                let corrupt = Error::new(ErrorKind::Corrupt, Operation::Idempotency);
                Err(corrupt.with_detail("the record of the schedule cannot be read as a tick"))
            }
        }
    }
}
