//! A listener and a loop over `accept` and `complete`, and ten thousand handlers that wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use queue_runtime::{QueueService, Received};
use tokio::sync::Notify;

use crate::meter::{Measured, Meter, Served};
use crate::report::{Table, Whose};
use crate::workload::Parcel;
use crate::{Options, Outcome, ours, runtime};

const LOOP: &str = "accept + complete";

/// The numbers of messages in flight and of messages.
const SIZES: [(u32, u32); 2] = [(32, 50_000), (256, 100_000)];

const HANDLERS: u32 = 10_000;
const WAIT: Duration = Duration::from_secs(1);

/// Measures the cost of a message in a listener and in a loop over `accept`.
pub(crate) fn measure(options: &Options) -> Outcome<()> {
    let dir = options.scratch()?;
    let runtime = runtime()?;
    let title = "A listener whose handler completes at once";
    let columns = ["listener", LOOP];
    let mut rates = Table::new(format!("{title}: messages per second"), columns, 0);
    let times = format!("{title}: microseconds of processor time per message");
    let mut times = Table::new(times, columns, 2);
    for round in options.rounds() {
        for (in_flight, messages) in SIZES {
            eprintln!("listener, round {round}: {in_flight} in flight");
            let messages = options.messages(messages, in_flight);
            let file = dir.path().join(format!("{round}-{in_flight}.db"));
            for (engine, url) in [
                ("memory", "memory:".to_owned()),
                ("SQLite", format!("sqlite:{}", file.display())),
            ] {
                let service = runtime.block_on(QueueService::connect(&url))?;
                for whose in Whose::in_turn(round) {
                    let run = run(&service, messages, in_flight, whose);
                    let measured = runtime.block_on(run)?;
                    rates.add(engine, in_flight, whose, measured.rate);
                    times.add(engine, in_flight, whose, measured.time);
                }
            }
        }
    }
    println!("{rates}{times}");
    Ok(())
}

async fn run(
    service: &QueueService,
    messages: u32,
    in_flight: u32,
    whose: Whose,
) -> Outcome<Measured> {
    ours::submit(service, messages, 256).await?;
    let meter = Meter {
        messages,
        server: &Served::default,
    };
    match whose {
        Whose::Ours => {
            meter
                .measure(ours::listen(service, messages, in_flight))
                .await
        }
        Whose::Bare => {
            meter
                .measure(ours::accept(service, messages, in_flight))
                .await
        }
    }
}

/// Runs ten thousand handlers that wait a second each, concurrently.
pub(crate) fn measure_waiting(options: &Options) -> Outcome<()> {
    let handlers = options.messages(HANDLERS, 1);
    eprintln!("{handlers} handlers that wait");
    let (took, threads) = runtime()?.block_on(wait(handlers))?;
    println!("\n{handlers} handlers that wait {WAIT:?} each, concurrently, on memory");
    println!("- done in {:.2} s", took.as_secs_f64());
    match (threads, peak_memory()) {
        (Some(threads), Some(kilobytes)) => println!(
            "- {threads} threads, {:.0} MiB peak memory, the whole process",
            f64::from(kilobytes) / 1024.0
        ),
        _ => println!("- threads and memory: unknown on this system"),
    }
    Ok(())
}

/// Returns the time from the start of the listener to the end of the last handler, and the number of
/// threads while they wait.
async fn wait(handlers: u32) -> Outcome<(Duration, Option<u32>)> {
    let service = QueueService::connect("memory:").await?;
    ours::submit(&service, handlers, 256).await?;
    let (waiting, done) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (all_wait, all_done) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let started = Instant::now();
    let listener = {
        let (waiting, done) = (Arc::clone(&waiting), Arc::clone(&done));
        let (all_wait, all_done) = (Arc::clone(&all_wait), Arc::clone(&all_done));
        let handler = move |_: Received<Parcel>| {
            let (waiting, done) = (Arc::clone(&waiting), Arc::clone(&done));
            let (all_wait, all_done) = (Arc::clone(&all_wait), Arc::clone(&all_done));
            async move {
                if waiting.fetch_add(1, Ordering::Relaxed) + 1 == handlers {
                    all_wait.notify_one();
                }
                tokio::time::sleep(WAIT).await;
                if done.fetch_add(1, Ordering::Relaxed) + 1 == handlers {
                    all_done.notify_one();
                }
            }
        };
        service
            .listener(handler)
            .max_in_flight(handlers as usize)
            .start()?
    };
    all_wait.notified().await;
    let threads = status("Threads:");
    all_done.notified().await;
    let took = started.elapsed();
    let report = listener.shutdown(Duration::from_secs(60)).await;
    match report.info.completed == u64::from(handlers) {
        true => Ok((took, threads)),
        false => Err(format!("not all messages were handled: {report:?}").into()),
    }
}

/// The peak memory of this process so far, in KiB.
fn peak_memory() -> Option<u32> {
    status("VmHWM:")
}

/// A number in Linux's status file of this process.
fn status(name: &str) -> Option<u32> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}
