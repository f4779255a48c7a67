//! What the tests of several backends share.

pub(crate) mod memory;
pub(crate) mod threads;
