//! Large messages: as they are, compressed, attached in SQLite's file, and in a folder beside it.

use std::future::IntoFuture as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use queue_runtime::backend::BackendExt as _;
use queue_runtime::payloads::ObjectPayloads;
use queue_runtime::{Message, QueueService};
use queue_tests::incompressible;
use rusqlite::{Connection, params};
use serde::{Deserialize, Serialize};

use crate::report::Table;
use crate::sqlite::Synchronous;
use crate::{Options, Outcome, runtime};

const OURS: &str = "ours";
const BARE: &str = "bare `rusqlite`";

#[derive(Debug, Clone, Serialize, Deserialize, Message)]
#[message(kind = "bench.scan", queue = "scan")]
struct Scan {
    text: String,
}

/// A [`Scan`], compressed.
#[derive(Debug, Clone, Serialize, Deserialize, Message)]
#[message(kind = "bench.scan", queue = "scan", compress)]
struct Compressed {
    text: String,
}

/// What is submitted, and how often.
struct Load {
    what: &'static str,
    kib: u32,
    text: fn(usize) -> String,
    is_compressed: bool,
    is_in_folder: bool,
    messages: u32,
}

const LOADS: [Load; 5] = [
    load("words, as they are", 32, 400),
    Load {
        is_compressed: true,
        ..load("words, compressed", 32, 400)
    },
    Load {
        text: incompressible,
        ..load("random, in the file", 1024, 80)
    },
    Load {
        text: incompressible,
        ..load("random, in the file", 5 * 1024, 40)
    },
    Load {
        text: incompressible,
        is_in_folder: true,
        ..load("random, in a folder", 5 * 1024, 40)
    },
];

const fn load(what: &'static str, kib: u32, messages: u32) -> Load {
    Load {
        what,
        kib,
        text: words,
        is_compressed: false,
        is_in_folder: false,
        messages,
    }
}

/// Text that takes about a third when compressed.
fn words(length: usize) -> String {
    const WORDS: [&str; 8] = [
        "gear", "wheel", "engine", "card", "loom", "mill", "store", "axis",
    ];
    let mut text = String::with_capacity(length);
    for random in incompressible(length).bytes() {
        text.push_str(WORDS[usize::from(random % 8)]);
        text.push(' ');
        if text.len() >= length {
            break;
        }
    }
    text
}

/// Measures submitting, accepting and completing, one message after the other.
pub(crate) fn measure(options: &Options) -> Outcome<Vec<Table>> {
    let dir = options.scratch()?;
    let runtime = runtime()?;
    let title = "Large messages, SQLite, one at a time: submit, accept and complete";
    let mut table = Table::new("large", title, &[OURS, BARE]).by("KiB of payload");
    for round in options.rounds() {
        eprintln!("large, round {round}");
        for (place, load) in LOADS.iter().enumerate() {
            let text = (load.text)(load.kib as usize * 1024);
            let messages = options.messages(load.messages, 1);
            let path = dir.path().join(format!("{round}-{place}"));
            let rate = runtime.block_on(ours(&path, load, &text, messages))?;
            table.add(load.what, load.kib, OURS, rate);
            if !load.is_in_folder {
                let rate = bare(&path.with_extension("bare"), &text, messages)?;
                table.add(load.what, load.kib, BARE, rate);
            }
        }
    }
    table.note("The bare loop inserts the same JSON, reads it, and deletes it: two commits for each message, no lease.");
    Ok(vec![table])
}

async fn ours(path: &Path, load: &Load, text: &str, messages: u32) -> Outcome<f64> {
    let mut builder = QueueService::builder(&Synchronous::Full.url(path));
    if load.is_in_folder {
        let folder = ObjectPayloads::create_in_folder(path.with_extension("payloads"))?;
        builder = builder.payloads(Arc::new(folder));
    }
    let service = builder.connect().await?;
    let started = Instant::now();
    for _ in 0..messages {
        let text = text.to_owned();
        if load.is_compressed {
            service.submit(Compressed { text }).await?;
        } else {
            service.submit(Scan { text }).await?;
        }
        let delivery = service
            .accept::<Scan>()
            .await?
            .ok_or("a message is missing")?;
        delivery.complete().await?;
    }
    Ok(f64::from(messages) / started.elapsed().as_secs_f64())
}

fn bare(path: &Path, text: &str, messages: u32) -> Outcome<f64> {
    let connection = Connection::open(path)?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    connection.execute_batch("CREATE TABLE scan (id INTEGER PRIMARY KEY, body BLOB NOT NULL)")?;
    let started = Instant::now();
    for _ in 0..messages {
        let scan = Scan {
            text: text.to_owned(),
        };
        let body = serde_json::to_vec(&scan)?;
        connection.execute("INSERT INTO scan (body) VALUES (?1)", params![body])?;
        let id = connection.last_insert_rowid();
        let body = "SELECT body FROM scan WHERE id = ?1";
        let body: Vec<u8> = connection.query_row(body, [id], |row| row.get(0))?;
        let read: Scan = serde_json::from_slice(&body)?;
        if read.text.len() != text.len() {
            return Err("another text was read".into());
        }
        connection.execute("DELETE FROM scan WHERE id = ?1", [id])?;
    }
    Ok(f64::from(messages) / started.elapsed().as_secs_f64())
}

const LEASE: Duration = Duration::from_secs(600);

/// The payload of the large messages beside a small one, and their number.
const BESIDE: (usize, u32) = (60 * 1024 * 1024, 10);

/// Measures how long a small submission and a renewal take while large messages are submitted.
pub(crate) fn measure_beside(options: &Options) -> Outcome<Vec<Table>> {
    let dir = options.scratch()?;
    let runtime = runtime()?;
    let (size, count) = BESIDE;
    let count = options.messages(count, 1);
    let title = format!(
        "Beside {count} submissions of {} MiB at once, SQLite",
        size / 1024 / 1024
    );
    let mut table = Table::new("large-beside", title, &["alone", "beside"])
        .costs("milliseconds", 1)
        .by("large messages");
    for round in options.rounds() {
        eprintln!("large, round {round}: beside {count}");
        for (side, count_beside) in [("alone", 0), ("beside", count)] {
            let path = dir.path().join(format!("beside-{round}-{side}"));
            let mut taken = runtime.block_on(beside(&path, size, count_beside))?;
            for (what, times) in &mut taken {
                times.sort_by(f64::total_cmp);
                let last = times.len().checked_sub(1).ok_or("nothing was measured")?;
                table.add(&format!("{what}, median"), count, side, times[last / 2]);
                table.add(&format!("{what}, longest"), count, side, times[last]);
            }
        }
    }
    Ok(vec![table])
}

/// Submits small messages and renews a lease until the large ones are submitted, or for a while. Returns the times of
/// submissions and renewals, in milliseconds.
async fn beside(path: &Path, size: usize, large: u32) -> Outcome<[(&'static str, Vec<f64>); 2]> {
    let service = QueueService::connect(&Synchronous::Full.url(path)).await?;
    let held = Scan {
        text: "held".to_owned(),
    };
    service.submit(held).await?;
    let (backend, queue) = (
        service.backend(),
        service.queue::<Scan>().any().name().clone(),
    );
    let received = backend.receive(&queue, 1, LEASE).await?;
    let held = received.into_iter().next().ok_or("a message is missing")?;
    let mut receipt = held.receipt;
    let text = incompressible(size);
    let submitting: Vec<_> = (0..large)
        .map(|_| tokio::spawn(service.submit(Scan { text: text.clone() }).into_future()))
        .collect();
    let (mut submits, mut renewals) = (Vec::new(), Vec::new());
    let started = Instant::now();
    while submitting.iter().any(|task| !task.is_finished())
        || started.elapsed() < Duration::from_secs(1)
    {
        let small = Scan {
            text: "small".to_owned(),
        };
        let asked = Instant::now();
        service.submit(small).await?;
        submits.push(asked.elapsed().as_secs_f64() * 1000.0);
        let asked = Instant::now();
        let renewed = backend.renew(&queue, &held.id, &receipt, LEASE, None);
        receipt = renewed.await?.receipt;
        renewals.push(asked.elapsed().as_secs_f64() * 1000.0);
    }
    for task in submitting {
        task.await??;
    }
    Ok([("submit", submits), ("renewal", renewals)])
}
