//! Messages that are on a queue once.

mod by_key;
mod until_settled;
