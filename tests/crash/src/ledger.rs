//! An append-only file of what a process is about to do and has done. Each entry is on the disk before the
//! process goes on.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rustix::time::{ClockId, clock_gettime};

/// The ledger of one process.
#[derive(Debug)]
pub struct Ledger(Mutex<File>);

/// One line of a ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// When the entry was written, on the clock of [`moment`].
    pub at: u64,
    /// What happened or was about to happen.
    pub event: Event,
    /// The message's name.
    pub name: String,
    /// The lease under which the process held it.
    pub lease: Lease,
}

/// What an entry records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The message will be submitted.
    Submitting,
    /// `submit` has returned success.
    Submitted,
    /// `submit` has failed, and says that nothing was done.
    Refused,
    /// A consumer has received the message.
    Started,
    /// The work on the message is done, and it will be completed.
    Finishing,
    /// The completion was acknowledged.
    Completed,
    /// The message was moved to the poison queue.
    Poisoned,
    /// A run ended without a settlement of its outcome, as far as the process knows.
    Unsettled,
    /// The message is in a pack that the process has received; in this and the following events, the lease is the
    /// pack's.
    Opened,
    /// An acknowledged write to the pack says that the message is gone.
    Marked,
    /// An acknowledged write to the pack, from this moment on, does not say that the message is gone.
    Kept,
    /// The item will be put as a message of its own: on its queue, or its poison queue.
    Moving,
    /// The item was put on its queue as a message of its own.
    Moved,
    /// The message's handler began although another of its key ran in the same listener.
    Overlapping,
    /// The message's handler began after that of a message of its key that the listener had received later.
    OutOfTurn,
}

/// One receive of a message. Later receives of one message are greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Lease {
    /// When the message was inserted, in microseconds: a redriven message is inserted again.
    pub inserted: i64,
    /// The dequeue count.
    pub dequeued: usize,
}

const EVENTS: [(Event, &str); 15] = [
    (Event::Submitting, "submitting"),
    (Event::Submitted, "submitted"),
    (Event::Refused, "refused"),
    (Event::Started, "started"),
    (Event::Finishing, "finishing"),
    (Event::Completed, "completed"),
    (Event::Poisoned, "poisoned"),
    (Event::Unsettled, "unsettled"),
    (Event::Opened, "opened"),
    (Event::Marked, "marked"),
    (Event::Kept, "kept"),
    (Event::Moving, "moving"),
    (Event::Moved, "moved"),
    (Event::Overlapping, "overlapping"),
    (Event::OutOfTurn, "out-of-turn"),
];

impl Ledger {
    /// Creates the file.
    ///
    /// # Panics
    /// If the file exists, or cannot be created.
    #[must_use]
    pub fn create(path: &Path) -> Self {
        let opened = OpenOptions::new().append(true).create_new(true).open(path);
        Self(Mutex::new(opened.expect("a new ledger")))
    }

    /// Appends an entry, returns once it is on the disk, and reports progress on the standard output.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn write(&self, event: Event, name: &str, lease: Lease) {
        self.note(&[Entry {
            at: moment(),
            event,
            name: name.to_owned(),
            lease,
        }]);
        println!("{PROGRESS}");
    }

    /// Appends entries, and returns once they are on the disk.
    ///
    /// # Panics
    /// If the entries cannot be written.
    pub fn note(&self, entries: &[Entry]) {
        if entries.is_empty() {
            return;
        }
        let lines: String = entries.iter().map(Entry::to_string).collect();
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(lines.as_bytes()).expect("written");
        file.sync_data().expect("synced");
    }
}

/// The line that a process prints for each entry.
pub const PROGRESS: &str = ".";

/// Reads a ledger. A last line that a kill has cut is ignored.
///
/// # Panics
/// If the ledger cannot be read.
#[must_use]
pub fn read(path: &Path) -> Vec<Entry> {
    let text = std::fs::read_to_string(path).expect("a ledger");
    parse(&text)
}

/// Parses the text of a ledger.
///
/// # Panics
/// If a whole line is not an entry.
#[must_use]
pub fn parse(text: &str) -> Vec<Entry> {
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let entry = |line: &str| Entry::parse(line).unwrap_or_else(|| panic!("not an entry: {line:?}"));
    whole.lines().map(entry).collect()
}

/// The time on the system's monotonic clock, in nanoseconds: the same for all processes.
#[must_use]
pub fn moment() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl Entry {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let mut next = || words.next();
        let (at, word, name) = (next()?.parse().ok()?, next()?, next()?.to_owned());
        let (inserted, dequeued) = (next()?.parse().ok()?, next()?.parse().ok()?);
        let (event, _) = EVENTS.iter().find(|event| event.1 == word)?;
        let lease = Lease { inserted, dequeued };
        Some(Self {
            at,
            event: *event,
            name,
            lease,
        })
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = EVENTS.iter().find(|event| event.0 == self.event);
        let (_, word) = named.expect("every event has a word");
        let Lease { inserted, dequeued } = self.lease;
        writeln!(f, "{} {word} {} {inserted} {dequeued}", self.at, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_as_written_and_a_cut_line_is_ignored() {
        let entries: Vec<_> = EVENTS
            .iter()
            .map(|(event, word)| Entry {
                at: 7,
                event: *event,
                name: format!("name-{word}"),
                lease: Lease {
                    inserted: -1,
                    dequeued: 3,
                },
            })
            .collect();
        let mut text: String = entries.iter().map(Entry::to_string).collect();
        text.push_str("8 submitted na");
        assert_eq!(parse(&text), entries);
        assert_eq!(parse("8 submitted na"), []);
    }
}
