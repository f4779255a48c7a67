//! Processes that order and handle the transfers of the example `ledger` are killed at random. In the end, every
//! account must have the balance that the orders give it.

use std::fmt;
use std::path::Path;
use std::time::Instant;

use queue_runtime::QueueService;
use queue_runtime::sqlite::rusqlite::Connection;
use rand::RngExt as _;

use crate::crew::Crew;
use crate::process::GUARD;
use crate::sabotage::Bug;
use crate::worker::Role;

/// The accounts.
pub const ACCOUNTS: [&str; 5] = ["ada", "bob", "eve", "ida", "joe"];

/// What is in each account at first.
const BALANCE: i64 = 1000;

/// The processes that run all the time.
const ROLES: [Role; 5] = [
    Role::CrashOrder,
    Role::CrashOrder,
    Role::Transfer,
    Role::Transfer,
    Role::Transfer,
];

/// The largest number of orders and messages that are done between two kills.
const BETWEEN: usize = 40;

/// What a run does, ending by count.
#[derive(Debug, Clone)]
pub struct Accounts<'a> {
    /// The program of the processes.
    pub program: &'a Path,
    /// Seed of random choices.
    pub seed: u64,
    /// The number of processes that are killed.
    pub kills: usize,
    /// The planted bug.
    pub bug: Option<Bug>,
}

/// What a run has done.
#[derive(Debug, Clone, Copy)]
pub struct AccountFigures {
    /// Orders that were committed, each entered and confirmed once.
    pub orders: usize,
    /// Orders that were refused, because the account had too little.
    pub refused: usize,
}

struct Run<'a> {
    crew: Crew<'a>,
    bug: Option<Bug>,
}

impl Accounts<'_> {
    /// Performs the run.
    ///
    /// # Errors
    /// All that is wrong in the end.
    ///
    /// # Panics
    /// If nothing happens for a long time.
    pub async fn run(&self) -> Result<AccountFigures, Vec<String>> {
        let mut run = Run {
            crew: Crew::new(self.program, self.seed),
            bug: self.bug,
        };
        let service = run.crew.connect().await;
        let connection = queue_runtime::sqlite::connect(service.backend()).expect("the file opens");
        ledger::create(&connection, &ACCOUNTS, BALANCE).expect("the tables are new");
        for role in ROLES {
            run.crew.start(role, run.bug);
        }
        for _ in 0..self.kills {
            let lines = run.crew.random.random_range(1..=BETWEEN);
            run.wait(lines);
            let role = run.crew.kill_any();
            run.crew.start(role, run.bug);
            run.replace_aborted();
        }
        run.crew.end(Role::CrashOrder);
        drain(&service).await;
        run.crew.end(Role::Transfer);
        drop(service);
        run.judge(&connection)
    }
}

impl Run<'_> {
    /// Starts others in place of processes that a planted bug has ended.
    fn replace_aborted(&mut self) {
        while self.bug.is_some()
            && let Some(role) = self.crew.ended()
        {
            self.crew.start(role, self.bug);
        }
    }

    /// Waits until the processes have printed so many lines.
    fn wait(&mut self, mut lines: usize) {
        while lines > 0 {
            match self.crew.line() {
                Some(_) => lines -= 1,
                None => self.replace_aborted(),
            }
        }
    }

    fn judge(mut self, connection: &Connection) -> Result<AccountFigures, Vec<String>> {
        let mut none = |what: &str, rows: &str| {
            let count = format!("SELECT count(*), min(number) FROM ({rows})");
            let found: (i64, Option<i64>) = connection
                .query_row(&count, [], |row| Ok((row.get(0)?, row.get(1)?)))
                .expect(rows);
            if let (count @ 1.., number) = found {
                self.crew
                    .wrong
                    .push(format!("{count} orders {what}, such as {number:?}"));
            }
        };
        none(
            "were not entered",
            "SELECT number FROM orders WHERE number NOT IN (SELECT number FROM entries)",
        );
        none(
            "were entered several times",
            "SELECT number FROM entries GROUP BY number HAVING count(*) > 1",
        );
        none(
            "were entered and not ordered",
            "SELECT number FROM entries WHERE number NOT IN (SELECT number FROM orders)",
        );
        none(
            "were not confirmed once",
            "SELECT number FROM orders WHERE confirmed != 1",
        );
        for (name, balance) in ledger::balances(connection).expect("readable") {
            let entered = "SELECT ?2 + coalesce(sum(CASE ?1 WHEN credit THEN amount ELSE 0 END), 0) \
                - coalesce(sum(CASE ?1 WHEN debit THEN amount ELSE 0 END), 0) \
                FROM (SELECT DISTINCT number, debit, credit, amount FROM entries)";
            let expected: i64 = connection
                .query_row(entered, (&name, BALANCE), |row| row.get(0))
                .expect(entered);
            if balance != expected {
                self.crew
                    .wrong
                    .push(format!("{name} has {balance} instead of {expected}"));
            }
        }
        let count = |rows: &str| {
            let count = format!("SELECT count(*) FROM {rows}");
            let counted = connection.query_row(&count, [], |row| row.get::<_, u32>(0));
            counted.expect(rows) as usize
        };
        for rows in [
            "queue_messages",
            "queue_schedule",
            "queue_counts WHERE messages != 0",
        ] {
            if count(rows) != 0 {
                self.crew
                    .wrong
                    .push(format!("{} rows are left in {rows}", count(rows)));
            }
        }
        let figures = AccountFigures {
            orders: count("orders"),
            refused: count("entries WHERE amount IS NULL"),
        };
        self.crew.judge(figures)
    }
}

/// Waits until all messages are handled.
async fn drain(service: &QueueService) {
    let started = Instant::now();
    // Receipts follow transfers, so that a queue that is empty after those before it stays empty.
    for name in ["transfers", "receipts"] {
        let queue = service.any_queue(name).expect("a name");
        loop {
            let properties = queue.properties().await.expect("the queue exists");
            if properties.approximate_count == 0 {
                break;
            }
            assert!(started.elapsed() < GUARD, "messages remain: {properties:?}");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }
}

impl fmt::Display for AccountFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { orders, refused } = self;
        write!(
            f,
            "{orders} orders, each entered and confirmed once ({refused} refused)"
        )
    }
}
