//! Errors read as sentences, also where `?` in `main` prints them, which it does with `Debug`.

use std::error::Error;

use queue_runtime::error::Operation;
use queue_runtime::testing::{self, Fault};
use queue_runtime::{ErrorKind, QueueService, Received};
use queue_tests::orders::ShopOrder;

async fn ship(_: Received<ShopOrder>) {}

/// Checks what `main` prints after "Error: ".
#[track_caller]
fn assert_main_prints(error: impl Error + 'static, expected: &str) {
    let printed = format!("{error:?}");
    assert!(printed.contains(expected), "{printed}");
    for sign in ["{", "Some(", "kind:", "problem:"] {
        assert!(!printed.contains(sign), "{printed}");
    }
    let boxed: Box<dyn Error> = error.into();
    assert_eq!(format!("{boxed:?}"), printed);
    assert!(printed.starts_with(&boxed.to_string()), "{printed}");
}

#[tokio::test(start_paused = true)]
async fn the_errors_that_a_program_meets_first() {
    let connected = QueueService::connect("amqp://localhost").await;
    let error = connected.expect_err("refused");
    let expected =
        "failed to connect to the queue URL \"amqp:…\": its scheme is unknown; use `memory:`";
    assert_main_prints(error, expected);
    QueueService::connect("MEMORY:")
        .await
        .expect("a scheme may have capitals");

    let (service, faults) = testing::service_with_faults().await;
    let started = service.listener(ship).max_in_flight(0).start();
    let expected =
        "failed to start a listener on queue `orders`: the number of messages in flight is 0";
    assert_main_prints(started.expect_err("refused"), expected);

    faults.fail_next(1, Operation::Put, Fault::Refused(ErrorKind::Denied));
    let error = service
        .submit(ShopOrder { number: 7 })
        .await
        .expect_err("refused");
    assert_main_prints(
        error,
        "failed to put a message on queue `orders`: access was denied",
    );

    let missing = service
        .queue_named::<ShopOrder>("elsewhere")
        .expect("valid");
    let error = missing.accept().await.expect_err("refused");
    let expected = "failed to accept from queue `elsewhere`: the queue does not exist";
    assert_main_prints(error, expected);

    service
        .submit(ShopOrder { number: 7 })
        .await
        .expect("submitted");
    let order = service.accept::<ShopOrder>().await.expect("accepted");
    let denied = Fault::Refused(ErrorKind::Denied);
    faults.fail_every(Operation::Delete, denied);
    let error = order.expect("one").complete().await.expect_err("refused");
    let expected = "on queue `orders`: the message was not settled: failed to delete a message from queue `orders`";
    assert_main_prints(error, expected);

    let backend = service.any_queue("nowhere").expect("valid").delete().await;
    let error = backend.expect_err("it does not exist");
    assert!(
        format!("{error:#?}").contains("kind: QueueNotFound"),
        "{error:#?}"
    );
    assert_main_prints(
        error,
        "failed to delete queue `nowhere`: the queue does not exist",
    );
}
