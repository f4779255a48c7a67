//! Messages with a time to live. Their expiry is in the storage's time, and this machine's wall clock is minutes
//! ahead of that or behind it.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use queue_runtime::backend::{Backend, MemoryBackend};
use queue_runtime::clock::ManualClock;
use queue_runtime::envelope::PoisonReason;
use queue_runtime::error::Operation;
use queue_runtime::receive::{SettleErrorKind, Settled};
use queue_runtime::testing::{self, Fault, FaultInjector};
use queue_runtime::{Delivery, Failure, ListenerEventKind, QueueService, Received};
use queue_tests::orders::{NewerOrder, Order, order};
use queue_tests::{MINUTE, SECOND};
use tokio::time::Instant;

use crate::support::{count, events, guarded, poison, stop};

/// A service whose wall clock differs from the storage's. Neither moves by itself.
struct Apart {
    service: QueueService,
    storage: FaultInjector,
    storage_clock: ManualClock,
    clock: ManualClock,
    _folder: tempfile::TempDir,
}

impl Apart {
    /// Services on every backend, with wall clocks that are ten minutes behind, right, and ten minutes ahead.
    async fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for minutes in [-10, 0, 10] {
            for open in [true, false] {
                all.push(Self::open(SignedDuration::from_mins(minutes), open).await);
            }
        }
        all
    }

    async fn open(ahead: SignedDuration, in_memory: bool) -> Self {
        let (storage_clock, clock) = (ManualClock::new(), ManualClock::new());
        let folder = tempfile::tempdir().expect("a folder");
        let backend: Arc<dyn Backend> = if in_memory {
            Arc::new(MemoryBackend::new(Arc::new(storage_clock.clone())))
        } else {
            on_file(&folder, &storage_clock).await
        };
        clock.step_wall_clock(ahead);
        let storage = FaultInjector::new(backend);
        let service =
            QueueService::with_backend(Arc::new(storage.clone())).clock(Arc::new(clock.clone()));
        Self {
            service: service.connect().await.expect("connects"),
            storage,
            storage_clock,
            clock,
            _folder: folder,
        }
    }

    fn advance(&self, duration: Duration) {
        self.storage_clock.advance(duration);
        self.clock.advance(duration);
    }

    /// Submits an order that lives for a minute, and accepts it for so long that no renewal is due.
    async fn accept(&self) -> Delivery<Order> {
        let submit = self.service.submit(order(1)).time_to_live(MINUTE);
        submit.await.expect("submitted");
        let accept = self.service.accept().visibility_timeout(60 * MINUTE);
        accept.await.expect("no error").expect("a message")
    }
}

#[cfg(feature = "sqlite")]
async fn on_file(folder: &tempfile::TempDir, clock: &ManualClock) -> Arc<dyn Backend> {
    use queue_runtime::backend::SqliteBackend;

    let path = folder.path().join("queues.db");
    let backend = SqliteBackend::open(path, Arc::new(clock.clone())).await;
    Arc::new(backend.expect("opens"))
}

#[cfg(not(feature = "sqlite"))]
async fn on_file(_: &tempfile::TempDir, clock: &ManualClock) -> Arc<dyn Backend> {
    Arc::new(MemoryBackend::new(Arc::new(clock.clone())))
}

#[tokio::test]
async fn whether_a_retry_outlives_its_message_is_judged_in_the_storages_time() {
    for apart in Apart::all().await {
        for held in [0, 30] {
            // Two seconds of margin: the last retry must begin before them.
            let (in_time, too_late) = ((57 - held) * SECOND, (58 - held) * SECOND);
            let delivery = apart.accept().await;
            apart.advance(held * SECOND);
            let settled = delivery.retry_after(in_time, "busy").await;
            let (after, error) = (in_time, Failure::retry_after(in_time, "busy"));
            assert_eq!(settled.expect("settled"), Settled::Retried { after, error });
            apart.advance(in_time);
            let again = apart.service.accept::<Order>().await.expect("no error");
            again.expect("it is there").complete().await.expect("done");

            let delivery = apart.accept().await;
            apart.advance(held * SECOND);
            // A step of the wall clock changes nothing.
            apart.clock.step_wall_clock(SignedDuration::from_hours(-1));
            let settled = delivery.retry_after(too_late, "busy").await;
            let expiring = Settled::Poisoned(PoisonReason::Expiring);
            assert_eq!(settled.expect("settled"), expiring);
            apart.clock.step_wall_clock(SignedDuration::from_hours(1));
        }
        let poisoned = poison(&apart.service, "orders-poison").await;
        assert_eq!(poisoned.len(), 2);
        for (record, _) in poisoned {
            let held = record.last.duration_since(record.first).as_secs();
            assert!(
                [0, 30].contains(&held),
                "moved after {held} s, by one clock"
            );
        }
    }
}

#[tokio::test]
async fn whether_a_postponement_outlives_its_message_is_judged_in_the_storages_time() {
    for apart in Apart::all().await {
        // The first postponement is for 0.8 to 1 s.
        for (lives, poisoned) in [(2800, 1), (3001, 0)] {
            let submit = apart.service.submit(NewerOrder { number: 1 });
            let submit = submit.time_to_live(Duration::from_millis(lives));
            submit.await.expect("submitted");
            let accepted = apart.service.accept::<Order>().await.expect("no error");
            assert!(accepted.is_none());
            let left = count(&apart.service, "orders").await;
            assert_eq!(left, 1 - poisoned, "{lives} ms");
            apart.advance(4 * SECOND);
        }
        let found = poison(&apart.service, "orders-poison").await;
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0.reason, PoisonReason::Expiring);
    }
}

#[tokio::test]
async fn a_release_hides_nothing_and_so_is_never_too_late() {
    for apart in Apart::all().await {
        let delivery = apart.accept().await;
        apart.advance(MINUTE - SECOND);
        delivery.release().await.expect("released");
        let again = apart.service.accept::<Order>().await.expect("no error");
        assert_eq!(again.expect("visible for a second").attempt(), 1);
    }
}

#[tokio::test]
async fn an_expired_message_is_told_from_one_that_another_consumer_has() {
    for apart in Apart::all().await {
        let delivery = apart.accept().await;
        let taken = Fault::LeaseLost(MINUTE);
        apart.storage.fail_next(1, Operation::Delete, taken);
        let error = delivery.complete().await.expect_err("another has it");
        let problem = error.kind;
        assert!(
            matches!(problem, SettleErrorKind::LeaseLost(_)),
            "{problem:?}"
        );

        let delivery = apart.accept().await;
        apart.advance(MINUTE);
        let error = delivery.complete().await.expect_err("expired");
        let problem = error.kind;
        assert!(
            matches!(problem, SettleErrorKind::Expired(_)),
            "{problem:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_renewal_ends_before_the_message_expires() {
    let (service, faults) = testing::service_with_faults().await;
    let submit = service.submit(order(1)).time_to_live(100 * SECOND);
    submit.await.expect("submitted");
    faults.set_clock_behind(10 * MINUTE);
    let delivery = service.accept::<Order>().await.expect("no error");
    let delivery = delivery.expect("a message");
    let started = Instant::now();
    let lost = guarded(delivery.cancelled()).await;
    lost.expect("the lease ends");
    // It was renewed at 15, 30, 45 and 60 s for 30 s each, and at 75 s for 23 s.
    assert_eq!(started.elapsed(), 98 * SECOND);
    assert_eq!(faults.calls(Operation::Update), 5);
    let again = service.accept::<Order>().await.expect("no error");
    let again = again.expect("it is seen once more before it expires");
    assert_eq!(again.attempt(), 2);
    drop((delivery, again));
}

#[tokio::test(start_paused = true)]
async fn a_handler_is_told_to_stop_when_its_message_has_expired() {
    let (service, _) = testing::service_with_faults().await;
    let submit = service.submit(order(1)).time_to_live(20 * SECOND);
    submit.await.expect("submitted");
    let listener = service.listener(async |_: Received<Order>| pending::<()>().await);
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    let found = events(&mut seen, 1, |_| true).await;
    assert!(
        matches!(
            &found[..],
            [ListenerEventKind::NotSettled {
                error: SettleErrorKind::Expired(_),
                ..
            }]
        ),
        "{found:?}"
    );
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_outlasts_the_message_is_not_renewed() {
    let (service, faults) = testing::service_with_faults().await;
    faults.set_clock_ahead(10 * MINUTE);
    let submit = service.submit(order(1)).time_to_live(20 * SECOND);
    submit.await.expect("submitted");
    let delivery = service.accept::<Order>().await.expect("no error");
    let delivery = delivery.expect("a message");
    let started = Instant::now();
    let lost = guarded(delivery.cancelled()).await;
    lost.expect("the message expires");
    assert_eq!(
        started.elapsed(),
        22 * SECOND,
        "certainly, so with the margin"
    );
    assert_eq!(faults.calls(Operation::Update), 0);
    let problem = delivery.complete().await.expect_err("expired").kind;
    assert!(
        matches!(problem, SettleErrorKind::Expired(_)),
        "{problem:?}"
    );
}
