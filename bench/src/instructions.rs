//! Instructions per message on memory, counted by valgrind, which a busy machine does not affect.

use std::process::Command;

use clap::ValueEnum;
use queue_instructions::Parcel;
use queue_runtime::QueueService;

use crate::report::Table;
use crate::{Options, Outcome, ours};

/// What a child process performs for each message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Counted {
    Submit,
    SubmitAcceptAndComplete,
    SubmitThenAccept,
    SubmitThenListen,
    SubmitThenRoute,
}

const MESSAGES: u32 = 2000;

/// Messages in flight, where several are.
const IN_FLIGHT: u32 = 32;

/// Counts the instructions of each step, once. All work includes a submission, so the other steps are differences.
pub(crate) fn measure(options: &Options) -> Outcome<Vec<Table>> {
    let messages = options.messages(MESSAGES, 1);
    let title = "A message on memory, counted by valgrind";
    let mut table = Table::new("instructions", title, &["ours"]).costs("instructions", 0);
    let count = |work| -> Outcome<f64> {
        eprintln!("instructions: {work:?}");
        // The start and the end of the process are the same in both runs.
        let once = instructions(work, messages)?;
        let twice = instructions(work, 2 * messages)?;
        Ok((twice as f64 - once as f64) / f64::from(messages))
    };
    if let Err(error) = Command::new("valgrind").arg("--version").output() {
        table.note(format!("valgrind is not installed ({error})"));
        return Ok(vec![table]);
    }
    let submit = count(Counted::Submit)?;
    let all = count(Counted::SubmitAcceptAndComplete)?;
    let accepted = count(Counted::SubmitThenAccept)?;
    let listened = count(Counted::SubmitThenListen)?;
    let routed = count(Counted::SubmitThenRoute)?;
    for (step, instructions) in [
        ("submit", submit),
        ("accept + complete", all - submit),
        ("submit + accept + complete", all),
        ("accept + complete, 32 in flight", accepted - submit),
        ("a listener, 32 in flight", listened - submit),
        ("a router of 20 types, 32 in flight", routed - submit),
    ] {
        table.add(step, 1, "ours", instructions);
    }
    Ok(vec![table])
}

/// Performs the work in this process, one message after another.
pub(crate) fn perform(work: Counted, messages: u32) -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let service = QueueService::connect("memory:").await?;
        for number in 0..messages {
            service.submit(Parcel::new(number)).await?;
            if work == Counted::SubmitAcceptAndComplete {
                let delivery = service.accept::<Parcel>().await?;
                let delivery = delivery.ok_or("the queue is empty after a submit")?;
                delivery.complete().await?;
            }
        }
        match work {
            Counted::Submit | Counted::SubmitAcceptAndComplete => {}
            Counted::SubmitThenAccept => drop(ours::accept(&service, messages, IN_FLIGHT).await?),
            Counted::SubmitThenListen => drop(ours::listen(&service, messages, IN_FLIGHT).await?),
            Counted::SubmitThenRoute => drop(ours::route(&service, messages, IN_FLIGHT).await?),
        }
        Ok(())
    })
}

/// Counts the instructions of this program as a child that performs the work.
fn instructions(work: Counted, messages: u32) -> Outcome<u64> {
    let work = work.to_possible_value().ok_or("no work is skipped")?;
    let messages = messages.to_string();
    let arguments = ["--messages", &messages, "--perform", work.get_name()];
    queue_instructions::instructions(&arguments)
}
