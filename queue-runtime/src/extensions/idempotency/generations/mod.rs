//! Results in an object store, by conditional creation alone.
//!
//! | file | contents |
//! |---|---|
//! | `protocol` | the transitions, without I/O |
//! | `objects` | names and contents of the objects |
//! | `error` | errors of the object store as those of this crate |
//! | `store` | [`ObjectResults`]: carries out the requests of the protocol |
//! | `sweeping` | removing what is no longer needed |
//! | `tests::model` | every interleaving of two owners |

mod error;
mod objects;
mod protocol;
mod store;
mod sweeping;
#[cfg(test)]
mod tests;

pub use store::ObjectResults;
