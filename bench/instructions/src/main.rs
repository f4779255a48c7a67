//! Counts the instructions of a message on memory by valgrind, which a busy machine does not affect, and fails if they are
//! more than the committed figures allow.

mod figures;
mod way;

use std::hint::black_box;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use figures::{Figures, place};
use queue_instructions::{Outcome, Parcel, instructions, through_envelope};
use queue_runtime::{QueueService, Received};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;

/// The messages of two runs: the start and the end of the process are the same in both, so that their difference is
/// about messages alone. The shorter run adds little to what the difference varies by.
const MESSAGES: [u32; 2] = [500, 4500];

/// How often a run is repeated. The least result counts: where memory happens to be, and the time of day, only add.
const RUNS: u32 = 3;

const USAGE: &str = "cargo run --release --package queue-instructions [-- --write]";

fn main() -> Outcome<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["perform", work, messages] => perform(work, messages.parse()?).map(|()| ExitCode::SUCCESS),
        ["way", work, file] => runtime()?
            .block_on(way::perform(work, file))
            .map(|()| ExitCode::SUCCESS),
        ["way"] => compare_way(),
        ["way", "--write"] => {
            std::fs::write(way(), way::files()?)?;
            Ok(ExitCode::SUCCESS)
        }
        [] => compare(),
        ["--write"] => {
            std::fs::write(figures(), count()?.to_string())?;
            Ok(ExitCode::SUCCESS)
        }
        _ => Err(format!("usage: {USAGE}").into()),
    }
}

fn figures() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/figures.toml"))
}

fn way() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/way.txt"))
}

fn runtime() -> Outcome<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

/// Fails if a message passes files that the committed list has not, or no longer passes one.
fn compare_way() -> Outcome<ExitCode> {
    let (found, committed) = (way::files()?, std::fs::read_to_string(way())?);
    let differs = |a: &str, b: &str, sign: char| {
        let missing = a
            .lines()
            .filter(|line| !b.lines().any(|other| other == *line));
        missing.for_each(|line| eprintln!("{sign} {line}"));
    };
    if found == committed {
        return Ok(ExitCode::SUCCESS);
    }
    differs(&committed, &found, '-');
    differs(&found, &committed, '+');
    eprintln!(
        "The files that a message passes are not those of {}",
        way().display()
    );
    Ok(ExitCode::FAILURE)
}

fn count() -> Outcome<Figures> {
    let each = |work| -> Outcome<u64> {
        let run = |messages: u32| instructions(&["perform", work, &messages.to_string()]);
        let [mut few, mut many] = [u64::MAX; 2];
        for _ in 0..RUNS {
            few = few.min(run(MESSAGES[0])?);
            many = many.min(run(MESSAGES[1])?);
        }
        Ok(many.saturating_sub(few) / u64::from(MESSAGES[1] - MESSAGES[0]))
    };
    let submit = each("submit")?;
    let counts = [
        ("submit", submit),
        (
            "accept-and-complete",
            each("accept")?.saturating_sub(submit),
        ),
        ("listener", each("listen")?.saturating_sub(submit)),
        ("envelope", each("envelope")?),
    ];
    Ok(Figures {
        place: place()?,
        counts: counts.map(|(name, count)| (name.to_owned(), count)).into(),
    })
}

fn compare() -> Outcome<ExitCode> {
    let committed: Figures = std::fs::read_to_string(figures())?.parse()?;
    let counted = count()?;
    print!("{counted}");
    if counted.place != committed.place {
        let (here, there) = (&counted.place, &committed.place);
        eprintln!(
            "NOT COMPARED: these are the instructions on {here}, and the committed figures those on {there}"
        );
        return Ok(ExitCode::SUCCESS);
    }
    let over = counted.over(&committed);
    for line in &over {
        eprintln!("{line}");
    }
    if over.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let path = figures().display();
    eprintln!(
        "If that is worth it, write new figures into {path}, and say why in the commit: {USAGE}"
    );
    Ok(ExitCode::FAILURE)
}

/// Performs work in this process, one message after another.
fn perform(work: &str, messages: u32) -> Outcome<()> {
    if work == "envelope" {
        let parcel = Parcel::new(messages);
        for _ in 0..messages {
            black_box(through_envelope(black_box(&parcel))?);
        }
        return Ok(());
    }
    runtime()?.block_on(async {
        let service = QueueService::connect("memory:").await?;
        for number in 0..messages {
            service.submit(Parcel::new(number)).await?;
            if work == "accept" {
                let delivery = service.accept::<Parcel>().await?;
                let delivery = delivery.ok_or("the queue is empty after a submit")?;
                delivery.complete().await?;
            }
        }
        if work == "listen" {
            let handled = Arc::new(Semaphore::new(0));
            let each = Arc::clone(&handled);
            let listener = service.listener(move |_: Received<Parcel>| {
                each.add_permits(1);
                async {}
            });
            let listener = listener.max_in_flight(32).start()?;
            drop(handled.acquire_many(messages).await?);
            listener.shutdown(Duration::from_secs(60)).await;
        }
        // Before the messages that are left are dropped, which the background thread does, or not in time.
        std::process::exit(0)
    })
}
