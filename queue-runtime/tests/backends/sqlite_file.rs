//! Tests that are specific to the SQLite backend.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::join_all;
use jiff::SignedDuration;
use queue_core::backend::{Backend, Metadata, NewMessage, Op, PopReceipt, TimeToLive};
use queue_core::{Error, ErrorKind, ManualClock, Outcome, QueueName, Retry};
use queue_runtime::backend::{SqliteBackend, Synchronous};
use rusqlite::Connection;
use tempfile::TempDir;

use crate::threads;

const LEASE: Duration = Duration::from_secs(30);

/// The timeout for work of the backend in the background.
const PATIENCE: Duration = Duration::from_secs(60);

struct Place {
    directory: TempDir,
    clock: ManualClock,
    queue: QueueName,
}

impl Place {
    fn new() -> Self {
        Self {
            directory: TempDir::new().expect("a directory"),
            clock: ManualClock::new(),
            queue: "orders".parse().expect("a name"),
        }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("queue.db")
    }

    async fn try_open(&self, path: &Path) -> Result<SqliteBackend, Error> {
        let clock = Arc::new(self.clock.clone());
        let builder = SqliteBackend::builder(path, clock);
        let patience = Duration::from_millis(20);
        builder.busy_timeout(patience).open().await
    }

    async fn open(&self) -> SqliteBackend {
        let backend = self.try_open(&self.path()).await.expect("open");
        let created = backend.create_queue(&self.queue, &Metadata::new()).await;
        created.expect("create");
        backend
    }

    async fn refusal(&self, path: &Path) -> Error {
        let refused = self.try_open(path).await.expect_err("it cannot be opened");
        assert!(
            refused.to_string().contains(&path.display().to_string()),
            "{refused}"
        );
        assert_eq!(refused.outcome(), Outcome::NotDone);
        refused
    }

    fn connection(&self) -> Connection {
        Connection::open(self.path()).expect("a connection")
    }
}

#[test]
fn two_backends_on_one_file_receive_different_messages() {
    threads::block_on(async {
        let place = Place::new();
        let (one, other) = (place.open().await, place.open().await);
        let puts = (0..100).map(|n: i32| one.put(&place.queue, NewMessage::new(n.to_string())));
        for put in join_all(puts).await {
            put.expect("put");
        }
        let mut ids = HashSet::new();
        for backend in [&one, &other, &one, &other] {
            let received = backend.receive(&place.queue, 25, LEASE).await;
            ids.extend(received.expect("receive").into_iter().map(|m| m.id));
        }
        assert_eq!(ids.len(), 100);
    });
}

#[test]
fn many_backends_open_a_new_file_concurrently() {
    threads::block_on(async {
        for _ in 0..5 {
            let place = Place::new();
            let opened = join_all((0..8).map(|_| {
                let clock = Arc::new(place.clock.clone());
                SqliteBackend::open(place.path(), clock)
            }));
            for backend in opened.await {
                let backend = backend.expect("open");
                let created = backend.create_queue(&place.queue, &Metadata::new()).await;
                created.expect("create");
            }
        }
    });
}

#[test]
fn a_refused_operation_does_not_fail_others_of_its_commit() {
    threads::block_on(async {
        let place = Place::new();
        let backend = place.open().await;
        let put = backend.put(&place.queue, NewMessage::new("one")).await;
        let put = put.expect("put");
        let stale = PopReceipt::new("0".repeat(32));
        let lock = place.connection();
        lock.execute_batch("BEGIN IMMEDIATE").expect("lock");
        let patient = SqliteBackend::open(place.path(), Arc::new(place.clock.clone())).await;
        let patient = patient.expect("open");
        let missing: QueueName = "missing".parse().expect("a name");
        let (a, b, c, d, ()) = tokio::join!(
            patient.put(&place.queue, NewMessage::new("two")),
            patient.delete(&place.queue, &put.id, &stale),
            patient.put(&missing, NewMessage::new("three")),
            patient.apply(vec![
                put_op(&place.queue, "four"),
                Op::Delete {
                    queue: place.queue.clone(),
                    id: put.id.clone(),
                    receipt: stale.clone(),
                },
            ]),
            async { lock.execute_batch("ROLLBACK").expect("unlock") },
        );
        a.expect("the put succeeds");
        assert_eq!(b.expect_err("stale").kind(), ErrorKind::ReceiptMismatch);
        assert_eq!(c.expect_err("missing").kind(), ErrorKind::QueueNotFound);
        let failure = d.expect_err("stale");
        assert_eq!(
            (failure.index, failure.error.kind()),
            (1, ErrorKind::ReceiptMismatch)
        );
        let properties = backend.properties(&place.queue).await.expect("properties");
        assert_eq!(properties.approximate_count, 2);
    });
}

fn put_op(queue: &QueueName, body: &'static str) -> Op {
    Op::Put {
        queue: queue.clone(),
        message: NewMessage::new(body),
    }
}

#[test]
fn an_operation_on_a_locked_file_times_out_without_effect() {
    threads::block_on(async {
        let place = Place::new();
        let backend = place.open().await;
        let lock = place.connection();
        lock.execute_batch("BEGIN IMMEDIATE").expect("lock");
        let put = backend.put(&place.queue, NewMessage::new("one")).await;
        let refused = put.expect_err("locked");
        assert_eq!(refused.kind(), ErrorKind::Timeout);
        assert_eq!(refused.retry(), Retry::Temporary);
        assert_eq!(refused.outcome(), Outcome::NotDone);
        let received = backend.receive(&place.queue, 1, LEASE).await;
        assert_eq!(
            received.expect("a receive from an empty queue needs no lock"),
            []
        );
        lock.execute_batch("ROLLBACK").expect("unlock");
        let put = backend.put(&place.queue, NewMessage::new("two")).await;
        put.expect("the lock is free");
        let peeked = backend.peek(&place.queue, 10).await.expect("peek");
        assert_eq!(peeked.len(), 1);
    });
}

#[test]
fn idle_polling_writes_nothing() {
    threads::block_on(async {
        let place = Place::new();
        let backend = place.open().await;
        let delayed = NewMessage::new("later").with_delay(LEASE);
        backend.put(&place.queue, delayed).await.expect("put");
        let idle = place.open().await;
        let watcher = place.connection();
        let version = |watcher: &Connection| -> i64 {
            let pragma = "PRAGMA data_version";
            watcher
                .query_row(pragma, [], |row| row.get(0))
                .expect("version")
        };
        let before = version(&watcher);
        for _ in 0..50 {
            for poller in [&backend, &idle] {
                let received = poller.receive(&place.queue, 10, LEASE).await;
                assert_eq!(received.expect("receive"), []);
            }
            place.clock.advance(Duration::from_millis(100));
        }
        assert_eq!(version(&watcher), before);
        place.clock.advance(LEASE);
        let received = backend.receive(&place.queue, 10, LEASE).await;
        assert_eq!(received.expect("receive").len(), 1);
        assert_ne!(version(&watcher), before, "the watcher detects changes");
    });
}

#[test]
fn a_newer_file_is_refused_and_not_changed() {
    threads::block_on(async {
        let place = Place::new();
        place.open().await.close().await;
        let connection = place.connection();
        connection
            .pragma_update(None, "user_version", 99)
            .expect("a newer version");
        connection.close().expect("close");
        let before = fs::read(place.path()).expect("read");
        let refused = place.refusal(&canonical(&place)).await;
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        assert!(refused.to_string().contains("version 99"), "{refused}");
        assert_eq!(fs::read(place.path()).expect("read"), before);
    });
}

#[test]
fn another_applications_database_is_refused_and_not_changed() {
    threads::block_on(async {
        let place = Place::new();
        let connection = place.connection();
        let sql = "CREATE TABLE notes (text); INSERT INTO notes VALUES ('mine')";
        connection.execute_batch(sql).expect("a table");
        connection.close().expect("close");
        let before = fs::read(place.path()).expect("read");
        let refused = place.refusal(&canonical(&place)).await;
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        assert_eq!(fs::read(place.path()).expect("read"), before);
    });
}

fn canonical(place: &Place) -> PathBuf {
    place.path().canonicalize().expect("it exists")
}

#[test]
fn a_file_that_is_not_a_database_is_refused_and_not_changed() {
    threads::block_on(async {
        let place = Place::new();
        let text = "this is a letter, and not a database. ".repeat(100);
        fs::write(place.path(), &text).expect("write");
        let refused = place.refusal(&canonical(&place)).await;
        assert_eq!(refused.kind(), ErrorKind::Corrupt);
        assert_eq!(fs::read_to_string(place.path()).expect("read"), text);
    });
}

#[test]
fn a_missing_directory_is_named() {
    threads::block_on(async {
        let place = Place::new();
        let path = place.directory.path().join("missing/queue.db");
        let refused = place.refusal(&path).await;
        assert_eq!(refused.kind(), ErrorKind::Storage);
        assert_eq!(refused.retry(), Retry::Permanent);
        let refused = place.refusal(place.directory.path()).await;
        assert_eq!(refused.kind(), ErrorKind::Storage, "a directory is no file");
    });
}

/// Permissions do not apply to root; as root, the test runs itself again as the user nobody.
#[cfg(unix)]
#[test]
fn a_read_only_file_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;

    const TEST: &str = "sqlite_file::a_read_only_file_is_refused";
    const NOBODY: u32 = 65534;

    let place = Place::new();
    let chmod = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
    };
    threads::block_on(async { place.open().await.close().await });
    chmod(&place.path(), 0o444);
    if fs::OpenOptions::new()
        .write(true)
        .open(place.path())
        .is_err()
    {
        let refused = threads::block_on(place.refusal(&canonical(&place)));
        assert_eq!(refused.kind(), ErrorKind::Denied);
        return;
    }
    let program = place.directory.path().join("tests");
    fs::copy(std::env::current_exe().expect("a program"), &program).expect("copied");
    chmod(&program, 0o755);
    chmod(place.directory.path(), 0o755);
    let mut again = Command::new(program);
    again
        .args(["--exact", TEST])
        .current_dir("/")
        .uid(NOBODY)
        .gid(NOBODY);
    let output = again
        .env("TMPDIR", "/tmp")
        .output()
        .expect("it runs as nobody");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}"
    );
}

#[test]
fn a_damaged_page_is_reported_as_corrupt() {
    threads::block_on(async {
        let place = Place::new();
        let backend = place.open().await;
        for _ in 0..200 {
            let put = backend.put(&place.queue, NewMessage::new("x".repeat(500)));
            put.await.expect("put");
        }
        backend.close().await;
        let mut bytes = fs::read(place.path()).expect("read");
        let end = bytes.len();
        bytes[4096 * 2..end].fill(0xaa);
        fs::write(place.path(), &bytes).expect("write");
        match place.try_open(&place.path()).await {
            Err(refused) => assert_eq!(refused.kind(), ErrorKind::Corrupt),
            Ok(backend) => {
                let received = backend.receive(&place.queue, 10, LEASE).await;
                assert_eq!(received.expect_err("damaged").kind(), ErrorKind::Corrupt);
            }
        }
    });
}

#[test]
fn after_close_everything_fails_as_closed() {
    threads::block_on(async {
        let place = Place::new();
        let backend = place.open().await;
        backend.close().await;
        backend.close().await;
        let put = backend.put(&place.queue, NewMessage::new("one")).await;
        assert_eq!(put.expect_err("closed").kind(), ErrorKind::Closed);
        let peeked = backend.peek(&place.queue, 1).await;
        assert_eq!(peeked.expect_err("closed").kind(), ErrorKind::Closed);
        assert!(
            !place.path().with_extension("db-wal").exists(),
            "the log is removed"
        );
    });
}

#[test]
fn dropping_the_backend_finishes_pending_operations() {
    threads::block_on(async {
        let place = Place::new();
        let backend = place.open().await;
        // The first poll sends the request; then its future is dropped.
        let put = backend.put(&place.queue, NewMessage::new("one"));
        drop(put.now_or_never());
        drop(backend);
        let again = place.open().await;
        let start = Instant::now();
        while again.peek(&place.queue, 1).await.expect("peek").is_empty() {
            assert!(start.elapsed() < PATIENCE, "the operation was lost");
        }
    });
}

#[test]
fn messages_of_deleted_and_cleared_queues_are_removed() {
    threads::block_on(async {
        let place = Place::new();
        let backend = place.open().await;
        for round in 0..2 {
            for _ in 0..2 {
                let ops = (0..750).map(|_| put_op(&place.queue, "one")).collect();
                backend.apply(ops).await.expect("apply");
            }
            if round == 0 {
                backend.clear(&place.queue).await.expect("clear");
            } else {
                backend.delete_queue(&place.queue).await.expect("delete");
            }
        }
        let connection = place.connection();
        let rows = |table: &str| -> i64 {
            let sql = format!("SELECT count(*) FROM {table}");
            connection
                .query_row(&sql, [], |row| row.get(0))
                .expect("count")
        };
        // The backend removes it in the background.
        let start = Instant::now();
        while rows("dropped") > 0 {
            assert!(start.elapsed() < PATIENCE, "it is still there");
            tokio::task::yield_now().await;
        }
        assert_eq!((rows("messages"), rows("schedule")), (0, 0));
    });
}

#[test]
fn expired_messages_are_removed_without_a_receive() {
    threads::block_on(async {
        let place = Place::new();
        let backend = place.open().await;
        let brief = NewMessage::new("brief").with_time_to_live(TimeToLive::After(LEASE));
        for _ in 0..10 {
            let put = backend.put(&place.queue, brief.clone()).await;
            put.expect("put");
        }
        place.clock.advance(LEASE * 2);
        let put = backend.put(&place.queue, NewMessage::new("lasting")).await;
        put.expect("put");
        // The backend removes them in the background.
        let start = Instant::now();
        let count = async || {
            let properties = backend.properties(&place.queue).await;
            properties.expect("properties").approximate_count
        };
        while count().await > 1 {
            assert!(start.elapsed() < PATIENCE, "they are still there");
        }
        assert_eq!(count().await, 1);
        let bodies = "SELECT count(*) FROM messages";
        let bodies = place.connection().query_row(bodies, [], |row| row.get(0));
        assert_eq!(bodies, Ok(1));
    });
}

#[test]
fn a_sweep_visits_all_queues_whose_messages_expire() {
    threads::block_on(async {
        let place = Place::new();
        let backend = place.open().await;
        let queues: Vec<QueueName> = (0..100)
            .map(|n| format!("queue-{n}").parse().expect("a name"))
            .collect();
        let lasting = NewMessage::new("lasting");
        let brief = NewMessage::new("brief").with_time_to_live(TimeToLive::After(LEASE));
        for (n, queue) in queues.iter().enumerate() {
            let created = backend.create_queue(queue, &Metadata::new()).await;
            created.expect("create");
            // In every third queue, nothing expires.
            let second = if n % 3 == 0 { &lasting } else { &brief };
            for message in [&lasting, second] {
                backend.put(queue, message.clone()).await.expect("put");
            }
        }
        place.clock.advance(LEASE * 2);
        let brief = queues.iter().enumerate().filter(|(n, _)| n % 3 != 0);
        for (_, queue) in brief {
            let start = Instant::now();
            loop {
                // Any transaction sweeps on.
                place.clock.advance(Duration::from_secs(1));
                backend
                    .put(&place.queue, lasting.clone())
                    .await
                    .expect("put");
                let properties = backend.properties(queue).await.expect("properties");
                match properties.approximate_count {
                    1 => break,
                    other => assert_eq!(other, 2),
                }
                assert!(start.elapsed() < PATIENCE, "it is still there");
            }
        }
    });
}

#[test]
fn counts_are_those_of_the_schedule() {
    threads::block_on(async {
        let place = Place::new();
        let (one, other) = (place.open().await, place.open().await);
        for backend in [&one, &other] {
            let ops = (0..7).map(|_| put_op(&place.queue, "one")).collect();
            backend.apply(ops).await.expect("apply");
            let received = backend.receive(&place.queue, 3, LEASE).await;
            let received = received.expect("receive");
            let (id, receipt) = (&received[0].id, &received[0].receipt);
            backend
                .delete(&place.queue, id, receipt)
                .await
                .expect("delete");
            let twice = vec![
                put_op(&place.queue, "two"),
                Op::Delete {
                    queue: place.queue.clone(),
                    id: id.clone(),
                    receipt: receipt.clone(),
                },
            ];
            backend.apply(twice).await.expect_err("deleted before");
        }
        for backend in [&one, &other] {
            let properties = backend.properties(&place.queue).await.expect("properties");
            assert_eq!(properties.approximate_count, 12);
        }
        one.clear(&place.queue).await.expect("clear");
        let properties = other.properties(&place.queue).await.expect("properties");
        assert_eq!(properties.approximate_count, 0);
    });
}

#[test]
fn an_altered_body_is_marked_as_damaged() {
    threads::block_on(async {
        let place = Place::new();
        let backend = place.open().await;
        for amount in ["amount: 100", "amount: 200", "amount: 300"] {
            let put = backend.put(&place.queue, NewMessage::new(amount)).await;
            put.expect("put");
        }
        backend.close().await;
        let mut bytes = fs::read(place.path()).expect("read");
        let found = bytes.windows(11).position(|part| part == b"amount: 200");
        bytes[found.expect("the file holds it") + 8] = b'9';
        fs::write(place.path(), &bytes).expect("write");

        let backend = place.open().await;
        let peeked = backend.peek(&place.queue, 10).await.expect("peek");
        let damaged: Vec<bool> = peeked.iter().map(|m| m.damage.is_some()).collect();
        assert_eq!(damaged, [false, true, false]);
        let received = backend.receive(&place.queue, 10, LEASE).await;
        let received = received.expect("receive");
        let damaged: Vec<bool> = received.iter().map(|m| m.damage.is_some()).collect();
        assert_eq!(damaged, [false, true, false]);
        let (id, receipt) = (&received[1].id, &received[1].receipt);
        let rewritten = Some("amount: 250".into());
        let lease = backend.update(&place.queue, id, receipt, Duration::ZERO, rewritten);
        lease.await.expect("update");
        let received = backend.receive(&place.queue, 10, LEASE).await;
        let received = received.expect("receive");
        assert_eq!(
            (&*received[0].body, &received[0].damage),
            (&b"amount: 250"[..], &None)
        );
        let (id, receipt) = (&received[0].id, &received[0].receipt);
        let deleted = backend.delete(&place.queue, id, receipt).await;
        deleted.expect("delete");
    });
}

#[test]
fn a_new_boot_neither_ends_nor_prolongs_leases_for_long() {
    for hours in [-1, 1] {
        threads::block_on(async {
            let place = Place::new();
            // The wall clock was ahead when the file was created.
            place.clock.step_wall_clock(SignedDuration::from_hours(1));
            let backend = place.open().await;
            backend
                .put(&place.queue, NewMessage::new("one"))
                .await
                .expect("put");
            backend.close().await;
            place.clock.reboot();
            place
                .clock
                .step_wall_clock(SignedDuration::from_hours(hours - 1));
            for _ in 0..3 {
                let backend = place.open().await;
                let received = backend.receive(&place.queue, 1, LEASE).await;
                assert_eq!(received.expect("receive").len(), 1);
                place.clock.advance(LEASE - Duration::from_millis(1));
                let received = backend.receive(&place.queue, 1, LEASE).await;
                assert_eq!(received.expect("receive"), []);
                backend.close().await;
                place.clock.advance(Duration::from_millis(1));
            }
        });
    }
}

#[test]
fn a_receive_skips_any_number_of_expired_messages() {
    threads::block_on(async {
        let place = Place::new();
        let backend = place.open().await;
        let brief = || Op::Put {
            queue: place.queue.clone(),
            message: NewMessage::new("brief").with_time_to_live(TimeToLive::After(LEASE)),
        };
        for _ in 0..9 {
            let ops = (0..1000).map(|_| brief()).collect();
            backend.apply(ops).await.expect("apply");
        }
        let lasting = vec![put_op(&place.queue, "lasting")];
        backend.apply(lasting).await.expect("apply");
        place.clock.advance(LEASE * 2);
        let received = backend.receive(&place.queue, 10, LEASE).await;
        let received = received.expect("receive");
        assert_eq!(received.len(), 1);
        assert_eq!(received[0].body, "lasting");
    });
}

#[test]
fn a_queue_uri_contains_the_escaped_path() {
    threads::block_on(async {
        let place = Place::new();
        let path = place.directory.path().join("a b#c.db");
        let builder = SqliteBackend::builder(&path, Arc::new(place.clock.clone()));
        let backend = builder.synchronous(Synchronous::Normal).open().await;
        let uri = backend.expect("open").queue_uri(&place.queue);
        assert!(uri.starts_with("sqlite:/"), "{uri}");
        assert!(uri.ends_with("/a%20b%23c.db#orders"), "{uri}");
    });
}

/// What may happen to the files of a running service.
#[cfg(unix)]
#[test]
fn files_that_are_deleted_moved_or_replaced_are_noticed() {
    type Harm = fn(&Path);
    let harms: [(&str, Harm); 4] = [
        ("deleted", |path| fs::remove_file(path).expect("remove")),
        ("moved", |path| {
            fs::rename(path, path.with_extension("old")).expect("move")
        }),
        ("replaced", |path| {
            let copy = path.with_extension("copy");
            fs::copy(path, &copy).expect("copy");
            fs::rename(copy, path).expect("replace");
        }),
        ("its log deleted", |path| {
            fs::remove_file(path.with_extension("db-wal")).expect("remove");
        }),
    ];
    for (what, harm) in harms {
        threads::block_on(async {
            let place = Place::new();
            let backend = place.open().await;
            let put = backend.put(&place.queue, NewMessage::new("one")).await;
            put.expect("put");
            harm(&place.path());
            let put = backend.put(&place.queue, NewMessage::new("two")).await;
            let refused = put.expect_err(what);
            assert_eq!(refused.kind(), ErrorKind::Storage, "{what}: {refused}");
            assert_eq!(refused.retry(), Retry::Permanent, "{what}");
            assert_eq!(refused.outcome(), Outcome::Unknown, "{what}");
            assert!(
                refused.to_string().contains("moved or replaced"),
                "{refused}"
            );
            let idle: QueueName = "idle".parse().expect("a name");
            let received = backend.receive(&idle, 1, LEASE).await;
            let refused = received.expect_err(what);
            assert_eq!(refused.kind(), ErrorKind::Storage, "{what}: {refused}");
            assert_eq!(refused.outcome(), Outcome::NotDone, "{what}");
        });
    }
}

#[cfg(unix)]
#[test]
fn only_this_user_may_read_new_files() {
    use std::os::unix::fs::PermissionsExt;

    threads::block_on(async {
        let place = Place::new();
        let backend = place.open().await;
        let put = backend.put(&place.queue, NewMessage::new("one")).await;
        put.expect("put");
        for name in ["queue.db", "queue.db-wal", "queue.db-shm"] {
            let metadata = fs::metadata(place.directory.path().join(name)).expect("it exists");
            assert_eq!(metadata.permissions().mode() & 0o777, 0o600, "{name}");
        }
    });
}

#[test]
fn an_idle_process_leaves_nothing_in_the_log() {
    threads::block_on(async {
        let place = Place::new();
        let (backend, _other) = (place.open().await, place.open().await);
        let put = backend.put(&place.queue, NewMessage::new("one")).await;
        put.expect("put");
        let log = place.path().with_extension("db-wal");
        let start = Instant::now();
        while fs::metadata(&log).expect("the log").len() > 0 {
            assert!(start.elapsed() < PATIENCE, "the log is still there");
            tokio::task::yield_now().await;
        }
        let copy = place.directory.path().join("copy.db");
        fs::copy(place.path(), &copy).expect("copy");
        let copied = place.try_open(&copy).await.expect("open");
        let peeked = copied.peek(&place.queue, 10).await.expect("peek");
        assert_eq!(peeked.len(), 1);
    });
}

#[test]
fn a_drained_file_is_shortened_while_idle() {
    threads::block_on(async {
        let place = Place::new();
        let backend = place.open().await;
        let body = "x".repeat(40_000);
        for _ in 0..5 {
            let ops = (0..150).map(|_| Op::Put {
                queue: place.queue.clone(),
                message: NewMessage::new(body.clone()),
            });
            backend.apply(ops.collect()).await.expect("put");
        }
        backend.clear(&place.queue).await.expect("clear");
        let put = backend.put(&place.queue, NewMessage::new("kept")).await;
        put.expect("put");
        let start = Instant::now();
        while fs::metadata(place.path()).expect("the file").len() > 5 * 1024 * 1024 {
            assert!(start.elapsed() < PATIENCE, "the file is as long as before");
            tokio::task::yield_now().await;
        }
        let received = backend.receive(&place.queue, 10, LEASE).await;
        assert_eq!(received.expect("receive")[0].body, "kept");
        let check = "PRAGMA integrity_check";
        let checked = place.connection().query_row(check, [], |row| row.get(0));
        assert_eq!(checked, Ok("ok".to_owned()));
    });
}
