//! Messages in transactions of the application's own connection to the storage: the SQLite file of the queues, or one in
//! memory whose driver is asynchronous.

mod announcements;
mod asynchronous;
mod attachments;
mod bank;
mod batches;
mod deposits;
mod ended;
mod held;
mod in_transaction;
mod left_behind;
mod listeners;
mod log;
mod metrics;
mod outbox;
mod outcomes;
mod refusals;
mod replies;
mod riders;
mod shards;
mod totals;
mod unique;
