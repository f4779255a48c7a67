//! Requests and replies on Azurite.

use std::time::Duration;

use queue_runtime::backend::{Backend as _, BackendExt as _, Metadata, NewMessage};
use queue_runtime::request::RequestErrorKind;
use queue_runtime::{Disposition, Message, QueueName, QueueService, Received};
use serde::{Deserialize, Serialize};

use crate::case::{PATIENCE, connect as connect_backend, patient};
use crate::proxy::GUARD;
use crate::server::{connection_string, runtime};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "price-requests", visibility_timeout = "5m")]
struct PriceRequest {
    item: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
struct Price {
    pence: u32,
}

/// How long the test waits for others to take an instance for gone.
const LEASE: Duration = Duration::from_secs(4);

async fn connect() -> QueueService {
    let service = patient(&connection_string()).await.reply_lease(LEASE);
    service.connect().await.expect("connect")
}

async fn exists(service: &QueueService, queue: &QueueName) -> bool {
    service.queues().await.expect("lists").contains(queue)
}

#[test]
fn a_request_is_answered_by_another_instance() {
    runtime().block_on(async {
        let (asking, answering) = (connect().await, connect().await);
        let listener = answering
            .listener(async |request: Received<PriceRequest>| match request.item {
                0 => Disposition::reject("no such item"),
                item => Disposition::reply(&Price { pence: item * 100 }),
            })
            .create_queue()
            .start()
            .expect("starts");
        let ask = |item| {
            let request = asking.request(PriceRequest { item });
            let request = request.reply::<Price>().timeout(GUARD);
            async move { request.await.expect("a reply") }
        };
        let replies = tokio::join!(ask(1), ask(2), ask(3));
        assert_eq!(
            (replies.0.pence, replies.1.pence, replies.2.pence),
            (100, 200, 300)
        );
        let request = asking.request(PriceRequest { item: 0 });
        let rejected = request.reply::<Price>().timeout(GUARD).await;
        let problem = rejected.expect_err("no such item").kind;
        assert!(
            matches!(problem, RequestErrorKind::Rejected { error: None }),
            "{problem}"
        );
        let uri = replies.0.envelope().queue_uri.clone().expect("ours");
        let queue: QueueName = uri
            .rsplit('/')
            .next()
            .expect("one")
            .parse()
            .expect("a name");
        assert!(exists(&answering, &queue).await);
        asking.delete_reply_queue().await;
        assert!(!exists(&answering, &queue).await);
        listener.shutdown(GUARD).await;
    });
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "late-requests", visibility_timeout = "5m")]
struct LateRequest {
    item: u32,
}

/// Its reply queue is deleted by others, and a reply to it creates none.
#[test]
fn an_instance_that_is_gone_leaves_no_queue() {
    runtime().block_on(async {
        let backend = connect_backend(&connection_string(), PATIENCE).await;
        let queue = QueueName::random_reply_queue();
        let mut metadata = Metadata::new();
        metadata.insert("replybeat", "7").expect("allowed");
        metadata.insert("replylease", "4000").expect("allowed");
        let created = backend.create_queue(&queue, &metadata).await;
        created.expect("created");
        let living = connect().await;
        let asking = living.clone();
        let waiting = tokio::spawn(async move {
            let request = asking.request(LateRequest { item: 1 });
            request.reply::<Price>().timeout(GUARD).await
        });
        let service = connect().await;
        service.sweep_reply_queues().await.expect("no error");
        assert!(!exists(&service, &queue).await);

        let late = service.queue::<LateRequest>().any();
        late.create().await.expect("created");
        let event = format!(
            r#"{{"specversion":"1.0","id":"x","source":"s","type":"late-request","replyto":"{queue}","data":{{"item":2}}}}"#
        );
        let put = backend.put(late.name(), NewMessage::new(event)).await;
        put.expect("put");
        for _ in 0..2 {
            let accept = service.accept::<LateRequest>().wait(GUARD);
            let request = accept.await.expect("accept").expect("two");
            let pence = request.item;
            request.reply(&Price { pence }).await.expect("completed");
        }
        let reply = waiting.await.expect("no panic").expect("its owner lives");
        assert_eq!(reply.pence, 1);
        assert!(!exists(&service, &queue).await);
        living.delete_reply_queue().await;
    });
}
