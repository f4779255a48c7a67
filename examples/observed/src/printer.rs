use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};

/// Prints a line for each span that ends.
#[derive(Debug)]
pub(crate) struct Printer;

impl SpanExporter for Printer {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        for span in batch {
            let (trace, id) = (span.span_context.trace_id(), span.span_context.span_id());
            let outcome = span.attributes.iter();
            let outcome = outcome.filter(|attribute| attribute.key.as_str() == "queue.outcome");
            let outcome: String = outcome.map(|found| format!(" {}", found.value)).collect();
            println!(
                "trace={trace} span={id} parent={} {}{outcome}",
                span.parent_span_id, span.name
            );
        }
        Ok(())
    }
}
