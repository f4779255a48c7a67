use std::time::Duration;

use bytes::Bytes;
use queue_core::internal::error_chain;
use queue_core::wire::{Body, Payload};
use queue_core::{Error, ErrorKind, Operation};

use super::consumer::Consumer;
use super::incoming::Incoming;
use super::refusal::Refusal;
use super::resolver::{DataResolver, ResolveError, Resolver};
use super::settlement::{End, Settling};
use super::waiting::Waiting;
use crate::clock::ready_by;
use crate::context::Context;
use crate::panic::catch_async;

/// Returns whether the data of a message is to be fetched.
pub(crate) fn is_elsewhere(consumer: &Consumer, incoming: &Incoming) -> bool {
    reference(consumer, incoming).is_some()
}

/// Returns the reference to the data of a message, and what resolves it.
fn reference<'a>(
    consumer: &'a Consumer,
    incoming: &'a Incoming,
) -> Option<(&'a Resolver, &'a str)> {
    let Body::Event(event) = &incoming.body else {
        return None;
    };
    let Payload::Elsewhere(reference) = &event.payload else {
        return None;
    };
    let resolver = consumer.options.resolver.as_ref()?;
    let takes = consumer.serves.takes(&event.envelope);
    takes.then_some((resolver, reference))
}

/// Fetches the data of a message that is admitted, if it [is elsewhere](is_elsewhere). `report` hears of failures, with the pause before
/// the next try.
///
/// # Cancel safety
/// Cancel safe: whoever handles the message fetches the data again.
pub(crate) async fn fetch_data(
    context: &Context,
    consumer: &Consumer,
    incoming: &mut Incoming,
    report: impl Fn(&Error, Duration),
) -> Result<(), Refusal> {
    let Some((resolver, reference)) = reference(consumer, incoming) else {
        return Ok(());
    };
    let settling = Settling::new(context, consumer, incoming);
    let data = Box::pin(wait_for(settling, resolver, reference, report)).await?;
    if let Body::Event(event) = &mut incoming.body {
        event.payload = Payload::Binary(data);
    }
    Ok(())
}

async fn wait_for(
    settling: Settling<'_>,
    resolver: &Resolver,
    reference: &str,
    report: impl Fn(&Error, Duration),
) -> Result<Bytes, Refusal> {
    let mut waiting = Waiting::new(settling, &resolver.outage);
    loop {
        waiting.before_request().await?;
        match ask(&waiting, &*resolver.resolver, reference).await? {
            Ok(data) => {
                resolver.outage.end();
                return Ok(data);
            }
            Err(error) => waiting.failed(error, &report, Refusal::NoData).await?,
        }
    }
}

/// Asks the resolver once. The inner error is an outage.
async fn ask(
    waiting: &Waiting<'_>,
    resolver: &dyn DataResolver,
    reference: &str,
) -> Result<Result<Bytes, Error>, Refusal> {
    let Settling {
        context, incoming, ..
    } = waiting.settling;
    let unavailable = |kind| Error::new(kind, Operation::FetchData);
    let clock = &*context.clock;
    let patience = incoming.settings.handler_timeout;
    incoming.keep_leased(context, patience);
    let deadline = clock.monotonic().saturating_add(patience);
    // Also the call may panic, before there is a future.
    let resolving = async { resolver.resolve(reference, &incoming.envelope).await };
    let resolving = catch_async(resolving);
    let resolved = tokio::select! {
        resolved = ready_by(clock, deadline, resolving) => resolved,
        _ = incoming.lease.cancellation().cancelled() => return Err(waiting.lease_lost()),
    };
    let end = match resolved {
        None => return Ok(Err(unavailable(ErrorKind::Timeout))),
        Some(Ok(Ok(data))) => return Ok(Ok(data)),
        Some(Ok(Err(ResolveError {
            is_outage: true,
            source,
        }))) => {
            return Ok(Err(unavailable(ErrorKind::Unreachable).with_source(source)));
        }
        Some(Ok(Err(error))) => End::undecodable(error_chain(&error)),
        Some(Err(panic)) => End::failed(format!("fetching the data panicked: {panic}")),
    };
    Err(Refusal::Ends(end))
}
