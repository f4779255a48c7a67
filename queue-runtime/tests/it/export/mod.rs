//! Messages that are copied or taken from a queue into files, and put back.

mod copies;
mod faults;
mod search;
