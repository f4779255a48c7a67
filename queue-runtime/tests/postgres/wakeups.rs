//! An idle listener learns of what other processes put, and of what a transaction puts once that is committed.

use std::time::Duration;

use queue_runtime::policy::{Idle, IdlePolicy};
use queue_runtime::{Received, postgres};
use tokio::sync::mpsc;

use crate::bank::{Bank, GUARD, Notice};

#[derive(Debug)]
pub(crate) struct Hourly;

impl IdlePolicy for Hourly {
    fn delay(&self, _: Idle) -> Duration {
        Duration::from_secs(3600)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_listener_is_woken_by_another_process_and_by_a_commit() {
    let bank = Bank::open().await;
    let other = bank.other_service().await;
    let (send, mut handled) = mpsc::unbounded_channel();
    let handler = move |notice: Received<Notice>| {
        let send = send.clone();
        async move {
            send.send(notice.text.clone())
                .map_err(|error| error.to_string())
        }
    };
    let listener = other
        .listener(handler)
        .idle(Hourly)
        .start()
        .expect("it starts");
    let mut next = async || {
        let text = tokio::time::timeout(GUARD, handled.recv()).await;
        text.expect("it is woken").expect("the handler lives")
    };
    for number in 0..3 {
        let text = number.to_string();
        bank.service
            .submit(Notice { text: text.clone() })
            .await
            .expect("submitted");
        assert_eq!(next().await, text);
    }
    let mut client = postgres::connect(&**bank.service.backend())
        .await
        .expect("a connection");
    let tx = client.transaction().await.expect("begun");
    let text = "committed".to_owned();
    let submitted = bank
        .service
        .submit_within(&tx, Notice { text: text.clone() })
        .await;
    submitted.expect("written");
    tx.commit().await.expect("committed");
    assert_eq!(next().await, text);
    listener.shutdown(GUARD).await;
}
