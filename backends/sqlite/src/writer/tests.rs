use std::path::Path;
use std::sync::mpsc;

use bytes::Bytes;
use queue_core::backend::NewMessage;
use queue_core::{ManualClock, QueueName};
use tempfile::TempDir;
use tokio::sync::oneshot;

use super::*;
use crate::file::{connection, files};
use crate::rows::results::Results;
use crate::rows::stored::Handle;
use crate::rows::tables::{Step, StepDone};

type Reply = oneshot::Receiver<Result<Answer>>;

/// Serves each list of requests as one batch.
fn serve(connection: &Connection, batches: Vec<Vec<Request>>) -> Vec<Vec<Result<Answer>>> {
    let path = Path::new(connection.path().expect("a file"));
    let files = files::identify(path).and_then(|file| Files::open(path, file));
    let settings = Settings {
        busy_timeout: Duration::from_millis(20),
        ..Settings::new(path)
    };
    let (files, peers) = (files.expect("the files"), Arc::new(Peers::none()));
    let writer = Writer::prepare(connection, files, store_clock(), peers, settings);
    let mut writer = writer.expect("prepare");
    let mut answers = Vec::new();
    for batch in batches {
        let (sender, commands) = mpsc::channel();
        let ask = |request| -> Reply {
            let (command, answered) = Command::new(request);
            sender.send(command).expect("open");
            answered
        };
        let replies: Vec<Reply> = batch.into_iter().map(ask).collect();
        drop(sender);
        writer.serve(&commands);
        let answered = |mut reply: Reply| reply.try_recv().expect("answered");
        answers.push(replies.into_iter().map(answered).collect());
    }
    answers
}

fn store_clock() -> Arc<StoreClock> {
    Arc::new(StoreClock::new(Arc::new(ManualClock::new())))
}

/// A file in a folder that exists as long as the first value.
fn prepared() -> (TempDir, Connection) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().canonicalize().expect("a path");
    let settings = Settings::new(path.join("queue.db"));
    let opened = connection::open_writer(&settings, &store_clock());
    (directory, opened.expect("open").0)
}

fn orders() -> QueueName {
    "orders".parse().expect("a name")
}

fn create() -> Vec<Request> {
    vec![Request::Create {
        queue: orders(),
        metadata: "{}".to_owned(),
    }]
}

fn apply(steps: impl IntoIterator<Item = Step>) -> Request {
    Request::Apply(steps.into_iter().collect())
}

fn put(length: usize) -> Request {
    let body = Bytes::from(vec![b'x'; length]);
    apply([Step::put(orders(), NewMessage::new(body))])
}

#[test]
fn a_refused_command_does_not_fail_its_batch() {
    let (_directory, connection) = prepared();
    serve(&connection, vec![create()]);
    let handle = Handle {
        seq: 1,
        salt: 1,
        visible_at: 1,
        nonce: 1,
    };
    let missing = Step::put("missing".parse().expect("a name"), NewMessage::new("x"));
    let stale = || Step::Delete {
        queue: orders(),
        handle,
    };
    let Request::Apply(first) = put(1) else {
        unreachable!("a put is one step")
    };
    let batch = vec![
        put(1),
        apply([stale()]),
        apply([missing]),
        apply(first.into_iter().chain([stale()])),
        put(2),
    ];
    let answers = serve(&connection, vec![batch]);
    let ok: Vec<bool> = answers[0].iter().map(Result::is_ok).collect();
    assert_eq!(ok, [true, false, false, false, true]);
    for count in [
        "SELECT count(*) FROM queue_messages",
        "SELECT messages FROM queue_counts",
    ] {
        let rows = connection.query_row(count, [], |row| row.get(0));
        assert_eq!(rows, Ok(2), "{count}");
    }
}

#[test]
fn on_a_full_disk_commands_that_still_fit_succeed() {
    let (_directory, connection) = prepared();
    let placed = serve(&connection, vec![create(), vec![put(10)]]);
    let Ok(Answer::Applied(done)) = &placed[1][0] else {
        panic!("the put fits");
    };
    let StepDone::Put(placed) = &done[0] else {
        panic!("a put was done: {done:?}");
    };
    let delete = apply([Step::Delete {
        queue: orders(),
        handle: Handle {
            seq: placed.seq,
            salt: placed.salt,
            visible_at: placed.visible_at,
            nonce: placed.nonce,
        },
    }]);
    let pages: i64 = connection
        .pragma_query_value(None, "page_count", |row| row.get(0))
        .expect("page count");
    let limit = |pages: i64| {
        connection
            .pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))
            .expect("limit");
    };
    limit(pages);
    let answers = serve(&connection, vec![vec![put(40_000), delete, put(40_000)]]);
    let [Err(first), Ok(Answer::Applied(done)), Err(last)] = &answers[0][..] else {
        panic!("the delete alone succeeds: {answers:?}");
    };
    assert!(matches!(done[..], [StepDone::Deleted]), "{done:?}");
    for failure in [first, last] {
        let error = failure.clone().into_error(
            queue_core::Operation::Put,
            Some(&orders()),
            "queue.db".as_ref(),
        );
        assert_eq!(error.kind(), queue_core::ErrorKind::Storage);
        assert_eq!(error.outcome(), queue_core::Outcome::NotDone);
        assert_eq!(error.retry(), queue_core::RetryAdvice::Temporary);
    }
    limit(1_000_000);
    let answers = serve(&connection, vec![vec![put(40_000)]]);
    assert!(answers[0][0].is_ok(), "it recovers");
}

#[test]
fn a_failed_commit_is_unknown_to_every_command() {
    let (_directory, mut connection) = prepared();
    serve(&connection, vec![create()]);
    connection.commit_hook(Some(|| true)).expect("hook");
    let answers = serve(&connection, vec![vec![put(1), put(2)]]);
    for answer in &answers[0] {
        assert!(matches!(answer, Err(Failure::Commit(_))), "{answer:?}");
    }
    connection.commit_hook(None::<fn() -> bool>).expect("hook");
    let answers = serve(&connection, vec![vec![put(1)]]);
    assert!(answers[0][0].is_ok(), "it recovers");
}

#[test]
fn only_receives_do_not_wait_for_the_disk() {
    let receive = || Request::Receive {
        queue: orders(),
        max: 1,
        visibility: Duration::from_secs(30),
    };
    let synchronous_after = |requests: Vec<Request>| -> i64 {
        let (_directory, connection) = prepared();
        for answers in serve(&connection, vec![create(), vec![put(1)], requests]) {
            for answer in answers {
                answer.expect("carried out");
            }
        }
        connection
            .pragma_query_value(None, "synchronous", |row| row.get(0))
            .expect("the setting of the last commit")
    };
    assert_eq!(synchronous_after(vec![receive()]), 1);
    assert_eq!(synchronous_after(vec![put(1)]), 2);
    assert_eq!(synchronous_after(vec![receive(), put(1)]), 2);
}

/// A commit that failed may be in the log all the same, where a recovery would find it. The next commit overwrites it.
#[test]
fn that_a_transaction_was_not_committed_is_said_only_after_another_commit() {
    let (_directory, connection) = prepared();
    serve(&connection, vec![create(), vec![put(1)]]);
    let before = connection.total_changes();
    let ended = |token| vec![vec![Request::Ended { token }]];
    let token = Token::random();
    let answers = serve(&connection, ended(Some(token)));
    assert!(matches!(answers[0][0], Ok(Answer::Ended(false))));
    assert_ne!(connection.total_changes(), before);

    let results = Results {
        connection: &connection,
        now: 0,
    };
    results.record(token).expect("recorded");
    let answers = serve(&connection, ended(Some(token)));
    assert!(matches!(answers[0][0], Ok(Answer::Ended(true))));
}

#[test]
fn what_was_put_before_a_clear_of_the_same_batch_is_totalled() {
    let (_directory, connection) = prepared();
    let clear = Request::Clear { queue: orders() };
    let answers = serve(&connection, vec![create(), vec![put(1), put(1), clear]]);
    assert!(answers.iter().flatten().all(Result::is_ok));
    let counts = "SELECT messages, put FROM queue_counts";
    let counts = connection.query_row(counts, [], |row| Ok((row.get(0)?, row.get(1)?)));
    assert_eq!(counts, Ok((0, 2)));
}
