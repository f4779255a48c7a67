//! With the filter of `docs/observability.md`, log lines have no fields of spans, and other layers see the spans.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use queue_runtime::{Failure, Received, testing};
use queue_tests::Written;
use queue_tests::orders::ShopOrder;
use tracing::span::{Attributes, Id};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::{EnvFilter, fmt};

const PAGE: &str = include_str!("../../../../docs/observability.md");
const FILTER: &str = "info,queue_runtime::spans=off";

/// Counts spans, as an exporter of traces would.
#[derive(Clone, Default)]
struct Spans(Arc<AtomicUsize>);

impl<S: tracing::Subscriber> Layer<S> for Spans {
    fn on_new_span(&self, _: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn log_lines_are_short_with_the_filter_of_the_page() {
    assert!(PAGE.contains(FILTER), "the page shows the filter");
    let (lines, spans) = (Written::default(), Spans::default());
    let written = lines.clone();
    let short = fmt::layer().with_ansi(false);
    let short = short.with_writer(move || written.clone());
    let subscriber = tracing_subscriber::registry()
        .with(spans.clone())
        .with(short.with_filter(EnvFilter::new(FILTER)));
    let _default = tracing::subscriber::set_default(subscriber);
    let service = testing::service().await;
    let listener = service.listener(async |order: Received<ShopOrder>| {
        tracing::info!(number = order.number, "packed");
        Err::<(), _>(Failure::reject("no address"))
    });
    let listener = listener.start().expect("starts");
    service
        .submit(ShopOrder { number: 7 })
        .await
        .expect("submitted");
    tokio::time::sleep(Duration::from_secs(60)).await;
    listener.shutdown(Duration::from_secs(60)).await;
    assert!(spans.0.load(Ordering::Relaxed) >= 2, "send and process");
    let lines = lines.text();
    let own = |part: &str| lines.lines().any(|line| line.contains(part));
    assert!(own("packed number=7") && own("no address"), "{lines}");
    for line in lines.lines() {
        assert!(!line.contains("otel") && line.len() < 250, "{line}");
    }
}
