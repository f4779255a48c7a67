//! How soon an idle listener starts to handle a message: in this process and in another one, beside the time of the bare
//! storage.

use std::io::{BufRead as _, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use queue_runtime::notify::NatsNotifier;
use queue_runtime::postgres::tokio_postgres::{self, Client, NoTls, Statement};
use queue_runtime::service::StopOnDrop;
use queue_runtime::{ListenerHandle, Message, QueueService, Received};
use queue_tests::azurite::Azurite;
use queue_tests::nats::NatsServer;
use queue_tests::postgres::PostgresServer;
use rusqlite::Connection;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::report::Table;
use crate::{Options, Outcome, runtime, sdk};

/// The pause between two messages, in which the listener becomes idle.
const GAP: Duration = Duration::from_millis(100);

const MESSAGES: u32 = 200;

/// Messages before those that are measured, while connections are opened and the other process is subscribed.
const FIRST: u32 = 5;

const CALL: &str = "from the call";
const RETURN: &str = "from the return of `submit`";
const COMMITS: &str = "two bare commits";
const REQUESTS: &str = "a bare put and receive";

const WITH_NATS: &str = "Azurite with NATS, two processes";

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(kind = "bench.probe", queue = "probe")]
struct Probe;

/// Where messages are submitted and handled.
struct Place {
    name: &'static str,
    url: String,
    nats: Option<String>,
    two_processes: bool,
}

/// Where the listener runs.
enum Waiting {
    Here {
        _listener: StopOnDrop<ListenerHandle>,
        handled: UnboundedReceiver<u64>,
    },
    Elsewhere {
        process: Child,
        lines: Lines<BufReader<ChildStdout>>,
    },
}

/// Azurite, with an account for each round, and a NATS server.
struct Servers {
    azurite: Azurite,
    nats: NatsServer,
}

/// Waits for messages on the queues at `url` and prints when each was handled: the other process.
pub(crate) fn wait(url: &str, nats: Option<&str>) -> Outcome<()> {
    runtime()?.block_on(async {
        let service = connect(url, nats).await?;
        let listener = service.listener(async |_: Received<Probe>| println!("handled {}", now()));
        let _listener = listener.start()?;
        println!("ready");
        // Until the benchmark ends.
        tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await??;
        Ok(())
    })
}

async fn connect(url: &str, nats: Option<&str>) -> Outcome<QueueService> {
    let mut service = QueueService::builder(url);
    if let Some(nats) = nats {
        service = service.notifier(Arc::new(NatsNotifier::connect(nats).await?));
    }
    Ok(service.connect().await?)
}

pub(crate) fn measure(options: &Options) -> Outcome<Vec<Table>> {
    let runtime = runtime()?;
    let messages = options.messages(MESSAGES, 1);
    let title = "From submit to the handler of an idle listener";
    let mut table = Table::new("pickup", title, &[CALL])
        .costs("milliseconds", 2)
        .by("percentile");
    table.add_side(RETURN, None);
    table.add_side(COMMITS, Some(CALL));
    table.add_side(REQUESTS, Some(CALL));
    let servers = Servers::start(options);
    if let Err(why) = &servers {
        table.note(format!("{WITH_NATS}: {why}"));
    }
    let postgres = PostgresServer::start();
    if let Err(why) = &postgres {
        table.note(format!("PostgreSQL: {why}"));
    }
    for round in options.rounds() {
        // The files of a round are new.
        let dir = options.scratch()?;
        let commits = Bare::commits(&dir.path().join("bare.db"))?;
        let mut runs: Vec<_> = Place::on_files(dir.path())
            .into_iter()
            .map(|place| (place, commits.clone()))
            .collect();
        if let Ok(postgres) = &postgres {
            let commits = runtime.block_on(Bare::commits_on(postgres.url(), round))?;
            let places = Place::on_postgres(postgres.url(), round);
            runs.extend(places.map(|place| (place, commits.clone())));
        }
        if let Ok(servers) = &servers {
            let place = servers.place(round);
            let requests = runtime.block_on(sdk::Queue::open(&place.url))?;
            runs.push((place, Bare::Requests(requests)));
        }
        for (place, bare) in runs {
            eprintln!("pick-up, round {round}: {}", place.name);
            let measured = runtime.block_on(run(&place, messages, &bare))?;
            for (side, mut latencies) in measured {
                latencies.sort_by(f64::total_cmp);
                for percentile in [50, 99] {
                    let at = (latencies.len() - 1) * percentile as usize / 100;
                    table.add(place.name, percentile, side, latencies[at]);
                }
            }
        }
    }
    Ok(vec![table])
}

/// Returns the milliseconds of each message, by side.
async fn run(place: &Place, messages: u32, bare: &Bare) -> Outcome<[(&'static str, Vec<f64>); 3]> {
    let service = connect(&place.url, place.nats.as_deref()).await?;
    service.queue::<Probe>().any().create().await?;
    let mut waiting = if place.two_processes {
        Waiting::elsewhere(place)?
    } else {
        Waiting::here(&service)?
    };
    let (mut from_call, mut from_return, mut alone) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..FIRST + messages {
        tokio::time::sleep(GAP).await;
        let bare = bare.measure(number).await?;
        tokio::time::sleep(GAP).await;
        let called = now();
        service.submit(Probe).await?;
        let returned = now();
        let handled = waiting.handled().await?;
        if number >= FIRST {
            alone.push(bare.as_secs_f64() * 1e3);
            from_call.push(millis(called, handled));
            from_return.push(millis(returned, handled));
        }
    }
    Ok([
        (CALL, from_call),
        (RETURN, from_return),
        (bare.side(), alone),
    ])
}

impl Place {
    fn on_files(dir: &Path) -> [Self; 3] {
        let file = |name: &str| format!("sqlite:{}", dir.join(name).display());
        [
            ("memory, one process", "memory:".to_owned(), false),
            ("SQLite, one process", file("here.db"), false),
            ("SQLite, two processes", file("elsewhere.db"), true),
        ]
        .map(|(name, url, two_processes)| Self {
            name,
            url,
            nats: None,
            two_processes,
        })
    }

    /// Places with queues of their own.
    fn on_postgres(server: &str, round: u32) -> [Self; 2] {
        [
            ("PostgreSQL, one process", "here", false),
            ("PostgreSQL, two processes", "elsewhere", true),
        ]
        .map(|(name, schema, two_processes)| Self {
            name,
            url: format!("{server}?schema={schema}{round}"),
            nats: None,
            two_processes,
        })
    }
}

impl Servers {
    fn start(options: &Options) -> std::io::Result<Self> {
        let accounts: Vec<_> = options.rounds().map(account).collect();
        let accounts: Vec<_> = accounts.iter().map(String::as_str).collect();
        Ok(Self {
            azurite: Azurite::start(&accounts)?,
            nats: NatsServer::start()?,
        })
    }

    fn place(&self, round: u32) -> Place {
        Place {
            name: WITH_NATS,
            url: self.azurite.signed_url(&account(round)),
            nats: Some(self.nats.url()),
            two_processes: true,
        }
    }
}

/// The account of a round, whose queues are new ones.
fn account(round: u32) -> String {
    format!("round{round}")
}

impl Waiting {
    fn here(service: &QueueService) -> Outcome<Self> {
        let (sender, handled) = unbounded_channel();
        let listener = service.listener(move |_: Received<Probe>| {
            // The receiver lives as long as the listener.
            let _ = sender.send(now());
            async {}
        });
        Ok(Self::Here {
            _listener: listener.start()?.stop_on_drop(),
            handled,
        })
    }

    fn elsewhere(place: &Place) -> Outcome<Self> {
        let nats = place.nats.iter().flat_map(|url| ["--woken-by", url]);
        let mut process = Command::new(std::env::current_exe()?)
            .args(["--wait-on", &place.url])
            .args(nats)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = process.stdout.take().ok_or("the output is piped")?;
        let mut lines = BufReader::new(output).lines();
        match lines.next() {
            Some(Ok(line)) if line == "ready" => Ok(Self::Elsewhere { process, lines }),
            other => Err(format!("the process that waits said {other:?}").into()),
        }
    }

    /// Waits until a message is handled, and returns when that was.
    async fn handled(&mut self) -> Outcome<u64> {
        match self {
            Self::Here { handled, .. } => Ok(handled.recv().await.ok_or("the listener stopped")?),
            Self::Elsewhere { lines, .. } => {
                let line = lines.next().ok_or("the process that waits has ended")??;
                let at = line.strip_prefix("handled ").ok_or("an unknown line")?;
                Ok(at.parse()?)
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Self::Elsewhere { process, .. } = self {
            // It may have ended.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// A storage without the framework.
#[derive(Clone)]
enum Bare {
    /// A connection to a file on the same disk.
    Commits(Rc<Connection>),
    /// A connection to the same PostgreSQL server, and its statements.
    Statements(Rc<(Client, Statement, Statement)>),
    /// Another queue of the same server.
    Requests(sdk::Queue),
}

impl Bare {
    fn commits(path: &Path) -> Outcome<Self> {
        let connection = Connection::open(path)?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "synchronous", "full")?;
        connection
            .execute_batch("CREATE TABLE message (seq INTEGER PRIMARY KEY, claimed INTEGER)")?;
        Ok(Self::Commits(Rc::new(connection)))
    }

    async fn commits_on(server: &str, round: u32) -> Outcome<Self> {
        let (client, connection) = tokio_postgres::connect(server, NoTls).await?;
        tokio::spawn(connection);
        let table = format!("bare{round}");
        client
            .batch_execute(&format!(
                "CREATE TABLE {table} (seq bigserial PRIMARY KEY, claimed integer)"
            ))
            .await?;
        let put = format!("INSERT INTO {table} (claimed) VALUES (0) RETURNING seq");
        let claim = format!("UPDATE {table} SET claimed = 1 WHERE seq = $1");
        let (put, claim) = (client.prepare(&put).await?, client.prepare(&claim).await?);
        Ok(Self::Statements(Rc::new((client, put, claim))))
    }

    /// The name of the storage's figures.
    fn side(&self) -> &'static str {
        match self {
            Self::Commits(_) | Self::Statements(_) => COMMITS,
            Self::Requests(_) => REQUESTS,
        }
    }

    /// Puts a message and claims it.
    async fn measure(&self, number: u32) -> Outcome<Duration> {
        match self {
            Self::Commits(connection) => {
                let started = Instant::now();
                connection.execute("INSERT INTO message (claimed) VALUES (0)", [])?;
                let claim = "UPDATE message SET claimed = 1 WHERE seq = ?1";
                connection.execute(claim, [connection.last_insert_rowid()])?;
                Ok(started.elapsed())
            }
            Self::Statements(bare) => {
                let (client, put, claim) = &**bare;
                let started = Instant::now();
                let seq: i64 = client.query_one(put, &[]).await?.get(0);
                client.execute(claim, &[&seq]).await?;
                Ok(started.elapsed())
            }
            Self::Requests(queue) => queue.put_and_receive(number).await,
        }
    }
}

/// Returns the machine's time in nanoseconds, which is the same in both processes.
fn now() -> u64 {
    let now = UNIX_EPOCH.elapsed().unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

fn millis(from: u64, to: u64) -> f64 {
    // A handler may start before `submit` has returned.
    to.saturating_sub(from) as f64 / 1e6
}
