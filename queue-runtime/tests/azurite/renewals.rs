//! Leases whose renewals fail.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use queue_runtime::policy::ExponentialIdle;
use queue_runtime::receive::SettleErrorKind;
use queue_runtime::{ListenerEventKind, Received};
use queue_tests::http::Message;
use queue_tests::orders::ShopOrder;
use tokio::runtime::Builder;
use tokio::sync::watch;

use crate::case::run;
use crate::fault::{Call, Fault};
use crate::proxy::{GUARD, Log};
use crate::stage::{LEASE, Stage, next};

/// Returns the number of renewals sent.
fn renewals(log: &Log) -> usize {
    let renewals = log.seen.iter().filter(|seen| seen.call == Call::Update);
    renewals.count()
}

/// The service renews the lease, but the answer with the new receipt is lost. The handler continues; its
/// completion is remembered, and the redelivery is completed without running it again.
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
        let handler = move |received: Received<ShopOrder>| {
            let (runs, cancelled) = (Arc::clone(&counts.0), Arc::clone(&counts.1));
            let mut waiting = waiting.clone();
            async move {
                runs.fetch_add(1, SeqCst);
                let released = waiting.wait_for(|go| *go).await;
                released.expect("the test goes on");
                cancelled.fetch_add(u32::from(received.is_cancelled()), SeqCst);
            }
        };
        let queue = stage.proxied();
        let listener = queue.listener(handler).visibility_timeout(LEASE);
        let listener = listener.idle(ExponentialIdle::up_to(Duration::from_millis(250)));
        let mut events = listener.events();
        let listener = listener.start().expect("start");
        // The second renewal uses the receipt that the first one has made stale.
        stage.proxy.until(|log| renewals(log) >= 2).await;
        go.send_replace(true);
        let completed =
            |event: &ListenerEventKind| matches!(event, ListenerEventKind::Completed { .. });
        let mut unsettled = 0;
        next(&mut events, |event| {
            unsettled += u32::from(matches!(event, ListenerEventKind::NotSettled { .. }));
            completed(event)
        })
        .await;
        assert_eq!(unsettled, 1, "its first settlement is unknown");
        assert_eq!(stage.count().await, 0);
        listener.shutdown(GUARD).await;
        assert_eq!(runs.load(SeqCst), 1);
        assert_eq!(cancelled.load(SeqCst), 0);
    });
}

/// The handler blocks the only worker of the application's runtime for more than two leases. Renewals
/// continue, on connections of the background runtime.
#[test]
fn an_application_whose_threads_are_blocked_loses_no_lease() {
    let mut application = Builder::new_multi_thread();
    let application = application.worker_threads(1).enable_all().build();
    let application = application.expect("threads start");
    run(async {
        let stage = Stage::on("still-orders").await;
        stage.submit(1).await;
        let (free_handler, handler_is_free) = mpsc::channel::<()>();
        let (runs, gate) = (Arc::new(AtomicU32::new(0)), Mutex::new(handler_is_free));
        let shared = Arc::new((Arc::clone(&runs), gate));
        let handler = move |_: Received<ShopOrder>| {
            let shared = Arc::clone(&shared);
            async move {
                let (runs, gate) = &*shared;
                runs.fetch_add(1, SeqCst);
                let gate = gate.lock().expect("nobody panics");
                gate.recv()
                    .expect_err("the gate opens when its sender is dropped");
            }
        };
        let queue = stage.proxied();
        let listener = queue.listener(handler).visibility_timeout(LEASE);
        let mut events = listener.events();
        let listener = {
            let _inside = application.enter();
            listener.start().expect("start")
        };
        // One per half visibility timeout.
        stage.proxy.until(|log| renewals(log) >= 5).await;
        drop(free_handler);
        let done = |event: &ListenerEventKind| matches!(event, ListenerEventKind::Completed { .. });
        next(&mut events, done).await;
        assert_eq!(stage.count().await, 0);
        listener.shutdown(GUARD).await;
        assert_eq!(runs.load(SeqCst), 1);
    });
}

#[test]
fn nothing_is_cancelled_before_the_lease_has_certainly_ended() {
    run(async {
        let stage = Stage::on("doubtful-orders").await;
        stage.submit(1).await;
        stage.proxy.script(Call::Update, [Fault::ResetAfter]);
        let delivery = stage.accept(&stage.proxied).await;
        let id = delivery.envelope().id.clone();
        delivery.cancelled().await;
        let ended = Instant::now();
        let renewal = stage.proxy.seen(Call::Update)[0];
        assert!(renewal.executed);
        let lasted = ended - renewal.at;
        assert!(lasted >= LEASE, "{lasted:?}");
        assert!(lasted < LEASE + GUARD / 2, "{lasted:?}");
        let error = delivery.complete().await.expect_err("the lease is lost");
        let problem = error.kind;
        assert!(
            matches!(problem, SettleErrorKind::LeaseLost(_)),
            "{problem:?}"
        );
        let again = stage.accept(&stage.direct).await;
        assert_eq!(again.envelope().id, id);
        // A receive whose answer comes after the lease has ended is another one.
        assert!(again.dequeue_count() >= 2, "{}", again.dequeue_count());
        again.complete().await.expect("complete");
        assert_eq!(stage.count().await, 0);
    });
}

/// Two renewals do not reach the service; the next one does, before the lease has ended.
#[test]
fn a_failed_renewal_is_repeated() {
    run(async {
        let stage = Stage::on("kept-orders").await;
        stage.submit(1).await;
        let code = [("x-ms-request-id", "7f"), ("x-ms-error-code", "ServerBusy")];
        let busy = Message::answer("503 Busy", &code, "");
        let faults = [Fault::Instead(busy), Fault::ResetBefore];
        stage.proxy.script(Call::Update, faults);
        let delivery = stage.accept(&stage.proxied).await;
        // By the second renewal that succeeds, the original lease would have ended.
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
