//! Progress that a handler writes into its message.

use std::time::Duration;

use queue_runtime::error::Operation;
use queue_runtime::receive::CheckpointErrorKind;
use queue_runtime::testing::{self, Fault};
use queue_runtime::{Delivery, ErrorKind, Message, QueueService};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "imports")]
struct Import {
    lines: u64,
}

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "bare-imports", wire = "bare")]
struct BareImport {
    lines: u64,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Done {
    lines: u64,
    last: String,
}

fn done(lines: u64) -> Done {
    Done {
        lines,
        last: "a \"quoted\"\nline \u{85}".to_owned(),
    }
}

async fn next(service: &QueueService) -> Delivery<Import> {
    let accept = service.accept::<Import>().wait(Duration::from_secs(600));
    accept.await.expect("accepted").expect("on the queue")
}

async fn submitted() -> testing::TestService {
    let service = testing::service().await;
    let import = Import { lines: 9 };
    service.submit(import).await.expect("submitted");
    service
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_survives_a_crash_a_retry_a_release_and_a_redrive() {
    let service = submitted().await;
    let import = next(&service).await;
    assert_eq!(import.progress::<Done>().expect("none"), None);
    import.checkpoint(&done(1)).await.expect("written");
    import.checkpoint(&done(2)).await.expect("written again");
    assert_eq!(import.progress().expect("read"), Some(done(2)));
    // As a crash does: nothing is settled.
    drop(import);

    let import = next(&service).await;
    assert_eq!(import.progress().expect("read"), Some(done(2)));
    import.checkpoint(&done(3)).await.expect("written");
    import.retry("the connection broke").await.expect("retried");

    let import = next(&service).await;
    assert_eq!((import.attempt(), import.lines), (3, 9));
    assert_eq!(import.progress().expect("read"), Some(done(3)));
    import.release().await.expect("released");

    let import = next(&service).await;
    assert_eq!(import.progress().expect("read"), Some(done(3)));
    import.checkpoint(&done(4)).await.expect("written");
    import.reject("give up").await.expect("rejected");

    let redrive = service
        .any_queue("imports-poison")
        .expect("a name")
        .redrive();
    let redriven = redrive.run().await.expect("redriven");
    assert_eq!(redriven.redriven, 1);
    let import = next(&service).await;
    assert_eq!(import.attempt(), 1);
    assert_eq!(import.progress().expect("read"), Some(done(4)));
    import.complete().await.expect("completed");
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_renews_the_lease() {
    let (service, faults) = testing::service_with_faults().await;
    let import = Import { lines: 9 };
    service.submit(import).await.expect("submitted");
    let import = next(&service).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    import.checkpoint(&1).await.expect("written");
    // From here on, no renewal succeeds: the lease ends 30 s after the checkpoint.
    faults.fail_next(
        1000,
        Operation::Update,
        Fault::Refused(ErrorKind::Unreachable),
    );
    tokio::time::sleep(Duration::from_secs(29)).await;
    assert!(!import.is_cancelled());
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(import.is_cancelled());
    assert!(faults.injected(Operation::Update) > 0);
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_whose_write_fails_is_written_by_the_put_back() {
    let (service, faults) = testing::service_with_faults().await;
    let import = Import { lines: 9 };
    service.submit(import).await.expect("submitted");
    let import = next(&service).await;
    faults.fail_next(1, Operation::Update, Fault::Refused(ErrorKind::Unreachable));
    let error = import.checkpoint(&7).await.expect_err("unreachable");
    assert!(
        matches!(error.kind, CheckpointErrorKind::Storage(_)),
        "{error}"
    );
    assert_eq!(faults.injected(Operation::Update), 1);
    import.retry("the connection broke").await.expect("retried");
    assert_eq!(next(&service).await.progress().expect("read"), Some(7));
}

#[tokio::test(start_paused = true)]
async fn without_the_lease_nothing_is_written() {
    let (service, faults) = testing::service_with_faults().await;
    let import = Import { lines: 9 };
    service.submit(import).await.expect("submitted");
    let import = next(&service).await;
    faults.fail_next(
        1,
        Operation::Update,
        Fault::LeaseLost(Duration::from_secs(30)),
    );
    let error = import.checkpoint(&7).await.expect_err("lost");
    assert!(
        matches!(error.kind, CheckpointErrorKind::LeaseLost(_)),
        "{error}"
    );
    drop(import);
    let import = next(&service).await;
    assert_eq!(import.progress::<u32>().expect("none"), None);
}

/// One name when it is written, another one when it is read.
#[derive(Debug, Serialize, Deserialize)]
struct Renamed {
    #[serde(rename(serialize = "row", deserialize = "line"), default)]
    line: u32,
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_that_cannot_be_read_back_is_refused_and_the_one_before_stays() {
    let service = submitted().await;
    let import = next(&service).await;
    import.checkpoint(&1.5).await.expect("written");
    for (refused, place) in [
        (
            import.checkpoint(&f64::NAN).await,
            "the payload itself is NaN",
        ),
        (
            import.checkpoint(&[Some(f32::INFINITY)]).await,
            "`[0]` is inf",
        ),
        (import.checkpoint(&Renamed { line: 7 }).await, "at `row`"),
    ] {
        let error = refused.expect_err("it would condemn its message");
        assert!(
            matches!(error.kind, CheckpointErrorKind::Encode(_)),
            "{error}"
        );
        assert!(format!("{error:?}").contains(place), "{error:?}");
        assert_eq!(import.progress().expect("read"), Some(1.5));
    }
}

#[tokio::test(start_paused = true)]
async fn a_state_of_another_type_is_an_error_and_a_bare_body_has_no_progress() {
    let service = submitted().await;
    let import = next(&service).await;
    import
        .checkpoint(&"line 7".to_owned())
        .await
        .expect("written");
    import.progress::<u64>().expect_err("it is a string");

    let bare = BareImport { lines: 9 };
    service.submit(bare).await.expect("submitted");
    let bare = service.accept::<BareImport>().await.expect("accepted");
    let bare = bare.expect("just submitted");
    let error = bare.checkpoint(&7).await.expect_err("bare");
    assert!(matches!(error.kind, CheckpointErrorKind::Bare), "{error}");
    assert_eq!(bare.progress::<u64>().expect("none"), None);
}
