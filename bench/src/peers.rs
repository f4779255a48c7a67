//! Other queues, each in a program of its own, and ours on the same work.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use queue_instructions::Parcel;
use queue_runtime::QueueService;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::process::Command;

use crate::report::{Table, in_turn};
use crate::sqlite::Synchronous;
use crate::{Options, Outcome, ours, runtime};

/// The packages in `bench/peers`: each is a workspace, because their releases of SQLite cannot be in one lock file.
const PACKAGES: [&str; 3] = ["effectum", "apalis", "servers"];

/// Ours, with what a commit waits for and how messages are consumed.
const OURS: [(&str, Synchronous, Consume); 4] = [
    ("ours, FULL", Synchronous::Full, Consume::Listen),
    ("ours, NORMAL", Synchronous::Normal, Consume::Listen),
    ("ours, FULL, accept", Synchronous::Full, Consume::Accept),
    (
        "ours, FULL, accept_many(32)",
        Synchronous::Full,
        Consume::AcceptMany,
    ),
];

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

#[derive(Debug, Clone, Copy, Deserialize)]
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
    Ours(&'static str, Synchronous, Consume),
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
            Self::Ours(name, ..) => name,
            Self::Peer { name, .. } => name,
        }
    }
}

pub(crate) fn measure(options: &Options) -> Outcome<Vec<Table>> {
    let runtime = runtime()?;
    let title = "Other queues, beside ours of the same durability";
    let mut table = Table::new("peers", title, &[]);
    let sides = runtime.block_on(sides(&mut table));
    let mut failed = BTreeSet::new();
    for round in options.rounds() {
        for (tasks, messages) in SIZES {
            for side in in_turn(round, sides.clone()) {
                if failed.contains(side.name()) {
                    continue;
                }
                eprintln!("peers, round {round}, {tasks} tasks: {}", side.name());
                let run = run(options, &side, messages, tasks);
                match (runtime.block_on(run), &side) {
                    (Ok((submit, consume)), _) => {
                        table.add("submit", tasks, side.name(), submit);
                        table.add("consume", tasks, side.name(), consume);
                    }
                    (Err(error), Side::Ours(..)) => return Err(error),
                    (Err(error), Side::Peer { name, .. }) => {
                        table.note(format!(
                            "{name}, from {tasks} tasks in round {round}: {error}"
                        ));
                        failed.insert(name.clone());
                    }
                }
            }
        }
    }
    Ok(vec![table])
}

/// Ours, and the peers that can be measured here; notes which cannot.
async fn sides(table: &mut Table) -> Vec<Side> {
    let mut sides = Vec::new();
    for (name, synchronous, consume) in OURS {
        table.add_side(name, None);
        sides.push(Side::Ours(name, synchronous, consume));
    }
    for package in PACKAGES {
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
            let is_alike =
                |(_, synchronous, consume): &(_, Synchronous, Consume)| match variant.durability {
                    Durability::Full => {
                        *synchronous == Synchronous::Full && *consume == variant.consume
                    }
                    Durability::Normal => *synchronous == Synchronous::Normal,
                };
            let ours = OURS.into_iter().find(is_alike).map(|(name, ..)| name);
            table.add_side(&name, ours);
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

async fn list(package: &str) -> Outcome<(PathBuf, Vec<Variant>)> {
    let program = build(package).await?;
    let variants = ask(&program, &["list"]).await?;
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

/// Submits and consumes on new storage. Returns messages per second.
async fn run(options: &Options, side: &Side, messages: u32, tasks: u32) -> Outcome<(f64, f64)> {
    let dir = options.scratch()?;
    match side {
        Side::Ours(_, synchronous, consume) => {
            let messages = options.messages(messages, tasks);
            let url = synchronous.url(&dir.path().join("ours.db"));
            let service = QueueService::connect(&url).await?;
            let submit = ours::submit(&service, messages, tasks).await?;
            let consumed = match consume {
                Consume::Listen => ours::listen(&service, messages, tasks).await?,
                Consume::Accept => ours::accept(&service, messages, tasks).await?,
                Consume::AcceptMany => ours::accept_many(&service, messages, tasks, 32).await?,
            };
            Ok((submit, consumed))
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
            let dir = dir
                .path()
                .to_str()
                .ok_or("the folder's name is not UTF-8")?;
            let answer: Answer = ask(program, &["run", &number, &messages, &tasks, dir]).await?;
            let payload = serde_json::to_vec(&Parcel::new(0))?.len();
            if answer.payload == payload {
                Ok((answer.submit, answer.consume))
            } else {
                Err(format!("its payload has {} bytes, ours {payload}", answer.payload).into())
            }
        }
    }
}

/// Runs a program, and reads the line of JSON that it prints.
async fn ask<T: DeserializeOwned>(program: &Path, arguments: &[&str]) -> Outcome<T> {
    let name = program
        .file_name()
        .unwrap_or_default()
        .display()
        .to_string();
    let output = Command::new(program)
        .args(arguments)
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
