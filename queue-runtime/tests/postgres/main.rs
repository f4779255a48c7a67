//! Services on a real PostgreSQL server: that of the URL in `QUEUE_TEST_POSTGRES`, or one that each test process starts.

mod bank;
mod in_transaction;
mod rate;
mod replacing;
mod schedules;
mod shards;
mod strikes;
mod submit;
mod wakeups;
