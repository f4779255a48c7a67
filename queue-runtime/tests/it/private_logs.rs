//! No log line contains a payload or a key.

use std::time::Duration;

use queue_runtime::backend::{BackendExt as _, NewMessage};
use queue_runtime::idempotency::{OnceErrorKind, WorkKey};
use queue_runtime::message::JsonError;
use queue_runtime::testing;
use queue_runtime::{ListenerEventKind, Message, QueueName, QueueService, Received, once};
use serde::{Deserialize, Serialize};
use tracing::Level;

use crate::support::flaky_results::Flaky;
use crate::support::log::Log;
use crate::support::{events, stop};

const CHARGES: QueueName = QueueName::from_static("charges");

/// Stands in payloads and keys, and nowhere else.
const CANARY: &str = "canary4111";

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(kind = "charge", queue = "charges")]
struct Charge {
    #[message(key)]
    card: String,
}

/// Another program's idea of a charge.
#[derive(Debug, Serialize, Deserialize, Message)]
#[message(kind = "charge", queue = "charges")]
struct WrongCharge {
    #[message(key)]
    card: (String, u32),
}

fn charge() -> Charge {
    Charge {
        card: CANARY.to_owned(),
    }
}

async fn handle(service: &QueueService, store: &Flaky, count: usize) -> Vec<ListenerEventKind> {
    let listener = service
        .listener(async |_: Received<Charge>| {})
        .idempotent(store.clone());
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    let ended = |event: &ListenerEventKind| {
        matches!(
            event,
            ListenerEventKind::Completed { .. }
                | ListenerEventKind::Duplicate { .. }
                | ListenerEventKind::Poisoned { .. }
        )
    };
    let seen = events(&mut seen, count, ended).await;
    stop(listener).await;
    seen
}

#[tokio::test(start_paused = true)]
async fn no_log_line_contains_a_payload_or_a_key() {
    let (log, _guard) = Log::up_to(Level::TRACE);
    tracing::callsite::rebuild_interest_cache();
    let (service, storage) = testing::service_with_faults().await;
    let store = Flaky::new();

    let card = (CANARY.to_owned(), 7);
    let wrong = service.submit(WrongCharge { card });
    wrong.await.expect("submitted");
    let seen = handle(&service, &store, 1).await;
    assert!(
        matches!(seen[0], ListenerEventKind::Poisoned { .. }),
        "{seen:?}"
    );
    let line = log.line("moved a message to the poison queue");
    let cause = "invalid type, expected a string at line 1 column 8";
    assert!(line.contains(cause), "{line}");

    for attribute in ["progress", "lasterror", "poisonerror"] {
        let event = format!(
            r#"{{"specversion":"1.0","id":"x","source":"s","type":"charge","poisonreason":"failed","{attribute}":["{CANARY}"]}}"#
        );
        let put = storage.put(&CHARGES, NewMessage::new(event)).await;
        put.expect("put");
        handle(&service, &store, 1).await;
        log.line(&format!("attribute `{attribute}` is not a string"));
    }

    // The claim is lost, and a duplicate is found.
    store.lose_next();
    for _ in 0..2 {
        let submitted = service.submit(charge()).request_id("checkout");
        submitted.await.expect("submitted");
    }
    handle(&service, &store, 2).await;
    log.line("the work of a message was done before");

    let key = || WorkKey::new("charge", CANARY);
    let lost = once(&store, key(), async {
        store.set_down(true);
        std::future::pending::<Result<(), JsonError>>().await
    });
    let error = lost.await.expect_err("the claim is lost");
    assert!(matches!(error.kind, OnceErrorKind::Lost), "{error}");
    let shown = format!("{error} {error:?} {:?}", key());
    assert!(!shown.contains(CANARY), "{shown}");
    log.line("lost a claim of a result store");
    log.line("failed to renew a claim");
    store.set_down(false);

    let submission = service.submit(charge());
    store.lose_next();
    let submitted = submission.unique_in(&store, Duration::from_secs(60)).await;
    submitted.expect("submitted, though not recorded");
    log.line("failed to record a unique submission");

    for line in log.lines() {
        assert!(!line.contains(CANARY), "{line}");
    }
}
