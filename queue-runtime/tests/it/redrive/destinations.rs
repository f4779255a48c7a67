//! Where a redrive puts messages, whatever their records say.

use std::sync::{Arc, Mutex};

use queue_runtime::backend::{Backend, BackendExt as _, NewMessage};
use queue_runtime::service::redrive::{Redrive, RedriveOutcome};
use queue_runtime::{AnyQueue, ErrorKind, Message, QueueName};
use queue_tests::orders::Order;
use serde::{Deserialize, Serialize};

use crate::redrive::fixture::{poison, poison_event, storages};
use crate::support::count;
use crate::support::storage::Storage;

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "slices", poison_queue = "broken")]
struct Slice;

/// Whatever a record says, only the queue that a poison queue belongs to gets messages back, unless others are allowed.
#[tokio::test(start_paused = true)]
async fn a_redrive_sends_only_to_its_own_queue_and_those_that_are_allowed() {
    type Told = fn(AnyQueue) -> Redrive;
    let cases: [(&str, Told, &[&str]); 5] = [
        ("slices-poison", |queue| queue.redrive(), &["slices"]),
        (
            "slices-poison",
            |queue| queue.redrive().allow(["payments"]).expect("a name"),
            &["payments", "slices"],
        ),
        ("slices", |queue| queue.redrive(), &[]),
        ("broken", |queue| queue.redrive(), &[]),
        (
            "broken",
            |queue| {
                queue
                    .redrive()
                    .allow(["slices", "payments"])
                    .expect("names")
            },
            &["payments", "slices"],
        ),
    ];
    for (name, told, expected) in cases {
        for (service, backend) in storages().await {
            let queue = service.any_queue(name).expect("a name");
            queue.create().await.expect("created");
            for (id, to) in [("1", "slices"), ("2", "payments"), ("3", "broken-poison")] {
                let message = NewMessage::new(poison_event(id, to));
                backend.put(queue.name(), message).await.expect("put");
            }
            let left = Arc::new(Mutex::new(Vec::new()));
            let seen = Arc::clone(&left);
            let redrive = told(queue).each(move |step| {
                if let RedriveOutcome::NotAllowed(queue) = step.outcome {
                    seen.lock().expect("no panic").push(queue.to_string());
                }
            });
            let planned = redrive.dry_run().await.expect("planned");
            let counts = (planned.redriven, planned.not_allowed);
            let sent = expected.len();
            assert_eq!(counts, (sent, 3 - sent), "{name}, {expected:?}");
            let mut not_allowed = std::mem::take(&mut *left.lock().expect("no panic"));
            not_allowed.extend(expected.iter().map(ToString::to_string));
            not_allowed.sort();
            assert_eq!(not_allowed, ["broken-poison", "payments", "slices"]);

            let run = tokio::spawn(async move { redrive.run().await });
            let redriven = run.await.expect("no panic").expect("redriven");
            assert_eq!(redriven, planned);
            let mut queues = Vec::new();
            for queue in service.queues().await.expect("listed") {
                if queue.as_str() != name {
                    assert_eq!(count(&service, queue.as_str()).await, 1);
                    queues.push(queue.to_string());
                }
            }
            assert_eq!(queues, expected);
            assert_eq!(count(&service, name).await, 3 - sent);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_poison_queue_of_a_queue_is_redriven_to_that_queue() {
    for (service, backend) in storages().await {
        let slices = service.queue::<Slice>();
        let elsewhere = service.queue_named::<Slice>("slices-europe");
        let elsewhere = elsewhere.expect("a name");
        for queue in [&slices, &elsewhere] {
            queue.submit(Slice).await.expect("submitted");
            let slice = queue.accept().await.expect("no error").expect("a slice");
            slice.reject("no").await.expect("moved");
        }
        let broken = slices.poison().expect("a name");
        assert_eq!(broken.name().as_str(), "broken");
        let redriven = broken.redrive().run().await.expect("redriven");
        assert_eq!((redriven.redriven, redriven.not_allowed), (1, 1));
        assert_eq!(count(&service, "slices").await, 1);
        let redriven = elsewhere.poison().expect("a name").redrive().run().await;
        assert_eq!(redriven.expect("redriven").redriven, 1);
        assert_eq!(count(&service, "slices-europe").await, 1);

        let of_itself = service.queue_named::<Slice>("broken").expect("a name");
        let message = NewMessage::new(poison_event("1", "broken"));
        backend.put(broken.name(), message).await.expect("put");
        let redriven = of_itself.poison().expect("a name").redrive().run().await;
        assert_eq!(redriven.expect("redriven").not_allowed, 1);

        let orders = service.queue::<Order>().poison().expect("a name");
        assert_eq!(orders.name(), poison(&service).name());
        let long = service.queue_named::<Order>(&"x".repeat(60));
        long.expect("a name").poison().expect_err("no room");
    }
}

/// One that is missing would be created, and never deleted; the owner of another deletes what it does not expect.
#[tokio::test(start_paused = true)]
async fn nothing_is_put_on_a_reply_queue() {
    for exists in [false, true] {
        for (service, backend) in storages().await {
            let (queue, replies) = (poison(&service), QueueName::random_reply_queue());
            queue.create().await.expect("created");
            if exists {
                backend.ensure_queue(&replies).await.expect("created");
            }
            let forged = poison_event("1", replies.as_str());
            for body in [forged, poison_event("2", "orders"), "foreign".to_owned()] {
                let put = backend.put(queue.name(), NewMessage::new(body)).await;
                put.expect("put");
            }
            let redrive = queue.redrive().unrecorded_to(&replies).expect("a name");
            let planned = redrive.dry_run().await.expect("planned");
            assert_eq!((planned.redriven, planned.refused), (1, 2));
            assert_eq!(redrive.run().await.expect("redriven"), planned);
            assert_eq!(count(&service, "orders-poison").await, 2);
            match backend.properties(&replies).await {
                Ok(properties) => assert_eq!((exists, properties.approximate_count), (true, 0)),
                Err(error) => assert_eq!((exists, error.kind()), (false, ErrorKind::QueueNotFound)),
            }
        }
    }
}

/// One of them was put there by another program, and one is too large for a record.
#[tokio::test(start_paused = true)]
async fn what_has_no_record_is_put_where_it_is_told_to() {
    let storage = || Storage::new().with_moved_limit(60);
    for storage in [storage().browsable(), storage()] {
        let (service, backend) = storage.connect().await;
        let large = "x".repeat(60);
        let orders = "orders".parse().expect("a name");
        let queue = service.any_queue("orders").expect("a name");
        queue.create().await.expect("created");
        let put = backend.put(&orders, NewMessage::new(large.clone())).await;
        put.expect("put");
        let accepted = service.accept::<Order>().await;
        assert!(accepted.is_ok_and(|order| order.is_none()), "it is poison");
        let put = backend
            .put(poison(&service).name(), NewMessage::new("foreign"))
            .await;
        put.expect("put");
        assert_eq!(count(&service, "orders-poison").await, 2);

        let left = poison(&service).redrive().run().await.expect("redriven");
        assert_eq!((left.redriven, left.without_record), (0, 2));
        let told = || {
            poison(&service)
                .redrive()
                .unrecorded_to(&orders)
                .expect("a name")
        };
        let filtered = told().error_contains("").run().await.expect("redriven");
        assert_eq!((filtered.redriven, filtered.without_record), (0, 2));
        let redriven = told().run().await.expect("redriven");
        assert_eq!((redriven.redriven, redriven.without_record), (2, 0));
        assert_eq!(count(&service, "orders-poison").await, 0);
        let peeked = backend.peek(&orders, 10).await.expect("peeked");
        let mut bodies: Vec<_> = peeked.iter().map(|one| one.body.to_vec()).collect();
        bodies.sort();
        assert_eq!(bodies, [b"foreign".to_vec(), large.into_bytes()]);
    }
}
