//! A listener and a loop over `accept` and `complete`, and ten thousand handlers that wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use queue_instructions::Parcel;
use queue_runtime::{QueueService, Received};
use tokio::sync::Notify;

use crate::meter::{Measured, Meter, Served};
use crate::report::{Table, Whose};
use crate::{Options, Outcome, memory, ours, runtime};

const LISTENER: &str = "listener";
const LOOP: &str = "accept + complete";

/// The numbers of messages in flight and of messages.
const SIZES: [(u32, u32); 2] = [(32, 50_000), (256, 100_000)];

const HANDLERS: u32 = 10_000;
const WAIT: Duration = Duration::from_secs(1);

/// Measures the cost of a message in a listener and in a loop over `accept`.
pub(crate) fn measure(options: &Options) -> Outcome<Vec<Table>> {
    let dir = options.scratch()?;
    let runtime = runtime()?;
    let title = "A listener whose handler completes at once";
    let sides = [LISTENER, LOOP];
    let mut rates = Table::new("listener", title, &sides).by("in flight");
    let mut times = Table::new("listener-processor", title, &sides)
        .costs("microseconds of processor time per message", 2)
        .by("in flight");
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
                    let side = match whose {
                        Whose::Ours => LISTENER,
                        Whose::Bare => LOOP,
                    };
                    rates.add(engine, in_flight, side, measured.rate);
                    times.add(engine, in_flight, side, measured.time);
                }
            }
        }
    }
    Ok(vec![rates, times])
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
pub(crate) fn measure_waiting(options: &Options) -> Outcome<Vec<Table>> {
    let handlers = options.messages(HANDLERS, 1);
    eprintln!("{handlers} handlers that wait");
    let (took, threads) = runtime()?.block_on(wait(handlers))?;
    let title = format!("Handlers that wait {WAIT:?} each, all in flight, on memory");
    let mut table = Table::new("handlers", title, &["ours"])
        .costs("each in its unit", 2)
        .by("handlers");
    let unknown = f64::NAN;
    let memory = memory::peak().map_or(unknown, |bytes| bytes / f64::from(1 << 20));
    for (what, figure) in [
        ("seconds until all are done", took.as_secs_f64()),
        ("threads", threads.map_or(unknown, f64::from)),
        ("MiB of peak memory, the whole process", memory),
    ] {
        table.add(what, handlers, "ours", figure);
    }
    Ok(vec![table])
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
    let threads = memory::threads();
    all_done.notified().await;
    let took = started.elapsed();
    let report = listener.shutdown(Duration::from_secs(60)).await;
    if report.info.completed == handlers as usize {
        Ok((took, threads))
    } else {
        Err(format!("not all messages were handled: {report:?}").into())
    }
}
