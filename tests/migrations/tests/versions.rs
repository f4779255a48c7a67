//! A program of this workspace has a file open while a newer version of the engine migrates it. This test is built as that
//! version: with `--cfg queue_sqlite_next`, which adds a migration.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use queue_runtime::{Message, QueueService, Received};
use rusqlite::{Connection, OpenFlags};
use serde::{Deserialize, Serialize};

/// As programs of the crash suites know it.
#[derive(Debug, Serialize, Deserialize, Message)]
#[message(kind = "crash.order", queue = "orders")]
struct CrashOrder {
    name: String,
}

/// A process of the crash suites, by the workspace's own build.
struct Older(Child);

impl Older {
    fn start(role: &str, folder: &Path) -> Self {
        let program = program();
        assert!(
            program.is_file(),
            "{program:?} is not there; build it: `cargo build --workspace --all-features --bins`"
        );
        // A process makes the file of its ledger.
        let ledger = tempfile::Builder::new()
            .tempdir_in(folder)
            .expect("a folder")
            .keep()
            .join("ledger");
        let older = Command::new(program)
            .arg(role)
            .args([folder.join("queues.db"), ledger])
            .args(["1", "7"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        Self(older.expect("it starts"))
    }

    fn line(&mut self) -> String {
        let output = self.0.stdout.as_mut().expect("it is piped");
        let mut line = String::new();
        // A process has one line on the way at most.
        let read = BufReader::with_capacity(1, output).read_line(&mut line);
        read.expect("it prints");
        line.trim_end().to_owned()
    }

    fn tell(&mut self, line: &str) {
        let input = self.0.stdin.as_mut().expect("it is piped");
        writeln!(input, "{line}").expect("it reads");
    }

    /// Ends the process, which has failed at nothing.
    fn end(mut self) {
        drop(self.0.stdin.take());
        let ended = self.0.wait().expect("it ends");
        assert!(ended.success(), "{ended}");
    }
}

fn program() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| workspace.join("target"), PathBuf::from);
    target
        .join("debug/crash-worker")
        .with_extension(std::env::consts::EXE_EXTENSION)
}

/// The version of the file's layout, and the first one whose programs can use it, if that is another.
fn layout(folder: &Path) -> Option<(i64, Option<i64>)> {
    let file = folder.join("queues.db");
    let connection = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY).ok()?;
    let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1).ok()));
    connection
        .query_row("SELECT * FROM queue_layout", [], read)
        .ok()
}

async fn connect(folder: &Path) -> QueueService {
    let url = format!("sqlite:{}", folder.join("queues.db").display());
    QueueService::connect(&url).await.expect("it opens")
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    // Long enough for the slowest machine; only a hang meets it.
    for _ in 0..6_000 {
        if is_so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{what}");
}

#[tokio::test]
async fn an_older_program_goes_on_with_a_file_that_a_newer_one_migrates() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let older = Older::start("listen", folder);
    until("the older program makes the file", async || {
        layout(folder).is_some()
    })
    .await;
    let (before, since) = layout(folder).expect("it is there");
    let since = since.unwrap_or(before);

    let service = connect(folder).await;
    assert_eq!(
        layout(folder),
        Some((before + 1, Some(since))),
        "built without the version"
    );
    let orders = (0..50).map(|number| CrashOrder {
        name: format!("newer-{number}-p"),
    });
    service.submit_all(orders).await.expect("stored");
    let queue = service.queue::<CrashOrder>();
    let count = async || {
        queue
            .any()
            .properties()
            .await
            .expect("it is there")
            .approximate_count
    };
    until(
        "the older program handles what the newer one puts",
        async || count().await == 0,
    )
    .await;

    // Both at a time.
    let listener = service
        .listener(async |_: Received<CrashOrder>| {})
        .start()
        .expect("starts");
    let orders = (50..100).map(|number| CrashOrder {
        name: format!("newer-{number}-p"),
    });
    service.submit_all(orders).await.expect("stored");
    until("one of them handles each", async || count().await == 0).await;
    listener.shutdown(Duration::from_secs(60)).await;
    older.end();
}

#[tokio::test]
async fn a_message_that_an_older_program_holds_is_settled_after_the_migration() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    // An older program fills the file, and ends.
    Older::start("fill", folder).end();
    let (before, since) = layout(folder).expect("it is there");
    let migrated = Some((before + 1, Some(since.unwrap_or(before))));
    let mut older = Older::start("hold-follow-up", folder);
    assert_eq!(older.line(), "held");
    let service = connect(folder).await;
    assert_eq!(layout(folder), migrated);
    older.tell("go");
    assert_eq!(older.line(), "Completed");
    older.end();
    let queue = service.queue::<CrashOrder>();
    let follow_up = async || {
        let order = queue
            .accept()
            .await
            .expect("no error")
            .expect("the last is the follow-up");
        let name = order.name.clone();
        order.complete().await.expect("settled");
        name == "follow-up"
    };
    until("what the older program submitted is there", follow_up).await;
    // What was migrated is opened by programs of both versions.
    Older::start("fill", folder).end();
    assert_eq!(layout(folder), migrated);
}
