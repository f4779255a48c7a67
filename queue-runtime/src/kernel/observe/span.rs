//! The spans, by OpenTelemetry's conventions for messaging.

use std::future::poll_fn;
use std::pin::Pin;

use queue_core::envelope::TraceContext;
use queue_core::{Envelope, MessageId, QueueName};
use tracing::Span;
use tracing::field::Empty;

use super::measures::Outcome;

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

/// Awaits a future within a span. The future stays where it is, which costs less than `instrument` if it is large.
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

/// Returns the span of handling and settling a message, which continues the sender's trace.
pub(crate) fn process(queue: &QueueName, envelope: &Envelope, attempt: usize) -> Span {
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
        messaging.message.conversation_id = %envelope.request_id,
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

/// Links the spans of sender and consumer through the trace context of the message, if the application has a layer of
/// `tracing-opentelemetry`.
#[cfg(feature = "opentelemetry")]
mod link {
    use std::str::FromStr as _;

    use opentelemetry::Context;
    use opentelemetry::trace::{
        SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState,
    };
    use queue_core::envelope::TraceContext;
    use tracing::Span;
    use tracing_opentelemetry::OpenTelemetrySpanExt as _;

    /// Returns the trace context of the current span, if it belongs to a trace.
    pub(super) fn current() -> Option<TraceContext> {
        let context = Span::current().context();
        let span = context.span();
        let span = span.span_context();
        let trace_id = u128::from_be_bytes(span.trace_id().to_bytes());
        let span_id = u64::from_be_bytes(span.span_id().to_bytes());
        // Both ids are zero outside of a trace.
        let trace = TraceContext::of_span(trace_id, span_id, span.trace_flags().to_u8()).ok()?;
        // A state that is too long for a message is left out.
        let with_state = trace.clone().with_state(span.trace_state().header());
        Some(with_state.unwrap_or(trace))
    }

    /// Makes the sender's span the parent of this one, which has not been entered yet.
    pub(super) fn continue_trace(span: &Span, trace: &TraceContext) {
        let state = trace.state().map(TraceState::from_str);
        let sender = SpanContext::new(
            TraceId::from_bytes(trace.trace_id().to_be_bytes()),
            SpanId::from_bytes(trace.span_id().to_be_bytes()),
            TraceFlags::new(trace.flags()),
            true,
            // `TraceState` validates more strictly. The trace context is useful without it.
            state.and_then(Result::ok).unwrap_or_default(),
        );
        // An error says that the application has no such layer, or does not record the span.
        let _ = span.set_parent(Context::new().with_remote_span_context(sender));
    }
}

/// Without the feature `opentelemetry`, spans belong to no trace.
#[cfg(not(feature = "opentelemetry"))]
mod link {
    use queue_core::envelope::TraceContext;
    use tracing::Span;

    pub(super) fn current() -> Option<TraceContext> {
        None
    }

    pub(super) fn continue_trace(_: &Span, _: &TraceContext) {}
}
