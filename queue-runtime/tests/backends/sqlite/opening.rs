//! Which SQLite files are opened, and what becomes of operations when one is closed, moved or replaced.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt;
use futures_util::future::join_all;
use queue_core::backend::{Backend, BackendExt as _, Metadata, NewMessage};
use queue_core::{ErrorKind, Outcome, QueueName, RetryAdvice};
use queue_runtime::backend::{SqliteBackend, Synchronous};

use crate::sqlite::place::{LEASE, PATIENCE, Place};
use crate::threads;

#[test]
fn many_backends_open_a_new_file_concurrently() {
    threads::block_on(async {
        for _ in 0..5 {
            let place = Place::new();
            let opened = join_all((0..8).map(|_| {
                let clock = Arc::new(place.clock.clone());
                SqliteBackend::open(place.file(), clock)
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
fn a_newer_file_is_refused_and_not_changed() {
    threads::block_on(async {
        let place = Place::new();
        place.orders().await.close().await;
        let connection = place.connection();
        let newer = "DROP VIEW queue_layout; CREATE VIEW queue_layout (version) AS SELECT 99";
        connection.execute_batch(newer).expect("a newer version");
        connection.close().expect("close");
        let before = fs::read(place.file()).expect("read");
        let refused = place.refusal(&canonical(&place)).await;
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        assert!(refused.to_string().contains("version 99"), "{refused}");
        assert_eq!(fs::read(place.file()).expect("read"), before);
    });
}

/// A newer program migrates a file that this one has open, by adding to it.
#[test]
fn a_file_with_more_than_this_version_knows_is_used_by_those_who_have_it_open_and_by_others() {
    threads::block_on(async {
        let place = Place::new();
        let opened = place.orders().await;
        opened
            .put(&place.queue, NewMessage::new("before"))
            .await
            .expect("put");
        let before = opened
            .receive(&place.queue, 1, LEASE)
            .await
            .expect("received")
            .remove(0);
        let added = "BEGIN IMMEDIATE; CREATE TABLE queue_marks (id INTEGER PRIMARY KEY) STRICT; \
            ALTER TABLE queue_queues ADD COLUMN owner TEXT NOT NULL DEFAULT 'nobody'; \
            DROP VIEW queue_layout; CREATE VIEW queue_layout (version, usable_since) AS SELECT 99, 5; \
            COMMIT";
        place.connection().execute_batch(added).expect("migrated");

        let deleted = opened.delete(&place.queue, &before.id, &before.receipt);
        deleted.await.expect("by a lease of before");
        let later = QueueName::from_static("later");
        for (name, backend) in [
            ("opened", &opened),
            ("opens", &place.open(&place.file()).await),
        ] {
            backend.ensure_queue(&later).await.expect("created");
            backend
                .put(&later, NewMessage::new(name))
                .await
                .expect(name);
        }
        let received = opened.receive(&later, 2, LEASE).await.expect("received");
        assert_eq!(
            received.iter().map(|one| &*one.body).collect::<Vec<_>>(),
            [&b"opened"[..], b"opens"]
        );
        let kept = "SELECT count(*) FROM queue_layout, pragma_table_list WHERE version = 99 AND name = 'queue_marks'";
        let kept = place
            .connection()
            .query_row(kept, [], |row| row.get::<_, i64>(0));
        assert_eq!(kept.expect("counted"), 1);

        let since = "DROP VIEW queue_layout; CREATE VIEW queue_layout (version, usable_since) AS SELECT 100, 99";
        place
            .connection()
            .execute_batch(since)
            .expect("migrated again");
        let refused = opened.put(&later, NewMessage::new("late")).await;
        assert_eq!(
            refused.expect_err("another layout").kind(),
            ErrorKind::Unsupported
        );
        assert_eq!(
            place.refusal(&canonical(&place)).await.kind(),
            ErrorKind::Unsupported
        );
    });
}

fn canonical(place: &Place) -> PathBuf {
    place.file().canonicalize().expect("it exists")
}

#[test]
fn a_file_that_is_not_a_database_is_refused_and_not_changed() {
    threads::block_on(async {
        let place = Place::new();
        for times in [1, 100] {
            let text = "this is a letter, and not a database. ".repeat(times);
            fs::write(place.file(), &text).expect("write");
            let refused = place.refusal(&canonical(&place)).await;
            assert_eq!(refused.kind(), ErrorKind::Corrupt);
            // `SQLITE_NOTADB`, unless the file is too short to ask SQLite.
            assert_eq!(refused.code(), (times > 1).then_some("26"));
            let said = refused.to_string();
            assert!(said.contains("queue.db` is not a database"), "{said}");
            assert!(!said.contains("salvage"), "there is nothing in it: {said}");
            assert_eq!(fs::read_to_string(place.file()).expect("read"), text);
        }
    });
}

#[test]
fn a_missing_directory_is_named() {
    threads::block_on(async {
        let place = Place::new();
        let path = place.directory.path().join("missing/queue.db");
        let refused = place.refusal(&path).await;
        assert_eq!(refused.kind(), ErrorKind::Storage);
        assert_eq!(refused.retry(), RetryAdvice::Permanent);
        let refused = place.refusal(place.directory.path()).await;
        assert_eq!(refused.kind(), ErrorKind::Storage, "a directory is no file");
        assert_eq!(refused.retry(), RetryAdvice::Permanent);
        assert!(refused.to_string().contains("is a directory"), "{refused}");
    });
}

/// SQLite adds up to eight bytes to the name, and file systems allow 255.
#[test]
fn a_name_is_refused_that_leaves_no_room_for_the_files_beside_it() {
    threads::block_on(async {
        for length in 240..=256 {
            let place = Place::new();
            let path = place.directory.path().join("q".repeat(length));
            if length <= 247 {
                let backend = place.open(&path).await;
                let created = backend.create_queue(&place.queue, &Metadata::new()).await;
                created.expect("created");
                let put = backend.put(&place.queue, NewMessage::new("one")).await;
                put.expect("put");
                backend.close().await;
                continue;
            }
            let refused = place.refusal(&path).await;
            assert_eq!(refused.kind(), ErrorKind::Storage);
            assert_eq!(refused.retry(), RetryAdvice::Permanent);
            let said = refused.to_string();
            assert!(
                said.contains(&format!("{length} bytes, and 247 are allowed")),
                "{said}"
            );
            let left = fs::read_dir(place.directory.path()).expect("read").count();
            assert_eq!(left, 0, "{length}: no file is left");
        }
    });
}

#[test]
fn a_view_in_place_of_a_table_is_refused_for_good() {
    threads::block_on(async {
        let place = Place::new();
        let backend = place.orders().await;
        let replace = "ALTER TABLE queue_messages RENAME TO archive; CREATE VIEW queue_messages AS SELECT * FROM archive";
        place.connection().execute_batch(replace).expect("replaced");
        let put = backend.put(&place.queue, NewMessage::new("one")).await;
        let refused = put.expect_err("it is no table");
        assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
        assert_eq!(refused.retry(), RetryAdvice::Permanent, "{refused}");
        assert_eq!(refused.outcome(), Outcome::NotDone);
        assert!(refused.to_string().contains("were altered"), "{refused}");
    });
}

/// Permissions do not apply to root; as root, the test runs itself again as the user nobody.
#[cfg(unix)]
#[test]
fn a_read_only_file_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;

    const TEST: &str = "sqlite::opening::a_read_only_file_is_refused";
    const NOBODY: u32 = 65534;

    let place = Place::new();
    let chmod = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
    };
    threads::block_on(async { place.orders().await.close().await });
    chmod(&place.file(), 0o444);
    if fs::OpenOptions::new()
        .write(true)
        .open(place.file())
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

#[cfg(unix)]
#[test]
fn only_this_user_may_read_new_files() {
    use std::os::unix::fs::PermissionsExt;

    threads::block_on(async {
        let place = Place::new();
        let backend = place.orders().await;
        let put = backend.put(&place.queue, NewMessage::new("one")).await;
        put.expect("put");
        for name in ["queue.db", "queue.db-wal", "queue.db-shm"] {
            let metadata = fs::metadata(place.directory.path().join(name)).expect("it exists");
            assert_eq!(metadata.permissions().mode() & 0o777, 0o600, "{name}");
        }
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
            let backend = place.orders().await;
            let put = backend.put(&place.queue, NewMessage::new("one")).await;
            put.expect("put");
            harm(&place.file());
            let put = backend.put(&place.queue, NewMessage::new("two")).await;
            let refused = put.expect_err(what);
            assert_eq!(refused.kind(), ErrorKind::Replaced, "{what}: {refused}");
            assert_eq!(refused.retry(), RetryAdvice::Permanent, "{what}");
            assert_eq!(refused.outcome(), Outcome::Unknown, "{what}");
            assert!(
                refused.to_string().contains("moved or replaced"),
                "{refused}"
            );
            let idle: QueueName = "idle".parse().expect("a name");
            let received = backend.receive(&idle, 1, LEASE).await;
            let refused = received.expect_err(what);
            assert_eq!(refused.kind(), ErrorKind::Replaced, "{what}: {refused}");
            assert_eq!(refused.outcome(), Outcome::NotDone, "{what}");
        });
    }
}

#[test]
fn after_close_everything_fails_as_closed() {
    threads::block_on(async {
        let place = Place::new();
        let backend = place.orders().await;
        backend.close().await;
        backend.close().await;
        let put = backend.put(&place.queue, NewMessage::new("one")).await;
        assert_eq!(put.expect_err("closed").kind(), ErrorKind::Closed);
        let peeked = backend.peek(&place.queue, 1).await;
        assert_eq!(peeked.expect_err("closed").kind(), ErrorKind::Closed);
        assert!(
            !place.file().with_extension("db-wal").exists(),
            "the log is removed"
        );
    });
}

#[test]
fn dropping_the_backend_finishes_pending_operations() {
    threads::block_on(async {
        let place = Place::new();
        let backend = place.orders().await;
        // The first poll sends the request; then its future is dropped.
        let put = backend.put(&place.queue, NewMessage::new("one"));
        drop(put.now_or_never());
        drop(backend);
        let again = place.open(&place.file()).await;
        let start = Instant::now();
        while again.peek(&place.queue, 1).await.expect("peek").is_empty() {
            assert!(start.elapsed() < PATIENCE, "the operation was lost");
        }
    });
}
