//! Messages that hold their key until they are settled, in memory and on SQLite.

use std::future::IntoFuture as _;
use std::sync::Arc;
use std::time::Duration;

use queue_runtime::backend::{Backend, BackendExt as _, MemoryBackend, NewMessage};
use queue_runtime::clock::SystemClock;
use queue_runtime::envelope::Envelope;
use queue_runtime::error::{Operation, Outcome};
use queue_runtime::receive::Settled;
use queue_runtime::send::Submit;
use queue_runtime::service::redrive::RedriveOutcome;
use queue_runtime::testing::{self, Fault, FaultInjector};
use queue_runtime::wire::encode;
use queue_runtime::{Disposition, Message, MessageId, QueueName, QueueService, Submitted};
use queue_tests::DAY;
use queue_tests::orders::{Order, order};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use tokio::time::advance;

use crate::support::storage::Storage;
use crate::support::{accepted, count};

const ORDERS: QueueName = QueueName::from_static("orders");

pub(crate) struct Place {
    pub(crate) service: QueueService,
    pub(crate) faults: FaultInjector,
    _folder: Option<TempDir>,
}

pub(crate) async fn places() -> Vec<Place> {
    let clock = || Arc::new(SystemClock::new());
    let memory: (Arc<dyn Backend>, _) = (Arc::new(MemoryBackend::new(clock())), None);
    #[cfg_attr(not(feature = "sqlite"), expect(unused_mut))]
    let mut backends = vec![memory];
    #[cfg(feature = "sqlite")]
    {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("queues.db");
        let file = queue_runtime::backend::SqliteBackend::builder(path, clock());
        backends.push((Arc::new(file.open().await.expect("opened")), Some(folder)));
    }
    let mut places = Vec::new();
    for (backend, folder) in backends {
        let faults = FaultInjector::new(backend);
        let service = QueueService::with_backend(Arc::new(faults.clone()))
            .connect()
            .await;
        places.push(Place {
            service: service.expect("connects"),
            faults,
            _folder: folder,
        });
    }
    places
}

fn unique(service: &QueueService, number: u32) -> Submit<Order> {
    service.submit(order(number)).unique_until_settled()
}

async fn submit(service: &QueueService, number: u32) -> Submitted {
    unique(service, number).await.expect("answered")
}

async fn is_held(service: &QueueService, number: u32) -> bool {
    submit(service, number).await.duplicate
}

#[tokio::test]
async fn a_key_is_held_until_its_message_is_completed_or_poison() {
    for Place { service, .. } in places().await {
        let first = submit(&service, 1).await;
        let second = submit(&service, 1).await;
        assert!(second.duplicate && second.id == first.id);
        let delivery = accepted::<Order>(&service).await;
        assert!(is_held(&service, 1).await, "while it is handled");
        let released = delivery.release().await;
        released.expect("handed back");
        assert!(is_held(&service, 1).await, "while it is retried");
        let delivery = accepted::<Order>(&service).await;
        delivery.complete().await.expect("completed");
        assert_eq!(count(&service, "orders").await, 0);

        assert!(!is_held(&service, 1).await, "completed");
        let delivery = accepted::<Order>(&service).await;
        let settled = delivery.reject("the warehouse is closed").await;
        assert!(matches!(settled, Ok(Settled::Poisoned(_))), "{settled:?}");
        assert!(!is_held(&service, 1).await, "poison");

        // With as many follow-ups as one settlement takes.
        let delivery = accepted::<Order>(&service).await;
        let complete = Disposition::complete();
        let completed = (0..1023).fold(complete, |completed, _| completed.then(&order(9)));
        delivery.settle(completed).await.expect("completed");
        assert!(!is_held(&service, 1).await, "completed with follow-ups");
    }
}

/// A message with a key reaches a consumer whose storage is not atomic, and releases the key after all else.
#[tokio::test]
async fn a_message_is_settled_though_its_key_cannot_be_released() {
    let with_follow_up = Disposition::complete().then(&order(9));
    for (disposition, left) in [(Disposition::complete(), 0), (with_follow_up, 1)] {
        let name = format!("unreleased {left}");
        let memory = || MemoryBackend::named(&name, Arc::new(SystemClock::new()));
        let in_order = Storage::over(memory()).in_order().keeping_keys();
        let producer = QueueService::with_backend(Arc::new(memory())).connect();
        let producer = producer.await.expect("connects");
        submit(&producer, 1).await;
        let (service, _) = in_order.connect().await;
        let delivery = accepted::<Order>(&service).await;
        let settled = delivery.settle(disposition).await.expect("settled");
        assert!(matches!(settled, Settled::Completed), "{settled:?}");
        assert_eq!(count(&service, "orders").await, left);
    }
}

#[tokio::test]
async fn a_settlement_that_is_repeated_releases_only_its_own_key() {
    for Place {
        service, faults, ..
    } in places().await
    {
        submit(&service, 1).await;
        let first = accepted::<Order>(&service).await;
        faults.fail_next(1, Operation::Apply, Fault::AnswerLost);
        first.complete().await.expect("it was carried out");
        assert_eq!(faults.injected(Operation::Apply), 1);
        assert!(!is_held(&service, 1).await);

        // The key is released, and taken by another message, while the first is handled.
        let first = accepted::<Order>(&service).await;
        let released = unique(&service, 1).release_unique().await;
        assert!(released.expect("answered"));
        assert!(!is_held(&service, 1).await);
        first.complete().await.expect("completed");
        assert!(is_held(&service, 1).await, "by the other message");
        assert_eq!(count(&service, "orders").await, 1);
    }
}

/// The message may be handled, and its key released, before its submission is tried again.
#[tokio::test(start_paused = true)]
async fn a_submission_of_unknown_outcome_is_not_put_again() {
    let (service, faults) = testing::service_with_faults().await;
    submit(&service, 9).await;
    let delivery = accepted::<Order>(&service).await;
    delivery.complete().await.expect("completed");

    faults.fail_next(1, Operation::Put, Fault::AnswerLost);
    let submission = tokio::spawn(unique(&service, 1).into_future());
    let delivery = loop {
        match service.accept::<Order>().await.expect("no error") {
            Some(delivery) => break delivery,
            None => tokio::task::yield_now().await,
        }
    };
    delivery.complete().await.expect("completed");
    let unknown = submission.await.expect("no panic");
    let unknown = unknown.expect_err("the answer was lost");
    assert_eq!(unknown.outcome(), Outcome::Unknown, "{unknown}");
    assert_eq!(service.submitted::<Order>().len(), 2);
    assert_eq!(count(&service, "orders").await, 0);
}

#[tokio::test]
async fn a_forged_key_releases_nothing() {
    for Place {
        service, faults, ..
    } in places().await
    {
        submit(&service, 1).await;
        let victim = accepted::<Order>(&service).await;
        // A sender that has read all of the message, and one that has not.
        let stolen = victim.envelope().unique_key.clone().expect("it holds one");
        let guessed = stolen.replace("\"token\":", "\"token\":1");
        assert_ne!(stolen, guessed);
        for (id, key) in [
            (MessageId::random(), stolen),
            (victim.envelope().id.clone(), guessed),
        ] {
            let mut forged = victim.envelope().clone();
            (forged.id, forged.unique_key) = (id, Some(key));
            let body = encode(&forged, br#"{"number":1,"note":"forged"}"#);
            let put = faults.put(&ORDERS, NewMessage::new(body)).await;
            put.expect("put");
            let forged = accepted::<Order>(&service).await;
            assert_eq!(forged.note, "forged");
            forged.complete().await.expect("completed");
            assert!(is_held(&service, 1).await);
        }
        victim.complete().await.expect("completed");
        assert!(!is_held(&service, 1).await);
    }
}

#[tokio::test]
async fn a_redrive_takes_the_key_again_unless_another_message_holds_it() {
    for Place { service, .. } in places().await {
        let reject = async || {
            let rejected = accepted::<Order>(&service).await.reject("closed").await;
            rejected.expect("moved");
        };
        let (first, text) = (submit(&service, 1).await, "closed");
        reject().await;
        let poison = service.any_queue("orders-poison").expect("a name");
        let redrive = || poison.redrive().error_contains(text);
        assert_eq!(redrive().run().await.expect("moved").redriven, 1);
        let second = submit(&service, 1).await;
        assert!(
            second.duplicate && second.id == first.id,
            "it holds it again"
        );

        reject().await;
        let second = submit(&service, 1).await;
        assert!(!second.duplicate);
        submit(&service, 2).await;
        // Alone, and in one step with another message.
        for others in 0..2 {
            let (refusals, refused) = std::sync::mpsc::channel();
            let each = redrive().each(move |step| {
                if let RedriveOutcome::Refused(error) = step.outcome {
                    refusals.send(error.to_string()).expect("it is listened to");
                }
            });
            let report = each.run().await.expect("nothing fails");
            assert_eq!((report.redriven, report.refused), (others, 1));
            let why = refused.recv().expect("one was refused");
            assert!(
                why.contains("another message holds its unique key"),
                "{why}"
            );
            let held = accepted::<Order>(&service).await;
            assert_eq!(held.envelope().id, second.id);
            held.release().await.expect("handed back");
            if others == 0 {
                // The other of the two.
                let delivery = accepted::<Order>(&service).await;
                let (delivery, other) = match delivery.number {
                    2 => (delivery, None),
                    _ => (accepted::<Order>(&service).await, Some(delivery)),
                };
                delivery.reject("closed").await.expect("moved");
                if let Some(other) = other {
                    other.release().await.expect("handed back");
                }
            }
        }
        let numbers = async || {
            let held = accepted::<Order>(&service).await;
            let number = held.number;
            held.complete().await.expect("completed");
            number
        };
        let mut settled = [numbers().await, numbers().await];
        settled.sort_unstable();
        assert_eq!(settled, [1, 2]);
        assert_eq!(redrive().run().await.expect("moved").redriven, 1);
        assert!(is_held(&service, 1).await);
        assert!(!is_held(&service, 2).await);
    }
}

#[tokio::test]
async fn a_redrive_takes_no_key_that_its_message_did_not_hold() {
    for Place {
        service, faults, ..
    } in places().await
    {
        let redrive = async || {
            let rejected = accepted::<Order>(&service).await.reject("closed").await;
            rejected.expect("moved");
            let poison = service.any_queue("orders-poison").expect("a name");
            assert_eq!(poison.redrive().run().await.expect("moved").redriven, 1);
        };
        // A sender that knows the key of another scope.
        let genuine = || unique(&service, 1).unique_scope("payments");
        genuine().await.expect("submitted");
        let first = accepted::<Order>(&service).await;
        let mut forged = Envelope::clone(first.envelope());
        forged.id = MessageId::random();
        let body = encode(&forged, br#"{"number":1,"note":"forged"}"#);
        first.complete().await.expect("completed");
        let put = faults.put(&ORDERS, NewMessage::new(body)).await;
        put.expect("put");
        redrive().await;
        let forged = accepted::<Order>(&service).await;
        assert_eq!(forged.note, "forged");
        let second = genuine().await.expect("answered");
        assert!(!second.duplicate, "the forged message holds nothing");
        forged.complete().await.expect("completed");
        assert!(genuine().await.expect("answered").duplicate);
        let second = accepted::<Order>(&service).await;
        second.complete().await.expect("completed");

        // A key that was released by hand.
        submit(&service, 2).await;
        let released = unique(&service, 2).release_unique().await;
        assert!(released.expect("answered"));
        redrive().await;
        assert!(!is_held(&service, 2).await);
    }
}

#[tokio::test]
async fn of_two_poison_messages_of_a_key_one_is_redriven_at_a_time() {
    for Place { service, .. } in places().await {
        for _ in 0..2 {
            submit(&service, 1).await;
            let rejected = accepted::<Order>(&service).await.reject("closed").await;
            rejected.expect("moved");
        }
        let poison = service.any_queue("orders-poison").expect("a name");
        let report = poison.redrive().run().await.expect("moved");
        assert_eq!((report.redriven, report.refused), (1, 1));
        let first = accepted::<Order>(&service).await;
        first.complete().await.expect("completed");
        let report = poison.redrive().run().await.expect("moved");
        assert_eq!((report.redriven, report.refused), (1, 0));
        assert!(is_held(&service, 1).await);
    }
}

#[tokio::test]
async fn a_message_that_is_removed_releases_its_key() {
    for Place { service, .. } in places().await {
        submit(&service, 1).await;
        let queue = service.any_queue("orders").expect("a name");
        let page = queue.browse(None, 10).await.expect("browsed");
        queue
            .delete_message(&page.messages[0])
            .await
            .expect("removed");
        assert!(!is_held(&service, 1).await);
        // Also if the key is another's.
        let page = queue.browse(None, 10).await.expect("browsed");
        let released = unique(&service, 1).release_unique().await;
        assert!(released.expect("answered"));
        submit(&service, 1).await;
        queue
            .delete_message(&page.messages[0])
            .await
            .expect("removed");
        assert!(is_held(&service, 1).await);
    }
}

#[tokio::test]
async fn a_key_does_not_outlive_its_message() {
    for Place { service, .. } in places().await {
        let queue = service.any_queue("orders").expect("a name");
        submit(&service, 1).await;
        queue.clear().await.expect("cleared");
        assert!(!is_held(&service, 1).await, "cleared");
        queue.delete().await.expect("deleted");
        assert!(!is_held(&service, 1).await, "its queue is deleted");
        assert!(is_held(&service, 1).await);

        // Also as the last of a key that a redrive has taken again.
        let rejected = accepted::<Order>(&service).await.reject("closed").await;
        rejected.expect("moved");
        let poison = service.any_queue("orders-poison").expect("a name");
        assert_eq!(poison.redrive().run().await.expect("moved").redriven, 1);
        assert!(is_held(&service, 1).await);
        queue.clear().await.expect("cleared");
        assert!(!is_held(&service, 1).await, "cleared after a redrive");

        // And one of another queue of the scope.
        let lanes = || unique(&service, 2).unique_scope("lanes");
        let lane = QueueName::from_static("orders-bulk");
        let first = lanes()
            .to(lane.clone())
            .expect("a name")
            .await
            .expect("submitted");
        assert!(lanes().await.expect("answered").duplicate);
        let bulk = service.any_queue(lane.as_str()).expect("a name");
        bulk.delete().await.expect("deleted");
        let second = lanes().await.expect("submitted");
        assert!(!second.duplicate && second.id != first.id);

        // A key for a time is held for that time.
        let timed = || service.submit(order(3)).unique_for(DAY);
        timed().await.expect("submitted");
        queue.clear().await.expect("cleared");
        assert!(timed().await.expect("answered").duplicate);
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_ends_when_its_message_expires_or_its_time_is_over() {
    let service = testing::service().await;
    let brief = unique(&service, 1).time_to_live(DAY / 2);
    brief.await.expect("submitted");
    let timed = || unique(&service, 2).unique_for(DAY);
    timed().await.expect("submitted");
    submit(&service, 3).await;
    let second = Duration::from_secs(1);
    advance(DAY / 2 - second).await;
    assert!(is_held(&service, 1).await);
    advance(2 * second).await;
    assert!(!is_held(&service, 1).await, "expired");
    advance(DAY / 2 - 2 * second).await;
    assert!(timed().await.expect("answered").duplicate);
    advance(2 * second).await;
    assert!(!timed().await.expect("submitted").duplicate);
    advance(6 * DAY - 2 * second).await;
    assert!(is_held(&service, 3).await);
    advance(2 * second).await;
    assert!(!is_held(&service, 3).await, "7 days");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_hold_a_key_is_refused() {
    #[derive(Debug, Serialize, Deserialize, Message)]
    #[message(wire = "bare")]
    struct Bare {
        #[message(key)]
        number: u32,
    }

    let service = testing::service().await;
    let bare = service.submit(Bare { number: 1 }).unique_until_settled();
    let bare = bare.await.expect_err("refused").to_string();
    assert!(
        bare.contains("a message that is not an event cannot carry the key"),
        "{bare}"
    );
    let store = service.results().expect("memory has one");
    let stored = unique(&service, 1).unique_in(&store, DAY).await;
    let stored = stored.expect_err("refused").to_string();
    assert!(
        stored.contains("leave `unique_until_settled` or `unique_in` out"),
        "{stored}"
    );
    let in_steps = Storage::new().in_order().connect().await.0;
    let unsupported = unique(&in_steps, 1).await.expect_err("refused").to_string();
    assert!(
        unsupported.contains("set a store with `unique_in`"),
        "{unsupported}"
    );
    assert_eq!(service.submitted::<Order>().len(), 0);
}
