//! Work that is done once, by the function `once`.

use std::time::Duration;

use queue_runtime::error::RetryAdvice;
use queue_runtime::idempotency::{MAX_RESULT, OnceError, OnceErrorKind};
use queue_runtime::{ErrorKind, Failure, Result, once};

use crate::support::flaky_results::{Flaky, memory_results};

#[tokio::test(start_paused = true)]
async fn work_that_fails_is_done_again_and_work_that_is_dropped_too() {
    let store = memory_results();
    let failed = once(&store, "order", async {
        Err::<u32, _>(Failure::retry("busy").to_string())
    });
    let error = failed.await.expect_err("busy");
    assert!(matches!(error.kind, OnceErrorKind::Work(text) if text == "busy"));
    {
        let hanging = once(
            &store,
            "order",
            std::future::pending::<Result<u32, String>>(),
        );
        let dropped = tokio::time::timeout(Duration::from_secs(1), hanging);
        assert!(dropped.await.is_err());
    }
    tokio::task::yield_now().await;
    let done = once(&store, "order", async { Ok::<_, String>(7) });
    assert_eq!(done.wait(Duration::ZERO).await.expect("done"), 7);
}

#[tokio::test(start_paused = true)]
async fn long_work_keeps_its_claim_and_the_others_wait_for_it() {
    let store = memory_results();
    let long = once(&store, "order", async {
        tokio::time::sleep(Duration::from_secs(3600)).await;
        Ok::<_, String>(7)
    });
    let impatient = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        once(&store, "order", async { Ok::<u32, String>(8) }).await
    };
    let patient = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let other = once(&store, "order", async { Ok::<u32, String>(9) });
        other.wait(Duration::from_secs(7200)).await
    };
    let (long, impatient, patient) = tokio::join!(long, impatient, patient);
    assert_eq!(long.expect("done"), 7);
    assert!(
        matches!(
            impatient,
            Err(OnceError {
                kind: OnceErrorKind::InFlight,
                ..
            })
        ),
        "{impatient:?}"
    );
    assert_eq!(patient.expect("read"), 7);
}

#[tokio::test(start_paused = true)]
async fn once_fails_closed_and_tells_what_was_not_recorded() {
    let store = Flaky::new();
    store.set_down(true);
    let down = once(&store, "order", async { Ok::<_, String>(7) }).await;
    assert!(
        matches!(
            down,
            Err(OnceError {
                kind: OnceErrorKind::Store(_),
                ..
            })
        ),
        "{down:?}"
    );
    store.set_down(false);
    let goes_down = once(&store, "order", async {
        store.set_down(true);
        Ok::<_, String>(7)
    });
    let unrecorded = goes_down.await;
    assert!(
        matches!(
            unrecorded,
            Err(OnceError {
                kind: OnceErrorKind::NotRecorded {
                    result: 7,
                    source: Some(_),
                    ..
                },
                ..
            })
        ),
        "{unrecorded:?}"
    );
    // The claim cannot be renewed for a whole lease: another may work now.
    store.set_down(false);
    let long = once(&store, "long", async {
        store.set_down(true);
        std::future::pending::<Result<u32, String>>().await
    });
    let lost = long.await;
    assert!(
        matches!(
            lost,
            Err(OnceError {
                kind: OnceErrorKind::Lost,
                ..
            })
        ),
        "{lost:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_result_that_is_too_large_is_returned_and_not_recorded() {
    let store = memory_results();
    // With its quotes.
    let most = MAX_RESULT - 2;
    for (length, recorded) in [(most, true), (most + 1, false)] {
        let key = length.to_string();
        let work = || async { Ok::<_, String>("x".repeat(length)) };
        let done = once(&store, key.as_str(), work()).await;
        match done {
            Ok(result) => assert!(recorded && result.len() == length),
            Err(OnceError {
                kind:
                    OnceErrorKind::NotRecorded {
                        result,
                        source: Some(error),
                        ..
                    },
                ..
            }) => {
                assert!(!recorded && result.len() == length);
                assert_eq!(error.kind(), ErrorKind::TooLarge);
                assert_eq!(error.retry(), RetryAdvice::Permanent);
                let text = error.to_string();
                let sizes = format!("has {} bytes; the maximum is {MAX_RESULT}", MAX_RESULT + 1);
                assert!(text.contains(&sizes), "{text}");
            }
            Err(error) => panic!("{error}"),
        }
        let again = once(&store, key.as_str(), async {
            Ok::<_, String>(String::new())
        });
        let again = again.wait(Duration::from_secs(1)).await.expect("done");
        assert_eq!(again.is_empty(), !recorded, "it may be done again at once");
    }
}
