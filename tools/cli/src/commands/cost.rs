use std::path::PathBuf;

use clap::Args;
use queue_cost::{PriceTable, Workload};
use serde_json::json;

use crate::arguments::General;
use crate::failure::{Exit, Failure, Result};
use crate::output::Output;

/// Estimate the storage transactions of a workload in a month, and what they cost.
///
/// Opens no storage: runs listeners and messages in simulated time. Without arguments, the workload is that of the
/// photo mosaics in the white paper on queue-based messaging.
#[derive(Debug, Args)]
pub(crate) struct Cost {
    /// Number of instances, each with a listener.
    #[arg(long, value_name = "N", default_value_t = Workload::default().instances, value_parser = clap::value_parser!(u32).range(1..=1000))]
    instances: u32,
    /// Maximum number of dequeue tasks of an instance.
    #[arg(long, value_name = "N", default_value_t = Workload::default().tasks, value_parser = clap::value_parser!(u16).range(1..=256))]
    tasks: u16,
    /// Hours of a day without a message.
    #[arg(long, value_name = "N", default_value_t = Workload::default().idle_hours, value_parser = clap::value_parser!(u8).range(1..=24))]
    idle_hours: u8,
    /// Messages a day.
    #[arg(long, value_name = "N", default_value_t = Workload::default().messages)]
    messages: u32,
    /// Bytes of a message's payload.
    #[arg(long, value_name = "BYTES", default_value_t = Workload::default().payload, value_parser = payload)]
    payload: usize,
    /// Messages that are submitted by one call.
    #[arg(long, value_name = "N", default_value_t = Workload::default().together, value_parser = clap::value_parser!(u32).range(1..=1000))]
    together: u32,
    /// Price of 10,000 notifications, an assumption for a hosted broker; 0 if the broker is your own.
    #[arg(long, value_name = "PRICE", default_value_t = Workload::default().notifications, value_parser = price)]
    notifications: f64,
    /// File of prices, TOML or JSON; by default an assumed 0.01 USD for 10,000 transactions.
    #[arg(long, value_name = "FILE")]
    prices: Option<PathBuf>,
}

pub(crate) async fn run(cost: &Cost, general: &General) -> Result<()> {
    let failed = |error: queue_runtime::Failure| Failure::new(Exit::Failed, error.chain());
    let prices = PriceTable::read(cost.prices.as_deref()).map_err(failed)?;
    let workload = Workload {
        instances: cost.instances,
        tasks: cost.tasks,
        idle_hours: cost.idle_hours,
        messages: cost.messages,
        payload: cost.payload,
        together: cost.together,
        notifications: cost.notifications,
    };
    let tables = tokio::task::spawn_blocking(move || workload.tables(&prices)).await;
    let tables = tables.map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
    let [idle, waiting, traffic] = tables.map_err(failed)?;
    let output = Output::new(general);
    if output.json {
        return output.json(&json!({ "idle": idle, "waiting": waiting, "traffic": traffic }));
    }
    for table in [idle, waiting, traffic] {
        output.line(table)?;
    }
    Ok(())
}

/// The largest payload that fits a message on Azure uncompressed.
const MAX_PAYLOAD: usize = 40_000;

fn payload(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(bytes) if bytes <= MAX_PAYLOAD => Ok(bytes),
        _ => Err(format!("a payload has 0 to {MAX_PAYLOAD} bytes")),
    }
}

fn price(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(price) if price.is_finite() && price >= 0.0 => Ok(price),
        _ => Err("a price is a finite number from 0".to_owned()),
    }
}
