//! Settlements and receives whose answers are lost: nothing is lost or run again with them.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

use queue_runtime::policy::ExponentialIdle;
use queue_runtime::wire::Body;
use queue_runtime::{
    Disposition, ListenerEvent, Message as Kind, Received, SettleProblem, Settled,
};
use serde::{Deserialize, Serialize};

use crate::case::run;
use crate::fault::{Call, Fault};
use crate::proxy::GUARD;
use crate::stage::{LEASE, Order, Stage, next};

#[test]
fn a_delete_whose_answer_is_lost_is_done() {
    run(async {
        let stage = Stage::on("deleted-orders").await;
        stage.submit(1).await;
        let lost = [Fault::ResetAfter, Fault::ResetBefore, Fault::HalfHead];
        stage.proxy.script(Call::Delete, lost);
        let runs = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&runs);
        let handler = move |_: Received<Order>| {
            counted.fetch_add(1, SeqCst);
            async {}
        };
        let queue = stage.harmed();
        let listener = queue.listener(handler).visibility_timeout(LEASE);
        let mut events = listener.events();
        let listener = listener.start().expect("start");
        let settled = |event: &ListenerEvent| {
            let failed = matches!(event, ListenerEvent::NotSettled { .. });
            failed || matches!(event, ListenerEvent::Completed { .. })
        };
        let event = next(&mut events, settled).await;
        assert!(
            matches!(event, ListenerEvent::Completed { .. }),
            "{event:?}"
        );
        assert_eq!(stage.proxy.seen(Call::Delete).len(), 4);
        assert_eq!(stage.count().await, 0);
        listener.shutdown(GUARD).await;
        assert_eq!(runs.load(SeqCst), 1);
    });
}

/// The service leased the message to nobody, again and again; no handler has seen it, so it is not
/// poison yet, not even when the answer to the mark that says so is lost too.
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
        let handler = move |_: Received<Order>| {
            counted.fetch_add(1, SeqCst);
            async {}
        };
        let listener = stage.harmed().listener(handler);
        let listener = listener.visibility_timeout(LEASE / 2).poison_threshold(2);
        let listener = listener.idle(ExponentialIdle::up_to(Duration::from_millis(250)));
        let mut events = listener.events();
        let listener = listener.start().expect("start");
        let settled = |event: &ListenerEvent| {
            let poisoned = matches!(event, ListenerEvent::Poisoned { .. });
            poisoned || matches!(event, ListenerEvent::Completed { .. })
        };
        let event = next(&mut events, settled).await;
        let completed = matches!(event, ListenerEvent::Completed { .. });
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

/// What stands before the delete may be done twice, under one id.
#[test]
fn a_follow_up_whose_answer_is_lost_is_recognisable() {
    #[derive(Debug, Serialize, Deserialize, Kind)]
    #[message(queue = "followed-up-invoices")]
    struct Invoice(u32);

    run(async {
        let stage = Stage::on("followed-up-orders").await;
        // So that its queue is there.
        stage.beside.submit(Invoice(0)).await.expect("submit");
        let first = stage.beside.accept::<Invoice>().await.expect("accept");
        first
            .expect("a message")
            .complete()
            .await
            .expect("complete");
        stage.submit(1).await;
        let delivery = stage.accept(&stage.harmed).await;
        stage.proxy.script(Call::Put, [Fault::ResetAfter]);
        stage.proxy.script(Call::Delete, [Fault::ResetAfter]);
        let fate = delivery
            .settle(Disposition::complete().then(&Invoice(1)))
            .await;
        assert_eq!(fate.expect("settled"), Settled::Completed);
        assert_eq!(stage.count().await, 0);
        let mut ids = HashSet::new();
        for _ in 0..2 {
            let accepted = stage.beside.accept::<Invoice>().wait(GUARD).await;
            let delivery = accepted.expect("accept").expect("a message");
            assert_eq!(delivery.0, 1);
            ids.insert(delivery.envelope().id.clone());
            delivery.complete().await.expect("complete");
        }
        assert_eq!(ids.len(), 1);
        assert!(
            stage
                .beside
                .accept::<Invoice>()
                .await
                .expect("accept")
                .is_none()
        );
    });
}

/// An outage that outlasts the lease: the settlement says so, and the message comes back.
#[test]
fn a_settlement_that_is_refused_to_the_end_is_not_done() {
    run(async {
        let stage = Stage::on("stranded-orders").await;
        stage.submit(1).await;
        let delivery = stage.accept(&stage.harmed).await;
        let id = delivery.envelope().id.clone();
        // A connection whose end the client has not seen yet would leave the first try unknown.
        stage.proxy.cut().await;
        stage.proxy.refuse().await;
        let started = Instant::now();
        let error = delivery.complete().await.expect_err("refused");
        assert!(started.elapsed() < LEASE + GUARD / 2);
        let problem = &error.problem;
        assert!(matches!(problem, SettleProblem::NotDone(_)), "{problem:?}");
        let again = stage.accept(&stage.beside).await;
        assert_eq!(again.envelope().id, id);
        again.complete().await.expect("complete");
        stage.proxy.admit().await;
        let error = error
            .delivery
            .complete()
            .await
            .expect_err("it is another's");
        let problem = error.problem;
        assert!(
            matches!(problem, SettleProblem::LeaseLost(_)),
            "{problem:?}"
        );
    });
}

/// The poison queue is made, or the copy is put, and nobody hears of it. The message is set aside all
/// the same, and copies share its id.
#[test]
fn what_is_set_aside_is_never_dropped() {
    let set_aside = |queue: &'static str, lost: Call, made_before: bool, copies: usize| async move {
        let stage = Stage::on(queue).await;
        stage.submit(1).await;
        let poison = stage.beside.queue_at(&format!("{queue}-poison"));
        let poison = poison.expect("a name");
        if made_before {
            poison.create().await.expect("create");
        }
        stage.proxy.script(lost, [Fault::ResetAfter]);
        let listener = stage
            .harmed()
            .listener(|_: Received<Order>| async { Disposition::reject("it is never any good") });
        let listener = listener.visibility_timeout(LEASE / 2);
        let listener = listener.idle(ExponentialIdle::up_to(Duration::from_millis(250)));
        let mut events = listener.events();
        let listener = listener.start().expect("start");
        let poisoned = |event: &ListenerEvent| matches!(event, ListenerEvent::Poisoned { .. });
        let event = next(&mut events, poisoned).await;
        let ListenerEvent::Poisoned { id, .. } = event else {
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
            set_aside("made-orders", Call::CreateQueue, false, 1),
            set_aside("copied-orders", Call::Put, true, 2),
        );
    });
}

/// The repeat finds its receipt stale, which after a put-back of its own proves that it was done.
#[test]
fn a_put_back_whose_answer_is_lost_counts_one_failure() {
    run(async {
        let stage = Stage::on("retried-orders").await;
        stage.submit(1).await;
        stage.proxy.script(Call::Update, [Fault::ResetAfter]);
        let delivery = stage.accept(&stage.harmed).await;
        let retry = Disposition::retry_after(Duration::ZERO, "not now");
        let fate = delivery.settle(retry).await.expect("settled");
        assert!(matches!(fate, Settled::Retried { .. }), "{fate:?}");
        assert_eq!(stage.proxy.seen(Call::Update).len(), 2);
        let again = stage.accept(&stage.harmed).await;
        assert_eq!(again.attempt(), 2);
        assert_eq!(again.envelope().attempts.failures, 1);
        again.complete().await.expect("complete");
        assert_eq!(stage.count().await, 0);
    });
}
