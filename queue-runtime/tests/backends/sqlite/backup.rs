//! Copies of a SQLite file that is in use.

use std::collections::HashSet;
use std::fs;

use queue_core::ErrorKind;
use queue_core::backend::{Backend, BackendExt as _, Metadata, NewMessage};
use queue_runtime::backend::SqliteBackend;

use crate::sqlite::place::{LEASE, Place};
use crate::threads;

impl Place {
    /// A file with messages `0` to `messages - 1`.
    async fn filled(&self, messages: usize) -> SqliteBackend {
        let backend = self.open(&self.file()).await;
        let created = backend.create_queue(&self.queue, &Metadata::new()).await;
        created.expect("create");
        for number in 0..messages {
            self.put(&backend, number).await;
        }
        backend
    }

    async fn put(&self, backend: &SqliteBackend, number: usize) {
        // Several pages each.
        let body = format!("{number:-<10000}");
        let put = backend.put(&self.queue, NewMessage::new(body)).await;
        put.expect("put");
    }

    /// The numbers of all visible messages.
    async fn receive_all(&self, backend: &SqliteBackend) -> HashSet<usize> {
        let mut numbers = HashSet::new();
        loop {
            let received = backend.receive(&self.queue, 32, LEASE).await;
            let received = received.expect("receive");
            if received.is_empty() {
                return numbers;
            }
            for message in received {
                assert_eq!(message.damage, None);
                let body = String::from_utf8_lossy(&message.body).into_owned();
                let number = body.trim_end_matches('-').parse().expect("a number");
                assert!(numbers.insert(number), "{number} is there twice");
            }
        }
    }

    /// The names of the files that are not the original's.
    fn others(&self) -> Vec<String> {
        let entries = fs::read_dir(self.directory.path()).expect("the directory");
        let names = entries.map(|entry| entry.expect("an entry").file_name());
        let names = names.map(|name| name.into_string().expect("text"));
        names.filter(|name| !name.starts_with("queue.db")).collect()
    }
}

#[test]
fn a_copy_contains_what_was_acknowledged_before_while_others_write() {
    threads::block_on(async {
        const BEFORE: usize = 200;
        let place = Place::new();
        let backend = place.filled(BEFORE).await;
        let writer = place.open(&place.file()).await;
        let received = backend.receive(&place.queue, 1, LEASE).await;
        assert_eq!(received.expect("receive").len(), 1);
        let copy = place.path("copy.db");
        let meanwhile = async {
            for number in BEFORE..BEFORE + 50 {
                place.put(&writer, number).await;
            }
        };
        let (copied, ()) = tokio::join!(backend.backup(&copy), meanwhile);
        copied.expect("copied");
        assert_eq!(place.others(), ["copy.db"], "one file, without a log");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let metadata = fs::metadata(&copy).expect("metadata");
            assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        }

        let restored = place.open(&copy).await;
        let properties = restored.properties(&place.queue).await.expect("properties");
        let numbers = place.receive_all(&restored).await;
        assert!(!numbers.contains(&0), "its lease is that of the original");
        assert!((1..BEFORE).all(|number| numbers.contains(&number)));
        let count = numbers.len() + 1;
        assert_eq!(properties.approximate_count, count);
        let last = numbers.iter().max().expect("messages");
        assert_eq!(*last, count - 1, "the copy is of one moment");
        place.clock.advance(LEASE);
        assert_eq!(place.receive_all(&restored).await.len(), count);
        let original = place.receive_all(&backend).await;
        assert_eq!(original.len(), BEFORE + 50, "the original is unchanged");
    });
}

#[test]
fn an_existing_file_is_not_replaced() {
    threads::block_on(async {
        let place = Place::new();
        let backend = place.filled(1).await;
        let taken = place.path("taken.db");
        fs::write(&taken, "precious").expect("write");
        let refused = backend.backup(&taken).await.expect_err("it exists");
        assert_eq!(refused.kind(), ErrorKind::Storage);
        let text = refused.to_string();
        assert!(text.starts_with("failed to back up the storage"), "{text}");
        assert!(text.contains("taken.db` exists already"), "{text}");
        assert_eq!(fs::read(&taken).expect("read"), b"precious");
        let missing = place.path("missing").join("copy.db");
        let refused = backend.backup(&missing).await.expect_err("no directory");
        assert_eq!(refused.kind(), ErrorKind::Storage);
        assert_eq!(place.others(), ["taken.db"]);
    });
}

#[test]
fn a_damaged_file_is_not_copied() {
    threads::block_on(async {
        let place = Place::new();
        place.filled(50).await.close().await;
        let path = place.file();
        let mut bytes = fs::read(&path).expect("read");
        let middle = bytes.len() / 2 / 4096 * 4096;
        // Several pages, because a page of an overflow chain has hardly any structure.
        bytes[middle..middle + 20 * 4096].fill(0xa5);
        fs::write(&path, bytes).expect("write");
        let backend = place.open(&path).await;
        let refused = backend.backup(place.path("copy.db")).await;
        let refused = refused.expect_err("it is damaged");
        assert_eq!(refused.kind(), ErrorKind::Corrupt);
        let text = refused.to_string();
        assert!(
            text.contains("queue.db`") && text.contains("salvage"),
            "{text}"
        );
        assert!(place.others().is_empty(), "{:?}", place.others());
    });
}

#[test]
fn an_altered_body_is_copied_as_it_is_and_told_by_the_copy() {
    threads::block_on(async {
        let place = Place::new();
        let backend = place.filled(3).await;
        let alter = "UPDATE queue_messages SET body = x'00' WHERE seq = 2";
        assert_eq!(place.connection().execute(alter, []).expect("altered"), 1);
        let copy = place.path("copy.db");
        backend.backup(&copy).await.expect("copied");
        let copy = place.open(&copy).await;
        let received = copy.receive(&place.queue, 32, LEASE).await;
        let received = received.expect("received");
        let damaged = received.iter().map(|message| message.damage.is_some());
        assert_eq!(damaged.collect::<Vec<_>>(), [false, true, false]);
    });
}

#[test]
fn a_copy_may_have_any_name_that_can_be_opened() {
    threads::block_on(async {
        let place = Place::new();
        let backend = place.filled(1).await;
        for length in [200, 227, 228, 247] {
            let to = place.path(&"c".repeat(length));
            backend.backup(&to).await.expect("copied");
            let copy = place.open(&to).await;
            assert_eq!(place.receive_all(&copy).await.len(), 1);
        }
        for length in [248, 255, 256] {
            let refused = backend.backup(place.path(&"d".repeat(length))).await;
            let said = refused.expect_err("too long").to_string();
            assert!(said.contains("247 are allowed"), "{said}");
        }
        let left: Vec<_> = place
            .others()
            .into_iter()
            .filter(|name| !name.starts_with('c'))
            .collect();
        assert!(left.is_empty(), "{left:?}");
    });
}
