//! Messages that are on a queue once.

mod by_key;
mod replacing;
mod until_settled;
