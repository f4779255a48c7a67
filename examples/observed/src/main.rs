//! Two processes on one SQLite file, `observed.db` or that of `QUEUE_URL`:
//!
//! ```sh
//! cargo run -p observed -- work     # handles orders, until Ctrl-C
//! cargo run -p observed -- submit   # in another terminal: submits three
//! curl http://127.0.0.1:9464/metrics
//! ```
//!
//! Each process prints its spans: those of an order have one trace id in both. Warnings, such as that of an invoice
//! that is rejected, go to stderr. The address of the metrics is that of `METRICS_ADDRESS`, if set.

mod printer;

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusBuilder;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::trace::SdkTracerProvider;
use queue_runtime::{Disposition, Failure, Message, QueueService, Received};
use serde::{Deserialize, Serialize};
use tracing::{Instrument as _, info_span};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::Layer as _;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::printer::Printer;

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(kind = "shop.order", queue = "orders")]
struct Order {
    #[message(key)]
    number: u32,
}

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(kind = "shop.invoice", queue = "invoices")]
struct Invoice {
    #[message(key)]
    order: u32,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // In place of the printer, an application has an exporter for its collector, such as `opentelemetry-otlp`.
    let spans = SdkTracerProvider::builder()
        .with_simple_exporter(Printer)
        .build();
    let layer = tracing_opentelemetry::layer().with_tracer(spans.tracer("observed"));
    let warnings = fmt::layer().with_writer(std::io::stderr);
    tracing_subscriber::registry()
        .with(layer)
        .with(warnings.with_filter(LevelFilter::WARN))
        .init();
    let url = std::env::var("QUEUE_URL").unwrap_or_else(|_| "sqlite:observed.db".to_owned());
    match std::env::args().nth(1).as_deref() {
        Some("submit") => submit(&url).await?,
        Some("work") => work(&url).await?,
        _ => return Err("the command is `submit` or `work`".into()),
    }
    spans.shutdown()?;
    Ok(())
}

async fn submit(url: &str) -> Result<(), Box<dyn Error>> {
    let service = QueueService::connect(url).await?;
    for number in 1..=3 {
        let submitted = async { service.submit(Order { number }).await };
        submitted.instrument(info_span!("checkout", number)).await?;
    }
    Ok(())
}

async fn work(url: &str) -> Result<(), Box<dyn Error>> {
    let address = std::env::var("METRICS_ADDRESS");
    let address: SocketAddr = address.as_deref().unwrap_or("127.0.0.1:9464").parse()?;
    // Install the recorder before connecting: metrics are described then.
    PrometheusBuilder::new()
        .with_http_listener(address)
        .set_buckets(&[0.001, 0.01, 0.1, 1.0, 10.0, 100.0])?
        .install()?;
    let service = QueueService::connect(url).await?;
    let shutdown = service.shutdown_on_signal(Duration::from_secs(10))?;
    service.listener(ship).start()?;
    service.listener(send).start()?;
    println!("metrics at http://{address}/metrics; Ctrl-C stops");
    shutdown.await;
    println!("{} storage transactions", service.meter().total());
    Ok(())
}

async fn ship(order: Received<Order>) -> Disposition {
    // A span of the application, inside `process`.
    info_span!("pack").in_scope(|| {});
    Disposition::complete().then(&Invoice {
        order: order.number,
    })
}

async fn send(invoice: Received<Invoice>) -> Result<(), Failure> {
    match invoice.order {
        2 => Err(Failure::reject("order 2 has no address")),
        _ => Ok(()),
    }
}
