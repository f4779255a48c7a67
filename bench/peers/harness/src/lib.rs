//! What the programs around other queues have in common.
//!
//! The benchmark runs each program as a child process, since queues that link different releases of SQLite
//! cannot be in one binary:
//!
//! | command | prints, as one line of JSON |
//! |---|---|
//! | `list` | the [`Variant`]s that the program can measure |
//! | `run VARIANT MESSAGES TASKS DIRECTORY` | the [`Rates`] of submitting and then consuming so many messages |
//!
//! A program for PostgreSQL is given an empty [`database`] on a server of its own, whose default settings are durable.

mod work;

use std::error::Error;
use std::path::PathBuf;

use serde::Serialize;

pub use work::{Handled, Parcel, all_done, all_taken, submit_with, take_with};

/// The largest number of connections to a server, below the limit of its default settings.
pub const CONNECTIONS: u32 = 32;

/// The variable with the URL of a PostgreSQL database.
const DATABASE: &str = "PEER_DATABASE_URL";

pub type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// One way to use a queue.
#[derive(Debug, Serialize)]
pub struct Variant {
    /// The queue, its release and its settings, as shown in the results.
    pub name: String,
    pub durability: Durability,
    /// Which of our ways to consume does the same.
    pub consume: Consume,
    /// The largest number of messages that it handles within a reasonable time.
    pub at_most: u32,
    /// Why it cannot be measured here.
    pub missing: Option<String>,
}

/// What an acknowledged message survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// A loss of power.
    Full,
    /// The end of the process; a loss of power may lose the last messages.
    Normal,
}

/// Our ways to consume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Consume {
    Listen,
    /// One message at a time.
    Accept,
    /// Batches of 32.
    AcceptMany,
}

/// What a run should do.
#[derive(Debug)]
pub struct Work {
    /// The index of the variant in the list.
    pub variant: usize,
    pub messages: u32,
    /// The number of tasks that submit, and the number of messages in flight while they are consumed.
    pub tasks: u32,
    /// An empty directory.
    pub dir: PathBuf,
}

/// Messages per second.
#[derive(Debug, Serialize)]
pub struct Rates {
    pub submit: f64,
    pub consume: f64,
}

#[derive(Serialize)]
struct Answer {
    /// The size of a payload, so that the benchmark can check that it is that of its own.
    payload: usize,
    #[serde(flatten)]
    rates: Rates,
}

/// Returns the URL of the PostgreSQL database to run on.
pub fn database() -> Outcome<String> {
    Ok(std::env::var(DATABASE).map_err(|_| format!("{DATABASE} is not set"))?)
}

/// Executes the command in the arguments of the process.
pub fn main(
    list: impl AsyncFn() -> Vec<Variant>,
    run: impl AsyncFn(&Work) -> Outcome<Rates>,
) -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let line = match arguments[..] {
        ["list"] => serde_json::to_string(&runtime.block_on(list()))?,
        ["run", variant, messages, tasks, dir] => {
            let work = Work {
                variant: variant.parse()?,
                messages: messages.parse()?,
                tasks: tasks.parse()?,
                dir: dir.into(),
            };
            let rates = runtime.block_on(run(&work))?;
            let payload = serde_json::to_vec(&Parcel::new(0))?.len();
            serde_json::to_string(&Answer { payload, rates })?
        }
        _ => return Err("usage: list | run VARIANT MESSAGES TASKS DIRECTORY".into()),
    };
    println!("{line}");
    Ok(())
}
