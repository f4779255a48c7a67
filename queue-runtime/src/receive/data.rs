use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use queue_core::envelope::Envelope;
use queue_core::internal::{debug_fields, error_chain};
use queue_core::wire::{Body, Payload};
use queue_core::{Error, ErrorKind, Operation};

use super::admission::Refusal;
use super::attempts::Verdict;
use super::consumer::Consumer;
use super::incoming::Incoming;
use super::settlement::{End, Settling};
use super::waiting::{Outage, Waiting};
use crate::clock::ready_by;
use crate::context::Context;
use crate::panic::catch_async;

/// Fetches the data of events that do not have it themselves, but refer to it by the CloudEvents attribute `dataref`:
/// the *claim check* of a producer outside this framework.
///
/// A consumer has none unless it is [set](crate::ListenerBuilder::data_resolver). A reference is what somebody wrote who
/// may put messages on the queue: check that it names a place that such messages may refer to, before anything is
/// fetched, and how large the data is, before it is read.
///
/// ```
/// use std::path::PathBuf;
/// use async_trait::async_trait;
/// use bytes::Bytes;
/// use queue_runtime::envelope::Envelope;
/// use queue_runtime::receive::{DataResolver, ResolveError};
///
/// /// Data in the files of one folder, by their names.
/// struct Folder(PathBuf);
///
/// #[async_trait]
/// impl DataResolver for Folder {
///     async fn resolve(&self, reference: &str, _: &Envelope) -> Result<Bytes, ResolveError> {
///         if !reference.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
///             return Err(ResolveError::unusable("the reference is not the name of a file here"));
///         }
///         match std::fs::read(self.0.join(reference)) {
///             Ok(data) => Ok(data.into()),
///             Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
///                 Err(ResolveError::unusable(error))
///             }
///             Err(error) => Err(ResolveError::unavailable(error)),
///         }
///     }
/// }
/// ```
#[async_trait]
pub trait DataResolver: Send + Sync + 'static {
    /// Returns the data, as the event would have it: JSON, or what the message's type is decoded from.
    ///
    /// The message's lease is renewed meanwhile. A call that takes longer than the handler timeout is dropped, and counts
    /// as [unavailable](ResolveError::unavailable) data. A panic is a failed attempt.
    ///
    /// # Errors
    /// [`ResolveError`] says whether the data may be had later. Its text is logged, and may be written to the poison
    /// queue: it should not contain the reference if that has a secret.
    ///
    /// # Cancel safety
    /// The future is dropped if the lease is lost, or its listener stops.
    async fn resolve(&self, reference: &str, envelope: &Envelope) -> Result<Bytes, ResolveError>;
}

/// Why data that is elsewhere was not fetched.
#[derive(thiserror::Error)]
#[error("failed to fetch the data of a message")]
pub struct ResolveError {
    is_outage: bool,
    source: Box<dyn std::error::Error + Send + Sync>,
}

queue_core::debug_as_text!(ResolveError);

impl ResolveError {
    /// The data cannot be had now. The message is not to blame: it waits, and no attempt is counted.
    #[must_use]
    pub fn unavailable(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self {
            is_outage: true,
            source: source.into(),
        }
    }

    /// The data will never be had by this reference: it is missing, damaged, too large, or at a place that messages of
    /// the queue may not refer to. The message is moved to the poison queue.
    #[must_use]
    pub fn unusable(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self {
            is_outage: false,
            source: source.into(),
        }
    }
}

/// The resolver of a consumer.
#[derive(Clone)]
pub(crate) struct Resolver {
    resolver: Arc<dyn DataResolver>,
    outage: Outage,
}

debug_fields!(Resolver { outage });

impl Resolver {
    pub(crate) fn new(resolver: impl DataResolver) -> Self {
        Self {
            resolver: Arc::new(resolver),
            outage: Outage::default(),
        }
    }
}

/// Returns whether the data of a message is to be fetched before it is admitted.
pub(crate) fn is_elsewhere(context: &Context, consumer: &Consumer, incoming: &Incoming) -> bool {
    reference(consumer, incoming).is_some()
        && consumer.serves.takes(&incoming.envelope)
        && matches!(incoming.verdict, Verdict::Run { .. })
        && !context
            .completed
            .contains(&consumer.queue, incoming.lease.id())
}

fn reference<'a>(
    consumer: &'a Consumer,
    incoming: &'a Incoming,
) -> Option<(&'a Resolver, &'a str)> {
    match &incoming.body {
        Body::Event(event) => match &event.payload {
            Payload::Elsewhere(reference) => Some((consumer.options.resolver.as_ref()?, reference)),
            _ => None,
        },
        Body::Bare(_) | Body::Malformed(_) => None,
    }
}

/// Fetches the data of a message, if it [is elsewhere](is_elsewhere). `report` hears of failures, with the pause before
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
    let (Some((resolver, reference)), true) = (
        reference(consumer, incoming),
        is_elsewhere(context, consumer, incoming),
    ) else {
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
    let resolving = catch_async(resolver.resolve(reference, &incoming.envelope));
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
    Err(Refusal::Settled(waiting.settling.end(end).await))
}
