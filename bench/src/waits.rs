//! What the server's processes of our connections to PostgreSQL wait for.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use queue_runtime::QueueService;
use queue_runtime::postgres::tokio_postgres::{Client, NoTls, connect};
use queue_tests::postgres::PostgresServer;
use tokio::time::{MissedTickBehavior, interval};

use crate::report::Table;
use crate::{Options, Outcome, ours, runtime};

/// The numbers of tasks and of messages.
const SIZES: [(u32, u32); 2] = [(32, 100_000), (256, 100_000)];

/// The time between two samples.
const PAUSE: Duration = Duration::from_millis(5);

/// Of all connections but this one. A process that waits for nothing runs, or is about to.
const SAMPLE: &str = "SELECT pid, coalesce(wait_event_type || ':' || wait_event, 'CPU')
    FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";

/// The wait of a process without a statement.
const IDLE: &str = "Client:ClientRead";

/// The connections that are shown: one writes, and one receives.
const SIDES: [&str; 2] = ["busiest connection", "second connection"];

/// The least share that is shown, in percent.
const LEAST: f64 = 1.0;

/// How often each process was seen waiting for what.
#[derive(Default)]
struct Samples(BTreeMap<i32, BTreeMap<String, u32>>);

pub(crate) fn measure(options: &Options) -> Outcome<Vec<Table>> {
    let runtime = runtime()?;
    let title = "What our connections to PostgreSQL wait for";
    let mut table = Table::new("postgres-waits", title, &[]).costs("percent of samples", 0);
    for side in SIDES {
        table.add_side(side, None);
    }
    for round in options.rounds() {
        for (tasks, messages) in SIZES {
            eprintln!("PostgreSQL's waits, round {round}: {tasks} tasks");
            let messages = options.messages(messages, tasks);
            let server = PostgresServer::start()?;
            runtime.block_on(run(server.url(), messages, tasks, &mut table))?;
        }
    }
    Ok(vec![table])
}

async fn run(url: &str, messages: u32, tasks: u32, table: &mut Table) -> Outcome<()> {
    let (client, connection) = connect(url, NoTls).await?;
    tokio::spawn(connection);
    let service = QueueService::connect(url).await?;
    let submit = ours::submit(&service, messages, tasks);
    Samples::during(&client, submit)
        .await?
        .add(table, "submit", tasks);
    let listen = ours::listen(&service, messages, tasks);
    Samples::during(&client, listen)
        .await?
        .add(table, "listener", tasks);
    Ok(())
}

impl Samples {
    /// Takes samples until the work is done, which others do at the same time.
    async fn during(client: &Client, work: impl Future<Output = Outcome<f64>>) -> Outcome<Self> {
        let sample = client.prepare(SAMPLE).await?;
        let mut samples = Self::default();
        let mut work = pin!(work);
        let mut pauses = interval(PAUSE);
        pauses.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                done = &mut work => return done.map(|_| samples),
                _ = pauses.tick() => {}
            }
            for row in client.query(&sample, &[]).await? {
                let waits = samples.0.entry(row.get(0)).or_default();
                *waits.entry(row.get(1)).or_default() += 1;
            }
        }
    }

    /// Adds the shares of the processes that were least idle.
    fn add(self, table: &mut Table, what: &str, tasks: u32) {
        let mut processes: Vec<_> = self.0.into_values().collect();
        let busy = |waits: &BTreeMap<String, u32>| -> u32 {
            let at_work = waits.iter().filter(|(wait, _)| *wait != IDLE);
            at_work.map(|(_, times)| times).sum()
        };
        processes.sort_by_key(|waits| std::cmp::Reverse(busy(waits)));
        for (side, waits) in SIDES.into_iter().zip(processes) {
            let all: u32 = waits.values().sum();
            let mut waits: Vec<_> = waits.into_iter().collect();
            waits.sort_by_key(|(_, times)| std::cmp::Reverse(*times));
            for (wait, times) in waits {
                let share = f64::from(times) * 100.0 / f64::from(all);
                if share >= LEAST {
                    table.add(&format!("{what}, {wait}"), tasks, side, share);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connections_that_work_most_are_shown() {
        let waits = |waits: &[(&str, u32)]| {
            let waits = waits
                .iter()
                .map(|(wait, times)| ((*wait).to_owned(), *times));
            waits.collect()
        };
        let samples = Samples(BTreeMap::from([
            (1, waits(&[(IDLE, 100)])),
            (2, waits(&[(IDLE, 60), ("CPU", 40)])),
            (
                3,
                waits(&[
                    (IDLE, 25),
                    ("CPU", 74),
                    ("IO:WalSync", 100),
                    ("LWLock:Some", 1),
                ]),
            ),
        ]));
        let mut table = Table::new("t", "a title", &[]).costs("percent", 0);
        for side in SIDES {
            table.add_side(side, None);
        }
        samples.add(&mut table, "submit", 32);
        let shown = table.to_string();
        for row in [
            "| submit, IO:WalSync | 32 | busiest connection | 50 (",
            "| submit, CPU | 32 | busiest connection | 37 (",
            "| submit, CPU | 32 | second connection | 40 (",
            "| submit, Client:ClientRead | 32 | second connection | 60 (",
        ] {
            assert!(shown.contains(row), "{row} in {shown}");
        }
        assert!(!shown.contains("LWLock"), "{shown}");
    }
}
