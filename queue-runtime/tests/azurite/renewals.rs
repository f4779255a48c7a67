//! Leases whose renewals meet with a fault.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use queue_runtime::policy::ExponentialIdle;
use queue_runtime::{ListenerEvent, Received, SettleProblem};
use queue_tests::http::Message;
use tokio::runtime::Builder;
use tokio::sync::watch;

use crate::case::run;
use crate::fault::{Call, Fault};
use crate::proxy::{GUARD, Log};
use crate::stage::{LEASE, Order, Stage, next};

/// How many renewals were sent.
fn renewals(log: &Log) -> usize {
    let renewals = log.seen.iter().filter(|seen| seen.call == Call::Update);
    renewals.count()
}

/// The service renewed the lease and took its new receipt with it. The handler goes on; what it did is
/// remembered, and the redelivery is acknowledged without another run.
#[test]
fn a_handler_whose_renewal_went_unanswered_is_neither_cancelled_nor_run_again() {
    run(async {
        let stage = Stage::on("renewed-orders").await;
        stage.submit(1).await;
        stage.proxy.script(Call::Update, [Fault::ResetAfter]);
        let runs = Arc::new(AtomicU32::new(0));
        let cancelled = Arc::new(AtomicU32::new(0));
        let (go, waiting) = watch::channel(false);
        let counts = (Arc::clone(&runs), Arc::clone(&cancelled));
        let handler = move |received: Received<Order>| {
            let (runs, cancelled) = (Arc::clone(&counts.0), Arc::clone(&counts.1));
            let mut waiting = waiting.clone();
            async move {
                runs.fetch_add(1, SeqCst);
                let released = waiting.wait_for(|go| *go).await;
                released.expect("the test goes on");
                cancelled.fetch_add(u32::from(received.is_cancelled()), SeqCst);
            }
        };
        let queue = stage.harmed();
        let listener = queue.listener(handler).visibility_timeout(LEASE);
        let listener = listener.idle(ExponentialIdle::up_to(Duration::from_millis(250)));
        let mut events = listener.events();
        let listener = listener.start().expect("start");
        // The second is the keeper's next try, with the receipt that the first has made stale.
        stage.proxy.until(|log| renewals(log) >= 2).await;
        go.send_replace(true);
        let gone_through = |event: &ListenerEvent| matches!(event, ListenerEvent::Completed { .. });
        let mut unsettled = 0;
        next(&mut events, |event| {
            unsettled += u32::from(matches!(event, ListenerEvent::NotSettled { .. }));
            gone_through(event)
        })
        .await;
        assert_eq!(unsettled, 1, "its first settlement is unknown");
        assert_eq!(stage.count().await, 0);
        listener.shutdown(GUARD).await;
        assert_eq!(runs.load(SeqCst), 1);
        assert_eq!(cancelled.load(SeqCst), 0);
    });
}

/// The handler blocks its thread, and something else the only worker of the application's runtime, for
/// more than two leases. The renewals go on, on connections of the service's own thread.
#[test]
fn an_application_that_stands_still_loses_no_lease() {
    let application = Builder::new_multi_thread().worker_threads(1).build();
    let application = application.expect("threads start");
    run(async {
        let stage = Stage::on("still-orders").await;
        stage.submit(1).await;
        let (free_worker, worker_is_free) = mpsc::channel::<()>();
        let (free_handler, handler_is_free) = mpsc::channel::<()>();
        application.spawn(async move { worker_is_free.recv() });
        let (runs, gate) = (Arc::new(AtomicU32::new(0)), Mutex::new(handler_is_free));
        let shared = Arc::new((Arc::clone(&runs), gate));
        let handler = move |_: Received<Order>| {
            let shared = Arc::clone(&shared);
            async move {
                let (runs, gate) = &*shared;
                runs.fetch_add(1, SeqCst);
                let gate = gate.lock().expect("nobody panics");
                gate.recv().expect_err("the gate opens by its end");
            }
        };
        let queue = stage.harmed();
        let listener = queue.listener(handler).visibility_timeout(LEASE);
        let mut events = listener.events();
        let listener = {
            let _inside = application.enter();
            listener.start().expect("start")
        };
        // One each half lease.
        stage.proxy.until(|log| renewals(log) >= 5).await;
        drop((free_worker, free_handler));
        let done = |event: &ListenerEvent| matches!(event, ListenerEvent::Completed { .. });
        next(&mut events, done).await;
        assert_eq!(stage.count().await, 0);
        listener.shutdown(GUARD).await;
        assert_eq!(runs.load(SeqCst), 1);
    });
}

#[test]
fn nothing_is_cancelled_before_the_certain_end_of_a_lease() {
    run(async {
        let stage = Stage::on("doubtful-orders").await;
        stage.submit(1).await;
        stage.proxy.script(Call::Update, [Fault::ResetAfter]);
        let delivery = stage.accept(&stage.harmed).await;
        let id = delivery.envelope().id.clone();
        delivery.cancelled().await;
        let ended = Instant::now();
        let renewal = stage.proxy.seen(Call::Update)[0];
        assert!(renewal.executed);
        let lasted = ended - renewal.at;
        assert!(lasted >= LEASE, "{lasted:?}");
        assert!(lasted < LEASE + GUARD / 2, "{lasted:?}");
        let error = delivery.complete().await.expect_err("it is lost");
        let problem = error.problem;
        assert!(
            matches!(problem, SettleProblem::LeaseLost(_)),
            "{problem:?}"
        );
        let again = stage.accept(&stage.beside).await;
        assert_eq!(again.envelope().id, id);
        assert_eq!(again.dequeue_count(), 2);
        again.complete().await.expect("complete");
        assert_eq!(stage.count().await, 0);
    });
}

/// The renewals do not reach the service for a while; then one does, before the lease has ended.
#[test]
fn a_renewal_that_did_not_arrive_is_sent_again() {
    run(async {
        let stage = Stage::on("kept-orders").await;
        stage.submit(1).await;
        let busy = Message::answer("503 Busy", &[("x-ms-error-code", "ServerBusy")], "");
        let faults = [Fault::Instead(busy), Fault::ResetBefore];
        stage.proxy.script(Call::Update, faults);
        let delivery = stage.accept(&stage.harmed).await;
        // One renewal after the first that succeeded, by when the first lease is over.
        let renewed = |log: &Log| {
            let mut renewals = log.seen.iter();
            renewals
                .by_ref()
                .filter(|seen| seen.call == Call::Update)
                .count()
                >= 4
        };
        stage.proxy.until(renewed).await;
        assert!(!delivery.is_cancelled());
        assert_eq!(delivery.dequeue_count(), 1);
        delivery.complete().await.expect("complete");
        assert_eq!(stage.count().await, 0);
    });
}
