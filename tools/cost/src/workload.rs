use std::time::Duration;

use queue_runtime::Failure;
use queue_runtime::meter::TransactionCounts;

use crate::PriceTable;
use crate::listeners::{Arrival, Fleet, Polling, Waits, simulate, waits};
use crate::traffic::{Sending, Used, deliver};

const HOUR: Duration = Duration::from_secs(3600);
const DAYS: u64 = 30;

/// The shorter one of the longest pauses between polls that are compared.
const CAP: Duration = Duration::from_secs(1);

/// The number of messages whose transactions are counted, and multiplied for more messages.
const SAMPLE: u32 = 10_000;

/// The number of messages whose waits on an idle queue are measured.
const WAITS: u32 = 200;

/// What a system does in a day. The default workload is that of the photo mosaics in the white paper on queue-based
/// messaging.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Workload {
    /// The number of instances, each with a listener.
    pub instances: u32,
    /// The maximum number of dequeue tasks of an instance.
    pub tasks: u16,
    /// The hours of a day without a message.
    pub idle_hours: u8,
    /// The messages of a day.
    pub messages: u32,
    /// The bytes of a message's payload.
    pub payload: usize,
    /// The messages that are submitted by one call.
    pub together: u32,
    /// The price of 10,000 notifications, in the currency of the table of prices: an assumption for a hosted broker.
    pub notifications: f64,
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            instances: 10,
            tasks: 20,
            idle_hours: 22,
            messages: 1_000_000,
            payload: 200,
            together: 100,
            notifications: 0.01,
        }
    }
}

impl Workload {
    /// Returns three tables in Markdown: the monthly cost of the idle listeners, polling once a second, with backoff, and
    /// without polling; how long messages wait for them; and what messages cost, submitted one at a time, together, and
    /// packed.
    ///
    /// Takes a thread for some seconds: the library's own code is run in simulated time.
    ///
    /// # Errors
    /// If a runtime or a listener cannot be started.
    pub fn tables(&self, prices: &PriceTable) -> Result<[String; 3], Failure> {
        Ok([self.idle(prices)?, self.waiting()?, self.traffic(prices)?])
    }

    fn idle(&self, prices: &PriceTable) -> Result<String, Failure> {
        let (instances, tasks) = (self.instances, usize::from(self.tasks));
        let (hours, source) = (u32::from(self.idle_hours), &prices.source);
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
            // Every instance is like the other, and every hour where nothing changes.
            let simulated = simulate(fleet, hours * HOUR)?;
            let times = instances * u32::from(self.idle_hours) / hours;
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
        let name =
            format!("`tasks(1..={tasks})`: one task polls, backoff up to {CAP:?}, as on SQLite");
        row(&name, fleet, Polling::Capped(CAP), hours)?;
        let name = format!("`tasks(1..={tasks})`: one task polls, backoff up to 30s, as on Azure");
        row(&name, fleet, Polling::Backoff, hours)?;
        let name = format!("`tasks(0..={tasks})` with a notifier: no task polls");
        row(&name, fleet, Polling::Announced, hours)?;
        Ok(text)
    }

    fn waiting(&self) -> Result<String, Failure> {
        let tasks = usize::from(self.tasks);
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
                "no task polls, messages are announced",
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

    fn traffic(&self, prices: &PriceTable) -> Result<String, Failure> {
        let (messages, together) = (self.messages, self.together);
        let mut text = format!(
            "{messages} messages a day, each put, received and deleted, in simulated time: the counts of {SAMPLE}, times {}. All of \
             those wait when a listener starts.\nNotifications are those of a broker that announces them, at {} for 10,000.\n\n\
             | | transactions a day | notifications a day | {DAYS} days |\n|---|---:|---:|---:|\n",
            f64::from(messages) / f64::from(SAMPLE),
            self.notifications
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
            } = deliver(sending, SAMPLE, self.payload)?;
            let days = f64::from(messages) / f64::from(SAMPLE);
            let a_day = |count: usize| (count as f64 * days).round();
            let month = days * DAYS as f64;
            let price = prices.cost(&transactions).amount * month
                + self.notifications * notifications as f64 / 10_000.0 * month;
            let (used, announced) = (a_day(transactions.total()), a_day(notifications));
            let currency = &prices.currency;
            text += &format!("| {name} | {used} | {announced} | {price:.2} {currency} |\n");
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use std::{env, fs};

    use super::*;

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

    /// With `WRITE_FIGURES=1`, writes the figures to the page.
    #[test]
    fn the_page_of_the_papers_has_the_figures_that_the_command_prints() {
        let prices = PriceTable::read(None).expect("prices");
        let printed = Workload::default().tables(&prices).expect("simulated");
        let mut page = fs::read_to_string(PAGE).expect("the page");
        let kinds = [("idle", 0.05), ("waiting", 0.5), ("traffic", 0.05)];
        for ((name, by), printed) in kinds.into_iter().zip(printed) {
            let start = format!("<!-- figures of queues cost: {name} -->\n");
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
