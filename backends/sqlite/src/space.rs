//! The space on the disk that puts leave to receives and settlements.
//!
//! SQLite appends each change to the log, a deletion too, and starts the log anew only once the database contains all
//! of it. On a full disk, neither file can become longer. So that messages can still be received and settled there:
//!
//! - puts are refused while less than [`Settings::min_free_space`](super::connection::Settings) is left;
//! - the database is brought to its full length after each transaction while space is low;
//! - blocks are allocated for the log in advance, which it keeps while space is low.

use std::fs::{self, File};
use std::path::Path;

use rusqlite::Connection;

use super::attachments::{Attaching, Staging};
use super::command::{Request, Step};
use super::failure::{Failure, Result};

/// The default of `SqliteBuilder::min_free_space`, in bytes: more than the log usually contains that the database does
/// not, and the largest operation.
pub(super) const MIN_FREE: u64 = 32 * 1024 * 1024;

/// The length of the log that is allocated in advance, in bytes: twice that at which SQLite moves it into the database.
const LOG: u64 = 8 * 1024 * 1024;

/// By how many messages an operation changes the file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) puts: usize,
    pub(super) removals: usize,
    /// Of attachments.
    pub(super) bytes: u64,
}

impl Change {
    /// Refuses an operation that adds messages while too little is free. One that also removes a message, such as
    /// completing it with several follow-ups, needs half of it only.
    pub(super) fn check(self, left: u64, min_free: u64) -> Result<()> {
        let needed = match self {
            Self { puts, removals, .. } if puts <= removals && self.bytes == 0 => 0,
            Self { removals: 0, .. } => min_free.saturating_add(self.bytes),
            _ => (min_free / 2).saturating_add(self.bytes),
        };
        if left < needed {
            Err(Failure::LowSpace { left, needed })
        } else {
            Ok(())
        }
    }

    pub(super) fn of(request: &Request) -> Self {
        let steps = match request {
            Request::Stage(staging) => {
                let bytes = match staging {
                    Staging::Begin { size, .. } => *size,
                    Staging::Part { data, .. } => data.len(),
                    Staging::Discard { .. } => return Self::default(),
                };
                return Self {
                    puts: 1,
                    removals: 0,
                    bytes: bytes as u64,
                };
            }
            Request::Step(step) => std::slice::from_ref(step),
            Request::Apply(steps) => steps,
            Request::PutIf {
                step: Some(step), ..
            } => std::slice::from_ref(step),
            _ => &[],
        };
        Self::of_steps(steps)
    }

    pub(super) fn of_steps(steps: &[Step]) -> Self {
        let bytes = |step: &Step| match step {
            Step::Put { parcel, .. } => match &parcel.attachment {
                Some(Attaching::Whole(data)) => data.len() as u64,
                _ => 0,
            },
            _ => 0,
        };
        Self {
            puts: steps.iter().filter(|step| step.is_put()).count(),
            removals: steps
                .iter()
                .filter(|step| matches!(step, Step::Delete { .. } | Step::DeleteItems { .. }))
                .count(),
            bytes: steps.iter().map(bytes).sum(),
        }
    }
}

/// Returns how many bytes messages can still take: what is free on the file system and in the database, without what
/// the database still needs on the disk for pages that are only in the log. The latter is looked up only if space is
/// low.
pub(super) fn left(connection: &Connection, path: &Path, min_free: u64) -> Result<u64> {
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
pub(super) fn is_low(free: u64, min_free: u64) -> bool {
    free < min_free.saturating_mul(2)
}

/// Returns by how many bytes the database is shorter on the disk than with what is in the log.
pub(super) fn missing(connection: &Connection, path: &Path) -> Result<u64> {
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
pub(super) fn free(path: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(path).ok()?;
    // Some file systems do not tell.
    (found.f_blocks > 0).then(|| found.f_bavail.saturating_mul(found.f_frsize))
}

/// Elsewhere, it is not known.
#[cfg(not(unix))]
pub(super) fn free(_: &Path) -> Option<u64> {
    None
}

/// Allocates blocks for the log on the disk, without making the file longer. If that fails, the log has no reserve.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn allocate(log: &File) {
    use rustix::fs::{FallocateFlags, fallocate};

    if let Err(error) = fallocate(log, FallocateFlags::KEEP_SIZE, 0, LOG) {
        tracing::debug!(%error, "failed to allocate space for the log in advance");
    }
}

/// Elsewhere, only by making it longer.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn allocate(_: &File) {}

#[cfg(test)]
mod tests {
    use queue_core::QueueName;
    use queue_core::backend::{Attachment, NewMessage, Swap};
    use queue_core::idempotency::WorkKey;

    use super::*;
    use crate::command::Parcel;

    #[test]
    fn a_conditional_put_needs_as_much_as_another() {
        let put = || Step::Put {
            queue: QueueName::from_static("orders"),
            parcel: Parcel {
                message: NewMessage::new("an order"),
                salt: 0,
                checksum: 0,
                attachment: None,
            },
        };
        let swap = Swap::new(WorkKey::new("order", "7"), "", std::time::Duration::ZERO);
        let conditional = |step| Request::PutIf {
            step,
            swap: swap.clone(),
        };
        let puts = [
            Request::Step(put()),
            Request::Apply(vec![put()]),
            conditional(Some(put())),
        ];
        for request in puts {
            assert_eq!(Change::of(&request).puts, 1, "{request:?}");
        }
        assert_eq!(Change::of(&conditional(None)).puts, 0);
    }

    #[test]
    fn an_attachment_needs_more_than_its_message() {
        let mut message = NewMessage::new("an order");
        message.attachment = Some(Attachment::New("a film".into()));
        let put = Step::put(QueueName::from_static("orders"), message);
        let change = Change::of(&Request::Step(put));
        assert_eq!((change.puts, change.bytes), (1, 6));
        let part = Staging::Part {
            id: 1,
            number: 0,
            data: "a film".into(),
        };
        for change in [change, Change::of(&Request::Stage(part))] {
            change.check(106, 100).expect("room for it");
            change.check(105, 100).expect_err("not for all of it");
        }
        let settled = Change {
            removals: 1,
            ..change
        };
        settled
            .check(56, 100)
            .expect("half is enough for a settlement");
        settled.check(55, 100).expect_err("and its follow-up");
    }

    #[test]
    fn only_what_adds_messages_needs_free_space() {
        let check = |puts, removals, free| {
            let bytes = 0;
            let change = Change {
                puts,
                removals,
                bytes,
            };
            change.check(free, 100)
        };
        for (puts, removals, needed) in [
            (0, 0, 0),
            (0, 1, 0),
            (1, 1, 0),
            (2, 1, 50),
            (1, 0, 100),
            (7, 0, 100),
        ] {
            check(puts, removals, needed).expect("enough is free");
            let Some(less) = u64::checked_sub(needed, 1) else {
                continue;
            };
            let refused = check(puts, removals, less).expect_err("too little is free");
            assert!(
                matches!(refused, Failure::LowSpace { left, needed: n } if (left, n) == (less, needed)),
                "{refused:?}"
            );
        }
    }
}
