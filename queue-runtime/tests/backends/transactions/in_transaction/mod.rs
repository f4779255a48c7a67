//! Handlers whose rows, follow-ups and acknowledgement are one transaction.

mod commits;
mod faults;
