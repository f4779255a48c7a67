//! How soon an idle listener starts to handle a message: in this process and in another one, beside two bare commits.

use std::io::{BufRead as _, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant, UNIX_EPOCH};

use queue_runtime::{ListenerHandle, Message, QueueService, Received};
use rusqlite::Connection;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::report::Table;
use crate::{Options, Outcome, runtime};

/// The pause between two messages, in which the listener becomes idle.
const GAP: Duration = Duration::from_millis(100);

const MESSAGES: u32 = 200;

const CALL: &str = "from the call";
const RETURN: &str = "from the return of `submit`";
const COMMITS: &str = "two bare commits";

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(kind = "bench.probe", queue = "probe")]
struct Probe;

/// Where the listener runs.
enum Waiting {
    Here {
        _listener: ListenerHandle,
        handled: UnboundedReceiver<u64>,
    },
    Elsewhere {
        process: Child,
        lines: Lines<BufReader<ChildStdout>>,
    },
}

/// Waits for messages on the queues at `url` and prints when each was handled: the other process.
pub(crate) fn wait(url: &str) -> Outcome<()> {
    runtime()?.block_on(async {
        let service = QueueService::connect(url).await?;
        let listener = service.listener(async |_: Received<Probe>| println!("handled {}", now()));
        let _listener = listener.start()?;
        println!("ready");
        // Until the benchmark ends.
        tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await??;
        Ok(())
    })
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
    for round in options.rounds() {
        // The files of a round are new ones.
        let dir = options.scratch()?;
        let file = |name: &str| format!("sqlite:{}", dir.path().join(name).display());
        let mut bare = Bare::open(&dir.path().join("bare.db"))?;
        for (place, url, elsewhere) in [
            ("memory, one process", "memory:".to_owned(), false),
            ("SQLite, one process", file("here.db"), false),
            ("SQLite, two processes", file("elsewhere.db"), true),
        ] {
            eprintln!("pick-up, round {round}: {place}");
            let measured = runtime.block_on(run(&url, elsewhere, messages, &mut bare))?;
            for (side, mut latencies) in measured {
                latencies.sort_by(f64::total_cmp);
                for percentile in [50, 99] {
                    let at = (latencies.len() - 1) * percentile as usize / 100;
                    table.add(place, percentile, side, latencies[at]);
                }
            }
        }
    }
    Ok(vec![table])
}

/// Returns the milliseconds of each message, by side.
async fn run(
    url: &str,
    elsewhere: bool,
    messages: u32,
    bare: &mut Bare,
) -> Outcome<[(&'static str, Vec<f64>); 3]> {
    let service = QueueService::connect(url).await?;
    service.queue::<Probe>().any().create().await?;
    let mut waiting = match elsewhere {
        true => Waiting::elsewhere(url)?,
        false => Waiting::here(&service)?,
    };
    let (mut from_call, mut from_return, mut commits) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..messages {
        tokio::time::sleep(GAP).await;
        commits.push(bare.two_commits()?);
        tokio::time::sleep(GAP).await;
        let called = now();
        service.submit(Probe).await?;
        let returned = now();
        let handled = waiting.handled().await?;
        from_call.push(millis(called, handled));
        from_return.push(millis(returned, handled));
    }
    Ok([(CALL, from_call), (RETURN, from_return), (COMMITS, commits)])
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
            _listener: listener.start()?,
            handled,
        })
    }

    fn elsewhere(url: &str) -> Outcome<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(["--wait-on", url])
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

/// A bare connection to a file on the same disk.
struct Bare(Connection);

impl Bare {
    fn open(path: &Path) -> Outcome<Self> {
        let connection = Connection::open(path)?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "synchronous", "full")?;
        connection
            .execute_batch("CREATE TABLE message (seq INTEGER PRIMARY KEY, claimed INTEGER)")?;
        Ok(Self(connection))
    }

    /// Puts a message and claims it, in two commits. Returns milliseconds.
    fn two_commits(&mut self) -> Outcome<f64> {
        let started = Instant::now();
        self.0
            .execute("INSERT INTO message (claimed) VALUES (0)", [])?;
        let claim = "UPDATE message SET claimed = 1 WHERE seq = ?1";
        self.0.execute(claim, [self.0.last_insert_rowid()])?;
        Ok(started.elapsed().as_secs_f64() * 1e3)
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
