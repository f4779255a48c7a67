//! Accepting messages, one at a time and several.

mod many;
mod one;
