//! A file that was cut off: nothing panics, nothing is acknowledged that is not stored, and what is left can be
//! read.

use std::collections::HashSet;
use std::fs::{self, OpenOptions};
use std::path::Path;

use queue_core::backend::{Backend, BackendExt as _, Metadata, NewMessage, ReceivedMessage};
use queue_core::{Error, ErrorKind, Outcome};
use queue_runtime::backend::SqliteBackend;
use queue_runtime::sqlite;

use crate::sqlite::place::{LEASE, Place};
use crate::threads;

const PAGE: u64 = 4096;
const MESSAGES: usize = 60;
const NEW: &str = "new";

impl Place {
    /// Creates a file with messages, some of them on several pages.
    async fn fill_pages(&self, name: &str) -> SqliteBackend {
        let backend = self.open_unsynced(&self.path(name)).await;
        let created = backend.create_queue(&self.queue, &Metadata::new()).await;
        created.expect("created");
        for n in 0..MESSAGES {
            let put = backend.put(&self.queue, NewMessage::new(body(n))).await;
            put.expect("put");
        }
        backend
    }

    /// Uses the file as a consumer and a producer do. Returns the intact bodies that it received, and whether
    /// a new message was acknowledged. Everything else must be a typed error.
    async fn use_it(&self, backend: &SqliteBackend) -> (HashSet<String>, bool) {
        let mut bodies = HashSet::new();
        loop {
            let received = match backend.receive(&self.queue, 7, LEASE).await {
                Ok(received) if received.is_empty() => break,
                Ok(received) => received,
                Err(error) => {
                    assert_typed(&error);
                    break;
                }
            };
            bodies.extend(received.iter().filter_map(intact));
        }
        let put = backend.put(&self.queue, NewMessage::new(NEW)).await;
        if let Err(error) = &put {
            assert_typed(error);
        }
        (bodies, put.is_ok())
    }

    /// Asserts that the new message, which was acknowledged, is in the file.
    async fn assert_kept(&self, path: &Path, length: u64) {
        let again = self.open_unsynced(path).await;
        self.clock.advance(LEASE);
        let (bodies, _) = self.use_it(&again).await;
        assert!(
            bodies.contains(NEW),
            "{length} bytes: what was acknowledged is lost"
        );
        again.close().await;
    }
}

fn body(n: usize) -> String {
    let length = if n.is_multiple_of(7) { 9000 } else { 500 };
    format!("{n} {}", "x".repeat(length))
}

fn intact(message: &ReceivedMessage) -> Option<String> {
    let text = || String::from_utf8(message.body.to_vec()).expect("it was not altered");
    message.damage.is_none().then(text)
}

fn assert_typed(error: &Error) {
    let kind = error.kind();
    let expected = [ErrorKind::Corrupt, ErrorKind::QueueNotFound];
    assert!(expected.contains(&kind), "{kind:?}: {error:?}");
    assert_eq!(error.outcome(), Outcome::NotDone, "{error}");
}

fn assert_put_by_us(bodies: &HashSet<String>, length: u64) {
    let mut all: HashSet<String> = (0..MESSAGES).map(body).collect();
    all.insert(NEW.to_owned());
    let altered: Vec<_> = bodies.difference(&all).collect();
    assert!(altered.is_empty(), "{length} bytes: {altered:?}");
}

/// Each number of whole pages, and lengths within the first, the last and some other pages.
fn lengths(whole: u64) -> Vec<u64> {
    let pages = whole / PAGE;
    let cuts = [
        1,
        100,
        511,
        4095,
        PAGE * 2 + 1,
        whole / 2 + 100,
        whole - 1,
        whole - 2000,
    ];
    let mut lengths: Vec<_> = (1..pages).map(|pages| pages * PAGE).chain(cuts).collect();
    lengths.sort_unstable();
    lengths
}

#[test]
fn a_truncated_file_acknowledges_nothing_that_it_does_not_keep_and_can_be_salvaged() {
    threads::block_on(async {
        let place = Place::new();
        place.fill_pages("whole.db").await.close().await;
        let whole = fs::read(place.path("whole.db")).expect("read");
        let mut salvaged_most = 0;
        for length in lengths(whole.len() as u64) {
            let path = place.path(&format!("{length}.db"));
            fs::write(&path, &whole[..length as usize]).expect("written");

            // First, because a program may change the file.
            let new = place.path(&format!("new-{length}.db"));
            let mut salvaged = 0;
            match sqlite::salvage(&path, &new) {
                Ok(found) => {
                    salvaged = found.messages;
                    let backend = place.open_unsynced(&new).await;
                    let (bodies, acknowledged) = place.use_it(&backend).await;
                    assert_put_by_us(&bodies, length);
                    assert!(acknowledged || found.queues == 0, "{length} bytes");
                    backend.close().await;
                }
                Err(error) => {
                    let kind = error.kind();
                    assert_eq!(kind, ErrorKind::Corrupt, "{length} bytes: {error}");
                }
            }
            assert!(salvaged <= MESSAGES);
            let less = format!("{length} bytes: {salvaged}, and {salvaged_most} of fewer bytes");
            assert!(salvaged >= salvaged_most, "{less}");
            salvaged_most = salvaged;

            let backend = match place.try_open_unsynced(&path).await {
                Ok(backend) => backend,
                Err(error) => {
                    assert_typed(&error);
                    continue;
                }
            };
            let (bodies, acknowledged) = place.use_it(&backend).await;
            assert_put_by_us(&bodies, length);
            backend.close().await;
            if acknowledged {
                place.assert_kept(&path, length).await;
            }
        }
        // The last pages alone are missing there.
        assert!(
            salvaged_most > MESSAGES / 2,
            "at most {salvaged_most} were salvaged"
        );
        println!(
            "{} lengths, at most {salvaged_most} of {MESSAGES} salvaged",
            lengths(whole.len() as u64).len()
        );
    });
}

#[test]
fn a_file_that_is_truncated_while_it_is_open_is_reported() {
    threads::block_on(async {
        let place = Place::new();
        place.fill_pages("whole.db").await.close().await;
        let whole = fs::metadata(place.path("whole.db")).expect("a file").len();
        for length in [0, PAGE, whole / PAGE / 2 * PAGE, whole - 1] {
            let path = place.path(&format!("open-{length}.db"));
            fs::copy(place.path("whole.db"), &path).expect("copied");
            let backend = place.open_unsynced(&path).await;
            let file = OpenOptions::new().write(true).open(&path).expect("opens");
            file.set_len(length).expect("truncated");
            let (bodies, acknowledged) = place.use_it(&backend).await;
            assert_put_by_us(&bodies, length);
            backend.close().await;
            if acknowledged {
                place.assert_kept(&path, length).await;
            }
        }
    });
}
