//! The file, as SQLite and the file system have it.
//!
//! | file | contents |
//! |---|---|
//! | `connection` | opening the file: settings and pragmas |
//! | `files` | the database and its log on the disk: creating them, and noticing that their path leads elsewhere |
//! | `log` | which commits wait for the log, and when it is moved into the database |
//! | `turn` | the order in which processes write, and who keeps the others from writing |
//! | `disk` | network file systems, mounts of a single file, and free space |

pub(crate) mod connection;
pub(crate) mod disk;
pub(crate) mod files;
pub(crate) mod log;
pub(crate) mod turn;
