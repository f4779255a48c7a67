//! Handlers' errors, classified by their type, and messages that handlers postpone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use queue_runtime::envelope::PoisonReason;
use queue_runtime::receive::OnError;
use queue_runtime::{
    Disposition, Failure, ListenerEventKind, Message, Received, RetryPolicy, testing,
};
use queue_tests::MINUTE;
use serde::{Deserialize, Serialize};

use crate::support::{count, events, poison, stop};

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "fetches")]
struct Fetch {
    status: u16,
}

#[derive(Debug, thiserror::Error)]
#[error("status {0}")]
struct Status(u16);

#[derive(Debug, thiserror::Error)]
#[error("fetch the picture")]
struct FetchError(#[source] Status);

fn on_status(error: &Status) -> OnError {
    match error.0 {
        404 => OnError::Reject,
        429 => OnError::RetryAfter(2 * MINUTE),
        425 => OnError::Postpone(3 * MINUTE),
        503 => OnError::RetryBy(RetryPolicy::fixed(4 * MINUTE)),
        _ => OnError::Retry,
    }
}

#[tokio::test(start_paused = true)]
async fn the_type_of_an_error_decides_wherever_it_is_in_the_chain() {
    let service = testing::service().await;
    let listener = service
        .listener(async |fetch: Received<Fetch>| match fetch.attempt() {
            1 => Err(Failure::from(FetchError(Status(fetch.status)))),
            _ => Ok(()),
        })
        .retry(RetryPolicy::fixed(5 * MINUTE))
        .classify(on_status)
        .create_queue();
    let mut seen = listener.events();
    let listener = listener.start().expect("valid settings");
    for (status, expected) in [
        (429, Some(2 * MINUTE)),
        (503, Some(4 * MINUTE)),
        (500, Some(5 * MINUTE)),
        (404, None),
    ] {
        service.submit(Fetch { status }).await.expect("submitted");
        let event = events(&mut seen, 1, |_| true).await.remove(0);
        match (event, expected) {
            (ListenerEventKind::Retried { after, error, .. }, Some(expected)) => {
                assert_eq!(after, expected, "status {status}");
                assert_eq!(error.chain(), format!("fetch the picture: status {status}"));
                let returned = error.error().downcast_ref::<FetchError>();
                assert_eq!(returned.map(|FetchError(found)| found.0), Some(status));
            }
            (ListenerEventKind::Poisoned { reason, .. }, None) => {
                assert_eq!(reason, PoisonReason::Rejected);
            }
            (event, _) => panic!("status {status}: {event:?}"),
        }
    }
    let rejected = poison(&service, "fetches-poison").await;
    assert_eq!(
        rejected[0].0.error.as_deref(),
        Some("fetch the picture: status 404")
    );
    stop(listener).await;
}

/// With a circuit breaker, which must know whether the attempt failed, and with one that is open, so that it does not count.
#[tokio::test(start_paused = true)]
async fn a_classifier_is_asked_once_about_each_failure() {
    let service = testing::service().await;
    let asked = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&asked);
    let listener = service
        .listener(async |fetch: Received<Fetch>| match fetch.status {
            200 => Ok(()),
            status => Err(Failure::from(Status(status))),
        })
        .circuit_breaker(1.0, 4)
        .poison_threshold(20)
        .classify(move |status: &Status| {
            counted.fetch_add(1, Ordering::Relaxed);
            on_status(status)
        })
        .create_queue();
    let mut seen = listener.events();
    let listener = listener.start().expect("valid settings");
    for status in [429, 503, 500, 429, 500, 404, 425] {
        service.submit(Fetch { status }).await.expect("submitted");
    }
    let mut failures = 0;
    while failures < 30 {
        let event = seen.recv().await.expect("not that many");
        failures += u32::from(event.is_outcome());
    }
    stop(listener).await;
    let late = std::iter::from_fn(|| seen.try_recv().ok());
    let late = late.filter(|event| event.is_outcome()).count();
    let failures = failures + u32::try_from(late).expect("few");
    assert_eq!(asked.load(Ordering::Relaxed), failures);
}

#[tokio::test(start_paused = true)]
async fn what_a_handler_asks_for_itself_is_not_classified() {
    let service = testing::service().await;
    let listener = service
        .listener(async |fetch: Received<Fetch>| -> Result<(), Failure> {
            Err(Failure::retry_after(MINUTE, Status(fetch.status)))
        })
        .classify(on_status)
        .create_queue();
    let mut seen = listener.events();
    let listener = listener.start().expect("valid settings");
    service
        .submit(Fetch { status: 404 })
        .await
        .expect("submitted");
    let event = events(&mut seen, 1, |_| true).await.remove(0);
    assert!(
        matches!(event, ListenerEventKind::Retried { after, .. } if after == MINUTE),
        "{event:?}"
    );
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_postponed_message_comes_back_later_and_has_all_its_attempts() {
    let service = testing::service().await;
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let listener = service
        .listener(move |fetch: Received<Fetch>| {
            // More postponements than there are attempts.
            let call = counted.fetch_add(1, Ordering::Relaxed);
            async move {
                assert_eq!(fetch.attempt(), 1, "call {call}");
                match call {
                    0..6 => Ok(Disposition::postpone(MINUTE)),
                    6..12 => Err(Failure::from(Status(425))),
                    _ => Ok(Disposition::complete()),
                }
            }
        })
        .poison_threshold(2)
        .classify(on_status)
        .create_queue();
    let mut seen = listener.events();
    let listener = listener.start().expect("valid settings");
    service
        .submit(Fetch { status: 200 })
        .await
        .expect("submitted");
    let seen = events(&mut seen, 13, |_| true).await;
    for (n, event) in seen[..12].iter().enumerate() {
        let expected = if n < 6 { MINUTE } else { 3 * MINUTE };
        assert!(
            matches!(event, ListenerEventKind::Postponed { after, .. } if *after == expected),
            "{event:?}"
        );
    }
    assert!(
        matches!(seen[12], ListenerEventKind::Completed { attempt: 1, .. }),
        "{:?}",
        seen[12]
    );
    assert_eq!(count(&service, "fetches").await, 0);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_message_that_would_expire_is_not_postponed() {
    let service = testing::service().await;
    let fetch = service.submit(Fetch { status: 200 });
    fetch.time_to_live(MINUTE).await.expect("submitted");
    let fetch = service.accept::<Fetch>().await.expect("accepted");
    let postponed = Failure::postpone(2 * MINUTE, "not there yet");
    let settled = fetch
        .expect("just submitted")
        .settle(Err::<(), _>(postponed));
    settled.await.expect("settled");
    let expiring = poison(&service, "fetches-poison").await;
    assert_eq!(expiring[0].0.reason, PoisonReason::Expiring);
    assert_eq!(expiring[0].0.error.as_deref(), Some("not there yet"));
}
