//! The data of a message that its body does not have as it is: compressed or attached.

use std::time::Duration;

use bytes::Bytes;
use queue_core::envelope::PoisonReason;
use queue_core::wire::{Attached, Body, ExpandError, Payload};
use queue_core::{Error, ErrorKind, Operation};

use super::admission::Refusal;
use super::consumer::Consumer;
use super::incoming::Incoming;
use super::waiting::{WaitingMessage, lease_lost};
use crate::kernel::attachment::{Unread, read_attachment};
use crate::kernel::clock::ready_by;
use crate::kernel::context::Context;
use crate::kernel::panic::catch_async;
use crate::kernel::settlement::{End, Settling};

/// Why data was not fetched.
enum Unfetched {
    Outage(Error),
    Ends(End),
    /// The message is a copy of one that is done.
    Done,
}

/// Whether a message that the consumer takes does not have its data as it is.
pub(crate) fn lacks_data(consumer: &Consumer, incoming: &Incoming) -> bool {
    match &incoming.body {
        Body::Event(event) => {
            matches!(event.payload, Payload::Compressed(_) | Payload::Attached(_))
                && consumer.serves.takes(&event.envelope)
        }
        Body::Bare(_) | Body::Malformed(_) => false,
    }
}

/// Returns the bytes that the data of a message takes once its body does not only say what it is.
pub(crate) fn expanded_size(incoming: &Incoming) -> Option<usize> {
    match &incoming.body {
        Body::Event(event) => match &event.payload {
            payload @ (Payload::Compressed(_) | Payload::Attached(_)) => Some(payload.size()),
            _ => None,
        },
        Body::Bare(_) | Body::Malformed(_) => None,
    }
}

fn not_expanded(error: &ExpandError) -> End {
    match error {
        ExpandError::Damaged { .. } => damaged(error.to_string()),
        _ => End::undecodable(error.to_string()),
    }
}

fn damaged(error: String) -> End {
    End::Unusable {
        reason: PoisonReason::Damaged,
        error: Some(error),
    }
}

/// Returns what is attached to a message, if the consumer takes it.
fn attached<'a>(consumer: &Consumer, incoming: &'a Incoming) -> Option<&'a Attached> {
    match &incoming.body {
        Body::Event(event) if consumer.serves.takes(&event.envelope) => match &event.payload {
            Payload::Attached(attached) => Some(attached),
            _ => None,
        },
        _ => None,
    }
}

/// Expands the data of a message that is admitted, or fetches it. `report` hears of failures, with the pause before the
/// next try.
///
/// # Cancel safety
/// Cancel safe: whoever handles the message fetches the data again.
pub(crate) async fn fetch_data(
    context: &Context,
    consumer: &Consumer,
    incoming: &mut Incoming,
    report: impl Fn(&Error, Duration),
) -> Result<(), Refusal> {
    let data = match attached(consumer, incoming) {
        None => None,
        Some(attached) => {
            let settling = Settling::new(context, consumer, incoming);
            Some(wait_for(settling, attached, report).await?)
        }
    };
    let Body::Event(event) = &mut incoming.body else {
        return Ok(());
    };
    match data {
        None => {
            let expanded = event.expand(context.encoder.max_payload());
            expanded.map_err(|error| Refusal::Ends(not_expanded(&error)))
        }
        Some(data) => {
            event.set_opened(data);
            Ok(())
        }
    }
}

async fn wait_for(
    settling: Settling<'_>,
    attached: &Attached,
    report: impl Fn(&Error, Duration),
) -> Result<Bytes, Refusal> {
    let outage = &settling.context.attachments;
    let mut waiting = WaitingMessage::new(settling, outage);
    loop {
        waiting.before_request().await?;
        match ask(&waiting, attached).await? {
            Ok(data) => {
                outage.end();
                return Ok(data);
            }
            Err(Unfetched::Outage(error)) => {
                waiting.failed(error, &report, Refusal::NoData).await?;
            }
            Err(Unfetched::Ends(end)) => return Err(Refusal::Ends(end)),
            Err(Unfetched::Done) => return Err(Refusal::Copy),
        }
    }
}

/// Asks once.
async fn ask(
    waiting: &WaitingMessage<'_>,
    attached: &Attached,
) -> Result<Result<Bytes, Unfetched>, Refusal> {
    let Settling {
        context, incoming, ..
    } = waiting.settling;
    let clock = &*context.clock;
    let patience = incoming.settings.handler_timeout;
    incoming.keep_leased(context, patience);
    let deadline = clock.monotonic().saturating_add(patience);
    let fetching = catch_async(fetch(context, incoming, attached));
    let fetched = tokio::select! {
        fetched = ready_by(clock, deadline, fetching) => fetched,
        _ = incoming.lease.cancellation().cancelled() => return Err(lease_lost(waiting.settling)),
    };
    Ok(match fetched {
        None => {
            let late = Error::new(ErrorKind::Timeout, Operation::FetchData);
            Err(Unfetched::Outage(late))
        }
        Some(Ok(fetched)) => fetched,
        Some(Err(panic)) => Err(Unfetched::Ends(End::failed(format!(
            "fetching the data panicked: {panic}"
        )))),
    })
}

async fn fetch(
    context: &Context,
    incoming: &Incoming,
    attached: &Attached,
) -> Result<Bytes, Unfetched> {
    let (queue, id) = (incoming.lease.queue(), incoming.lease.id());
    let read = read_attachment(context, queue, id, &incoming.body, attached).await;
    read.map(|read| read.data).map_err(|unread| match unread {
        Unread::Failed(error) => Unfetched::Outage(error),
        Unread::Unusable(error) => Unfetched::Ends(End::undecodable(error)),
        Unread::Damaged(error) => Unfetched::Ends(damaged(error)),
        Unread::Gone => Unfetched::Ends(End::LeaseLost),
        Unread::Done => Unfetched::Done,
    })
}
