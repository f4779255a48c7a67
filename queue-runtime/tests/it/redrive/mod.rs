//! Messages that go back from a poison queue.

mod destinations;
mod faults;
mod filter;
mod fixture;
mod steps;
