//! The runtime over a service that fails on the way: what a user of messages sees of it.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

use queue_runtime::policy::ExponentialIdle;
use queue_runtime::{
    Delivery, ErrorKind, ListenerEvent, Message as Kind, QueueService, Received, SettleProblem,
    SubmitProblem,
};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;

use crate::case::{PATIENCE, connect, run};
use crate::fault::{Call, Fault};
use crate::http::Message;
use crate::proxy::{GUARD, Proxy};
use crate::server::SERVER;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Kind)]
struct Order {
    #[message(key)]
    number: u32,
}

/// Short, so that a test can wait for its end.
const LEASE: Duration = Duration::from_secs(4);

/// A service behind a proxy, and one beside it.
struct Stage {
    proxy: Proxy,
    harmed: QueueService,
    beside: QueueService,
    queue: &'static str,
}

impl Stage {
    async fn on(queue: &'static str) -> Self {
        let proxy = Proxy::open().await;
        let service = async |url: &str| {
            let backend = Arc::new(connect(url, PATIENCE).await);
            QueueService::over(backend)
                .connect()
                .await
                .expect("connect")
        };
        Self {
            harmed: service(&proxy.connection_string()).await,
            beside: service(&SERVER.connection_string()).await,
            proxy,
            queue,
        }
    }

    async fn submit(&self, number: u32) {
        let queue = self
            .beside
            .queue_named::<Order>(self.queue)
            .expect("a name");
        queue.submit(Order { number }).await.expect("submit");
    }

    async fn accept(&self, service: &QueueService) -> Delivery<Order> {
        let queue = service.queue_named::<Order>(self.queue).expect("a name");
        let accepted = queue.accept().visibility_timeout(LEASE).wait(GUARD).await;
        accepted.expect("accept").expect("a message")
    }

    async fn count(&self) -> u64 {
        let queue = self.beside.queue_at(self.queue).expect("a name");
        let properties = queue.properties().await.expect("properties");
        properties.approximate_count
    }
}

async fn next(
    events: &mut broadcast::Receiver<ListenerEvent>,
    mut wanted: impl FnMut(&ListenerEvent) -> bool,
) -> ListenerEvent {
    let found = async {
        loop {
            let event = events.recv().await.expect("the listener runs");
            if wanted(&event) {
                return event;
            }
        }
    };
    let found = tokio::time::timeout(GUARD, found).await;
    found.expect("in time")
}

#[test]
fn an_unknown_submission_is_repeated_under_its_id() {
    run(async {
        let stage = Stage::on("unknown-orders").await;
        stage.submit(0).await;
        stage
            .accept(&stage.beside)
            .await
            .complete()
            .await
            .expect("complete");
        let queue = stage
            .harmed
            .queue_named::<Order>(stage.queue)
            .expect("a name");
        for (fault, copies) in [(Fault::ResetAfter, 2), (Fault::ResetBefore, 1)] {
            stage.proxy.script(Call::Put, [fault]);
            let order = Order { number: copies };
            let error = queue.submit(order.clone()).await.expect_err("no answer");
            assert!(error.is_unknown(), "{error:?}");
            assert_eq!(error.message, order);
            let id = error.id.expect("it got as far as that");
            let again = queue.submit(error.message).id(id.as_str()).await;
            assert_eq!(again.expect("submitted").id, id);
            let mut keys = HashSet::new();
            for _ in 0..copies {
                let delivery = stage.accept(&stage.beside).await;
                assert_eq!(delivery.envelope().id, id);
                assert_eq!(*delivery.message(), order);
                delivery.complete().await.expect("complete");
            }
            assert_eq!(stage.count().await, 0);
            keys.insert(id);
        }
        assert_eq!(stage.proxy.seen(Call::Put).len(), 4);
    });
}

/// Nothing was done, and the error says so: the repeat is no duplicate.
#[test]
fn a_submission_that_was_refused_is_not_done() {
    run(async {
        let stage = Stage::on("refused-orders").await;
        stage.proxy.refuse().await;
        let queue = stage
            .harmed
            .queue_named::<Order>(stage.queue)
            .expect("a name");
        let error = queue
            .submit(Order { number: 1 })
            .await
            .expect_err("refused");
        assert!(!error.is_unknown(), "{error:?}");
        let SubmitProblem::Storage(problem) = &error.problem else {
            panic!("{error:?}")
        };
        assert_eq!(problem.kind(), ErrorKind::Unreachable);
        stage.proxy.admit().await;
        queue.submit(error.message).await.expect("submitted");
        assert_eq!(stage.count().await, 1);
    });
}

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
        let queue = stage
            .harmed
            .queue_named::<Order>(stage.queue)
            .expect("a name");
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
        let (go, waiting) = tokio::sync::watch::channel(false);
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
        let queue = stage
            .harmed
            .queue_named::<Order>(stage.queue)
            .expect("a name");
        let listener = queue.listener(handler).visibility_timeout(LEASE);
        let listener = listener.idle(ExponentialIdle::up_to(Duration::from_millis(250)));
        let mut events = listener.events();
        let listener = listener.start().expect("start");
        // The second is the keeper's next try, with the receipt that the first has made stale.
        let tried = |count| {
            let renewals = move |seen: &&crate::proxy::Seen| seen.call == Call::Update;
            stage
                .proxy
                .until(move |log| log.seen.iter().filter(renewals).count() >= count)
        };
        tried(2).await;
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
        let renewed = |log: &crate::proxy::Log| {
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

#[test]
fn an_outage_is_waited_out_with_jitter() {
    run(async {
        let stage = Stage::on("idle-orders").await;
        stage.submit(0).await;
        let queue = stage
            .harmed
            .queue_named::<Order>(stage.queue)
            .expect("a name");
        let listener = queue.listener(|_: Received<Order>| async {});
        let listener = listener.idle(ExponentialIdle::up_to(Duration::from_millis(250)));
        let mut events = listener.events();
        let listener = listener.start().expect("start");
        let done = |event: &ListenerEvent| matches!(event, ListenerEvent::Completed { .. });
        next(&mut events, done).await;
        let failed = |event: &ListenerEvent| matches!(event, ListenerEvent::ReceiveFailed { .. });
        let pause = |event| match event {
            ListenerEvent::ReceiveFailed { after, .. } => after,
            other => panic!("{other:?}"),
        };

        stage.proxy.refuse().await;
        let mut ratios = HashSet::new();
        let mut first = pause(next(&mut events, failed).await);
        // The receive that was on its way may have been broken off: then this is still the first.
        for ceiling in [400, 800, 1600].map(Duration::from_millis) {
            let second = pause(next(&mut events, failed).await);
            assert!(second >= ceiling / 2 && second <= ceiling, "{second:?}");
            ratios.insert((second.as_secs_f64() / ceiling.as_secs_f64() * 1000.0) as u32);
            first = first.max(second);
        }
        assert!(ratios.len() > 1, "no jitter: {ratios:?}");
        let empty = listener.info().empty_receives;

        let asked = [("x-ms-error-code", "ServerBusy"), ("Retry-After", "2")];
        let busy = Message::answer("503 Busy", &asked, "");
        stage.proxy.script(Call::Receive, [Fault::Instead(busy)]);
        stage.proxy.always(Some(Fault::ResetBefore));
        stage.proxy.admit().await;
        let two = Duration::from_secs(2);
        let as_asked = |event: &ListenerEvent| matches!(event, ListenerEvent::ReceiveFailed { after, .. } if *after == two);
        next(&mut events, as_asked).await;
        let longest = pause(next(&mut events, failed).await);
        assert_eq!(
            listener.info().empty_receives,
            empty,
            "an outage is no idleness"
        );

        stage.submit(1).await;
        stage.proxy.always(None);
        let over = Instant::now();
        next(&mut events, done).await;
        assert!(over.elapsed() < longest + GUARD / 2, "{longest:?}");
        assert_eq!(stage.count().await, 0);
        assert_eq!(listener.info().completed, 2);
        listener.shutdown(GUARD).await;
    });
}
