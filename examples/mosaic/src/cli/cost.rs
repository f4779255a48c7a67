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
        println!("{}", idle(&arguments, &prices)?);
        println!("{}", waiting(&arguments)?);
        println!("{}", traffic(&arguments, &prices)?);
        Ok(())
    };
    spawn_blocking(print).await?
}

fn idle(arguments: &Cost, prices: &PriceTable) -> Result<String, Failure> {
    let (instances, tasks) = (arguments.instances, usize::from(arguments.tasks));
    let (hours, source) = (u32::from(arguments.idle_hours), &prices.source);
    let mut text = format!(
        "{instances} instances of up to {tasks} dequeue tasks, without a message for {hours} hours a day, in simulated time.\n\
         Prices in {}: {source}.\n\n| | transactions a day | {DAYS} days |\n|---|---:|---:|\n",
        prices.currency,
    );
    let mut row = |name: &str, (instances, tasks), polling, hours| -> Result<(), Failure> {
        let fleet = Fleet {
            instances: 1,
            tasks,
            polling,
        };
        // Every instance is like the other, and where nothing changes, every hour.
        let simulated = simulate(fleet, hours * HOUR)?;
        let times = instances * u32::from(arguments.idle_hours) / hours;
        let day: TransactionCounts = (0..times).map(|_| simulated).sum();
        let month: TransactionCounts = (0..DAYS).map(|_| day).sum();
        let (day, month) = (day.total(), prices.cost(&month));
        text += &format!("| {name} | {day} | {month} |\n");
        Ok(())
    };
    let (fleet, every_second) = ((instances, tasks), Polling::EverySecond);
    row(
        "one task in all, which polls once a second",
        (1, 1),
        every_second,
        1,
    )?;
    row("each task polls once a second", fleet, every_second, 1)?;
    let name = format!("`tasks(1..={tasks})`: one polls, backoff up to {CAP:?}, as on SQLite");
    row(&name, fleet, Polling::Capped(CAP), hours)?;
    let name = format!("`tasks(1..={tasks})`: one polls, backoff up to 30s, as on Azure");
    row(&name, fleet, Polling::Backoff, hours)?;
    let name = format!("`tasks(0..={tasks})` with a notifier: none polls");
    row(&name, fleet, Polling::Announced, hours)?;
    Ok(text)
}

fn waiting(arguments: &Cost) -> Result<String, Failure> {
    let tasks = usize::from(arguments.tasks);
    let mut text = format!(
        "From put to handler, {WAITS} messages on the idle queue of one instance, in simulated time: storage and notifier take \
         none.\n\n| | median | longest |\n|---|---:|---:|\n"
    );
    for (name, polling, arrival) in [
        (
            "each task polls once a second",
            Polling::EverySecond,
            Arrival::Quiet,
        ),
        (
            "one task polls, backoff up to 1s",
            Polling::Capped(CAP),
            Arrival::Quiet,
        ),
        (
            "one task polls, backoff up to 30s",
            Polling::Backoff,
            Arrival::Quiet,
        ),
        (
            "one task polls, messages are announced",
            Polling::Backoff,
            Arrival::Pushed,
        ),
        (
            "none polls, messages are announced",
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
        let [median, longest] = [median, longest].map(|wait| wait.as_secs_f64());
        text += &format!("| {name} | {median:.2} s | {longest:.2} s |\n");
    }
    Ok(text)
}

fn traffic(arguments: &Cost, prices: &PriceTable) -> Result<String, Failure> {
    let (messages, together) = (arguments.messages, arguments.together);
    let mut text = format!(
        "{messages} messages a day, each put, received and deleted, in simulated time: the counts of {SAMPLE}, times {}. All of \
         those wait when a listener starts.\nNotifications are those of a broker that announces them, at {} for 10,000.\n\n\
         | | transactions a day | notifications a day | {DAYS} days |\n|---|---:|---:|---:|\n",
        f64::from(messages) / f64::from(SAMPLE),
        arguments.notifications
    );
    for (name, sending) in [
        (
            "`submit`, received one by one".to_owned(),
            Sending::OneByOne,
        ),
        (
            "`submit`, up to 32 received together".to_owned(),
            Sending::Single,
        ),
        (
            format!("`submit_all` of {together}, up to 32 received together"),
            Sending::Together(together),
        ),
        (
            format!("`submit_all` of {together}, packed"),
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
        let (used, announced) = (a_day(transactions.total()), a_day(notifications));
        let currency = &prices.currency;
        text += &format!("| {name} | {used} | {announced} | {price:.2} {currency} |\n");
    }
    Ok(text)
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

#[cfg(test)]
mod tests {
    use std::{env, fs};

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        cost: Cost,
    }

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/seeds.md");

    /// Whether two texts differ in figures only, and those by no more than a part of them, as jitter does.
    fn is_alike(one: &str, other: &str, by: f64) -> bool {
        let words = |text: &str| {
            text.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let (one, other) = (words(one), words(other));
        let alike = |(one, other): (&String, &String)| match (one.parse::<f64>(), other.parse()) {
            (Ok(one), Ok(other)) => f64::abs(one - other) <= by * f64::max(one, other),
            _ => one == other,
        };
        one.len() == other.len() && one.iter().zip(&other).all(alike)
    }

    /// With `WRITE_FIGURES=1`, writes them there.
    #[test]
    fn the_page_of_the_papers_has_the_figures_that_the_command_prints() {
        let arguments = Arguments::parse_from(["cost"]).cost;
        let prices = prices(None).expect("prices");
        let mut page = fs::read_to_string(PAGE).expect("the page");
        for (name, printed, by) in [
            ("idle", idle(&arguments, &prices), 0.05),
            ("waiting", waiting(&arguments), 0.5),
            ("traffic", traffic(&arguments, &prices), 0.05),
        ] {
            let printed = printed.expect(name);
            let start = format!("<!-- figures of mosaic cost: {name} -->\n");
            let (before, rest) = page.split_once(&start).expect(name);
            let (written, after) = rest.split_once("\n<!-- end of figures -->").expect(name);
            if env::var_os("WRITE_FIGURES").is_some() {
                page = format!("{before}{start}\n{printed}\n<!-- end of figures -->{after}");
            } else {
                let differs =
                    format!("{name}: the page has\n{written}\nand the command prints\n{printed}");
                assert!(is_alike(written, &printed, by), "{differs}");
            }
        }
        if env::var_os("WRITE_FIGURES").is_some() {
            fs::write(PAGE, page).expect("written");
        }
    }

    #[test]
    fn figures_are_alike_within_jitter_and_words_are_equal() {
        assert!(is_alike(
            "| polls | 100 | 0.00 s |",
            "| polls | 104 | 0.00 s |",
            0.05
        ));
        assert!(!is_alike("| polls | 100 |", "| polls | 110 |", 0.05));
        assert!(!is_alike("| polls | 100 |", "| receives | 100 |", 0.05));
        assert!(!is_alike("| polls | 100 |", "| polls | 100 | 2 |", 0.05));
    }
}
