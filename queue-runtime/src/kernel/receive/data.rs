//! The data of a message that its body does not have as it is: compressed, attached, or elsewhere.

use std::time::Duration;

use bytes::Bytes;
use queue_core::envelope::PoisonReason;
use queue_core::internal::error_chain;
use queue_core::wire::{Attached, Body, ExpandError, Payload};
use queue_core::{Error, ErrorKind, Operation};

use super::consumer::Consumer;
use super::incoming::Incoming;
use super::refusal::Refusal;
use super::resolver::{ResolveError, Resolver};
use super::settlement::{End, Settling};
use super::waiting::{Waiting, lease_lost};
use crate::kernel::attachment::{Unread, read_attachment};
use crate::kernel::clock::ready_by;
use crate::kernel::context::Context;
use crate::kernel::panic::catch_async;
use crate::kernel::policy::Outage;

/// Where the data of a message is fetched.
enum Source<'a> {
    /// From the storage that has the message.
    Attachment(&'a Attached),
    Elsewhere {
        resolver: &'a Resolver,
        reference: &'a str,
    },
}

/// Why data was not fetched.
enum Unfetched {
    Outage(Error),
    Ends(End),
    /// The message is a copy of one that is done.
    Done,
}

/// Returns the payload of a message, if the consumer takes it.
fn payload<'a>(consumer: &Consumer, incoming: &'a Incoming) -> Option<&'a Payload> {
    match &incoming.body {
        Body::Event(event) if consumer.serves.takes(&event.envelope) => Some(&event.payload),
        _ => None,
    }
}

/// Whether a message that the consumer takes does not have its data as it is.
pub(crate) fn lacks_data(consumer: &Consumer, incoming: &Incoming) -> bool {
    let Body::Event(event) = &incoming.body else {
        return false;
    };
    let lacks = match &event.payload {
        Payload::Compressed(_) | Payload::Attached(_) => true,
        Payload::Elsewhere(_) => consumer.options.resolver.is_some(),
        _ => false,
    };
    lacks && consumer.serves.takes(&event.envelope)
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

fn source<'a>(consumer: &'a Consumer, incoming: &'a Incoming) -> Option<Source<'a>> {
    match payload(consumer, incoming)? {
        Payload::Attached(attached) => Some(Source::Attachment(attached)),
        Payload::Elsewhere(reference) => {
            let resolver = consumer.options.resolver.as_ref()?;
            Some(Source::Elsewhere {
                resolver,
                reference,
            })
        }
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
    let fetched = match source(consumer, incoming) {
        None => None,
        Some(source) => {
            let settling = Settling::new(context, consumer, incoming);
            Some(wait_for(settling, &source, report).await?)
        }
    };
    let Body::Event(event) = &mut incoming.body else {
        return Ok(());
    };
    match fetched {
        None => {
            let expanded = event.expand(context.encoder.max_payload());
            return expanded.map_err(|error| Refusal::Ends(not_expanded(&error)));
        }
        Some(data) if matches!(event.payload, Payload::Attached(_)) => event.set_opened(data),
        Some(data) => event.payload = Payload::Binary(data),
    }
    Ok(())
}

async fn wait_for(
    settling: Settling<'_>,
    source: &Source<'_>,
    report: impl Fn(&Error, Duration),
) -> Result<Bytes, Refusal> {
    let outage = source.outage(settling.context);
    let mut waiting = Waiting::new(settling, outage);
    loop {
        waiting.before_request().await?;
        match ask(&waiting, source).await? {
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
    waiting: &Waiting<'_>,
    source: &Source<'_>,
) -> Result<Result<Bytes, Unfetched>, Refusal> {
    let Settling {
        context, incoming, ..
    } = waiting.settling;
    let clock = &*context.clock;
    let patience = incoming.settings.handler_timeout;
    incoming.keep_leased(context, patience);
    let deadline = clock.monotonic().saturating_add(patience);
    let fetching = catch_async(source.fetch(context, incoming));
    let fetched = tokio::select! {
        fetched = ready_by(clock, deadline, fetching) => fetched,
        _ = incoming.lease.cancellation().cancelled() => return Err(lease_lost(waiting.settling)),
    };
    Ok(match fetched {
        None => Err(Unfetched::Outage(unavailable(ErrorKind::Timeout))),
        Some(Ok(fetched)) => fetched,
        Some(Err(panic)) => Err(Unfetched::Ends(End::failed(format!(
            "fetching the data panicked: {panic}"
        )))),
    })
}

fn unavailable(kind: ErrorKind) -> Error {
    Error::new(kind, Operation::FetchData)
}

impl Source<'_> {
    fn outage<'a>(&'a self, context: &'a Context) -> &'a Outage {
        match self {
            Self::Attachment(_) => &context.attachments,
            Self::Elsewhere { resolver, .. } => &resolver.outage,
        }
    }

    async fn fetch(&self, context: &Context, incoming: &Incoming) -> Result<Bytes, Unfetched> {
        match self {
            Self::Attachment(attached) => {
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
            Self::Elsewhere {
                resolver,
                reference,
            } => {
                let resolved = resolver.resolver.resolve(reference, &incoming.envelope);
                resolved.await.map_err(|error| match error {
                    ResolveError {
                        is_outage: true,
                        source,
                    } => {
                        let error = unavailable(ErrorKind::Unreachable).with_source(source);
                        Unfetched::Outage(error)
                    }
                    error => Unfetched::Ends(End::undecodable(error_chain(&error))),
                })
            }
        }
    }
}
