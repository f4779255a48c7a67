use std::time::Duration;

use clap::{Args, ValueEnum};
use queue_runtime::QueueName;
use queue_runtime::envelope::PoisonReason;
use queue_runtime::internal::parse_duration;
use queue_runtime::service::redrive::{self, RedriveOutcome, RedriveStep, Redriven};
use serde_json::json;

use crate::failure::{Exit, Failure, Result};
use crate::output::{Bar, Output, count, escape, note};
use crate::session::Session;

/// Move the messages of a poison queue back to the queue that they came from.
///
/// `redrive` first counts the messages that would be moved, and asks. Each message goes where its poison record says,
/// if that queue is the owner of the poison queue, or a queue that --allow names. Filters are combined: a message must
/// match all of them.
#[derive(Debug, Args)]
pub(crate) struct Redrive {
    /// The poison queue, such as `orders-poison`.
    queue: String,

    /// Only count and list the messages that would be moved.
    #[arg(long)]
    dry_run: bool,

    /// Only the message with this id; repeat the option for several ids.
    #[arg(long, value_name = "ID", help_heading = "Filters")]
    id: Vec<String>,

    /// Only messages of this kind; repeat the option for several kinds.
    #[arg(long, value_name = "KIND", help_heading = "Filters")]
    kind: Vec<String>,

    /// Only messages that are poison for this reason; repeat the option for several reasons.
    #[arg(long, value_name = "REASON", help_heading = "Filters")]
    reason: Vec<Reason>,

    /// Only messages whose error contains this text; with several such options, all texts must occur.
    #[arg(long, value_name = "TEXT", help_heading = "Filters")]
    error: Vec<String>,

    /// Only messages that became poison at least this long ago.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, help_heading = "Filters")]
    older_than: Option<Duration>,

    /// Only messages that became poison less than this long ago.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, help_heading = "Filters")]
    younger_than: Option<Duration>,

    /// Messages that came from this queue are redriven too; repeat the option for several queues.
    ///
    /// A program that can put messages on the poison queue can forge their poison records, so name no queue that such a
    /// program must not write to.
    #[arg(long, value_name = "QUEUE")]
    allow: Vec<QueueName>,

    /// Move messages without a poison record, too, to this queue. `--unrecorded-to` is not allowed together with
    /// filters.
    #[arg(long, value_name = "QUEUE")]
    unrecorded_to: Option<QueueName>,

    /// The maximum number of messages a second.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,

    /// Keep the count of attempts, instead of beginning at zero.
    #[arg(long)]
    keep_attempts: bool,

    /// Move messages too that were cancelled within the last 7 days.
    #[arg(long)]
    cancelled: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Reason {
    /// All attempts of the message failed.
    Failed,
    /// The handler rejected the message.
    Rejected,
    /// The body does not decode as the queue's type.
    Undecodable,
    /// The version of the payload is newer than the consumer knows.
    NewerVersion,
    /// No handler takes the kind of the message.
    UnhandledKind,
    /// The message would have expired before the next attempt.
    Expiring,
    /// Attempts ended without a record, as when a process is killed.
    Crashed,
    /// The storage found the body damaged.
    Damaged,
    /// A reason that a newer program has recorded.
    Unknown,
}

impl From<Reason> for PoisonReason {
    fn from(reason: Reason) -> Self {
        match reason {
            Reason::Failed => Self::Failed,
            Reason::Rejected => Self::Rejected,
            Reason::Undecodable => Self::Undecodable,
            Reason::NewerVersion => Self::NewerVersion,
            Reason::UnhandledKind => Self::UnhandledKind,
            Reason::Expiring => Self::Expiring,
            Reason::Crashed => Self::Crashed,
            Reason::Damaged => Self::Damaged,
            Reason::Unknown => Self::Unknown,
        }
    }
}

impl Redrive {
    fn redrive(&self, session: &Session) -> Result<redrive::Redrive> {
        let redrive = session.queue(&self.queue)?.redrive();
        let mut redrive = redrive.allow(&self.allow)?;
        for id in &self.id {
            redrive = redrive.id(id);
        }
        for kind in &self.kind {
            redrive = redrive.kind(kind);
        }
        for &reason in &self.reason {
            redrive = redrive.reason(reason.into());
        }
        for error in &self.error {
            redrive = redrive.error_contains(error);
        }
        if let Some(age) = self.older_than {
            redrive = redrive.older_than(age);
        }
        if let Some(age) = self.younger_than {
            redrive = redrive.younger_than(age);
        }
        if let Some(queue) = &self.unrecorded_to {
            redrive = redrive.unrecorded_to(queue)?;
        }
        if let Some(rate) = self.rate {
            redrive = redrive.interval(Duration::from_secs(1) / rate);
        }
        if self.keep_attempts {
            redrive = redrive.keep_attempts();
        }
        if self.cancelled {
            redrive = redrive.including_cancelled();
        }
        Ok(redrive)
    }
}

pub(crate) async fn run(arguments: Redrive, session: &Session) -> Result<()> {
    let output = &session.output;
    if arguments.dry_run {
        let to = output.clone();
        let dry = arguments.redrive(session)?.each(move |step| {
            // If the output fails, so does that of the report.
            let _failed = list(step, &to);
        });
        let dry = dry.dry_run().await?;
        return report(session, &dry, "would be moved");
    }
    let wanted = arguments.redrive(session)?.dry_run().await?;
    let unseen = match wanted.unseen {
        0 => String::new(),
        unseen => format!(", and the messages that fit among about {unseen} further messages"),
    };
    if wanted.redriven + wanted.unseen == 0 {
        report(session, &wanted, "would be moved")?;
        return all_moved(&wanted);
    }
    let moved = count(wanted.redriven, "message");
    session.confirm(&format!("Move {moved} of `{}`{unseen}?", arguments.queue))?;
    let bar = Bar::new("moving", Some(wanted.redriven + wanted.unseen));
    let handle = bar.handle();
    let redrive = arguments.redrive(session)?.each(move |step| {
        if matches!(step.outcome, RedriveOutcome::Redriven(_)) {
            handle.inc(1);
        }
    });
    let redriven = redrive.run().await;
    drop(bar);
    let redriven = match redriven {
        Ok(redriven) => redriven,
        Err(error) => {
            let so_far = error.so_far;
            report(session, &so_far, "moved")?;
            return Err(Failure::from(error).after_part(so_far.redriven, "message", "moved"));
        }
    };
    report(session, &redriven, "moved")?;
    all_moved(&redriven)
}

/// # Errors
/// If messages that fit the filters are left.
fn all_moved(report: &Redriven) -> Result<()> {
    if report.refused + report.cancelled + report.not_allowed + report.unseen > 0 {
        let text = "some messages that fit the filters are left on the poison queue";
        return Err(Failure::new(Exit::Partial, text));
    }
    Ok(())
}

/// Writes what would happen to a message.
fn list(step: &RedriveStep<'_>, output: &Output) -> Result<()> {
    let id = step.envelope.map_or("", |envelope| envelope.id.as_str());
    let record = step.envelope.and_then(|envelope| envelope.poison.as_ref());
    let reason = record.map(|record| record.reason.to_string());
    let error = record.and_then(|record| record.error.as_deref());
    let error = error.filter(|_| !output.hides_payloads);
    if output.json {
        return output.json(&json!({
            "storage_id": step.storage_id,
            "id": id,
            "reason": reason,
            "error": error,
            "outcome": step.outcome,
        }));
    }
    let (reason, error) = (reason.unwrap_or_default(), error.unwrap_or_default());
    output.line(escape(&format!(
        "{id}  {}  {reason} {error}",
        shown(step.outcome)
    )))
}

fn shown(outcome: &RedriveOutcome) -> String {
    match outcome {
        RedriveOutcome::Redriven(queue) => format!("to `{queue}`"),
        RedriveOutcome::Filtered => "left: filtered".to_owned(),
        RedriveOutcome::WithoutRecord => "left: no poison record".to_owned(),
        RedriveOutcome::Duplicate => "a copy".to_owned(),
        RedriveOutcome::Hidden => "left: held or delayed".to_owned(),
        RedriveOutcome::Taken => "taken by another".to_owned(),
        RedriveOutcome::Refused(error) => format!("left: {error:?}"),
        RedriveOutcome::Cancelled => "left: cancelled; see --cancelled".to_owned(),
        RedriveOutcome::NotAllowed(queue) => format!("left: came from `{queue}`; see --allow"),
        _ => String::new(),
    }
}

fn report(session: &Session, redriven: &Redriven, moved: &str) -> Result<()> {
    let output = &session.output;
    if output.json {
        return output.json(redriven);
    }
    output.line(format!("{} {moved}", count(redriven.redriven, "message")))?;
    for (number, what) in [
        (redriven.filtered, "left because of the filters"),
        (
            redriven.without_record,
            "left, without a poison record; see --unrecorded-to",
        ),
        (redriven.duplicates, "deleted as copies of other messages"),
        (redriven.hidden, "left, held or delayed"),
        (redriven.taken, "taken by another consumer"),
        (redriven.refused, "left, refused by their queue"),
        (redriven.cancelled, "left, cancelled; see --cancelled"),
        (
            redriven.not_allowed,
            "left, because --allow does not name their queue",
        ),
        (
            redriven.unseen,
            "not examined, by the storage's approximate count",
        ),
    ] {
        if number > 0 {
            output.line(format!("{} {what}", count(number, "message")))?;
        }
    }
    if redriven.unseen > 0 && moved == "would be moved" {
        note("this storage shows only its first visible messages without receiving them");
    }
    Ok(())
}
