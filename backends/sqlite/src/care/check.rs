//! Checking a file: its pages, and what its tables promise each other.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use queue_core::{Operation, Result as PublicResult};
use rusqlite::{Connection, ErrorCode, OptionalExtension as _};

use super::check_rows;
use crate::care::salvage;
use crate::failure::{Failure, Result};
use crate::rows::schema;

/// How long the check waits for a process that opens, closes or recovers the file.
const BUSY: Duration = Duration::from_secs(5);

/// The interval between two reports of progress, in rows.
const INTERVAL: usize = 4096;

/// The most lines of SQLite's own check.
const LINES: u32 = 1000;

/// Checks a file, also while programs use it: with SQLite's own check, and by comparing the file's tables with each
/// other. Problems of the file are no error of the check, but in the [`CheckReport`].
///
/// | checked | |
/// |---|---|
/// | pages | `PRAGMA integrity_check`, or with [`quick`](Self::quick) `quick_check` |
/// | messages | each message is in the schedule once, in a queue that exists; bodies match their checksums; times are possible |
/// | schedule | each place in the schedule has a message of its queue and expiry |
/// | counts | the recorded numbers of messages are those of the schedule |
/// | attachments | attachments of messages exist, are whole, match their checksums, and are counted |
/// | results | recorded results match their checksums |
///
/// A check reads as of one moment, on a connection of its own: nobody waits for the check, but the log grows until it
/// is done. A check does not change the file, and its memory does not grow with the number of messages.
///
/// ```
/// # use std::sync::Arc;
/// # use queue_clock::SystemClock;
/// use queue_core::backend::{Backend, BackendExt as _, Metadata, NewMessage};
/// use queue_sqlite::{FileCheck, SqliteBackend};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("queue.db");
/// let backend = SqliteBackend::open(&path, Arc::new(SystemClock::new())).await?;
/// let orders = "orders".parse()?;
/// backend.create_queue(&orders, &Metadata::new()).await?;
/// backend.put(&orders, NewMessage::new("order 7")).await?;
///
/// let check = FileCheck::new(&path).progress(|done| eprintln!("{} of {}", done.rows, done.of));
/// let report = tokio::task::spawn_blocking(|| check.run()).await??;
/// for problem in &report.problems {
///     println!("{problem}");
/// }
/// assert!(report.is_sound());
/// assert_eq!(report.messages, 1);
/// # backend.close().await;
/// # Ok(())
/// # }
/// ```
#[must_use]
pub struct FileCheck {
    path: PathBuf,
    is_quick: bool,
    progress: Box<dyn FnMut(CheckProgress) + Send>,
}

/// How far a [`FileCheck`] has come, after the check of the pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckProgress {
    /// The examined rows of all tables.
    pub rows: usize,
    /// The rows to examine in all tables: an estimate until the end.
    pub of: usize,
}

impl FileCheck {
    /// Prepares a check of the file at this path.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            is_quick: false,
            progress: Box::new(|_| {}),
        }
    }

    /// Leaves out the slowest checks: comparing indexes with their tables, and checksums of bodies, attachments and
    /// results.
    pub fn quick(mut self) -> Self {
        self.is_quick = true;
        self
    }

    /// Sets a callback that is called every few thousand rows, and at the end.
    pub fn progress(mut self, progress: impl FnMut(CheckProgress) + Send + 'static) -> Self {
        self.progress = Box::new(progress);
        self
    }

    /// Checks the file. Blocks the thread, on a large file for minutes.
    ///
    /// # Errors
    /// If there is no file at the path, or the file cannot be opened or read, holds no queues, or was written by a
    /// newer version of this library. A damaged file is no error.
    pub fn run(self) -> PublicResult<CheckReport> {
        let Self {
            path,
            is_quick,
            progress,
        } = self;
        let checked = check(&path, is_quick, Progress::new(progress));
        checked.map_err(|failure| failure.into_error(Operation::Open, None, &path))
    }
}

impl fmt::Debug for FileCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileCheck")
            .field("path", &self.path)
            .field("is_quick", &self.is_quick)
            .finish_non_exhaustive()
    }
}

/// Counts rows, and tells the caller.
pub(crate) struct Progress {
    rows: usize,
    of: usize,
    tell: Box<dyn FnMut(CheckProgress) + Send>,
}

impl Progress {
    fn new(tell: Box<dyn FnMut(CheckProgress) + Send>) -> Self {
        Self {
            rows: 0,
            of: 0,
            tell,
        }
    }

    pub(crate) fn expect(&mut self, rows: usize) {
        self.of += rows;
    }

    pub(crate) fn row(&mut self) {
        self.rows += 1;
        if self.rows.is_multiple_of(INTERVAL) {
            self.tell(self.of.max(self.rows));
        }
    }

    fn end(&mut self) {
        self.tell(self.rows);
    }

    fn tell(&mut self, of: usize) {
        let rows = self.rows;
        (self.tell)(CheckProgress { rows, of });
    }
}

fn check(path: &Path, is_quick: bool, mut progress: Progress) -> Result<CheckReport> {
    let mut report = CheckReport::default();
    let examined = examine(path, is_quick, &mut progress, &mut report);
    match examined {
        Err(failure) if failure.is_damage() || matches!(failure, Failure::NoDatabase) => {
            report.add(ProblemKind::Page, || text(&failure));
        }
        other => other?,
    }
    progress.end();
    Ok(report)
}

fn examine(
    path: &Path,
    is_quick: bool,
    progress: &mut Progress,
    report: &mut CheckReport,
) -> Result<()> {
    if std::fs::metadata(path)?.len() == 0 {
        let empty = format!("`{}` is empty: there are no queues in it", path.display());
        return Err(Failure::Unfit(empty));
    }
    let connection = salvage::open(path)?;
    connection.busy_timeout(BUSY)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    // All is read as of one moment.
    let transaction = connection.unchecked_transaction()?;
    pages(&transaction, is_quick, report)?;
    missing(&transaction, report)?;
    check_rows::examine(&transaction, is_quick, progress, report)
}

/// Has SQLite check the file; only the tables of the queues if it cannot check those of the application.
fn pages(connection: &Connection, is_quick: bool, report: &mut CheckReport) -> Result<()> {
    let pragma = if is_quick {
        "quick_check"
    } else {
        "integrity_check"
    };
    match lines(connection, &format!("PRAGMA {pragma}({LINES})"), report) {
        Err(Failure::Sqlite(error)) if error.sqlite_error_code() == Some(ErrorCode::Unknown) => {
            let tables = "SELECT name FROM sqlite_schema WHERE type = 'table' AND lower(name) = ?1";
            let mut tables = connection.prepare(tables)?;
            for name in schema::NAMES {
                let name = tables.query_row([name], |row| row.get::<_, String>(0));
                if let Some(name) = name.optional()? {
                    lines(connection, &format!("PRAGMA {pragma}('{name}')"), report)?;
                }
            }
            Ok(())
        }
        checked => checked,
    }
}

/// Adds what a check of SQLite's says.
fn lines(connection: &Connection, pragma: &str, report: &mut CheckReport) -> Result<()> {
    let mut statement = connection.prepare(pragma)?;
    let mut rows = statement.query([])?;
    loop {
        match rows.next().map_err(Failure::from) {
            Ok(Some(row)) => {
                let text: String = row.get(0)?;
                let found = text.lines().filter(|line| !line.starts_with("***"));
                for line in found.filter(|line| *line != "ok") {
                    report.add(ProblemKind::Page, || line.to_owned());
                }
            }
            Ok(None) => return Ok(()),
            Err(failure) if failure.is_damage() => {
                report.add(ProblemKind::Page, || text(&failure));
                return Ok(());
            }
            Err(failure) => return Err(failure),
        }
    }
}

/// Adds what is missing of the current version. Files of earlier versions have less.
fn missing(connection: &Connection, report: &mut CheckReport) -> Result<()> {
    if schema::is_current(connection)? {
        let mut find = connection.prepare("SELECT 1 FROM sqlite_schema WHERE name = ?1")?;
        for name in schema::NAMES {
            if !find.exists([name])? {
                report.add(ProblemKind::Missing, || format!("`{name}`"));
            }
        }
    }
    Ok(())
}

/// What a failure says of the file, without the path.
pub(crate) fn text(failure: &Failure) -> String {
    match failure {
        Failure::Sqlite(error) => error.to_string(),
        Failure::Corrupt(what) => (*what).to_owned(),
        _ => "it is not a database, or ends within its first page".to_owned(),
    }
}

/// The most examples of a problem that a report holds.
const EXAMPLES: usize = 5;

/// What a [`FileCheck`](crate::FileCheck) has found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct CheckReport {
    /// The number of queues.
    pub queues: usize,
    /// The number of messages that could be read, also of queues that were deleted or cleared and whose messages are not
    /// removed yet.
    pub messages: usize,
    /// The number of attachments.
    pub attachments: usize,
    /// The number of recorded results and values.
    pub results: usize,
    /// The problems, by kind, in the order in which they were found; none for a sound file.
    pub problems: Vec<Problem>,
}

/// The problems of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// The kind of the problems.
    pub kind: ProblemKind,
    /// The number of problems of this kind.
    pub count: usize,
    /// The first five problems: message ids, names of queues, or SQLite's own messages, but no keys and no payloads.
    pub examples: Vec<String>,
}

/// The kinds of problems of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProblemKind {
    /// SQLite finds a page, an index or the list of free pages damaged.
    Page,
    /// Rows of a table cannot be read. What belongs to unreadable rows is not checked.
    Unreadable,
    /// A table, an index, a view or a trigger of the queues is missing.
    Missing,
    /// The name or the metadata of a queue is invalid, or the queue exists and is to be removed.
    Queue,
    /// The recorded number of a queue's messages is wrong, or it is not recorded that messages expire.
    Count,
    /// A message or its place in the schedule belongs to a queue that does not exist.
    NoQueue,
    /// A message is not in the schedule, so it is never received.
    NotScheduled,
    /// The schedule names a message that is missing, and that consumers receive as damaged.
    NoMessage,
    /// The schedule names a message twice, or with another queue or expiry than its own.
    Schedule,
    /// A body does not match its checksum, so its message is received as damaged.
    Body,
    /// A time is impossible: out of range, an expiry before the put, or a message hidden for longer than allowed.
    Time,
    /// An attachment is missing, incomplete, damaged or miscounted, or belongs to no message.
    Attachment,
    /// The deleted items of a pack belong to no message.
    Items,
    /// A recorded result or value does not match its checksum, or its key is not text.
    Result,
}

impl CheckReport {
    /// Whether the file has no problems.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }

    /// The number of problems of this kind.
    #[must_use]
    pub fn count(&self, kind: ProblemKind) -> usize {
        let mut problems = self.problems.iter();
        let found = problems.find(|problem| problem.kind == kind);
        found.map_or(0, |problem| problem.count)
    }

    /// Adds a problem.
    pub(crate) fn add(&mut self, kind: ProblemKind, example: impl FnOnce() -> String) {
        let found = self.problems.iter().position(|found| found.kind == kind);
        let at = found.unwrap_or_else(|| {
            self.problems.push(Problem {
                kind,
                count: 0,
                examples: Vec::new(),
            });
            self.problems.len() - 1
        });
        let problem = &mut self.problems[at];
        problem.count += 1;
        if problem.examples.len() < EXAMPLES {
            problem.examples.push(example());
        }
    }
}

/// What is wrong, and with what effect.
impl fmt::Display for ProblemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Page => "damaged pages or indexes",
            Self::Unreadable => "rows that cannot be read",
            Self::Missing => "missing tables",
            Self::Queue => "invalid queues",
            Self::Count => "wrong counts of messages",
            Self::NoQueue => "messages of queues that do not exist",
            Self::NotScheduled => {
                "messages that are never received, because they are not in the schedule"
            }
            Self::NoMessage => "places in the schedule whose messages are missing",
            Self::Schedule => "places in the schedule that do not fit their messages",
            Self::Body => "bodies that do not match their checksums",
            Self::Time => "impossible times",
            Self::Attachment => "attachments that are not whole, or not counted right",
            Self::Items => "deleted items of no message",
            Self::Result => "damaged results",
        })
    }
}

/// The kind, the number, and the examples.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            count,
            examples,
        } = self;
        write!(f, "{count} {kind}: {}", examples.join("; "))?;
        if *count > examples.len() {
            f.write_str("; …")?;
        }
        Ok(())
    }
}
