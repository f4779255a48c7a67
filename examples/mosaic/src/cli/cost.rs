use std::path::Path;
use std::time::Duration;

use mosaic::cost::{Fleet, Polling, simulate};
use queue_runtime::Failure;
use queue_runtime::meter::{PriceTable, TransactionCounts};
use tokio::task::spawn_blocking;

use super::arguments::Cost;

const HOUR: Duration = Duration::from_secs(3600);
const DAYS: u64 = 30;

/// Prints the monthly cost of idle listeners: polling once a second, with backoff, and without polling.
pub(crate) async fn cost(arguments: Cost) -> Result<(), Failure> {
    let prices = prices(arguments.prices.as_deref())?;
    spawn_blocking(move || print(&arguments, &prices)).await?
}

fn print(arguments: &Cost, prices: &PriceTable) -> Result<(), Failure> {
    let (instances, tasks) = (arguments.instances, usize::from(arguments.tasks));
    let hours = u32::from(arguments.idle_hours);
    println!(
        "{instances} instances of up to {tasks} dequeue tasks, without a message for {hours} hours a day, in simulated time.\n\
         Prices in {}: {}.\n",
        prices.currency, prices.source,
    );
    let fleet = |instances, polling| Fleet {
        instances,
        tasks,
        polling,
    };
    // Every hour and every instance is like the other.
    let hour = simulate(fleet(1, Polling::EverySecond), HOUR)?;
    let naive = (0..instances * hours).map(|_| hour).sum();
    let backoff = simulate(fleet(instances, Polling::Backoff), hours * HOUR)?;
    let announced = simulate(fleet(instances, Polling::Announced), hours * HOUR)?;
    println!("{:48} {:>14} {:>16}", "", "transactions", "price of");
    println!("{:48} {:>14} {:>16}", "", "a day", format!("{DAYS} days"));
    for (polling, day) in [
        ("each task polls once a second".to_owned(), naive),
        (
            format!("tasks(1..={tasks}): one polls, with backoff"),
            backoff,
        ),
        (
            format!("tasks(0..={tasks}): none, messages are announced"),
            announced,
        ),
    ] {
        let month: TransactionCounts = (0..DAYS).map(|_| day).sum();
        let cost = prices.cost(&month).to_string();
        println!("{polling:48} {:>14} {cost:>16}", day.total());
    }
    println!("\nwith backoff: {backoff}\nannounced: {announced}");
    Ok(())
}

fn prices(file: Option<&Path>) -> Result<PriceTable, Failure> {
    let Some(file) = file else {
        let source = "an assumption, 0.01 for 10,000 transactions";
        return Ok(PriceTable::new("USD", source, 0.01)?);
    };
    let problem = |error: &dyn std::fmt::Display| -> Failure {
        format!("read the prices in `{}`: {error}", file.display()).into()
    };
    let text = std::fs::read_to_string(file).map_err(|error| problem(&error))?;
    if file
        .extension()
        .is_some_and(|extension| extension == "json")
    {
        serde_json::from_str(&text).map_err(|error| problem(&error))
    } else {
        toml::from_str(&text).map_err(|error| problem(&error))
    }
}
