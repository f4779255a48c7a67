//! A tracked message, on whatever queue it is: where it is, and taking it back.

use std::time::Duration;

use clap::Args;
use queue_runtime::MessageId;
use queue_runtime::envelope::ClientId;
use queue_runtime::internal::parse_duration;
use queue_runtime::service::{Cancelled, HowEnded, Rescheduled, Status};
use serde_json::{Value, json};

use crate::failure::{Exit, Failure, Result};
use crate::output::escape;
use crate::session::Session;

/// Tell where a message is, whatever queue it is on, if its type is `tracked`. Not on Azure.
#[derive(Debug, Args)]
pub(crate) struct StatusOf {
    /// The message id.
    id: MessageId,
}

/// Take a message back, whatever queue it is on, if its type is `tracked`. Not on Azure.
///
/// A consumer that handles the message is told to stop at the next renewal of the lease. A message on a poison queue stays
/// there.
#[derive(Debug, Args)]
pub(crate) struct Cancel {
    /// The message id.
    id: MessageId,
}

/// Change when a message can be received that nobody has received, whatever queue it is on, if its type is `tracked`. Not
/// on Azure.
#[derive(Debug, Args)]
pub(crate) struct Reschedule {
    /// The message id.
    id: MessageId,

    /// How long the message stays invisible from now on.
    #[arg(value_parser = parse_duration)]
    delay: Duration,
}

pub(crate) async fn run(of: &StatusOf, session: &Session) -> Result<()> {
    let output = &session.output;
    let status = session.service.status(&of.id).await?;
    if output.json {
        let mut status = serde_json::to_value(&status).expect("a status is JSON");
        for record in ["record", "entry"] {
            if output.hides_payloads
                && let Some(record) = status.get_mut(record)
            {
                record["error"] = Value::Null;
            }
        }
        if output.hides_payloads
            && let Some(checkpoint) = status.get_mut("checkpoint")
        {
            *checkpoint = Value::Null;
        }
        return output.json(&status);
    }
    output.line(match &status {
        Status::Waiting { queue, .. } => format!("waiting on `{queue}`"),
        Status::Delayed { queue, until, .. } => format!("delayed on `{queue}` until {until}"),
        Status::Behind { queue, .. } => format!("behind others of its group on `{queue}`"),
        Status::Held {
            queue,
            since,
            client_id,
            until,
            receives,
            checkpoint,
            ..
        } => {
            let checkpoint = shown(checkpoint.as_ref(), output.hides_payloads);
            let client = client_id.as_ref().map(ClientId::as_str);
            let client = client.map_or("an unknown client".to_owned(), escape);
            format!(
                "held by {client} since {since}, on `{queue}`; its lease ends at {until} unless it is renewed; receives: {receives}{checkpoint}"
            )
        }
        Status::PutBack {
            queue,
            until,
            receives,
            checkpoint,
            ..
        } => format!(
            "put back on `{queue}` until {until}; receives: {receives}{}",
            shown(checkpoint.as_ref(), output.hides_payloads)
        ),
        Status::Poison { queue, record, .. } => {
            let error = record.error.as_deref().filter(|_| !output.hides_payloads);
            let error = error.map_or_else(String::new, |error| format!(": {}", escape(error)));
            format!(
                "poison, on `{queue}`, after {} attempts{error}",
                record.attempts
            )
        }
        Status::Ended { at, entry, .. } => match entry.how {
            HowEnded::Poisoned => format!(
                "was moved to the poison queue at {at}, after {} attempts, and is gone from there",
                entry.attempts
            ),
            _ => format!("completed at {at}; attempts: {}", entry.attempts),
        },
        Status::Cancelled => "cancelled within the last 7 days".to_owned(),
        _ => "gone: completed, deleted, expired, not submitted, or not tracked".to_owned(),
    })
}

/// What a line says of a checkpoint.
fn shown(checkpoint: Option<&Value>, is_hidden: bool) -> String {
    let checkpoint = checkpoint.filter(|_| !is_hidden);
    checkpoint.map_or_else(String::new, |value| {
        format!("; checkpoint: {}", escape(&value.to_string()))
    })
}

pub(crate) async fn cancel(of: &Cancel, session: &Session) -> Result<()> {
    let cancelled = session.service.cancel(&of.id).await?;
    let sentence = match cancelled {
        Cancelled::Removed => "removed before anybody held it",
        Cancelled::Revoked => {
            "removed while a consumer held it, or had put it back; a handler is told to stop"
        }
        Cancelled::Before => "was cancelled before",
        Cancelled::Completed => {
            return Err(not_cancelled(&of.id, "it was completed before"));
        }
        Cancelled::Poison => {
            return Err(not_cancelled(
                &of.id,
                "it is on a poison queue, and stays there",
            ));
        }
        _ => {
            return Err(not_cancelled(
                &of.id,
                "it is gone, was not submitted, or is not tracked",
            ));
        }
    };
    let value = json!({ "id": of.id, "cancelled": cancelled });
    session.output.done(sentence, &value)
}

pub(crate) async fn reschedule(of: &Reschedule, session: &Session) -> Result<()> {
    let rescheduled = session.service.reschedule(&of.id, of.delay).await?;
    let why = match &rescheduled {
        Rescheduled::To { time, .. } => {
            let sentence = format!("can be received from {time} on");
            return session.output.done(&sentence, &rescheduled);
        }
        Rescheduled::Hidden => "a consumer holds it, or has put it back",
        Rescheduled::Poison => "it is on a poison queue, and stays there",
        Rescheduled::Completed => "it was completed before",
        _ => "it is gone, was not submitted, or is not tracked",
    };
    let text = format!("message {} is not rescheduled: {why}", of.id);
    Err(Failure::new(Exit::NotFound, text))
}

fn not_cancelled(id: &MessageId, why: &str) -> Failure {
    Failure::new(
        Exit::NotFound,
        format!("message {id} is not cancelled: {why}"),
    )
}
