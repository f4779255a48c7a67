//! Opening the database file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use queue_core::backend::Introduced;
use queue_core::store_clock::StoreClock;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, MAIN_DB, OpenFlags};

use crate::failure::{Failure, Result};
use crate::file::disk;
use crate::file::files::{self, Files};
use crate::rows::schema;
use crate::time;

/// The first version without the WAL-reset bug, which corrupts files that several connections use.
const OLDEST_LIBRARY: i32 = 3_051_003;

/// The time when a commit counts as durable.
///
/// ```
/// # use std::sync::Arc;
/// use queue_clock::SystemClock;
/// use queue_sqlite::{SqliteBackend, Synchronous};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("queue.db");
/// assert_eq!(Synchronous::default(), Synchronous::Full);
///
/// // Faster, for messages that a power failure may lose.
/// let builder = SqliteBackend::builder(&path, Arc::new(SystemClock::new()));
/// let backend = builder.synchronous(Synchronous::Normal).open().await?;
/// # drop(backend);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Synchronous {
    /// A commit is durable when the log has reached the disk: completed operations survive a power failure. Only a
    /// receive does not wait for the disk. A power failure within about 10 ms of a receive may undo it: the message is
    /// received again, without the former lease, and that dequeue is not counted.
    #[default]
    Full,
    /// A commit is durable when the log was written to the operating system: completed operations survive a crash of
    /// the process, but a power failure may lose the commits since the last checkpoint; the file stays consistent.
    Normal,
}

/// The settings of a connection.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) path: PathBuf,
    pub(crate) synchronous: Synchronous,
    /// Whether the file may be another application's database.
    pub(crate) adopt: bool,
    pub(crate) busy_timeout: Duration,
    /// How many bytes puts leave free on the file system.
    pub(crate) min_free_space: u64,
    /// Who receives.
    pub(crate) introduced: Arc<Introduced>,
}

impl Settings {
    pub(crate) fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            synchronous: Synchronous::Full,
            adopt: false,
            busy_timeout: Duration::from_secs(5),
            min_free_space: disk::MIN_FREE,
            introduced: Arc::default(),
        }
    }
}

/// Returns the path that is the same in every process: absolute, with symbolic links resolved.
pub(crate) fn canonical(path: &Path) -> Result<PathBuf> {
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
            _ => Failure::from(error),
        })?;
    Ok(directory.join(name))
}

/// The number of statements that a connection keeps prepared: all of ours, and some of the application's.
const STATEMENTS: usize = 256;

/// Opens the file for writing; creates or migrates it if needed, and follows its store time.
pub(crate) fn open_writer(
    settings: &Settings,
    store_clock: &StoreClock,
) -> Result<(Connection, Files)> {
    if rusqlite::version_number() < OLDEST_LIBRARY {
        return Err(Failure::OldLibrary(rusqlite::version()));
    }
    let start = Instant::now();
    loop {
        match try_open_writer(settings, store_clock) {
            // The busy timeout does not apply when several processes switch a new file to WAL.
            Err(failure) if failure.is_busy() && start.elapsed() < settings.busy_timeout => {
                std::thread::sleep(Duration::from_millis(rand::random_range(1..10)));
            }
            opened => return opened,
        }
    }
}

fn try_open_writer(settings: &Settings, store_clock: &StoreClock) -> Result<(Connection, Files)> {
    disk::check_file_system(&settings.path)?;
    files::create(&settings.path)?;
    let file = files::identify(&settings.path)?;
    let mut connection = open(settings)?;
    if connection.is_readonly(MAIN_DB)? {
        return Err(Failure::ReadOnly);
    }
    // Checked before anything is written: a refused file must not be changed.
    schema::check(&connection, settings.adopt)?;
    allow_to_shrink(&connection)?;
    use_wal(&connection)?;
    configure(&connection, settings)?;
    schema::migrate(&mut connection, settings.adopt)?;
    time::follow(&mut connection, store_clock)?;
    let files = Files::open(&settings.path, file)?;
    Ok((connection, files))
}

/// Opens a file that a writer has prepared.
pub(crate) fn open_reader(settings: &Settings) -> Result<Connection> {
    let connection = open_for_application(settings)?;
    connection.pragma_update(None, "query_only", true)?;
    Ok(connection)
}

/// Opens the file for the application's own tables, with what its transactions need.
pub(crate) fn open_for_application(settings: &Settings) -> Result<Connection> {
    let connection = open(settings)?;
    configure(&connection, settings)?;
    Ok(connection)
}

/// Opens a file that is to be copied.
pub(crate) fn open_source(settings: &Settings) -> Result<Connection> {
    let connection = open(settings)?;
    schema::check(&connection, false)?;
    configure(&connection, settings)?;
    Ok(connection)
}

fn open(settings: &Settings) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(&settings.path, flags)?;
    connection.busy_timeout(settings.busy_timeout)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(connection)
}

/// Turns on incremental vacuum if the file is new, so that it can be shortened later. SQLite allows incremental vacuum
/// only before the first table is created.
pub(crate) fn allow_to_shrink(connection: &Connection) -> Result<()> {
    let pages: i64 = connection.pragma_query_value(None, "page_count", |row| row.get(0))?;
    if pages == 0 {
        connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    }
    Ok(())
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
    // `fullfsync` is ignored except on macOS, where fsync alone does not reach the disk.
    connection.pragma_update(None, "fullfsync", true)?;
    connection.pragma_update(None, "checkpoint_fullfsync", true)?;
    connection.pragma_update(None, "cache_size", -16 * 1024)?;
    // The journal of savepoints, of which each command with several steps has one, would else be in a file.
    connection.pragma_update(None, "temp_store", "memory")?;
    // Without QPSG, a library built with STAT4 prepares a statement again when other values are bound.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    let limit: i64 = 64 * 1024 * 1024;
    connection.pragma_update_and_check(None, "journal_size_limit", limit, |_| Ok(()))?;
    Ok(())
}
