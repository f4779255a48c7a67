//! Power loss: what may be on a disk after one, by the writes and syncs that a [`Shim`] has recorded.
//!
//! | module | contents |
//! |---|---|
//! | `shim` | builds the library that records operations or makes them fail |
//! | `trace` | reads its records |
//! | `disk` | what of the writes is durable at a moment, and images of what may be left |
//! | `older` | a file of an older version of the schema |
//! | `judge` | opens an image with the backend, and compares it with the ledgers at that moment |

mod disk;
mod judge;
mod older;
mod shim;
mod trace;

pub use disk::{Disk, Fate, Image};
pub use judge::{Contents, Durability, FILE, Ledgers, contents, contents_of};
pub use older::older_file;
pub use shim::{Environment, Shim};
pub use trace::{Change, Operation, parse};
