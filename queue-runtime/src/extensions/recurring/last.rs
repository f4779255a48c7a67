//! What a storage records of a schedule, in one record: each change swaps it for another, so that of a tick and a pause at
//! the same time, one is first.

use std::ops::Deref;
use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::Swap;
use queue_core::clock::Timestamp;
use queue_core::idempotency::WorkKey;
use queue_core::{Error, ErrorKind, Operation, Result};
use serde::{Deserialize, Serialize};

/// How long the record of a schedule's last tick is kept: longer than any pause between two ticks.
const RETENTION: Duration = Duration::from_secs(30 * 366 * 24 * 60 * 60);

/// The scope of the records of schedules.
pub(super) const SCOPE: &str = "schedule ticks";

/// Returns the key under which a schedule is recorded.
pub(super) fn key(schedule: &str) -> WorkKey {
    WorkKey::new(SCOPE, schedule)
}

/// The last tick of a schedule, and what operators want of it.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct LastTick {
    /// The last tick, or the time at which the schedule began.
    pub(super) tick: Timestamp,
    /// The tick after that one, as far as a process that runs the schedule has recorded it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) paused: bool,
    /// When somebody asked for a run besides the ticks, which no process has submitted yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) run: Option<Timestamp>,
}

#[derive(Serialize, Deserialize)]
struct RecordedTick {
    #[serde(flatten)]
    last: LastTick,
    /// A random number of the try, so that no two tries record the same.
    token: u64,
}

/// What is recorded of a schedule, as the storage has it.
#[derive(Debug, Clone)]
pub(super) struct Last {
    last: LastTick,
    pub(super) value: Bytes,
}

impl LastTick {
    /// Begins a schedule, which is not paused.
    pub(super) fn begin(tick: Timestamp, next: Option<Timestamp>) -> Self {
        Self {
            tick,
            next,
            paused: false,
            run: None,
        }
    }
}

impl From<LastTick> for Last {
    fn from(last: LastTick) -> Self {
        let token = rand::random();
        let record = serde_json::to_vec(&RecordedTick { last, token });
        Self {
            last,
            value: record.expect("times and a number are JSON").into(),
        }
    }
}

impl Deref for Last {
    type Target = LastTick;

    fn deref(&self) -> &LastTick {
        &self.last
    }
}

impl Last {
    /// Returns the swap that records this for a schedule of which nothing is recorded.
    pub(super) fn swap(&self, schedule: &str) -> Swap {
        Swap::new(key(schedule), self.value.clone(), RETENTION)
    }

    pub(super) fn read(current: Option<Bytes>) -> Result<Self> {
        let record = current
            .as_deref()
            .map(serde_json::from_slice::<RecordedTick>);
        match (record, current) {
            (Some(Ok(RecordedTick { last, .. })), Some(value)) => Ok(Self { last, value }),
            _ => {
                let corrupt = Error::new(ErrorKind::Corrupt, Operation::Results);
                Err(corrupt.with_detail("the record of the schedule cannot be read as a tick"))
            }
        }
    }
}
