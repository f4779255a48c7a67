//! Other queues, each in a program of its own, and ours on the same work.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use queue_instructions::Parcel;
use queue_runtime::QueueService;
use queue_tests::postgres::PostgresServer;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::process::Command;

use crate::raw::Bare;
use crate::report::{Table, in_turn};
use crate::sqlite::Synchronous;
use crate::{Options, Outcome, ours, postgres, runtime};

/// Queues that do the same work, in one run.
pub(crate) struct Contest {
    name: &'static str,
    title: &'static str,
    /// The packages in `bench/peers`: each is a workspace, because their releases of SQLite or sqlx cannot be in one
    /// lock file.
    packages: &'static [&'static str],
    storage: Storage,
    ours: &'static [Ours],
}

/// Queues on SQLite and on Redis.
pub(crate) const LOCAL: Contest = Contest {
    name: "peers",
    title: "Other queues, beside ours of the same durability",
    packages: &["effectum", "apalis", "omniqueue"],
    storage: Storage::File,
    ours: &[
        ours("ours, FULL", Durability::Full, Consume::Listen),
        ours("ours, NORMAL", Durability::Normal, Consume::Listen),
        ours("ours, FULL, accept", Durability::Full, Consume::Accept),
        ours(
            "ours, FULL, accept_many(32)",
            Durability::Full,
            Consume::AcceptMany,
        ),
    ],
};

/// Queues on PostgreSQL, with the durability of its default settings.
pub(crate) const ON_POSTGRES: Contest = Contest {
    name: "postgres-peers",
    title: "Other queues on PostgreSQL, fsync, synchronous_commit=on, beside ours",
    packages: &["pgmq", "apalis-postgres", "graphile"],
    storage: Storage::Server,
    ours: &[
        ours("ours, listener", Durability::Full, Consume::Listen),
        ours("ours, accept", Durability::Full, Consume::Accept),
        ours(
            "ours, accept_many(32)",
            Durability::Full,
            Consume::AcceptMany,
        ),
    ],
};

/// Where a contest takes place: for each run a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Storage {
    /// A file of SQLite, for ours; peers use the folder, or a server that is given.
    File,
    /// A PostgreSQL server.
    Server,
}

/// Ours, with what a commit waits for and how messages are consumed.
#[derive(Debug, Clone, Copy)]
struct Ours {
    name: &'static str,
    durability: Durability,
    consume: Consume,
}

const fn ours(name: &'static str, durability: Durability, consume: Consume) -> Ours {
    Ours {
        name,
        durability,
        consume,
    }
}

/// A bare connection to PostgreSQL, which consumes as many messages in each statement as our batches have.
const BARE: &str = "bare connection, batches of 32";
const BATCH: u32 = 32;

/// The variable in which a peer's program finds the URL of its PostgreSQL database.
const DATABASE: &str = "PEER_DATABASE_URL";

/// The numbers of tasks and of messages.
const SIZES: [(u32, u32); 3] = [(1, 5000), (32, 40_000), (256, 50_000)];
/// When a program that has not answered is killed.
const PATIENCE: Duration = Duration::from_secs(120);

/// A queue with its settings, as its program describes it.
#[derive(Debug, Deserialize)]
struct Variant {
    name: String,
    durability: Durability,
    consume: Consume,
    at_most: u32,
    missing: Option<String>,
}

/// How messages are consumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Consume {
    /// By a listener.
    Listen,
    /// One at a time by each task.
    Accept,
    /// In batches of 32.
    AcceptMany,
}

/// What an acknowledged message survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Durability {
    Full,
    Normal,
}

#[derive(Debug, Deserialize)]
struct Answer {
    payload: usize,
    submit: f64,
    consume: f64,
}

/// What is measured in a round.
#[derive(Debug, Clone)]
enum Side {
    Ours(Ours),
    /// Consumes only: how it submits is another benchmark.
    Bare,
    Peer {
        name: String,
        program: PathBuf,
        number: usize,
        at_most: u32,
    },
}

impl Side {
    fn name(&self) -> &str {
        match self {
            Self::Ours(ours) => ours.name,
            Self::Bare => BARE,
            Self::Peer { name, .. } => name,
        }
    }
}

pub(crate) fn measure(options: &Options, contest: &Contest) -> Outcome<Vec<Table>> {
    let runtime = runtime()?;
    let mut table = Table::new(contest.name, contest.title, &[]);
    let sides = runtime.block_on(contest.sides(&mut table));
    let mut failed = BTreeSet::new();
    for round in options.rounds() {
        for (tasks, messages) in SIZES {
            for side in in_turn(round, sides.clone()) {
                if failed.contains(side.name()) {
                    continue;
                }
                let (name, shown) = (contest.name, side.name());
                eprintln!("{name}, round {round}, {tasks} tasks: {shown}");
                let run = contest.run(options, &side, messages, tasks);
                match (runtime.block_on(run), &side) {
                    (Ok((submit, consume)), _) => {
                        table.add("submit", tasks, side.name(), submit);
                        table.add("consume", tasks, side.name(), consume);
                    }
                    (Err(error), Side::Peer { name, .. }) => {
                        table.note(format!(
                            "{name}, from {tasks} tasks in round {round}: {error}"
                        ));
                        failed.insert(name.clone());
                    }
                    (Err(error), _) => return Err(error),
                }
            }
        }
    }
    Ok(vec![table])
}

impl Contest {
    /// Ours, and the peers that can be measured here; notes which cannot.
    async fn sides(&self, table: &mut Table) -> Vec<Side> {
        let mut sides = Vec::new();
        for ours in self.ours {
            table.add_side(ours.name, None);
            sides.push(Side::Ours(*ours));
        }
        if self.storage == Storage::Server {
            table.add_side(BARE, self.like(Durability::Full, Consume::AcceptMany));
            sides.push(Side::Bare);
        }
        for package in self.packages {
            let (program, variants) = match list(package).await {
                Ok(listed) => listed,
                Err(error) => {
                    table.note(format!("{package}: {error}"));
                    continue;
                }
            };
            for (number, variant) in variants.into_iter().enumerate() {
                let name = variant.name;
                if let Some(why) = variant.missing {
                    table.note(format!("{name}: {why}"));
                    continue;
                }
                table.add_side(&name, self.like(variant.durability, variant.consume));
                sides.push(Side::Peer {
                    name,
                    program: program.clone(),
                    number,
                    at_most: variant.at_most,
                });
            }
        }
        sides
    }

    /// Ours of this durability: that which consumes so, if there is one.
    fn like(&self, durability: Durability, consume: Consume) -> Option<&'static str> {
        let mut durable = self
            .ours
            .iter()
            .filter(|ours| ours.durability == durability);
        let alike = durable.clone().find(|ours| ours.consume == consume);
        alike.or_else(|| durable.next()).map(|ours| ours.name)
    }

    /// Submits and consumes on new storage. Returns messages per second.
    async fn run(
        &self,
        options: &Options,
        side: &Side,
        messages: u32,
        tasks: u32,
    ) -> Outcome<(f64, f64)> {
        let dir = options.scratch()?;
        let server = match self.storage {
            Storage::File => None,
            Storage::Server => Some(PostgresServer::start()?),
        };
        let database = server.as_ref().map(PostgresServer::url);
        match side {
            Side::Ours(ours) => {
                let url = match (database, ours.durability) {
                    (Some(url), _) => url.to_owned(),
                    (None, Durability::Full) => file(Synchronous::Full, dir.path()),
                    (None, Durability::Normal) => file(Synchronous::Normal, dir.path()),
                };
                ours.run(&url, options.messages(messages, tasks), tasks)
                    .await
            }
            Side::Bare => {
                let url = database.ok_or("there is no server")?;
                let bare = Bare::stored_as_ours().await?;
                let messages = options.messages(messages, tasks);
                let (_, consume) = postgres::run(url, bare, messages, BATCH).await?;
                Ok((f64::NAN, consume))
            }
            Side::Peer {
                program,
                number,
                at_most,
                ..
            } => {
                let messages = options.messages(messages.min(*at_most), tasks);
                let [number, messages, tasks] =
                    [*number as u32, messages, tasks].map(|n| n.to_string());
                let dir = dir.path().to_str();
                let dir = dir.ok_or("the folder's name is not UTF-8")?;
                let run = ["run", &number, &messages, &tasks, dir];
                let answer: Answer = ask(program, &run, database).await?;
                let payload = serde_json::to_vec(&Parcel::new(0))?.len();
                if answer.payload == payload {
                    Ok((answer.submit, answer.consume))
                } else {
                    Err(format!("its payload has {} bytes, ours {payload}", answer.payload).into())
                }
            }
        }
    }
}

impl Ours {
    async fn run(self, url: &str, messages: u32, tasks: u32) -> Outcome<(f64, f64)> {
        let service = QueueService::connect(url).await?;
        let submit = ours::submit(&service, messages, tasks).await?;
        let consumed = match self.consume {
            Consume::Listen => ours::listen(&service, messages, tasks).await?,
            Consume::Accept => ours::accept(&service, messages, tasks).await?,
            Consume::AcceptMany => ours::accept_many(&service, messages, tasks, BATCH).await?,
        };
        Ok((submit, consumed))
    }
}

fn file(synchronous: Synchronous, dir: &Path) -> String {
    synchronous.url(&dir.join("ours.db"))
}

async fn list(package: &str) -> Outcome<(PathBuf, Vec<Variant>)> {
    let program = build(package).await?;
    let variants = ask(&program, &["list"], None).await?;
    Ok((program, variants))
}

/// Builds a package of `bench/peers` below the directory of this program. Returns the path of its program.
async fn build(package: &str) -> Outcome<PathBuf> {
    eprintln!("peers: building {package}");
    let this = std::env::current_exe()?;
    let target = this
        .ancestors()
        .nth(2)
        .ok_or("this program is in no directory")?;
    let target = target.join("peers");
    let manifest = format!("{}/peers/{package}/Cargo.toml", env!("CARGO_MANIFEST_DIR"));
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args([
            "build",
            "--release",
            "--locked",
            "--manifest-path",
            &manifest,
        ])
        .arg("--target-dir")
        .arg(&target)
        .status()
        .await?;
    let program = format!("peer-{package}{}", std::env::consts::EXE_SUFFIX);
    if status.success() {
        Ok(target.join("release").join(program))
    } else {
        Err("it could not be built".into())
    }
}

/// Runs a program, and reads the line of JSON that it prints.
async fn ask<T: DeserializeOwned>(
    program: &Path,
    arguments: &[&str],
    database: Option<&str>,
) -> Outcome<T> {
    let name = program
        .file_name()
        .unwrap_or_default()
        .display()
        .to_string();
    let output = Command::new(program)
        .args(arguments)
        .envs(database.map(|url| (DATABASE, url)))
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(PATIENCE, output).await;
    let output = output.map_err(|_| format!("{name} did not end within {PATIENCE:?}"))?;
    let output = output.map_err(|error| format!("failed to start {name}: {error}"))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{name} ended with {}: {}", output.status, why.trim()).into());
    }
    let answer = serde_json::from_slice(&output.stdout);
    Ok(answer.map_err(|error| format!("{name} answered unintelligibly: {error}"))?)
}
