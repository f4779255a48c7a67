//! Requests and replies between services.

use std::sync::Arc;
use std::time::Duration;

use queue_runtime::backend::{Backend, BackendExt as _, MemoryBackend, NewMessage};
use queue_runtime::request::{Reply, RequestError};
use queue_runtime::testing::TokioClock;
use queue_runtime::{
    Delivery, Disposition, ListenerHandle, Message, QueueName, QueueService, Received,
};
use queue_tests::MINUTE;
use serde::{Deserialize, Serialize};

#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "questions")]
pub(crate) struct Question {
    pub(crate) number: u32,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "answers")]
pub(crate) struct Answer {
    pub(crate) number: u32,
}

#[derive(Debug, Serialize, Deserialize, Message)]
pub(crate) struct Refusal {
    pub(crate) why: String,
}

pub(crate) const LEASE: Duration = Duration::from_secs(60);

/// Answers with twice the number.
pub(crate) fn answering(service: &QueueService) -> ListenerHandle {
    let handler = async |question: Received<Question>| {
        let number = question.number * 2;
        Disposition::reply(&Answer { number })
    };
    let listener = service.listener(handler).create_queue();
    listener.start().expect("starts")
}

pub(crate) async fn ask(
    service: &QueueService,
    number: u32,
) -> Result<Reply<Answer>, RequestError<Question>> {
    let request = service.request(Question { number });
    request.reply::<Answer>().timeout(MINUTE).await
}

pub(crate) async fn reply_queues(service: &QueueService) -> Vec<QueueName> {
    let mut queues = service.queues().await.expect("lists");
    queues.retain(QueueName::is_reply_queue);
    queues
}

/// A service of its own on this storage, like another process.
pub(crate) async fn instance(storage: &Arc<dyn Backend>) -> QueueService {
    QueueService::with_backend(Arc::clone(storage))
        .clock(Arc::new(TokioClock::new()))
        .reply_lease(LEASE)
        .on_current_runtime()
        .connect()
        .await
        .expect("connects")
}

pub(crate) fn shared() -> Arc<dyn Backend> {
    Arc::new(MemoryBackend::new(Arc::new(TokioClock::new())))
}

/// Puts and accepts a question whose reply a foreign program wants elsewhere.
pub(crate) async fn question_for(
    reply_to: &str,
    storage: &Arc<dyn Backend>,
    service: &QueueService,
) -> Delivery<Question> {
    let event = format!(
        r#"{{"specversion":"1.0","id":"x","source":"s","type":"question","replyto":"{reply_to}","data":{{"number":1}}}}"#
    );
    let queue = QueueName::from_static("questions");
    let put = storage.put(&queue, NewMessage::new(event)).await;
    put.expect("put");
    let question = service.accept().await.expect("no error");
    question.expect("put")
}
