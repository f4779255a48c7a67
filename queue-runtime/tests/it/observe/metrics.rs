use queue_runtime::backend::{Backend as _, BackendExt as _, Metadata, NewMessage};
use queue_runtime::error::Operation;
use queue_runtime::meter::TransactionKind;
use queue_runtime::testing::{self, FaultInjector};
use queue_runtime::{Disposition, Failure, ListenerHandle, QueueService, Received, RetryPolicy};
use queue_tests::SECOND;
use queue_tests::orders::ShopOrder;
use tokio::time::sleep;

use crate::observe::fixture::{Bill, Scrape};

async fn handle(order: Received<ShopOrder>) -> Result<Disposition, Failure> {
    sleep(2 * SECOND).await;
    match order.number {
        1 => Err("fails".into()),
        2 => Err(Failure::reject("never")),
        3 => Ok(Disposition::reply(&Bill { order: 3 })),
        number => Ok(Disposition::complete().then(&Bill { order: number })),
    }
}

async fn start() -> (QueueService, FaultInjector, ListenerHandle) {
    let (service, faults) = testing::service_with_faults().await;
    let listener = service.listener(handle).tasks(3).create_queue();
    let listener = listener.retry(RetryPolicy::exponential(3600 * SECOND, 3600 * SECOND));
    let listener = listener.start().expect("starts");
    (service.into(), faults, listener)
}

#[tokio::test(start_paused = true)]
async fn messages_are_counted_and_timed_by_queue() {
    let scrape = Scrape::start();
    let (service, _, listener) = start().await;
    sleep(SECOND).await;
    let orders = [0, 1, 2, 4].map(|number| ShopOrder { number });
    // The delay is part of the lag.
    service
        .submit_all(orders)
        .delay(10 * SECOND)
        .await
        .expect("submitted");
    sleep(11 * SECOND).await;
    let in_flight = r#"queue_in_flight_messages{messaging_destination_name="orders"}"#;
    let tasks = r#"queue_dequeue_tasks{messaging_destination_name="orders"}"#;
    assert_eq!(
        (scrape.value(in_flight), scrape.value(tasks)),
        (Some(4.0), Some(3.0))
    );
    sleep(10 * SECOND).await;
    let depth = listener.depth().await.expect("read");
    for (metric, labels, value) in [
        ("messaging_client_sent_messages_total", "", 4.0),
        ("messaging_client_consumed_messages_total", "", 4.0),
        (
            "queue_settled_messages_total",
            r#",message_kind="shop.order",outcome="completed""#,
            2.0,
        ),
        (
            "queue_settled_messages_total",
            r#",message_kind="shop.order",outcome="retried""#,
            1.0,
        ),
        (
            "queue_settled_messages_total",
            r#",message_kind="shop.order",outcome="poisoned""#,
            1.0,
        ),
        (
            "messaging_process_duration_seconds_count",
            r#",message_kind="shop.order""#,
            4.0,
        ),
        (
            "messaging_process_duration_seconds_sum",
            r#",message_kind="shop.order""#,
            8.0,
        ),
        ("queue_message_lag_seconds_count", "", 4.0),
        ("queue_transactions_total", r#",kind="put""#, 4.0),
        ("queue_depth", "", depth as f64),
        ("queue_in_flight_messages", "", 0.0),
    ] {
        let name = format!(r#"{metric}{{messaging_destination_name="orders"{labels}}}"#);
        assert_eq!(
            scrape.value(&name),
            Some(value),
            "{name} in {:#?}",
            scrape.lines()
        );
    }
    let lag = r#"queue_message_lag_seconds_sum{messaging_destination_name="orders"}"#;
    let lag = scrape.value(lag).expect("measured");
    assert!((40.0..41.0).contains(&lag), "{lag}");
    let bills = r#"messaging_client_sent_messages_total{messaging_destination_name="bills"}"#;
    assert_eq!(scrape.value(bills), Some(2.0));
    let poison =
        r#"messaging_client_sent_messages_total{messaging_destination_name="orders-poison"}"#;
    assert_eq!(scrape.value(poison), Some(1.0));
    listener.shutdown(SECOND).await;
    assert_eq!(scrape.value(tasks), Some(0.0));
}

#[tokio::test(start_paused = true)]
async fn accepted_messages_are_counted_too() {
    let scrape = Scrape::start();
    let service = testing::service().await;
    service
        .submit_all([ShopOrder { number: 7 }, ShopOrder { number: 8 }])
        .await
        .expect("submitted");
    let accept = async || {
        service
            .accept::<ShopOrder>()
            .await
            .expect("accepted")
            .expect("an order")
    };
    accept().await.complete().await.expect("completed");
    accept().await.release().await.expect("released");
    for outcome in ["completed", "released"] {
        let name = format!(
            r#"queue_settled_messages_total{{messaging_destination_name="orders",message_kind="shop.order",outcome="{outcome}"}}"#
        );
        assert_eq!(scrape.value(&name), Some(1.0), "{name}");
    }
}

/// The clock of the storage may be far from this machine's.
#[tokio::test(start_paused = true)]
async fn the_lag_is_measured_by_the_storages_clock_alone() {
    let scrape = Scrape::start();
    let (service, faults, listener) = start().await;
    faults.set_clock_behind(3600 * SECOND);
    service
        .submit(ShopOrder { number: 7 })
        .await
        .expect("submitted");
    sleep(60 * SECOND).await;
    assert!(faults.calls(Operation::Receive) > 0);
    let lag = r#"queue_message_lag_seconds_sum{messaging_destination_name="orders"}"#;
    let lag = scrape.value(lag).expect("measured");
    assert!((0.0..1.0).contains(&lag), "{lag}");
    drop(listener);
}

#[tokio::test(start_paused = true)]
async fn what_messages_contain_is_in_no_label() {
    let scrape = Scrape::start();
    let (service, faults, listener) = start().await;
    sleep(SECOND).await;
    let queue = "orders".parse().expect("a name");
    // Rejected as foreign, or answered to the queue that it names.
    let put = async |number: u32| {
        let foreign = format!(
            r#"{{"specversion":"1.0","id":"foreign-{number}","source":"foreign-{number}",
                "type":"foreign-{number}","subject":"foreign-{number}","data":{{}}}}"#
        );
        let replies = format!("queue-replies-f0e{number:029x}");
        let asking = format!(
            r#"{{"specversion":"1.0","id":"asking-{number}","source":"foreign-{number}",
                "type":"shop.order","replyto":"{replies}","data":{{"number":3}}}}"#
        );
        // Half of those who asked are gone.
        if number.is_multiple_of(2) {
            let replies = replies.parse().expect("a name");
            faults
                .create_queue(&replies, &Metadata::new())
                .await
                .expect("created");
        }
        for body in [foreign, asking] {
            let put = faults.put(&queue, NewMessage::new(body)).await;
            put.expect("put");
        }
    };
    put(0).await;
    put(1).await;
    sleep(60 * SECOND).await;
    let series = |lines: Vec<String>| -> Vec<String> {
        let name = |line: &String| line.rsplit_once(' ').expect("a value").0.to_owned();
        lines.iter().map(name).collect()
    };
    let before = series(scrape.lines());
    for number in 2..100 {
        put(number).await;
    }
    sleep(60 * SECOND).await;
    assert_eq!(
        (listener.info().completed, listener.info().poisoned),
        (100, 100)
    );
    let after = series(scrape.lines());
    assert_eq!(after, before);
    let contained = |line: &&String| line.contains("foreign") || line.contains("queue-replies");
    assert_eq!(after.iter().find(contained), None);
    let replies = r#"messaging_client_sent_messages_total{messaging_destination_name="_replies"}"#;
    assert_eq!(scrape.value(replies), Some(50.0));
    let tried = service.meter().reply_queues().of(TransactionKind::Put);
    assert!(tried >= 100, "{tried}");
}

/// And what no handler takes is counted apart.
#[tokio::test(start_paused = true)]
async fn messages_of_a_router_are_counted_by_kind() {
    let scrape = Scrape::start();
    let service = testing::service().await;
    let queue = queue_runtime::QueueName::from_static("orders");
    let orders = (0..3).map(|number| ShopOrder { number });
    service.submit_all(orders).await.expect("submitted");
    let bills = (0..2).map(|order| Bill { order });
    let submitted = service
        .submit_all(bills)
        .to(queue.clone())
        .expect("a name")
        .await;
    submitted.expect("submitted");
    let report = service.submit(Report {}).to(queue).expect("a name");
    report.await.expect("submitted");
    let router = service
        .router("orders")
        .expect("a name")
        .handle(async |_: Received<ShopOrder>| ())
        .handle(async |_: Received<Bill>| Disposition::reject("no"));
    let listener = router.start().expect("starts");
    sleep(SECOND / 2).await;
    for (kind, outcome, times) in [
        ("shop.order", "completed", 3.0),
        ("shop.bill", "poisoned", 2.0),
        ("_other", "postponed", 1.0),
    ] {
        let labels = format!(r#"message_kind="{kind}",outcome="{outcome}""#);
        let name = format!(
            r#"queue_settled_messages_total{{messaging_destination_name="orders",{labels}}}"#
        );
        assert_eq!(scrape.value(&name), Some(times), "{:#?}", scrape.lines());
    }
    listener.shutdown(SECOND).await;
}

#[derive(Debug, serde::Serialize, serde::Deserialize, queue_runtime::Message)]
#[message(queue = "orders", kind = "shop.report")]
struct Report {}
