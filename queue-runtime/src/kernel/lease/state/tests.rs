use queue_core::ManualClock;
use queue_core::backend::{Metadata, NewMessage, TimeToLive};
use queue_tests::SECOND;

use super::*;
use crate::backend::MemoryBackend;
use crate::kernel::lease::machine::{Loss, Next};
use crate::testing::{Fault, FaultInjector};

const VISIBILITY: Duration = Duration::from_secs(30);

/// Leases a message for 30 s that expires after `life`. The receive is answered two seconds after it was sent;
/// the storage carries it out in between.
async fn leased(life: Duration) -> (Leased, FaultInjector, ManualClock) {
    let clock = ManualClock::new();
    let backend = MemoryBackend::new(Arc::new(clock.clone()));
    let faults = FaultInjector::new(Arc::new(backend));
    let queue: QueueName = "orders".parse().expect("a name");
    let created = faults.create_queue(&queue, &Metadata::new()).await;
    created.expect("created");
    let message = NewMessage::new("one").with_time_to_live(TimeToLive::After(life));
    faults.put(&queue, message).await.expect("put");
    let asked_at = clock.monotonic();
    clock.advance(SECOND);
    let message = faults.receive(&queue, 1, VISIBILITY).await;
    let message = message.expect("received").pop().expect("visible");
    clock.advance(SECOND);
    let receive = Receive {
        asked_at,
        answered_at: clock.monotonic(),
        visibility: VISIBILITY,
        renewal: VISIBILITY,
    };
    let shared = LeasesShared {
        backend: Arc::new(faults.clone()),
        clock: Arc::new(clock.clone()),
        renewals: DelayQueue::default(),
        unrenewed: Default::default(),
    };
    let shared = Arc::new(shared);
    let leased = Leased::new(shared, &queue, &message, receive, SECOND * 300);
    (leased, faults, clock)
}

fn ends(leased: &Leased) -> (u64, u64) {
    let (machine, now) = (leased.machine(), leased.now());
    let certain_end = now + machine.remaining(now);
    (machine.known_end().as_secs(), certain_end.as_secs())
}

fn next_visibility(leased: &Leased) -> Result<Duration, Impossible> {
    let renewal = leased.machine().renewal(leased.now());
    renewal.map(|renewal| renewal.visibility)
}

#[tokio::test]
async fn a_lease_ends_with_the_message() {
    let (leased, ..) = leased(SECOND * 100).await;
    assert_eq!(ends(&leased), (30, 32));
    // From the receive it lives for 19 s: counted from the request, and from the answer with the margin.
    let (leased, _, clock) = self::leased(SECOND * 20).await;
    assert_eq!(ends(&leased), (19, 23));
    clock.advance(SECOND * 16);
    assert!(!leased.is_overdue());
    clock.advance(SECOND);
    let check = || leased.machine().check(clock.monotonic());
    assert!(leased.is_overdue() && check() == Next::CheckAt(SECOND * 23));
    clock.advance(SECOND * 4);
    assert_eq!(check(), Next::Lost(Loss::Expired));
}

#[tokio::test]
async fn a_renewal_ends_before_the_message_does() {
    let (leased, _, clock) = leased(SECOND * 60).await;
    assert_eq!(next_visibility(&leased), Ok(VISIBILITY));
    clock.advance(SECOND * 38);
    assert_eq!(next_visibility(&leased), Ok(SECOND * 17));
    let mut turn = leased.turn.lock().await;
    leased.extend(&mut turn, None).await.expect("renewed");
    assert_eq!(ends(&leased), (57, 57));
    clock.advance(SECOND * 17);
    assert_eq!(next_visibility(&leased), Err(Impossible::Expiring));
    let error = leased.extend(&mut turn, None).await.expect_err("too late");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(leased.machine().is_held(), "it can still be settled");
}

#[tokio::test]
async fn a_rewrite_without_an_answer_may_have_made_the_lease_shorter() {
    let (leased, faults, _) = leased(SECOND * 20).await;
    faults.fail_next(1, Operation::Update, Fault::AnswerLost);
    let mut turn = leased.turn.lock().await;
    let body = Some(Bytes::from_static(b"two"));
    leased.extend(&mut turn, body).await.expect_err("no answer");
    assert!(leased.machine().is_doubtful());
    // Carried out, it ends at 17 s; otherwise the lease lasts until the message expires.
    assert_eq!(ends(&leased), (17, 23));
}

#[tokio::test]
async fn an_answer_makes_a_doubtful_lease_certain() {
    let (leased, faults, clock) = leased(SECOND * 300).await;
    faults.fail_next(1, Operation::Update, Fault::RequestLost);
    let mut turn = leased.turn.lock().await;
    clock.advance(SECOND * 10);
    let lost = leased.extend(&mut turn, None).await;
    lost.expect_err("no answer");
    assert_eq!(ends(&leased), (30, 42), "it may have been renewed");
    clock.advance(SECOND);
    leased.extend(&mut turn, None).await.expect("renewed");
    assert_eq!(ends(&leased), (43, 43));
    assert!(!leased.machine().is_doubtful() && ends(&leased).1 == 43);
}

#[tokio::test]
async fn a_refused_renewal_changes_nothing() {
    let (leased, faults, clock) = leased(SECOND * 300).await;
    faults.fail_next(1, Operation::Update, Fault::Refused(ErrorKind::Denied));
    let mut turn = leased.turn.lock().await;
    clock.advance(SECOND * 10);
    leased.extend(&mut turn, None).await.expect_err("refused");
    assert!(leased.machine().is_held() && !leased.machine().is_doubtful());
    assert_eq!(ends(&leased), (30, 32));
}

#[tokio::test]
async fn a_lease_shows_its_message_and_not_its_receipt() {
    let (leased, ..) = leased(SECOND * 100).await;
    *leased.receipt.hold() = PopReceipt::new("a secret");
    let shown = format!("{leased:?}");
    assert!(shown.contains(leased.id.as_str()), "{shown}");
    assert!(!shown.contains("a secret"), "{shown}");
}
