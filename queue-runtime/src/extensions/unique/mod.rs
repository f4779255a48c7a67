//! Unique submissions: of several messages of one key, one is put.
//!
//! | file | contents |
//! |---|---|
//! | `submission` | the methods of a submission that make it unique, and their checks |
//! | `conditional` | puts that depend on what is recorded of a key |
//! | `replacing` | puts in place of the message that holds a key |
//!
//! What is recorded of a key, and what its message carries, is in the kernel, because every settlement may release a key:
//! `send/unique_key`.

mod conditional;
mod replacing;
mod submission;

pub(crate) use conditional::SubmittedIf;
