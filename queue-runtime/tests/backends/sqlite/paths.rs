//! One database under two paths, for each of which SQLite would keep a log of its own.

use std::fs;
use std::path::PathBuf;

use queue_core::backend::{Backend, BackendExt as _, NewMessage};
use queue_core::{Error, ErrorKind, Outcome, RetryAdvice};

use crate::sqlite::place::{LEASE, Place};
use crate::threads;

/// Gives the file a second name.
fn link(place: &Place) -> PathBuf {
    let other = place.path("other.db");
    fs::hard_link(place.file(), &other).expect("linked");
    other
}

fn assert_says_what_to_do(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Storage, "{error}");
    assert_eq!(error.retry(), RetryAdvice::Permanent, "{error}");
    let text = error.to_string();
    for part in ["2 hard links", "queue.db", "remove the others"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_file_with_two_hard_links_is_refused_by_each_of_its_names() {
    threads::block_on(async {
        let place = Place::new();
        let backend = place.orders().await;
        let other = link(&place);
        for path in [&other, &place.file()] {
            let refused = place.try_open(path).await.expect_err("it has two names");
            assert_eq!(refused.outcome(), Outcome::NotDone);
            assert!(refused.to_string().contains("2 hard links"), "{refused}");
        }
        assert!(!place.path("other.db-wal").exists(), "there is one log");
        backend.close().await;
        let before = fs::read(place.file()).expect("read");
        assert_says_what_to_do(&place.try_open(&place.file()).await.expect_err("linked"));
        assert_eq!(fs::read(place.file()).expect("read"), before);
        fs::remove_file(other).expect("removed");
        place.orders().await.close().await;
    });
}

#[test]
fn nothing_is_acknowledged_while_an_open_file_has_two_hard_links() {
    threads::block_on(async {
        let place = Place::new();
        let backend = place.orders().await;
        let put = async |body| backend.put(&place.queue, NewMessage::new(body)).await;
        put("before").await.expect("put");
        let other = link(&place);
        let unsure = put("as it is noticed").await.expect_err("linked");
        assert_says_what_to_do(&unsure);
        assert_eq!(unsure.outcome(), Outcome::Unknown, "it is in the log");
        let refused = put("later").await.expect_err("linked");
        assert_says_what_to_do(&refused);
        assert_eq!(refused.outcome(), Outcome::NotDone);
        let received = backend.receive(&place.queue, 1, LEASE).await;
        let refused = received.expect_err("linked");
        assert_says_what_to_do(&refused);
        assert_eq!(refused.outcome(), Outcome::NotDone);

        fs::remove_file(other).expect("removed");
        let received = backend.receive(&place.queue, 10, LEASE).await;
        let received = received.expect("it has one name again");
        let bodies: Vec<_> = received.into_iter().map(|message| message.body).collect();
        assert_eq!(bodies, ["before", "as it is noticed"]);
        put("after").await.expect("put");
    });
}
