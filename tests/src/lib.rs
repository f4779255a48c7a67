//! What tests of several packages need; and in `tests/`, tests that need more than one crate.

pub mod azurite;
