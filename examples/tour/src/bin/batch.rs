//! A handler of batches takes many messages at a time, for one bulk insert in place of a hundred. If a batch fails as a
//! whole, its halves are handled again until the bad message is alone.
//!
//! `cargo run -p tour --bin batch` prints
//!
//! ```text
//! 299 rows were inserted, many by each statement
//! 299 messages are completed, 1 is poison:
//! rejected, 1234 °C is not a temperature
//! ```

use std::sync::{Arc, Mutex};

use queue_runtime::{Batch, Failure, Message, QueueService, batch};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
#[message(queue = "readings")]
struct Reading {
    sensor: u32,
    celsius: f64,
}

/// In place of a database: a statement inserts all of its rows, or none.
#[derive(Default)]
struct Table {
    rows: Vec<(u32, f64)>,
    statements: usize,
}

impl Table {
    fn insert(&mut self, rows: Vec<(u32, f64)>) -> Result<(), String> {
        if let Some((_, celsius)) = rows.iter().find(|(_, celsius)| *celsius > 1000.0) {
            return Err(format!("{celsius} °C is not a temperature"));
        }
        self.rows.extend(rows);
        self.statements += 1;
        Ok(())
    }
}

async fn insert(table: Arc<Mutex<Table>>, readings: Batch<Reading>) -> Result<(), Failure> {
    let rows = readings
        .iter()
        .map(|reading| (reading.sensor, reading.celsius));
    let mut table = table.lock().expect("no insert panics");
    table.insert(rows.collect()).map_err(Failure::reject)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let service = QueueService::connect("memory:").await?;
    let celsius = |sensor| if sensor == 217 { 1234.0 } else { 20.5 };
    let readings = (1..=300).map(|sensor| Reading {
        sensor,
        celsius: celsius(sensor),
    });
    service.submit_all(readings).await?;

    let table = Arc::new(Mutex::new(Table::default()));
    let listener = service.listener_with(table.clone(), batch(insert).size(100));
    let report = listener.until_empty().start()?.drained().await.info;

    {
        let table = table.lock().expect("no insert panics");
        assert!(table.statements < table.rows.len());
        println!(
            "{} rows were inserted, many by each statement",
            table.rows.len()
        );
    }
    println!(
        "{} messages are completed, {} is poison:",
        report.completed, report.poisoned
    );
    let poison = service.queue::<Reading>().poison()?;
    for message in poison.browse(None, 10).await?.messages {
        if let Some(record) = message.poison() {
            println!(
                "{}, {}",
                record.reason,
                record.error.as_deref().unwrap_or("no error")
            );
        }
    }
    Ok(())
}
