//! The data of a message that its body does not have as it is: compressed or attached.

use std::time::Duration;

use bytes::Bytes;
use queue_core::envelope::PoisonReason;
use queue_core::wire::{Attached, Body, ExpandError, ExpandErrorKind, Payload};
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

/// Whether a message that the consumer takes has its data compressed or attached.
pub(crate) fn lacks_data(consumer: &Consumer, incoming: &Incoming) -> bool {
    match &incoming.body {
        Body::Event(event) => {
            matches!(event.payload, Payload::Compressed(_) | Payload::Attached(_))
                && consumer.serves.takes(&event.envelope)
        }
        Body::Bare(_) | Body::Malformed(_) => false,
    }
}

/// Returns the size of compressed or attached data once it is expanded or fetched.
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
    match error.kind {
        ExpandErrorKind::Damaged(_) => damaged(error.to_string()),
        _ => End::undecodable(error.to_string()),
    }
}

fn damaged(error: String) -> End {
    End::Unusable {
        reason: PoisonReason::Damaged,
        error: Some(error),
    }
}

/// Expands the data of a message that is admitted and [lacks it](lacks_data), or fetches it. `report` hears of failures, with
/// the pause before the next try.
///
/// # Cancel safety
/// Cancel safe: whoever handles the message fetches the data again.
pub(crate) async fn fetch_data(
    context: &Context,
    consumer: &Consumer,
    incoming: &mut Incoming,
    report: impl Fn(&Error, Duration),
) -> Result<(), Refusal> {
    let fetched = match &incoming.body {
        Body::Event(event) => match &event.payload {
            Payload::Attached(attached) => {
                let settling = Settling::new(context, consumer, incoming);
                Some(wait_for(settling, attached, report).await?)
            }
            _ => None,
        },
        Body::Bare(_) | Body::Malformed(_) => None,
    };
    let Body::Event(event) = &mut incoming.body else {
        return Ok(());
    };
    match fetched {
        Some(data) => event.set_opened(data),
        None => {
            let expanded = event.expand(context.encoder.max_payload());
            expanded.map_err(|error| Refusal::Ends(not_expanded(&error)))?;
        }
    }
    Ok(())
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
            Err(error) => waiting.failed(error, &report, Refusal::NoData).await?,
        }
    }
}

/// Asks once for attached data. The inner error is an outage.
async fn ask(
    waiting: &WaitingMessage<'_>,
    attached: &Attached,
) -> Result<Result<Bytes, Error>, Refusal> {
    let Settling {
        context, incoming, ..
    } = waiting.settling;
    let clock = &*context.clock;
    let patience = incoming.settings.handler_timeout;
    incoming.keep_leased(context, patience);
    let deadline = clock.monotonic().saturating_add(patience);
    let (queue, id) = (incoming.lease.queue(), incoming.lease.id());
    let reading = read_attachment(context, queue, id, &incoming.body, attached);
    let read = tokio::select! {
        read = ready_by(clock, deadline, catch_async(reading)) => read,
        _ = incoming.lease.cancellation().cancelled() => return Err(lease_lost(waiting.settling)),
    };
    let unread = match read {
        None => return Ok(Err(Error::new(ErrorKind::Timeout, Operation::FetchData))),
        Some(Ok(Ok(read))) => return Ok(Ok(read.data)),
        Some(Ok(Err(unread))) => unread,
        Some(Err(panic)) => {
            let error = format!("fetching the data panicked: {panic}");
            return Err(Refusal::Ends(End::failed(error)));
        }
    };
    Err(match unread {
        Unread::Failed(error) => return Ok(Err(error)),
        Unread::Unusable(error) => Refusal::Ends(End::undecodable(error)),
        Unread::Damaged(error) => Refusal::Ends(damaged(error)),
        Unread::Gone => Refusal::Ends(End::LeaseLost),
        Unread::Done => Refusal::Copy,
    })
}
