//! Submissions and idle listeners during an outage.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use queue_runtime::error::Outcome;
use queue_runtime::policy::{ExponentialIdle, StorageRetry};
use queue_runtime::send::SubmitErrorKind;
use queue_runtime::{ErrorKind, ListenerEventKind, Received};
use queue_tests::http::Message;
use queue_tests::orders::ShopOrder;

use crate::case::run;
use crate::fault::{Call, Fault};
use crate::proxy::GUARD;
use crate::stage::{Stage, next};

#[test]
fn a_submission_with_unknown_outcome_is_repeated_with_its_id() {
    run(async {
        let stage = Stage::on("unknown-orders").await;
        stage.submit(0).await;
        stage
            .accept(&stage.direct)
            .await
            .complete()
            .await
            .expect("complete");
        let queue = stage.proxied();
        for (fault, copies) in [(Fault::ResetAfter, 2), (Fault::ResetBefore, 1)] {
            stage.proxy.script(Call::Put, [fault]);
            let order = ShopOrder { number: copies };
            let error = queue.submit(order.clone()).await.expect_err("no answer");
            assert_eq!(error.outcome(), Outcome::Unknown, "{error:?}");
            assert_eq!(error.message, order);
            let id = error.id.expect("the submission has an id");
            let again = queue.submit(error.message).id(id.as_str()).await;
            assert_eq!(again.expect("submitted").id, id);
            for _ in 0..copies {
                let delivery = stage.accept(&stage.direct).await;
                assert_eq!(delivery.envelope().id, id);
                assert_eq!(*delivery.message(), order);
                delivery.complete().await.expect("complete");
            }
            assert_eq!(stage.count().await, 0);
        }
        assert_eq!(stage.proxy.seen(Call::Put).len(), 4);
    });
}

#[test]
fn a_submission_survives_a_burst_of_faults_if_asked() {
    run(async {
        let stage = Stage::on("burst-orders").await;
        let busy = || {
            let asked = [
                ("x-ms-request-id", "7f"),
                ("x-ms-error-code", "ServerBusy"),
                ("Retry-After", "0"),
            ];
            Fault::Instead(Message::answer("503 Busy", &asked, ""))
        };
        let faults = [
            busy(),
            Fault::ResetBefore,
            busy(),
            Fault::ResetAfter,
            busy(),
        ];
        stage.proxy.script(Call::Put, faults);
        let order = ShopOrder { number: 1 };
        let submission = stage.proxied().submit(order.clone()).retry_unknown();
        let submitted = submission.await.expect("submitted");
        // The queue was missing: the sixth put says so, and the seventh succeeds.
        let puts = stage.proxy.seen(Call::Put);
        let executed = puts.iter().filter(|put| put.executed).count();
        assert_eq!((puts.len(), executed), (7, 3), "{puts:?}");
        assert_eq!(stage.count().await, 1);
        let delivery = stage.accept(&stage.direct).await;
        assert_eq!(delivery.envelope().id, submitted.id);
        delivery.complete().await.expect("complete");
    });
}

/// The error says that nothing was done, so a repeat makes no duplicate.
#[test]
fn a_submission_that_was_refused_is_not_done() {
    run(async {
        let stage = Stage::on("refused-orders").await;
        stage.proxy.refuse_connections().await;
        let queue = stage.proxied();
        let once = queue.submit(ShopOrder { number: 1 });
        let once = once.storage_retry(StorageRetry::never());
        let error = once.await.expect_err("refused");
        assert_eq!(error.outcome(), Outcome::NotDone, "{error:?}");
        let SubmitErrorKind::Storage(problem) = &error.kind else {
            panic!("{error:?}")
        };
        assert_eq!(problem.kind(), ErrorKind::Unreachable);
        stage.proxy.accept_connections().await;
        queue.submit(error.message).await.expect("submitted");
        assert_eq!(stage.count().await, 1);
    });
}

#[test]
fn a_listener_backs_off_with_jitter_during_an_outage() {
    run(async {
        let stage = Stage::on("idle-orders").await;
        stage.submit(0).await;
        let queue = stage.proxied();
        let listener = queue.listener(|_: Received<ShopOrder>| async {}).tasks(1);
        let listener = listener.idle(ExponentialIdle::up_to(Duration::from_millis(250)));
        let mut events = listener.events();
        let listener = listener.start().expect("start");
        let done = |event: &ListenerEventKind| matches!(event, ListenerEventKind::Completed { .. });
        next(&mut events, done).await;
        let failed =
            |event: &ListenerEventKind| matches!(event, ListenerEventKind::ReceiveFailed { .. });
        let pause = |event| match event {
            ListenerEventKind::ReceiveFailed { after, .. } => after,
            other => panic!("{other:?}"),
        };

        stage.proxy.refuse_connections().await;
        let mut ratios = HashSet::new();
        let mut first = pause(next(&mut events, failed).await);
        // If the first failure was that of a receive in flight, this is the first of the outage.
        for ceiling in [400, 800, 1600].map(Duration::from_millis) {
            let second = pause(next(&mut events, failed).await);
            assert!(second >= ceiling / 2 && second <= ceiling, "{second:?}");
            ratios.insert((second.as_secs_f64() / ceiling.as_secs_f64() * 1000.0) as u32);
            first = first.max(second);
        }
        assert!(ratios.len() > 1, "no jitter: {ratios:?}");
        let empty = listener.info().empty_receives;

        let asked = [
            ("x-ms-request-id", "7f"),
            ("x-ms-error-code", "ServerBusy"),
            ("Retry-After", "2"),
        ];
        let busy = Message::answer("503 Busy", &asked, "");
        stage.proxy.script(Call::Receive, [Fault::Instead(busy)]);
        stage.proxy.always(Some(Fault::ResetBefore));
        stage.proxy.accept_connections().await;
        let two = Duration::from_secs(2);
        let as_asked = |event: &ListenerEventKind| matches!(event, ListenerEventKind::ReceiveFailed { after, .. } if *after == two);
        next(&mut events, as_asked).await;
        let longest = pause(next(&mut events, failed).await);
        assert_eq!(
            listener.info().empty_receives,
            empty,
            "failed receives are not empty receives"
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
