//! Power loss: what may be on a disk after one, by the writes and syncs that a [`Shim`] has recorded.
//!
//! | module | contents |
//! |---|---|
//! | `shim` | builds the library that records operations or makes them fail |
//! | `trace` | reads the shim's records |
//! | `disk` | what of the writes is durable at a moment, and images of what may be left |
//! | `application` | a database of an application, which the queues adopt |
//! | `judge` | opens an image with the backend, and compares it with the ledgers at that moment |

mod application;
mod disk;
mod judge;
mod shim;
mod trace;

pub use application::{assert_application, create_application};
pub use disk::{Disk, Fate, Image};
pub use judge::{Contents, Durability, FILE, Ledgers, builder, contents, contents_of};
pub use shim::{Environment, Shim};
pub use trace::{Change, Operation, parse};
