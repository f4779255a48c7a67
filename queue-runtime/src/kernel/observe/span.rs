//! The spans, by OpenTelemetry's conventions for messaging.

use std::future::poll_fn;
use std::pin::Pin;

use queue_core::envelope::TraceContext;
use queue_core::{Envelope, MessageId, QueueName};
use tracing::Span;
use tracing::field::Empty;

use super::link;
use super::outcome::Outcome;

/// The target of the spans, which is theirs alone: a filter can keep them out of log lines.
const TARGET: &str = "queue_runtime::spans";

/// The name of this framework, as OpenTelemetry names messaging systems.
const SYSTEM: &str = "queue_runtime";

/// Returns the span of submitting messages to a queue.
pub(crate) fn send(queue: &QueueName, messages: usize) -> Span {
    tracing::info_span!(
        target: TARGET,
        "send",
        otel.name = %format_args!("send {queue}"),
        otel.kind = "producer",
        messaging.system = SYSTEM,
        messaging.operation.name = "send",
        messaging.operation.type = "send",
        messaging.destination.name = %queue,
        messaging.batch.message_count = (messages > 1).then_some(messages),
        messaging.message.id = Empty,
    )
}

/// Awaits a future within a span. It stays where it is, which costs less than `instrument` if it is large.
pub(crate) async fn within<T>(span: &Span, mut future: Pin<&mut impl Future<Output = T>>) -> T {
    poll_fn(|polling| {
        let _entered = span.enter();
        future.as_mut().poll(polling)
    })
    .await
}

/// Records the id of the message that the current span submits.
pub(crate) fn record_id(id: &MessageId) {
    Span::current().record("messaging.message.id", tracing::field::display(id));
}

/// Returns the span of handling and settling a message. It continues the sender's trace.
pub(crate) fn process(queue: &QueueName, envelope: &Envelope, attempt: u32) -> Span {
    let span = tracing::info_span!(
        target: TARGET,
        parent: None,
        "process",
        otel.name = %format_args!("process {queue}"),
        otel.kind = "consumer",
        otel.status_code = Empty,
        messaging.system = SYSTEM,
        messaging.operation.name = "process",
        messaging.operation.type = "process",
        messaging.destination.name = %queue,
        messaging.message.id = %envelope.id,
        messaging.message.conversation_id = %envelope.request,
        queue.attempt = attempt,
        queue.outcome = Empty,
        error.type = Empty,
    );
    if let Some(trace) = &envelope.trace {
        link::continue_trace(&span, trace);
    }
    span
}

/// Records how a message was settled.
pub(crate) fn record_outcome(span: &Span, outcome: Outcome) {
    span.record("queue.outcome", outcome.as_str());
    if outcome.is_error() {
        span.record("otel.status_code", "ERROR");
        span.record("error.type", outcome.as_str());
    }
}

/// Returns the trace context of the current span, if the feature `opentelemetry` is on and the span belongs to a trace.
pub(crate) fn current_trace() -> Option<TraceContext> {
    link::current()
}
