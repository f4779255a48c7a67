//! Settlements with follow-ups whose answers are lost or that fail: no follow-up is lost or presumed to be stored.

use std::collections::HashSet;
use std::time::Duration;

use queue_runtime::error::Operation;
use queue_runtime::receive::{SettleErrorKind, Settled};
use queue_runtime::testing::Fault;
use queue_runtime::{ErrorKind, ListenerEventKind, MessageId};

use crate::settlements::fixture::{Invoice, Stage, lease_lost, not_done, with_invoice};
use crate::support::{events, stop};

/// The lease ends after an unanswered settlement that did nothing, and another consumer has the message for a
/// while. The handler runs again, because nothing else stores the follow-up.
#[tokio::test(start_paused = true)]
async fn follow_ups_are_not_presumed_stored() {
    let stage = Stage::local().await;
    let held = Duration::from_secs(10);
    stage
        .faults
        .fail_next(1, Operation::Apply, Fault::RequestLost);
    stage
        .faults
        .fail_next(1, Operation::Apply, Fault::LeaseLost(held));
    let mut listener = stage.listen();
    let found = events(&mut listener.events, 2, |_| true).await;
    let [
        ListenerEventKind::NotSettled { error: problem, .. },
        ListenerEventKind::Completed { .. },
    ] = &found[..]
    else {
        panic!("{found:?}")
    };
    assert!(
        matches!(problem, SettleErrorKind::LeaseLost(_)),
        "{problem:?}"
    );
    assert_eq!(stage.faults.injected(Operation::Apply), 2);
    assert_eq!(listener.runs(), 2);
    assert_eq!(stage.stored().await, (0, 1));
    stop(listener.handle).await;
}

/// An atomic settlement was carried out as a whole or not at all.
#[tokio::test(start_paused = true)]
async fn follow_ups_of_a_settlement_whose_answer_is_lost_are_stored_once() {
    let stage = Stage::local().await;
    let delivery = stage.accept().await;
    stage
        .faults
        .fail_next(1, Operation::Apply, Fault::AnswerLost);
    let settled = delivery.settle(with_invoice()).await.expect("settled");
    assert_eq!(settled, Settled::Completed);
    assert_eq!(stage.faults.calls(Operation::Apply), 2);
    assert_eq!(stage.stored().await, (0, 1));
}

/// On a backend that is not atomic, an unanswered put is repeated, and the delete follows when all are stored.
#[tokio::test(start_paused = true)]
async fn follow_ups_are_stored_before_the_message_is_deleted() {
    let stage = Stage::remote().await;
    let delivery = stage.accept().await;
    stage
        .faults
        .fail_next(1, Operation::Put, Fault::RequestLost);
    stage
        .faults
        .fail_next(1, Operation::Delete, Fault::AnswerLost);
    let settled = delivery.settle(with_invoice()).await.expect("settled");
    assert_eq!(settled, Settled::Completed);
    assert_eq!(
        stage.faults.calls(Operation::Put),
        2,
        "none after it is stored"
    );
    assert_eq!(stage.faults.calls(Operation::Delete), 2);
    assert_eq!(stage.stored().await, (0, 1));
}

/// A handler's work is remembered if its follow-ups are stored, and only then.
#[tokio::test(start_paused = true)]
async fn a_completion_is_remembered_when_its_follow_ups_are_stored() {
    for (stored, runs) in [(true, 1), (false, 2)] {
        let stage = Stage::remote().await;
        let operation = if stored {
            Operation::Delete
        } else {
            Operation::Put
        };
        let refused = Fault::Refused(ErrorKind::Denied);
        stage.faults.fail_next(1, operation, refused);
        let mut listener = stage.listen();
        let found = events(&mut listener.events, 2, |_| true).await;
        match (&found[..], stored) {
            ([ListenerEventKind::NotSettled { error: problem, .. }, _], true) => {
                assert!(
                    matches!(problem, SettleErrorKind::NotDone(_)),
                    "{problem:?}"
                );
            }
            ([ListenerEventKind::Retried { .. }, _], false) => {}
            _ => panic!("stored: {stored}, {found:?}"),
        }
        let last = &found[1];
        assert!(
            matches!(last, ListenerEventKind::Completed { .. }),
            "{last:?}"
        );
        assert_eq!(listener.runs(), runs, "stored: {stored}");
        assert_eq!(stage.stored().await, (0, 1));
        stop(listener.handle).await;
    }
}

/// A cleared queue is no success: the follow-ups are not stored.
#[tokio::test(start_paused = true)]
async fn a_message_that_is_gone_unasked_does_not_complete_with_follow_ups() {
    let stage = Stage::local().await;
    let delivery = stage.accept().await;
    let queue = stage.other.any_queue("parcel").expect("a name");
    queue.clear().await.expect("cleared");
    drop(lease_lost(delivery.settle(with_invoice()).await));
    assert_eq!(stage.stored().await.1, 0);
}

/// Nothing was asked of the message itself.
#[tokio::test(start_paused = true)]
async fn a_follow_up_whose_put_is_unanswered_leaves_no_doubt_about_the_message() {
    let stage = Stage::remote().await;
    let delivery = stage.accept().await;
    stage.leave_unanswered(Operation::Put, Fault::RequestLost);
    drop(not_done(delivery.settle(with_invoice()).await));
}

/// Completes all invoices. Returns their ids.
async fn invoices(stage: &Stage) -> Vec<MessageId> {
    let mut ids = Vec::new();
    while let Some(invoice) = stage.other.accept::<Invoice>().await.expect("no error") {
        ids.push(invoice.envelope().id.clone());
        invoice.complete().await.expect("completed");
    }
    ids
}

/// The follow-ups of a settlement are numbered after those submitted before it.
#[tokio::test(start_paused = true)]
async fn follow_ups_of_a_settlement_have_ids_of_their_own() {
    let stage = Stage::local().await;
    let delivery = stage.accept().await;
    let submitted = delivery.submit(Invoice { parcel: 1 }).await;
    let first = submitted.expect("submitted").id;
    let settled = delivery.settle(with_invoice()).await;
    settled.expect("settled");
    let ids = invoices(&stage).await;
    assert_eq!((ids.len(), &ids[0]), (2, &first));
    assert_ne!(ids[1], first);
}

/// More follow-ups than in the first try do not get ids that others have.
#[tokio::test(start_paused = true)]
async fn more_follow_ups_of_a_settlement_have_ids_of_their_own() {
    let stage = Stage::local().await;
    let delivery = stage.accept().await;
    let refused = Fault::Refused(ErrorKind::Denied);
    stage.faults.fail_next(1, Operation::Apply, refused);
    let delivery = not_done(delivery.settle(with_invoice()).await);
    let submitted = delivery.submit(Invoice { parcel: 2 }).await;
    submitted.expect("submitted");
    let more = with_invoice().then(&Invoice { parcel: 3 });
    delivery.settle(more).await.expect("settled");
    let ids: HashSet<_> = invoices(&stage).await.into_iter().collect();
    assert_eq!(ids.len(), 3);
}

/// A storage that fails is no fault of the message.
#[tokio::test(start_paused = true)]
async fn a_damaged_storage_does_not_count_as_refused_follow_ups() {
    for kind in [ErrorKind::Corrupt, ErrorKind::Storage] {
        let stage = Stage::local().await;
        let refused = Fault::Refused(kind);
        stage.faults.fail_every(Operation::Apply, refused);
        let mut listener = stage.listen();
        let found = events(&mut listener.events, 1, |_| true).await;
        let left = matches!(
            found[0],
            ListenerEventKind::NotSettled {
                error: SettleErrorKind::NotDone(_),
                ..
            }
        );
        assert!(left, "{kind:?}: {found:?}");
        stop(listener.handle).await;
    }
}
