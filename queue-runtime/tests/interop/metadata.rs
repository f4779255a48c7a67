//! What the other program writes into a queue's metadata holds here.

use std::time::Duration;

use queue_runtime::envelope::PoisonReason;
use queue_runtime::receive::Settled;
use queue_runtime::{Disposition, Message, QueueService};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::peer::ask;
use crate::server::runtime;
use crate::service;

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "judged", poison_threshold = 5)]
struct Judged(u32);

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "leased", visibility_timeout = "10m")]
struct Leased(u32);

#[test]
fn a_poison_threshold_takes_effect() {
    ask(&json!({
        "do": "create", "queue": "judged", "metadata": { "poisonthreshold": "2" }
    }));
    runtime().block_on(async {
        let service = service().await;
        service.submit(Judged(1)).await.expect("submit");
        let settled = fail(&service).await;
        let retried = matches!(
            settled,
            Settled::Retried {
                after: Duration::ZERO,
                ..
            }
        );
        assert!(retried, "{settled:?}");
        assert_eq!(
            fail(&service).await,
            Settled::Poisoned(PoisonReason::Failed)
        );

        ask(&json!({
            "do": "set_metadata", "queue": "judged", "metadata": { "poisonthreshold": "1" }
        }));
        service.refresh_metadata();
        service.submit(Judged(2)).await.expect("submit");
        assert_eq!(
            fail(&service).await,
            Settled::Poisoned(PoisonReason::Failed)
        );
    });
}

async fn fail(service: &QueueService) -> Settled {
    let accepted = service.accept::<Judged>().await.expect("accept");
    let failed = Disposition::retry_after(Duration::ZERO, "no such picture");
    let settled = accepted.expect("it is visible").settle(failed).await;
    settled.expect("settle")
}

/// The type says ten minutes. With the two seconds of the metadata the message is back at once.
#[test]
fn a_default_timeout_takes_effect() {
    ask(&json!({
        "do": "create", "queue": "leased", "metadata": { "defaulttimeout": "2" }
    }));
    runtime().block_on(async {
        let service = service().await;
        service.submit(Leased(1)).await.expect("submit");
        let first = service.accept::<Leased>().await.expect("accept");
        drop(first.expect("just submitted"));
        let again = service.accept::<Leased>().wait(Duration::from_secs(60));
        let again = again.await.expect("accept").expect("its lease is over");
        assert_eq!(again.dequeue_count(), 2);
        again.complete().await.expect("complete");
    });
}
