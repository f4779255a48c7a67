//! Deliveries that were completed in transactions are counted.

use metrics_exporter_prometheus::PrometheusBuilder;

use crate::transactions::bank::{Bank, begin};

#[tokio::test]
async fn what_a_transaction_settles_is_counted() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let _local = metrics::set_default_local_recorder(Box::leak(Box::new(recorder)));
    let mut bank = Bank::open().await;

    let deposit = bank.accepted().await;
    let tx = begin(&mut bank.connection);
    let completing = deposit.complete_within(&tx, []).expect("written");
    tx.commit().expect("committed");
    completing.confirm().await.expect("it was committed");

    let deposit = bank.accepted().await;
    let tx = begin(&mut bank.connection);
    let completing = deposit.complete_within(&tx, []).expect("written");
    tx.rollback().expect("rolled back");
    let error = completing
        .confirm()
        .await
        .expect_err("it was not committed");

    let tx = begin(&mut bank.connection);
    let received = &*error.delivery;
    received
        .complete_within(&tx, [])
        .expect("it is still leased");
    tx.commit().expect("committed");
    error.delivery.release().await.expect("it was committed");

    let text = handle.render();
    for (outcome, times) in [("completed", 2), ("unsettled", 1)] {
        let kind = r#"messaging_destination_name="deposits",message_kind="deposit""#;
        let labels = format!(r#"{kind},outcome="{outcome}""#);
        let line = format!("queue_settled_messages_total{{{labels}}} {times}");
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
}
