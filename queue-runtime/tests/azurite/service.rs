//! `QueueService` on Azurite.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::future::join_all;
use queue_core::backend::{Backend, BackendExt as _, NewMessage};
use queue_runtime::backend::AzureBackend;
use queue_runtime::clock::SystemClock;
use queue_runtime::error::Outcome;
use queue_runtime::meter::TransactionKind;
use queue_runtime::{ErrorKind, Message, QueueService};
use serde::{Deserialize, Serialize};

use crate::case::{PATIENCE, connect, patient};
use crate::server::{ACCOUNT, SERVER, connection_string, runtime};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "whole-orders", visibility_timeout = "5m")]
struct WholeOrder {
    number: u32,
    note: String,
}

#[test]
fn a_submitted_message_is_accepted_and_completed() {
    runtime().block_on(async {
        let service = patient(&connection_string()).await;
        let service = service.connect().await.expect("connect");
        let order = WholeOrder {
            number: 7,
            note: "Grüße\r\n\u{1} <&>".to_owned(),
        };
        service.submit(order.clone()).await.expect("submit");
        let accepted = service.accept::<WholeOrder>().wait(Duration::from_secs(30));
        let delivery = accepted.await.expect("accept").expect("just submitted");
        assert_eq!(**delivery, order);
        delivery.complete().await.expect("complete");
        let left = service.accept::<WholeOrder>().await.expect("accept");
        assert!(left.is_none());
    });
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "returns", visibility_timeout = "5m")]
struct Return {
    number: u32,
}

#[test]
fn a_poison_queue_that_was_deleted_is_created_again() {
    runtime().block_on(async {
        let service = patient(&connection_string()).await;
        let service = service.connect().await.expect("connect");
        let poison = service.any_queue("returns-poison").expect("a name");
        for number in 1..=2 {
            service.submit(Return { number }).await.expect("submit");
            let accepted = service.accept::<Return>().wait(Duration::from_secs(30));
            let delivery = accepted.await.expect("accept").expect("just submitted");
            delivery.reject("torn").await.expect("moved");
            let properties = poison.properties().await.expect("it was created");
            assert_eq!(properties.approximate_count, 1);
            poison.delete().await.expect("deleted");
        }
    });
}

/// There is no room for a poison record.
#[test]
fn a_body_of_the_services_limit_is_moved_as_it_is() {
    runtime().block_on(async {
        let backend = Arc::new(connect(&connection_string(), PATIENCE).await);
        let service = QueueService::with_backend(backend.clone()).connect().await;
        let service = service.expect("connect");
        let letters = service.queue_named::<Return>("letters").expect("a name");
        letters.any().create().await.expect("created");
        let sizes = [40 * 1024, 64 * 1024 - 1, 64 * 1024];
        for size in sizes {
            let letter = NewMessage::new("x".repeat(size));
            let put = backend.put(letters.any().name(), letter).await;
            put.expect("put");
        }
        assert!(letters.accept().await.expect("all are moved").is_none());
        let poison = "letters-poison".parse().expect("a name");
        let peeked = backend.peek(&poison, 32).await.expect("peek");
        let mut moved: Vec<_> = peeked.iter().map(|message| message.body.len()).collect();
        moved.sort_unstable();
        assert_eq!(moved, sizes);
    });
}

#[test]
fn messages_moved_at_once_create_their_poison_queue_once() {
    runtime().block_on(async {
        let service = patient(&connection_string()).await;
        let service = service.connect().await.expect("connect");
        let returns = service.queue_named::<Return>("many-returns");
        let returns = returns.expect("a name");
        let mut deliveries = Vec::new();
        for number in 0..20 {
            returns.submit(Return { number }).await.expect("submit");
            let accepted = returns.accept().wait(Duration::from_secs(30)).await;
            deliveries.push(accepted.expect("accept").expect("just submitted"));
        }
        let moves = deliveries
            .into_iter()
            .map(|delivery| delivery.reject("torn"));
        for moved in join_all(moves).await {
            moved.expect("moved");
        }
        let used = service
            .meter()
            .queue("many-returns-poison")
            .expect("a name");
        assert_eq!(used.of(TransactionKind::CreateQueue), 1);
        let puts = used.of(TransactionKind::Put);
        assert!((21..=40).contains(&puts), "{puts}");
        let poison = returns.poison().expect("a name");
        let left = poison.properties().await.expect("it was created");
        assert_eq!(left.approximate_count, 20);
    });
}

/// Events of the largest sizes, in Base64 and as text, whose sender claims that they come from another queue. The
/// longer claim leaves room for our record in its place, except in text that is longer than Base64 may be.
#[test]
fn a_forged_poison_record_sends_nothing_to_another_queue() {
    let claim = r#","poisonreason":"failed","poisonqueue":"forged-payments","poisonid":"7""#;
    let long = format!(r#"{claim},"poisonerror":"{}""#, "y".repeat(400));
    let event = |claim: &str, size: usize| {
        let kind = Return::TYPE.kind();
        let event = |note: &str| {
            format!(
                r#"{{"specversion":"1.0","id":"1","source":"/s","type":"{kind}"{claim},"data":{{"number":7,"note":"{note}"}}}}"#
            )
        };
        event(&"x".repeat(size - event("").len()))
    };
    let in_base64 = |claim: &str| STANDARD.encode(event(claim, 48 * 1024));
    let plain = |claim: &str| event(claim, 64 * 1024);
    let bodies = [
        (in_base64(&long), true),
        (in_base64(claim), false),
        (plain(&long), false),
        (plain(claim), false),
    ];
    runtime().block_on(async {
        let backend = Arc::new(connect(&connection_string(), PATIENCE).await);
        let service = QueueService::with_backend(backend.clone()).connect().await;
        let service = service.expect("connect");
        let returns = service.queue_named::<Return>("forged-returns");
        let returns = returns.expect("a name");
        returns.any().create().await.expect("created");
        let poison = returns.poison().expect("a name");
        for (body, is_recorded) in bodies {
            let queue = returns.any();
            let put = backend.put(queue.name(), NewMessage::new(body));
            put.await.expect("put");
            let accepted = returns.accept().wait(Duration::from_secs(30)).await;
            let delivery = accepted.expect("accept").expect("the event");
            delivery.reject("torn").await.expect("moved");
            let moved = poison.peek(1).await.expect("peek");
            let record = moved[0].poison();
            let queue = record.map(|record| record.queue.as_str());
            assert_eq!(queue, is_recorded.then_some("forged-returns"));

            let redrive = poison
                .redrive()
                .unrecorded_to(returns.any().name())
                .expect("a name");
            let redriven = redrive.run().await.expect("redriven");
            assert_eq!((redriven.redriven, redriven.not_allowed), (1, 0));
            let queues = service.queues().await.expect("list");
            let payments = queues
                .iter()
                .any(|queue| queue.as_str() == "forged-payments");
            assert!(!payments, "{queues:?}");
            let accepted = returns.accept().wait(Duration::from_secs(30)).await;
            let delivery = accepted.expect("accept").expect("it is back");
            assert_eq!(*delivery.message(), Return { number: 7 });
            assert_eq!(delivery.envelope().poison, None);
            delivery.complete().await.expect("completed");
        }
    });
}

#[test]
fn a_wrong_key_is_denied() {
    let url = connection_string().replace("AccountKey=", "AccountKey=AAAA");
    runtime().block_on(async {
        let opened = AzureBackend::builder(&url, Arc::new(SystemClock::new())).open();
        let backend = opened.await.expect("nothing is asked yet");
        let error = backend.list_queues("").await.expect_err("denied");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert_eq!(error.outcome(), Outcome::NotDone);
    });
}

#[test]
fn a_shared_access_signature_is_accepted() {
    let url = SERVER.signed_url(ACCOUNT);
    runtime().block_on(async {
        let service = QueueService::connect(&url).await.expect("connect");
        service.queues().await.expect("the signature is accepted");
    });
}
