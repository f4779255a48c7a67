//! Links the spans of sender and consumer through the trace context of the message, if the application has a layer of
//! `tracing-opentelemetry`.

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
    // Both are zero outside of a trace.
    let trace = TraceContext::of_span(trace_id, span_id, span.trace_flags().to_u8()).ok()?;
    // One that is too long for a message is left out.
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
