//! Requests for work that is done once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use queue_runtime::{Disposition, Message, Received, testing};
use serde::{Deserialize, Serialize};

use crate::support::stop;

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "payments", key_scope = "global")]
struct Payment {
    #[message(key)]
    number: u32,
}

#[derive(Debug, Serialize, Deserialize, Message)]
struct Paid {
    transaction: u32,
}

/// A sender that asks again, because it has waited long enough, gets the recorded reply.
#[tokio::test(start_paused = true)]
async fn each_request_for_work_that_was_done_has_the_recorded_reply() {
    let service = testing::service().await;
    let runs = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&runs);
    let handler = move |_: Received<Payment>| {
        let transaction = counted.fetch_add(1, Ordering::Relaxed) + 100;
        async move { Disposition::reply(&Paid { transaction }) }
    };
    let pay = |number, request: &str| {
        let request = service.request(Payment { number }).request_id(request);
        request.reply::<Paid>().timeout(Duration::from_secs(60))
    };
    pay(1, "r-1").await.expect_err("nobody is there yet");
    let results = service.results().expect("in memory");
    let listener = service.listener(handler).idempotent(results).start();
    let listener = listener.expect("starts");
    let (second, third) = tokio::join!(pay(1, "r-2"), pay(1, "r-3"));
    for (reply, request) in [(second, "r-2"), (third, "r-3")] {
        let reply = reply.expect("the recorded reply");
        let envelope = reply.envelope();
        assert_eq!(
            (reply.transaction, envelope.request_id.as_str()),
            (100, request)
        );
    }
    assert_eq!(pay(2, "r-4").await.expect("a reply").transaction, 101);
    assert_eq!(runs.load(Ordering::Relaxed), 2, "one for each key");
    stop(listener).await;
}
