//! Queues in one SQLite file.
