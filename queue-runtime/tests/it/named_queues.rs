//! Messages on other queues than their type's.

use std::time::Duration;

use queue_runtime::envelope::PoisonReason;
use queue_runtime::name::InvalidNameKind;
use queue_runtime::{
    Delivery, Disposition, FollowUp, ListenerEventKind, Message, MessageId, QueueName,
    QueueService, Received, testing,
};
use queue_tests::orders::{Order, order};
use serde::{Deserialize, Serialize};
use tokio::time::advance;

use crate::support::storage::Storage;
use crate::support::{count, events, poison, stop};

const BULK: QueueName = QueueName::from_static("orders-bulk");
const URGENT: QueueName = QueueName::from_static("orders-urgent");

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "receipts")]
struct Receipt {
    order: u32,
}

async fn accept<M: Message>(service: &QueueService, queue: &QueueName) -> Delivery<M> {
    let queue = service.queue_named::<M>(queue).expect("a name");
    let accepted = queue.accept().await.expect("no error");
    accepted.expect("a message")
}

/// Returns the ids of the messages on a queue.
async fn ids(service: &QueueService, queue: &str) -> Vec<MessageId> {
    let queue = service.any_queue(queue).expect("a name");
    let peeked = queue.peek(32).await.expect("the queue exists");
    let id = |body| match body {
        queue_runtime::wire::Body::Event(event) => event.envelope.id.clone(),
        other => panic!("no event: {other:?}"),
    };
    peeked.into_iter().map(|peeked| id(peeked.body)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_message_is_handled_and_becomes_poison_by_the_queue_that_it_was_put_on() {
    let service = testing::service().await;
    let submitted = service
        .submit(order(1))
        .to(BULK)
        .expect("a name")
        .await
        .expect("submitted");
    assert_eq!(submitted.queue, BULK);
    service.submit(order(2)).await.expect("submitted");

    let bulk = service
        .queue_named::<Order>(BULK)
        .expect("a name")
        .listener(async |order: Received<Order>| {
            let uri = order.envelope().queue_uri.clone().expect("ours");
            assert!(uri.ends_with("orders-bulk"), "{uri}");
            Disposition::reject("no stock")
        });
    let mut seen = bulk.events();
    let bulk = bulk.start().expect("starts");
    let poisoned = |event: &ListenerEventKind| matches!(event, ListenerEventKind::Poisoned { .. });
    events(&mut seen, 1, poisoned).await;
    stop(bulk).await;

    let record = poison(&service, "orders-bulk-poison").await.remove(0).0;
    assert_eq!(
        (&*record.queue, record.reason),
        ("orders-bulk", PoisonReason::Rejected)
    );
    assert_eq!(count(&service, "orders").await, 1, "the other is left");
}

#[tokio::test(start_paused = true)]
async fn the_id_of_a_follow_up_depends_on_a_queue_that_is_not_its_types() {
    for storage in [Storage::new(), Storage::new().in_order()] {
        let (service, _) = storage.connect().await;
        let receipts: QueueName = "receipts".parse().expect("a name");
        let own: QueueName = "orders".parse().expect("a name");
        let queues = [BULK, URGENT, own];
        let submitted = service.submit(Receipt { order: 1 }).await;
        let parent_id = submitted.expect("submitted").id;
        // At once, in an attempt that is given up, and with the completion of the next one.
        let parent = accept::<Receipt>(&service, &receipts).await;
        for queue in &queues {
            let submit = parent.submit(order(7)).to(queue.clone()).expect("a name");
            submit.await.expect("submitted");
        }
        drop(parent);
        advance(Duration::from_secs(31)).await;
        let parent = accept::<Receipt>(&service, &receipts).await;
        let [bulk, urgent, _] = queues;
        let follow_up = FollowUp::new(&order(7));
        let disposition = Disposition::complete()
            .then_follow_up(follow_up.clone().with_queue(bulk).expect("a name"))
            .then_follow_up(follow_up.clone().with_queue(urgent).expect("a name"))
            .then_follow_up(follow_up);
        parent.settle(disposition).await.expect("completed");

        for (queue, key) in [
            ("orders-bulk", "key [7] on orders-bulk"),
            ("orders-urgent", "key [7] on orders-urgent"),
            ("orders", "key [7]"),
        ] {
            let expected = MessageId::derived(&parent_id, "order", key);
            assert_eq!(ids(&service, queue).await, [expected.clone(), expected]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn several_messages_go_to_one_queue() {
    let service = testing::service().await;
    let orders = (1..=3).map(order);
    let submitted = service
        .submit_all(orders)
        .to(BULK)
        .expect("a name")
        .await
        .expect("submitted");
    assert!(submitted.iter().all(|one| one.queue == BULK));
    assert_eq!(count(&service, "orders-bulk").await, 3);
    let parent = accept::<Order>(&service, &BULK).await;
    let follow_ups = parent.submit_all([Receipt { order: 1 }, Receipt { order: 1 }]);
    let submitted = follow_ups
        .to(URGENT)
        .expect("a name")
        .await
        .expect("submitted");
    assert_ne!(submitted[0].id, submitted[1].id);
    assert_eq!(count(&service, "orders-urgent").await, 2);
}

#[tokio::test(start_paused = true)]
async fn a_message_of_another_kind_becomes_poison_of_that_queue() {
    let service = testing::service().await;
    let orders = service
        .listener(async |_: Received<Order>| ())
        .create_queue();
    let mut seen = orders.events();
    let orders = orders.start().expect("starts");
    let queue: QueueName = "orders".parse().expect("a name");
    let receipt = service
        .submit(Receipt { order: 1 })
        .to(queue)
        .expect("a name");
    receipt.await.expect("its consumers may run elsewhere");
    let poisoned = |event: &ListenerEventKind| matches!(event, ListenerEventKind::Poisoned { .. });
    events(&mut seen, 1, poisoned).await;
    stop(orders).await;
    let record = poison(&service, "orders-poison").await.remove(0).0;
    assert_eq!(record.reason, PoisonReason::Undecodable);
}

/// Wherever a program writes a queue's name, the error comes from that call.
#[tokio::test]
async fn a_queue_name_is_refused_where_it_is_written() {
    let service = testing::service().await;
    let queue = service.queue::<Order>().any();
    let handler = async |_: Received<Order>| ();
    for refused in [
        service.submit(order(1)).to("No").err(),
        service.submit_all([order(1)]).to("No".to_owned()).err(),
        service.request(order(1)).to("No").err(),
        FollowUp::new(&order(1)).with_queue("No").err(),
        service.accept::<Order>().poison_queue("No").err(),
        service.listener(handler).poison_queue("No").err(),
        service.router("No").err(),
        service.queue_named::<Order>("No").err(),
        service.any_queue("No").err(),
        service.any_queue_at("sqlite:No.db#No").err(),
        queue.redrive().unrecorded_to("No").err(),
        queue.redrive().allow(["orders", "No"]).err(),
        service.meter().queue("No").err(),
    ] {
        let error = refused.expect("an error");
        assert_eq!(error.kind(), InvalidNameKind::Length(2), "{error}");
    }
    let name = QueueName::from_static("elsewhere");
    for handle in [
        service.any_queue(&name),
        service.any_queue(name.clone()),
        service.any_queue(name.to_string()),
        service.any_queue(name.to_string()),
        service.any_queue_at("https://host.example/account/elsewhere"),
    ] {
        assert_eq!(*handle.expect("a name").name(), name);
    }
}
