//! Messages that are submitted at set times.

mod clocks;
pub(crate) mod fixture;
mod records;
mod steering;
mod ticks;
