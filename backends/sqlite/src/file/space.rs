//! The space on the disk that puts leave to receives and settlements.
//!
//! SQLite appends each change to the log, a deletion too, and starts the log anew only once the database contains all
//! of it. On a full disk, neither file can become longer. So that messages can still be received and settled there:
//!
//! - puts are refused while less than [`Settings::min_free_space`](crate::connection::Settings) is left;
//! - the database is brought to its full length after each transaction while space is low;
//! - blocks are allocated for the log in advance, which it keeps while space is low.

use std::fs::{self, File};
use std::path::Path;

use rusqlite::Connection;

use crate::failure::Result;

/// The default of `SqliteBuilder::min_free_space`, in bytes: more than the log usually contains that the database does
/// not, and the largest operation.
pub(crate) const MIN_FREE: u64 = 32 * 1024 * 1024;

/// The length of the log that is allocated in advance, in bytes: twice that at which SQLite moves it into the database.
const LOG: u64 = 8 * 1024 * 1024;

/// Returns how many bytes messages can still take: what is free on the file system and in the database, without what
/// the database still needs on the disk for pages that are only in the log. The latter is looked up only if space is
/// low.
pub(crate) fn left(connection: &Connection, path: &Path, min_free: u64) -> Result<u64> {
    let Some(free) = free(path) else {
        return Ok(u64::MAX);
    };
    if !is_low(free, min_free) {
        return Ok(free);
    }
    let spare = pragma(connection, "freelist_count")? * pragma(connection, "page_size")?;
    Ok((free + spare).saturating_sub(missing(connection, path)?))
}

/// Whether so little is free on the file system that the log may need a part of what puts have to leave.
pub(crate) fn is_low(free: u64, min_free: u64) -> bool {
    free < min_free.saturating_mul(2)
}

/// Returns by how many bytes the database is shorter on the disk than with what is in the log.
pub(crate) fn missing(connection: &Connection, path: &Path) -> Result<u64> {
    let pages = pragma(connection, "page_count")? * pragma(connection, "page_size")?;
    let metadata = fs::metadata(path)?;
    Ok(pages.saturating_sub(metadata.len()))
}

fn pragma(connection: &Connection, name: &str) -> Result<u64> {
    let value: i64 = connection.pragma_query_value(None, name, |row| row.get(0))?;
    Ok(value.unsigned_abs())
}

/// Returns how many bytes of the file system this user may still allocate, if that is known.
#[cfg(unix)]
pub(crate) fn free(path: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(path).ok()?;
    // Some file systems do not tell.
    (found.f_blocks > 0).then(|| found.f_bavail.saturating_mul(found.f_frsize))
}

/// Elsewhere, it is not known.
#[cfg(not(unix))]
pub(crate) fn free(_: &Path) -> Option<u64> {
    None
}

/// Allocates blocks for the log on the disk, without making the file longer. If that fails, the log has no reserve.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn allocate(log: &File) {
    use rustix::fs::{FallocateFlags, fallocate};

    if let Err(error) = fallocate(log, FallocateFlags::KEEP_SIZE, 0, LOG) {
        tracing::debug!(%error, "failed to allocate space for the log in advance");
    }
}

/// Elsewhere, only by making it longer.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn allocate(_: &File) {}
