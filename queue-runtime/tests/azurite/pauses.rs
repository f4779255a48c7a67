//! A queue that another process pauses for everybody.

use std::sync::Arc;
use std::time::Duration;

use queue_runtime::clock::ManualClock;
use queue_runtime::meter::TransactionKind;
use queue_runtime::{ListenerEvent, ListenerEventKind, QueueService, Received};
use queue_tests::orders::ShopOrder;
use tokio::sync::broadcast::Receiver;

use crate::case::{PATIENCE, connect, patient};

use crate::proxy::Proxy;
use crate::server::{SERVER, connection_string, runtime};

/// Long enough for the slowest machine; only a hang meets it.
const GUARD: Duration = Duration::from_secs(60);

/// How long metadata stays fresh on Azure.
const LAG: Duration = Duration::from_secs(60);

/// Waits for an event that `wanted` picks.
async fn next(events: &mut Receiver<ListenerEvent>, wanted: impl Fn(&ListenerEventKind) -> bool) {
    let mut others = Vec::new();
    let find = async {
        loop {
            let kind = events.recv().await.expect("the listener runs").kind;
            if wanted(&kind) {
                return;
            }
            others.push(kind);
        }
    };
    let found = tokio::time::timeout(GUARD, find).await;
    found.unwrap_or_else(|_| panic!("only {others:?}"));
}

/// The worker polls, and learns of the pause with the message that it finds.
#[test]
fn a_paused_queue_costs_one_look_at_its_metadata_a_minute() {
    runtime().block_on(async {
        let office = patient(&connection_string()).await;
        let office = office.connect().await.expect("connect");
        let orders = office
            .queue_named::<ShopOrder>("paused-orders")
            .expect("a name");
        orders.any().create().await.expect("created");
        // Its waits are by this clock, other than those of the requests.
        let clock = ManualClock::new();
        // Through a proxy it is another account, so that nothing is announced to it.
        let proxy = Proxy::open(&SERVER).await;
        let backend = Arc::new(connect(&proxy.connection_string(), PATIENCE).await);
        let worker = QueueService::with_backend(backend).clock(Arc::new(clock.clone()));
        let worker = worker.connect().await.expect("connect");
        let queue = worker.queue_named("paused-orders").expect("a name");
        let listener =
            queue.listener(async |order: Received<ShopOrder>| assert_eq!(order.attempt(), 1));
        let listener = listener
            .visibility_timeout(Duration::from_secs(300))
            .tasks(1);
        let mut events = listener.events();
        let listener = listener.start().expect("starts");
        next(&mut events, |kind| {
            matches!(kind, ListenerEventKind::QueueEmpty { .. })
        })
        .await;

        let paused = orders.any().pause(Some("stocktaking")).await;
        let paused = paused.expect("paused");
        orders
            .submit(ShopOrder { number: 7 })
            .await
            .expect("submitted");
        clock.advance(LAG);
        next(&mut events, |kind| {
            matches!(kind, ListenerEventKind::Released { .. })
        })
        .await;
        let info = listener.info();
        assert_eq!((info.completed, info.released), (0, 1), "{info:?}");
        assert_eq!(info.queue_paused, Some(paused));

        let before = worker.meter();
        let used = || worker.meter().since(&before).total();
        let mut passed = Duration::ZERO;
        while used().total() < 3 {
            clock.advance(LAG / 10);
            passed += LAG / 10;
            assert!(passed < 1_000 * LAG, "no look");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(passed >= 2 * LAG, "three looks within {passed:?}");
        assert_eq!(used().of(TransactionKind::Properties), 3, "{}", used());

        orders.any().resume().await.expect("resumed");
        clock.advance(LAG);
        next(&mut events, |kind| {
            matches!(kind, ListenerEventKind::QueueResumed)
        })
        .await;
        // It was handed back without counting the attempt.
        let completed = |kind: &_| matches!(kind, ListenerEventKind::Completed { attempt: 1, .. });
        next(&mut events, completed).await;
        listener.shutdown(Duration::ZERO).await;
    });
}
