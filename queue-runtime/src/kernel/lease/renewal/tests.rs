use queue_core::backend::{BackendExt as _, Metadata, NewMessage, ReceivedMessage, TimeToLive};
use queue_core::{ErrorKind, Operation, QueueName};
use tokio::time::timeout;

use super::*;
use crate::backend::MemoryBackend;
use crate::kernel::lease::{Lease, Receive};
use crate::testing::{Fault, FaultInjector, TokioClock};

const VISIBILITY: u64 = 64;
const FOREVER: u64 = 1_000_000;

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Renewals in paused time, and one lease of 64 s that began when the test did.
struct Stage {
    renewals: Renewals,
    lease: Lease,
    faults: FaultInjector,
    clock: TokioClock,
    begun: Duration,
}

impl Stage {
    /// The message lives for `life` seconds, and its lease is renewed for `renew_for`.
    async fn with(life: u64, renew_for: u64) -> Self {
        let clock = TokioClock::new();
        let shared = Arc::new(clock.clone());
        let faults = FaultInjector::new(Arc::new(MemoryBackend::new(shared.clone())));
        let begun = clock.monotonic();
        let (queue, message, receive) = received(&faults, begun, life).await;
        let renewals = Renewals::new(Arc::new(faults.clone()), shared);
        let renew_for = seconds(renew_for);
        let lease = Lease::hold(&renewals, &queue, &message, receive, renew_for);
        Self {
            renewals,
            lease,
            faults,
            clock,
            begun,
        }
    }

    async fn new() -> Self {
        Self::with(FOREVER, FOREVER).await
    }

    /// Waits until the lease is to be checked. Returns how long after the receive that is.
    async fn due(&self) -> Duration {
        let due = self.renewals.0.renewals.due(&self.clock);
        let due = timeout(seconds(1000), due).await.expect("it is scheduled");
        assert_eq!(due.len(), 1);
        self.clock.monotonic() - self.begun
    }

    /// Checks the lease when it is due. Returns when it is due next.
    async fn check(&self) -> Duration {
        self.due().await;
        self.lease.0.check().await;
        self.due().await
    }

    /// Checks the lease when it is due, and once more when it is due after that, which is the end.
    async fn assert_lost_at(&self, end: u64) {
        assert_eq!(self.check().await, seconds(end));
        assert!(!self.is_lost());
        self.lease.0.check().await;
        assert!(self.is_lost());
    }

    fn is_lost(&self) -> bool {
        self.lease.0.cancellation.cause().is_some()
    }

    /// The number of renewals that were sent.
    fn sent(&self) -> usize {
        self.faults.calls(Operation::Update)
    }

    fn fail(&self, fault: Fault) {
        self.faults.fail_next(1, Operation::Update, fault);
    }
}

/// Receives a message that lives for `life` seconds.
async fn received(
    backend: &FaultInjector,
    now: Duration,
    life: u64,
) -> (QueueName, ReceivedMessage, Receive) {
    let queue = QueueName::from_static("orders");
    let created = backend.create_queue(&queue, &Metadata::new()).await;
    created.expect("created");
    let message = NewMessage::new("one");
    let message = message.with_time_to_live(TimeToLive::After(seconds(life)));
    backend.put(&queue, message).await.expect("put");
    let message = backend.receive(&queue, 1, seconds(VISIBILITY)).await;
    let message = message.expect("received").pop().expect("visible");
    let receive = Receive {
        asked_at: now,
        answered_at: now,
        visibility: seconds(VISIBILITY),
        renewal: seconds(VISIBILITY),
    };
    (queue, message, receive)
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_at_half_of_its_visibility_timeout() {
    let stage = Stage::new().await;
    assert_eq!(stage.check().await, seconds(64));
    assert_eq!(stage.sent(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_not_yet_due_is_looked_at_when_it_is() {
    let stage = Stage::new().await;
    stage.lease.0.check().await;
    assert_eq!((stage.due().await, stage.sent()), (seconds(32), 0));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_for_good_is_final() {
    let stage = Stage::new().await;
    stage.fail(Fault::Refused(ErrorKind::Denied));
    stage.assert_lost_at(64).await;
    assert_eq!(stage.sent(), 1);
}

/// After a sixteenth of the visibility timeout, half of which is added or taken off at random.
#[tokio::test(start_paused = true)]
async fn a_temporary_failure_is_repeated_soon() {
    for _ in 0..20 {
        let stage = Stage::new().await;
        stage.fail(Fault::Refused(ErrorKind::Unreachable));
        let next = stage.check().await;
        assert!((seconds(34)..=seconds(38)).contains(&next), "{next:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_throttled_renewal_is_repeated_when_the_service_asks_and_within_the_lease() {
    for (asked, next) in [
        (None, 40),
        (Some(5), 37),
        (Some(0), 33),
        // Half of what remains of the lease.
        (Some(1000), 48),
    ] {
        let stage = Stage::new().await;
        stage.fail(Fault::Throttled(asked.map(seconds)));
        assert_eq!(stage.check().await, seconds(next), "{asked:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_another_has_is_lost_at_once() {
    let stage = Stage::new().await;
    stage.fail(Fault::LeaseLost(seconds(1000)));
    stage.due().await;
    stage.lease.0.check().await;
    assert!(stage.is_lost());
}

/// The renewal without an answer was carried out, so that the receipt of the next one is stale.
#[tokio::test(start_paused = true)]
async fn a_stale_receipt_after_a_renewal_without_an_answer_loses_nothing_before_the_certain_end() {
    let stage = Stage::new().await;
    stage.fail(Fault::AnswerLost);
    let next = stage.check().await;
    assert!(next < seconds(40), "{next:?}");
    stage.lease.0.check().await;
    assert_eq!((stage.due().await, stage.is_lost()), (seconds(96), false));
    stage.lease.0.check().await;
    assert_eq!((stage.is_lost(), stage.sent()), (true, 2));
}

#[tokio::test(start_paused = true)]
async fn after_the_known_end_no_renewal_is_sent_in_vain() {
    let stage = Stage::new().await;
    stage
        .faults
        .fail_every(Operation::Update, Fault::RequestLost);
    let mut due = stage.due().await;
    while due < seconds(64) {
        stage.lease.0.check().await;
        due = stage.due().await;
    }
    let sent = stage.sent();
    stage.lease.0.check().await;
    assert_eq!(stage.sent(), sent);
    let end = stage.due().await;
    assert!((seconds(96)..seconds(128)).contains(&end), "{end:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_no_longer_than_it_is_to_be() {
    // Due at 64 s again.
    for (renew_for, sent) in [(64, 1), (65, 2)] {
        let stage = Stage::with(FOREVER, renew_for).await;
        assert_eq!(stage.check().await, seconds(64));
        stage.lease.0.check().await;
        assert_eq!((stage.due().await, stage.sent()), (seconds(96), sent));
    }
    let stage = Stage::new().await;
    stage.lease.0.machine().renew_until(seconds(0));
    stage.assert_lost_at(64).await;
    assert_eq!(stage.sent(), 0);
}

/// The first renewal ends 2 s before the message expires; another one would end then, too.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_prolongs_nothing_is_not_sent() {
    let stage = Stage::with(70, FOREVER).await;
    assert_eq!(stage.check().await, seconds(36));
    stage.lease.0.check().await;
    assert_eq!((stage.due().await, stage.sent()), (seconds(68), 1));
}

#[tokio::test(start_paused = true)]
async fn neither_a_settled_lease_nor_one_that_is_forgotten_is_renewed() {
    let stage = Stage::new().await;
    stage.due().await;
    stage.lease.0.machine().settled();
    stage.lease.0.check().await;
    assert_eq!((stage.sent(), stage.is_lost()), (0, false));

    let stage = Stage::new().await;
    stage.due().await;
    stage.lease.abandon();
    stage.lease.0.check().await;
    assert_eq!((stage.sent(), stage.is_lost()), (0, false));
}

/// Also while the lease itself is still there: a renewal may have waited for the settlement.
#[tokio::test(start_paused = true)]
async fn a_settled_lease_has_no_receipt_and_is_not_renewed() {
    let clock = Arc::new(TokioClock::new());
    let backend = FaultInjector::new(Arc::new(MemoryBackend::new(clock.clone())));
    let renewals = Renewals::new(Arc::new(backend.clone()), clock.clone());
    let (queue, message, receive) = received(&backend, clock.monotonic(), FOREVER).await;
    let lease = Lease::hold(&renewals, &queue, &message, receive, seconds(FOREVER));
    tokio::spawn(renewals.clone().run());
    let mut locked = lease.lock().await;
    locked.receipt().expect("it is held");
    // The renewal waits for the lock.
    clock.sleep(seconds(40)).await;
    locked.settled();
    assert!(locked.receipt().is_err());
    drop(locked);
    clock.sleep(seconds(1000)).await;
    assert_eq!(backend.calls(Operation::Update), 0);
    assert!(lease.cancellation().cause().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_panics_is_repeated() {
    let stage = Stage::new().await;
    assert_eq!(stage.due().await, seconds(32));
    let panic = catch_async(async { panic!("a panic of the backend") }).await;
    let panic = panic.map(|()| "no panic").expect_err("it panics");
    stage.lease.0.panicked(&panic);
    assert_eq!(stage.due().await, seconds(36));
}

/// Half of what remains of the lease, or a quarter of the visibility timeout after its end.
#[tokio::test(start_paused = true)]
async fn a_renewal_without_an_answer_is_given_up() {
    for (sent_at, given_up_at) in [(32, 48), (64, 80)] {
        let stage = Stage::new().await;
        stage.fail(Fault::Stalled);
        stage.clock.sleep(seconds(sent_at)).await;
        let mut turn = stage.lease.0.turn.lock().await;
        let answer = stage.lease.0.extend(&mut turn, None).await;
        assert_eq!(answer.expect_err("none").kind(), ErrorKind::Timeout);
        let at = stage.clock.monotonic() - stage.begun;
        assert_eq!(at, seconds(given_up_at));
    }
}
