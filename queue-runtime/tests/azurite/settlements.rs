//! Settlements and receives whose answers are lost: no message is lost or handled again.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

use queue_runtime::policy::ExponentialIdle;
use queue_runtime::receive::{SettleErrorKind, Settled};
use queue_runtime::wire::Body;
use queue_runtime::{Disposition, ListenerEventKind, Message as Kind, Received};
use queue_tests::orders::ShopOrder;
use serde::{Deserialize, Serialize};

use crate::case::run;
use crate::fault::{Call, Fault};
use crate::proxy::{GUARD, Log};
use crate::stage::{LEASE, Stage, next};

#[test]
fn a_delete_whose_answer_is_lost_is_done() {
    run(async {
        let stage = Stage::on("deleted-orders").await;
        stage.submit(1).await;
        let lost = [Fault::ResetAfter, Fault::ResetBefore, Fault::HalfHead];
        stage.proxy.script(Call::Delete, lost);
        let runs = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&runs);
        let handler = move |_: Received<ShopOrder>| {
            counted.fetch_add(1, SeqCst);
            async {}
        };
        let queue = stage.proxied();
        let listener = queue.listener(handler).visibility_timeout(LEASE);
        let mut events = listener.events();
        let listener = listener.start().expect("start");
        let settled = |event: &ListenerEventKind| {
            let failed = matches!(event, ListenerEventKind::NotSettled { .. });
            failed || matches!(event, ListenerEventKind::Completed { .. })
        };
        let event = next(&mut events, settled).await;
        assert!(
            matches!(event, ListenerEventKind::Completed { .. }),
            "{event:?}"
        );
        assert_eq!(stage.proxy.seen(Call::Delete).len(), 4);
        assert_eq!(stage.count().await, 0);
        listener.shutdown(GUARD).await;
        assert_eq!(runs.load(SeqCst), 1);
    });
}

/// The service leases the message several times, but no answer arrives. No handler has run, so the message
/// must not become poison, even if the answer to the update that marks the last attempt is lost too.
#[test]
fn lost_receives_do_not_poison() {
    let lost = |queue: &'static str, mark: Vec<Fault>| async move {
        let stage = Stage::on(queue).await;
        stage.submit(1).await;
        stage
            .proxy
            .script(Call::Receive, vec![Fault::LoseMessages; 2]);
        stage.proxy.script(Call::Update, mark);
        let runs = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&runs);
        let handler = move |_: Received<ShopOrder>| {
            counted.fetch_add(1, SeqCst);
            async {}
        };
        let listener = stage.proxied().listener(handler);
        let listener = listener.visibility_timeout(LEASE / 2).poison_threshold(2);
        let listener = listener.idle(ExponentialIdle::up_to(Duration::from_millis(250)));
        let mut events = listener.events();
        let listener = listener.start().expect("start");
        let settled = |event: &ListenerEventKind| {
            let poisoned = matches!(event, ListenerEventKind::Poisoned { .. });
            poisoned || matches!(event, ListenerEventKind::Completed { .. })
        };
        let event = next(&mut events, settled).await;
        let completed = matches!(event, ListenerEventKind::Completed { .. });
        assert!(completed, "{event:?}");
        assert_eq!(stage.count().await, 0);
        listener.shutdown(GUARD).await;
        assert_eq!(runs.load(SeqCst), 1);
    };
    run(async {
        let marked = lost("lost-orders", vec![]);
        let unmarked = lost("unmarked-orders", vec![Fault::ResetAfter]);
        tokio::join!(marked, unmarked);
    });
}

/// A follow-up may be put twice before the delete, with the same message id.
#[test]
fn copies_of_a_follow_up_share_their_id() {
    #[derive(Debug, Serialize, Deserialize, Kind)]
    #[message(queue = "followed-up-invoices")]
    struct Invoice(u32);

    run(async {
        let stage = Stage::on("followed-up-orders").await;
        // Creates the queue of the follow-ups.
        stage.direct.submit(Invoice(0)).await.expect("submit");
        let first = stage.direct.accept::<Invoice>().await.expect("accept");
        first
            .expect("a message")
            .complete()
            .await
            .expect("complete");
        stage.submit(1).await;
        let delivery = stage.accept(&stage.proxied).await;
        stage.proxy.script(Call::Put, [Fault::ResetAfter]);
        stage.proxy.script(Call::Delete, [Fault::ResetAfter]);
        let settled = delivery
            .settle(Disposition::complete().then(&Invoice(1)))
            .await;
        assert_eq!(settled.expect("settled"), Settled::Completed);
        assert_eq!(stage.count().await, 0);
        let mut ids = HashSet::new();
        for _ in 0..2 {
            let accepted = stage.direct.accept::<Invoice>().wait(GUARD).await;
            let delivery = accepted.expect("accept").expect("a message");
            assert_eq!(delivery.0, 1);
            ids.insert(delivery.envelope().id.clone());
            delivery.complete().await.expect("complete");
        }
        assert_eq!(ids.len(), 1);
        assert!(
            stage
                .direct
                .accept::<Invoice>()
                .await
                .expect("accept")
                .is_none()
        );
    });
}

/// An outage that outlasts the lease: the settlement fails, and the message becomes visible again.
#[test]
fn a_settlement_that_is_refused_until_the_lease_ends_is_not_done() {
    run(async {
        let stage = Stage::on("stranded-orders").await;
        stage.submit(1).await;
        let delivery = stage.accept(&stage.proxied).await;
        let id = delivery.envelope().id.clone();
        // On an open connection, the outcome of the first try would be unknown.
        stage.proxy.cut().await;
        stage.proxy.refuse_connections().await;
        let started = Instant::now();
        let error = delivery.complete().await.expect_err("refused");
        assert!(started.elapsed() < LEASE + GUARD / 2);
        let problem = &error.kind;
        assert!(
            matches!(problem, SettleErrorKind::NotDone(_)),
            "{problem:?}"
        );
        let again = stage.accept(&stage.direct).await;
        assert_eq!(again.envelope().id, id);
        again.complete().await.expect("complete");
        stage.proxy.accept_connections().await;
        let error = error
            .delivery
            .complete()
            .await
            .expect_err("another client has received it");
        let problem = error.kind;
        assert!(
            matches!(problem, SettleErrorKind::LeaseLost(_)),
            "{problem:?}"
        );
    });
}

/// The answer to creating the poison queue, or to the put on it, is lost. The message is still moved to
/// the poison queue, and copies share its id.
#[test]
fn a_message_moved_to_the_poison_queue_is_never_lost() {
    let moved = |queue: &'static str, lost: Call, created_before: bool, copies: usize| async move {
        let stage = Stage::on(queue).await;
        stage.submit(1).await;
        let poison = stage.direct.any_queue(format!("{queue}-poison"));
        let poison = poison.expect("a name");
        if created_before {
            poison.create().await.expect("create");
        }
        stage.proxy.script(lost, [Fault::ResetAfter]);
        let listener = stage
            .proxied()
            .listener(|_: Received<ShopOrder>| async { Disposition::reject("invalid order") });
        let listener = listener.visibility_timeout(LEASE / 2);
        let listener = listener.idle(ExponentialIdle::up_to(Duration::from_millis(250)));
        let mut events = listener.events();
        let listener = listener.start().expect("start");
        let poisoned =
            |event: &ListenerEventKind| matches!(event, ListenerEventKind::Poisoned { .. });
        let event = next(&mut events, poisoned).await;
        let ListenerEventKind::Poisoned { id, .. } = event else {
            panic!("{event:?}")
        };
        assert_eq!(stage.count().await, 0);
        listener.shutdown(GUARD).await;
        let kept = poison.peek(32).await.expect("peek");
        assert_eq!(kept.len(), copies, "{kept:?}");
        for copy in kept {
            let Body::Event(event) = copy.body else {
                panic!("no event: {copy:?}")
            };
            assert_eq!(event.envelope.id, id);
        }
    };
    run(async {
        tokio::join!(
            moved("created-orders", Call::CreateQueue, false, 1),
            moved("copied-orders", Call::Put, true, 2),
        );
    });
}

/// The repeated put-back finds its receipt stale, which proves that the first one was executed.
#[test]
fn a_put_back_whose_answer_is_lost_counts_one_failure() {
    run(async {
        let stage = Stage::on("retried-orders").await;
        stage.submit(1).await;
        stage.proxy.script(Call::Update, [Fault::ResetAfter]);
        let delivery = stage.accept(&stage.proxied).await;
        let retry = Disposition::retry_after(Duration::ZERO, "not now");
        let settled = delivery.settle(retry).await.expect("settled");
        assert!(matches!(settled, Settled::Retried { .. }), "{settled:?}");
        assert_eq!(stage.proxy.seen(Call::Update).len(), 2);
        let again = stage.accept(&stage.proxied).await;
        assert_eq!(again.attempt(), 2);
        assert_eq!(again.envelope().attempts.failures, 1);
        again.complete().await.expect("complete");
        assert_eq!(stage.count().await, 0);
    });
}

/// The renewal that got no answer has made the receipt stale. The delete that was not executed is repeated
/// with it, and must not be taken for done.
#[test]
fn a_mismatch_by_our_own_renewal_proves_no_delete() {
    run(async {
        let stage = Stage::on("renewed-and-kept-orders").await;
        stage.submit(1).await;
        stage.proxy.script(Call::Update, [Fault::ResetAfter]);
        let delivery = stage.accept(&stage.proxied).await;
        let id = delivery.envelope().id.clone();
        let renewed = |log: &Log| log.seen.iter().any(|seen| seen.call == Call::Update);
        stage.proxy.until(renewed).await;
        stage.proxy.idle().await;
        stage.proxy.script(Call::Delete, [Fault::ResetBefore]);
        let error = delivery.complete().await.expect_err("it is still there");
        let problem = &error.kind;
        assert!(
            matches!(problem, SettleErrorKind::Unknown(_)),
            "{problem:?}"
        );
        let deletes = stage.proxy.seen(Call::Delete);
        let executed: Vec<_> = deletes.iter().map(|seen| seen.executed).collect();
        assert_eq!(executed, [false, true]);
        let again = stage.accept(&stage.direct).await;
        // A receive whose answer comes after the lease has ended is another one.
        assert_eq!(again.envelope().id, id);
        assert!(again.dequeue_count() >= 2, "{}", again.dequeue_count());
        again.complete().await.expect("complete");
        assert_eq!(stage.count().await, 0);
    });
}
