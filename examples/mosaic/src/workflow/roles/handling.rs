use queue_runtime::envelope::{PoisonReason, PoisonRecord};
use queue_runtime::{Message, MessageId, QueueName, Received};

/// Logs the start and the end of a handler.
#[derive(Debug)]
pub(super) struct Handling {
    queue: QueueName,
    id: MessageId,
}

impl Handling {
    pub(super) fn of<M: Message>(received: &Received<M>) -> Self {
        let (queue, id) = (M::TYPE.queue(), received.envelope().id.clone());
        let request = &received.envelope().request_id;
        tracing::info!(%queue, %id, %request, attempt = received.attempt(), "handling");
        Self { queue, id }
    }
}

impl Drop for Handling {
    fn drop(&mut self) {
        tracing::info!(queue = %self.queue, id = %self.id, "handled");
    }
}

/// Describes why a message was moved to the poison queue: the error and its causes.
pub(super) fn reason(record: &PoisonRecord) -> String {
    let error = record.error.as_deref().unwrap_or("unknown error");
    match record.reason {
        PoisonReason::Rejected | PoisonReason::Crashed => error.to_owned(),
        PoisonReason::Failed => format!("gave up after {} attempts: {error}", record.attempts),
        other => format!("{other}: {error}"),
    }
}
