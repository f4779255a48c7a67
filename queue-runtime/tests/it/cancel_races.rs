//! Cancels race with the receives of a listener, and with copies that become poison.

use std::time::Duration;

use queue_runtime::backend::{NewMessage, Op};
use queue_runtime::error::Operation;
use queue_runtime::service::{Cancelled, redrive::Redriven};
use queue_runtime::testing::Fault;
use queue_runtime::{Delivery, Message, QueueService, Received, testing};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::support::{guarded, stop};

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "orders", tracked)]
struct Order {
    number: u32,
}

/// Tells which order is handled.
async fn note(sender: mpsc::UnboundedSender<u32>, order: Received<Order>) {
    sender.send(order.number).expect("it is received");
    tokio::task::yield_now().await;
}

/// The number of cancels that race with receives.
fn races() -> u32 {
    let times = std::env::var("CANCELS").ok();
    times.map_or(2_000, |times| times.parse().expect("a number"))
}

/// Each message is handled or removed, and none is handled after it was removed unheld.
async fn cancels_agree_with_what_was_handled(url: &str) {
    let service = QueueService::connect(url).await.expect("connects");
    let orders = service.submit_all((0..races()).map(|number| Order { number }));
    let orders = orders.await.expect("submitted");
    let mut outcomes = Vec::new();
    let (sender, mut received) = mpsc::unbounded_channel();
    let mut handled = vec![0; orders.len()];
    let mut listener = None;
    // From the end, to which the listener comes last. One is cancelled before it starts, the others once it handles.
    for submitted in orders.iter().rev() {
        outcomes.push(service.cancel(&submitted.id).await.expect("cancelled"));
        if listener.is_none() {
            let built = service.listener_with(sender.clone(), note);
            listener = Some(built.max_in_flight(16).start().expect("starts"));
            let first = guarded(received.recv()).await.expect("one is handled");
            handled[first.expect("the listener runs") as usize] += 1;
        }
    }
    drop(sender);
    let listener = listener.expect("there are messages");
    outcomes.reverse();
    testing::drain([&listener]).await.expect("drained");
    stop(listener).await;
    while let Some(number) = received.recv().await {
        handled[number as usize] += 1;
    }
    for (number, (outcome, handled)) in outcomes.iter().zip(&handled).enumerate() {
        let agrees = match outcome {
            Cancelled::Removed => *handled == 0,
            Cancelled::Revoked => *handled <= 1,
            Cancelled::Gone => *handled == 1,
            _ => false,
        };
        assert!(
            agrees,
            "message {number}: {outcome:?}, handled {handled} times"
        );
    }
    let removed = outcomes.iter().filter(|one| **one == Cancelled::Removed);
    let (removed, handled) = (removed.count(), handled.iter().sum::<i32>());
    println!("{removed} removed, {handled} handled");
    assert!(
        removed > 0 && handled > 0,
        "{removed} removed, {handled} handled"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn cancels_agree_with_what_was_handled_in_memory() {
    cancels_agree_with_what_was_handled("memory:cancels").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancels_agree_with_what_was_handled_on_sqlite() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!(
        "sqlite:{}?synchronous=normal",
        folder.path().join("queues.db").display()
    );
    cancels_agree_with_what_was_handled(&url).await;
}

const ID: &str = "order 1";
const SECOND: Duration = Duration::from_secs(1);

async fn submit(service: &QueueService) {
    let order = service.submit(Order { number: 1 }).id(ID);
    order.await.expect("submitted");
}

async fn accept(service: &QueueService) -> Delivery<Order> {
    let accepted = service.accept::<Order>().await.expect("accepted");
    accepted.expect("there is one")
}

async fn redrive(service: &QueueService) -> Redriven {
    let poison = service.queue::<Order>().poison().expect("a name");
    poison.redrive().run().await.expect("carried out")
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_becomes_poison_during_a_cancel_is_cancelled_too() {
    let (service, faults) = testing::service_with_faults().await;
    submit(&service).await;
    let held = accept(&service).await;
    submit(&service).await;

    faults.fail_next(1, Operation::Apply, Fault::Delayed(2 * SECOND));
    let id = ID.parse().expect("an id");
    let (cancelled, ()) = tokio::join!(service.cancel(&id), async {
        sleep(SECOND).await;
        held.reject("broken").await.expect("rejected");
    });
    assert_eq!(cancelled.expect("cancelled"), Cancelled::Removed);
    assert_eq!(faults.injected(Operation::Apply), 1);

    sleep(SECOND).await;
    let redriven = redrive(&service).await;
    assert_eq!((redriven.redriven, redriven.cancelled), (0, 1));
    let again = service.cancel(&id).await.expect("looked for");
    assert_eq!(again, Cancelled::Before, "as if the answer was lost");
}

#[tokio::test(start_paused = true)]
async fn a_copy_on_its_way_to_the_poison_queue_is_cancelled_too() {
    let service = testing::service().await;
    submit(&service).await;
    let held = accept(&service).await;
    submit(&service).await;
    held.reject("broken").await.expect("rejected");
    // On shards in several storages, it may be on no queue for a moment.
    let poison = service.queue::<Order>().poison().expect("a name");
    let page = service.backend().browse(poison.name(), None, 1).await;
    let on_its_way = page.expect("looked at").messages.remove(0).body;
    poison.clear().await.expect("cleared");
    let id = ID.parse().expect("an id");
    let cancelled = service.cancel(&id).await.expect("cancelled");
    assert_eq!(cancelled, Cancelled::Removed, "the other copy");

    sleep(SECOND).await;
    let put = Op::Put {
        queue: poison.name().clone(),
        message: NewMessage::new(on_its_way).with_tracked(Some(id.clone())),
    };
    let put = service.backend().apply(vec![put].into()).await;
    put.expect("put");
    let again = service.cancel(&id).await.expect("looked for");
    assert_eq!(again, Cancelled::Before);
    let redriven = redrive(&service).await;
    assert_eq!((redriven.redriven, redriven.cancelled), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_redrive_that_has_looked_before_a_cancel_moves_nothing() {
    let (service, faults) = testing::service_with_faults().await;
    submit(&service).await;
    let held = accept(&service).await;
    submit(&service).await;
    held.reject("broken").await.expect("rejected");

    faults.fail_next(1, Operation::Apply, Fault::Delayed(2 * SECOND));
    let id = ID.parse().expect("an id");
    let (redriven, cancelled) = tokio::join!(redrive(&service), async {
        sleep(SECOND).await;
        service.cancel(&id).await.expect("cancelled")
    });
    assert_eq!(cancelled, Cancelled::Removed, "the other copy");
    assert_eq!(faults.injected(Operation::Apply), 1);
    assert_eq!((redriven.redriven, redriven.taken), (0, 1));

    let redriven = redrive(&service).await;
    assert_eq!((redriven.redriven, redriven.cancelled), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn of_several_cancels_the_last_counts() {
    let service = testing::service().await;
    let id = ID.parse().expect("an id");
    submit(&service).await;
    let first = service.cancel(&id).await.expect("cancelled");
    assert_eq!(first, Cancelled::Removed);

    // Submitted again, twice.
    sleep(SECOND).await;
    submit(&service).await;
    submit(&service).await;
    accept(&service)
        .await
        .reject("broken")
        .await
        .expect("rejected");
    let poison = service.queue::<Order>().poison().expect("a name");
    assert_eq!(
        poison
            .redrive()
            .dry_run()
            .await
            .expect("looked at")
            .redriven,
        1
    );
    let second = service.cancel(&id).await.expect("cancelled");
    assert_eq!(second, Cancelled::Removed, "the other copy");
    let redriven = redrive(&service).await;
    assert_eq!((redriven.redriven, redriven.cancelled), (0, 1));
}

#[tokio::test]
async fn a_message_is_removed_although_its_last_cancel_cannot_be_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("queues.db");
    let url = format!("sqlite:{}", path.display());
    let service = QueueService::connect(&url).await.expect("opens");
    let id = ID.parse().expect("an id");
    for is_damaged in [false, true] {
        submit(&service).await;
        let cancelled = service.cancel(&id).await.expect("cancelled");
        assert_eq!(cancelled, Cancelled::Removed, "{is_damaged}");
        let file = rusqlite::Connection::open(&path).expect("opens");
        let damage = "UPDATE queue_results SET checksum = checksum + 1 WHERE scope = 'cancelled'";
        assert_eq!(file.execute(damage, []).expect("damaged"), 1);
    }
}
