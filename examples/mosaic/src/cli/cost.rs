use std::path::Path;
use std::time::Duration;

use mosaic::cost::{Arrival, Fleet, Polling, Sending, Used, Waits, deliver, simulate, waits};
use queue_runtime::Failure;
use queue_runtime::meter::{PriceTable, TransactionCounts};
use tokio::task::spawn_blocking;

use super::arguments::Cost;

const HOUR: Duration = Duration::from_secs(3600);
const DAYS: u64 = 30;

/// The shorter one of the longest pauses between polls that are compared.
const CAP: Duration = Duration::from_secs(1);

/// The number of messages of which the transactions are counted, for more of them.
const SAMPLE: u32 = 10_000;

/// The number of messages whose waits on an idle queue are measured.
const WAITS: u32 = 200;

/// Prints the monthly cost of idle listeners: polling once a second, with backoff, and without polling. Then how long
/// messages wait for them, and what messages cost: submitted one at a time, together, and packed.
pub(crate) async fn cost(arguments: Cost) -> Result<(), Failure> {
    let prices = prices(arguments.prices.as_deref())?;
    let print = move || {
        print_idle(&arguments, &prices)?;
        print_waits(&arguments)?;
        print_traffic(&arguments, &prices)
    };
    spawn_blocking(print).await?
}

fn print_idle(arguments: &Cost, prices: &PriceTable) -> Result<(), Failure> {
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
    let capped = simulate(fleet(instances, Polling::Capped(CAP)), hours * HOUR)?;
    let announced = simulate(fleet(instances, Polling::Announced), hours * HOUR)?;
    println!("{:48} {:>14} {:>16}", "", "transactions", "price of");
    println!("{:48} {:>14} {:>16}", "", "a day", format!("{DAYS} days"));
    for (polling, day) in [
        ("each task polls once a second".to_owned(), naive),
        (
            format!("tasks(1..={tasks}): one polls, backoff up to {CAP:?}"),
            capped,
        ),
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

fn print_waits(arguments: &Cost) -> Result<(), Failure> {
    let tasks = usize::from(arguments.tasks);
    println!(
        "\nFrom put to handler on the idle queue of one instance, in simulated time: storage and notifier take none.\n"
    );
    println!("{:48} {:>14} {:>16}", "", "median", "longest");
    for (name, polling, arrival) in [
        (
            "each task polls once a second".to_owned(),
            Polling::EverySecond,
            Arrival::Quiet,
        ),
        (
            format!("tasks(1..={tasks}): one polls, backoff up to {CAP:?}"),
            Polling::Capped(CAP),
            Arrival::Quiet,
        ),
        (
            format!("tasks(1..={tasks}): one polls, with backoff"),
            Polling::Backoff,
            Arrival::Quiet,
        ),
        (
            format!("tasks(1..={tasks}), messages are announced"),
            Polling::Backoff,
            Arrival::Pushed,
        ),
        (
            format!("tasks(0..={tasks}), messages are announced"),
            Polling::Announced,
            Arrival::Pushed,
        ),
    ] {
        let fleet = Fleet {
            instances: 1,
            tasks,
            polling,
        };
        let Waits { median, longest } = waits(fleet, arrival, WAITS)?;
        let [median, longest] =
            [median, longest].map(|wait| format!("{:.2} s", wait.as_secs_f64()));
        println!("{name:48} {median:>14} {longest:>16}");
    }
    Ok(())
}

fn print_traffic(arguments: &Cost, prices: &PriceTable) -> Result<(), Failure> {
    let (messages, together) = (arguments.messages, arguments.together);
    println!(
        "\n{messages} messages a day, each put, received and deleted, in simulated time.\n\
         Notifications are those of a broker that announces them, at {} for 10,000.\n",
        arguments.notifications
    );
    println!(
        "{:34} {:>14} {:>13} {:>16}",
        "", "transactions", "notifications", "price of"
    );
    println!(
        "{:34} {:>14} {:>13} {:>16}",
        "",
        "a day",
        "a day",
        format!("{DAYS} days")
    );
    for (name, sending) in [
        ("submit, received one by one".to_owned(), Sending::OneByOne),
        ("submit".to_owned(), Sending::Single),
        (
            format!("submit_all of {together}"),
            Sending::Together(together),
        ),
        (
            format!("submit_all of {together}, packed"),
            Sending::Packed(together),
        ),
    ] {
        let Used {
            transactions,
            notifications,
        } = deliver(sending, SAMPLE)?;
        let days = f64::from(messages) / f64::from(SAMPLE);
        let a_day = |count: u64| (count as f64 * days).round();
        let month = days * DAYS as f64;
        let price = prices.cost(&transactions).amount * month
            + arguments.notifications * notifications as f64 / 10_000.0 * month;
        println!(
            "{name:34} {:>14} {:>13} {price:>12.2} {}",
            a_day(transactions.total()),
            a_day(notifications),
            prices.currency,
        );
    }
    Ok(())
}

pub(super) fn prices(file: Option<&Path>) -> Result<PriceTable, Failure> {
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
