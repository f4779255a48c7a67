//! Opening the file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, MAIN_DB, OpenFlags};

use super::failure::{Failure, Result};
use super::schema;

/// The first version without the WAL-reset bug, which damages files that several connections use.
const OLDEST_LIBRARY: i32 = 3_051_003;

/// When a commit counts as durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Synchronous {
    /// When the log has reached the disk: what was acknowledged survives a loss of power.
    #[default]
    Full,
    /// When the log was handed to the operating system: what was acknowledged survives the end of
    /// the process, and a loss of power may take the last commits before the next checkpoint. The
    /// file stays consistent.
    Normal,
}

/// How a connection is opened.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) path: PathBuf,
    pub(super) synchronous: Synchronous,
    pub(super) patience: Duration,
}

/// The path by which every process knows the file: absolute, without links.
pub(super) fn canonical(path: &Path) -> Result<PathBuf> {
    if let Ok(existing) = path.canonicalize() {
        return Ok(existing);
    }
    let name = path.file_name().ok_or(Failure::NoDirectory)?;
    let directory = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => return Err(Failure::NoDirectory),
    };
    let directory = directory
        .canonicalize()
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Failure::NoDirectory,
            _ => Failure::Io(Arc::new(error)),
        })?;
    Ok(directory.join(name))
}

/// Opens the file for writing, making or migrating it as needed.
pub(super) fn open_writer(settings: &Settings) -> Result<Connection> {
    if rusqlite::version_number() < OLDEST_LIBRARY {
        return Err(Failure::OldLibrary(rusqlite::version()));
    }
    let start = Instant::now();
    loop {
        match try_open_writer(settings) {
            // SQLite does not wait by itself where processes switch a new file to WAL together.
            Err(failure) if failure.is_busy() && start.elapsed() < settings.patience => {
                std::thread::sleep(Duration::from_millis(rand::random_range(1..10)));
            }
            opened => return opened,
        }
    }
}

fn try_open_writer(settings: &Settings) -> Result<Connection> {
    let mut connection = open(settings, OpenFlags::SQLITE_OPEN_CREATE)?;
    if connection.is_readonly(MAIN_DB)? {
        return Err(Failure::ReadOnly);
    }
    // Before anything that writes: a file that is not ours must stay as it is.
    schema::check(&connection)?;
    use_wal(&connection)?;
    configure(&connection, settings)?;
    schema::migrate(&mut connection)?;
    Ok(connection)
}

/// Opens a file that a writer has prepared.
pub(super) fn open_reader(settings: &Settings) -> Result<Connection> {
    let connection = open(settings, OpenFlags::empty())?;
    configure(&connection, settings)?;
    connection.pragma_update(None, "query_only", true)?;
    Ok(connection)
}

fn open(settings: &Settings, more: OpenFlags) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | more;
    let connection = Connection::open_with_flags(&settings.path, flags)?;
    connection.busy_timeout(settings.patience)?;
    Ok(connection)
}

fn use_wal(connection: &Connection) -> Result<()> {
    let mode: String =
        connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))?;
    if mode == "wal" {
        Ok(())
    } else {
        Err(Failure::NoWal(mode))
    }
}

fn configure(connection: &Connection, settings: &Settings) -> Result<()> {
    let synchronous = match settings.synchronous {
        Synchronous::Full => "FULL",
        Synchronous::Normal => "NORMAL",
    };
    connection.pragma_update(None, "synchronous", synchronous)?;
    // Ignored where fsync keeps its promise.
    connection.pragma_update(None, "fullfsync", true)?;
    connection.pragma_update(None, "checkpoint_fullfsync", true)?;
    connection.pragma_update(None, "cache_size", -16 * 1024)?;
    // Otherwise a library with STAT4 prepares a statement anew whenever other values are bound to it.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    let limit: i64 = 64 * 1024 * 1024;
    connection.pragma_update_and_check(None, "journal_size_limit", limit, |_| Ok(()))?;
    Ok(())
}
