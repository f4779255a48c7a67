//! Messages in transactions of the application's own connection to the SQLite file of the queues.

mod announcements;
mod bank;
mod held;
mod listeners;
mod log;
mod metrics;
mod outbox;
mod outcomes;
mod refusals;
mod replies;
mod unique;
