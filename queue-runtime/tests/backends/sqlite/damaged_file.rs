//! SQLite files with damaged pages.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use queue_core::QueueName;
use queue_core::backend::{Backend, Metadata, NewMessage, Op, ReceivedMessage, TimeToLive};
use queue_runtime::backend::SqliteBackend;
use rusqlite::Connection;

use crate::sqlite::place::{LEASE, Place};

/// The size of a page of the database.
pub(crate) const PAGE: usize = 4096;

/// More rows than a page of the schedule holds.
pub(crate) const ROWS_OF_A_PAGE: usize = 250;

impl Place {
    /// Creates a file with messages in both queues by turns. Their bodies are the queue and a number.
    pub(crate) async fn fill(
        &self,
        messages: usize,
        body: usize,
        time_to_live: TimeToLive,
    ) -> PathBuf {
        let path = self.path("whole.db");
        let backend = self.open_unsynced(&path).await;
        for queue in &self.queues {
            let created = backend.create_queue(queue, &Metadata::new()).await;
            created.expect("create");
        }
        for chunk in (0..messages).collect::<Vec<_>>().chunks(500) {
            let put = |(n, queue): (&usize, &QueueName)| Op::Put {
                queue: queue.clone(),
                message: NewMessage {
                    time_to_live,
                    ..NewMessage::new(body_of(queue, *n, body))
                },
            };
            let both = |n| self.queues.iter().map(move |queue| (n, queue));
            let ops = chunk.iter().flat_map(both).map(put).collect();
            backend.apply(ops).await.expect("apply");
            self.clock.advance(Duration::from_millis(1));
        }
        backend.close().await;
        path
    }

    /// Copies the file and overwrites a page of the copy.
    pub(crate) fn damaged(&self, whole: &Path, page: usize) -> PathBuf {
        self.damaged_at(whole, &[page])
    }

    /// Copies the file and overwrites pages of the copy. It is named after the first.
    pub(crate) fn damaged_at(&self, whole: &Path, pages: &[usize]) -> PathBuf {
        let path = self.path(&format!("damaged-{}.db", pages[0]));
        let mut bytes = fs::read(whole).expect("read");
        for page in pages {
            bytes[(page - 1) * PAGE..page * PAGE].fill(0xaa);
        }
        fs::write(&path, bytes).expect("write");
        path
    }
}

pub(crate) fn body_of(queue: &QueueName, n: usize, length: usize) -> String {
    format!("{queue} {n} {}", "x".repeat(length))
}

/// Returns the numbers of a table's pages of this type.
pub(crate) fn pages(path: &Path, table: &str, kind: &str) -> Vec<usize> {
    let connection = Connection::open(path).expect("open");
    let select = "SELECT pageno FROM dbstat WHERE name = ?1 AND pagetype = ?2 ORDER BY path";
    let mut statement = connection.prepare(select).expect("prepare");
    let pages = statement.query_map([table, kind], |row| row.get::<_, i64>(0));
    let pages = pages.and_then(Iterator::collect).expect("pages");
    let pages: Vec<i64> = pages;
    pages.into_iter().map(|page| page as usize).collect()
}

/// Returns how many rows each leaf of a table holds, in the order of [`pages`].
pub(crate) fn rows_of_leaves(path: &Path, table: &str) -> Vec<usize> {
    let connection = Connection::open(path).expect("open");
    let select = "SELECT ncell FROM dbstat WHERE name = ?1 AND pagetype = 'leaf' ORDER BY path";
    let mut statement = connection.prepare(select).expect("prepare");
    let rows = statement.query_map([table], |row| row.get::<_, u32>(0));
    let rows = rows.and_then(Iterator::collect).expect("rows");
    let rows: Vec<u32> = rows;
    rows.into_iter().map(|rows| rows as usize).collect()
}

/// Receives and deletes all messages of a queue.
pub(crate) async fn drain(backend: &SqliteBackend, queue: &QueueName) -> Vec<ReceivedMessage> {
    let mut drained = Vec::new();
    loop {
        let received = backend.receive(queue, 100, LEASE).await.expect("receive");
        if received.is_empty() {
            break;
        }
        drained.extend(received);
    }
    for several in drained.chunks(100) {
        let delete = |message: &ReceivedMessage| Op::Delete {
            queue: queue.clone(),
            id: message.id.clone(),
            receipt: message.receipt.clone(),
            moved: false,
        };
        let deletes = several.iter().map(delete).collect();
        backend.apply(deletes).await.expect("delete");
    }
    let properties = backend.properties(queue).await.expect("properties");
    assert_eq!(properties.approximate_count, 0);
    drained
}

pub(crate) fn bodies(messages: &[ReceivedMessage]) -> HashSet<String> {
    let intact = messages.iter().filter(|message| message.damage.is_none());
    let text = |message: &ReceivedMessage| String::from_utf8(message.body.to_vec()).expect("text");
    intact.map(text).collect()
}

/// Returns the number of rows of a table, which a condition may follow.
pub(crate) fn count(path: &Path, rows: &str) -> i64 {
    let connection = Connection::open(path).expect("open");
    let count = format!("SELECT count(*) FROM {rows}");
    let counted = connection.query_row(&count, [], |row| row.get(0));
    counted.expect("count")
}

/// Pairs of leaves, by number, of which the second one is the third after the first one.
pub(crate) fn neighbours(leaves: usize) -> [[usize; 2]; 3] {
    [0, 1, leaves / 2 + 1].map(|leaf| [leaf, leaf + 3])
}
