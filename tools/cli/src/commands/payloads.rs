use std::time::Duration;

use clap::{Args, Subcommand};
use queue_runtime::internal::parse_duration;
use queue_runtime::payloads::{Sweep, SweepReport};

use crate::failure::{Exit, Failure, Result};
use crate::output::{Bar, count};
use crate::session::Session;

/// Commands for payloads that are stored beside the queues.
#[derive(Debug, Subcommand)]
pub(crate) enum Payloads {
    Sweep(SweepArguments),
}

/// Delete payloads that no message needs any more, in the store that --payload-container or --payload-folder names.
#[derive(Debug, Args)]
pub(crate) struct SweepArguments {
    /// Only count the payloads that would be deleted.
    #[arg(long)]
    dry_run: bool,

    /// A queue that was cleared or deleted: if the queue is empty, all its payloads are deleted. Repeat the option for
    /// several queues.
    #[arg(long, value_name = "QUEUE")]
    cleared: Vec<queue_runtime::QueueName>,

    /// How long the marks of handled messages are kept, by which copies of a handled message are recognised.
    #[arg(long, value_name = "DURATION", default_value = "30days", value_parser = parse_duration)]
    mark_retention: Duration,
}

pub(crate) async fn run(payloads: Payloads, session: &Session) -> Result<()> {
    let Payloads::Sweep(arguments) = payloads;
    let store = session.service.payloads().ok_or_else(|| {
        Failure::new(Exit::Unsupported, "no payload store is named").with_help(
            "give --payload-container or --payload-folder; without a store, in memory and on SQLite, payloads are deleted with their messages",
        )
    })?;
    let sweep = || -> Result<Sweep> {
        let sweep = store.sweep().cleared(&arguments.cleared)?;
        Ok(sweep.mark_retention(arguments.mark_retention))
    };
    let wanted = sweep()?.dry_run().await;
    let wanted = wanted.map_err(|error| Failure::new(Exit::Failed, format!("{error:?}")))?;
    let described = in_words(&wanted);
    if arguments.dry_run {
        let sentence = format!("{described} would be deleted");
        return session.output.done(&sentence, &wanted);
    }
    let total = wanted.payloads + wanted.marks + wanted.partial;
    if total == 0 {
        return session.output.done("nothing is to be deleted", &wanted);
    }
    session.confirm(&format!("Delete {described}?"))?;
    let bar = Bar::new("sweeping", Some(total));
    let handle = bar.handle();
    let swept = sweep()?.each(move |_| handle.inc(1)).run().await;
    drop(bar);
    let swept = swept.map_err(|error| Failure::new(Exit::Partial, format!("{error:?}")))?;
    let sentence = format!("deleted {}", in_words(&swept));
    session.output.done(&sentence, &swept)
}

/// Says what a sweep deletes, or has deleted.
fn in_words(report: &SweepReport) -> String {
    format!(
        "{} of {} bytes, {} and {}",
        count(report.payloads, "payload"),
        report.bytes,
        count(report.marks, "mark"),
        count(report.partial, "temporary file")
    )
}
