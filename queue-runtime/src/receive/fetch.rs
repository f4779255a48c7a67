//! Receiving messages for `accept` and listeners, with the settings of the queue and a deadline.

use queue_core::backend::{BackendExt as _, ReceivedMessage};
use queue_core::{Error, ErrorKind, Operation, Outcome};

use super::consumer::{Consumer, MissingQueue};
use crate::context::Context;
use crate::lease::{Lease, Receive};
use crate::settings::Settings;

/// A message that was received but not parsed yet. Its lease is renewed.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) message: ReceivedMessage,
    pub(crate) lease: Lease,
    pub(crate) settings: Settings,
}

/// Receives up to `max` messages. Returns none if none are visible, or if a missing queue has just been
/// created.
///
/// # Errors
/// The backend's error, or a timeout if it does not answer within the visibility timeout: messages that
/// such a receive has leased become visible again then.
///
/// # Cancel safety
/// If the future is dropped before it completes, messages that it has received stay invisible until their
/// visibility timeout is over.
pub(crate) async fn fetch(
    context: &Context,
    consumer: &Consumer,
    max: u32,
) -> Result<Vec<Fetched>, Error> {
    let queue = &consumer.queue;
    let overrides = consumer.options.overrides;
    let settings = context
        .settings(queue, &consumer.message_type, overrides)
        .await?;
    let visibility = settings.visibility;
    let asked_at = context.clock.monotonic();
    let received = tokio::select! {
        received = context.backend.receive(queue, max, visibility) => received,
        () = context.clock.sleep(visibility) => Err(
            Error::new(ErrorKind::Timeout, Operation::Receive)
                .with_queue(queue)
                .with_outcome(Outcome::Unknown),
        ),
    };
    let messages = match (received, consumer.options.missing_queue) {
        (Ok(messages), _) => messages,
        (Err(error), MissingQueue::Create) => {
            context.backend.create_missing(error).await?;
            Vec::new()
        }
        (Err(error), MissingQueue::Report) => return Err(error),
    };
    let receive = Receive {
        asked_at,
        answered_at: context.clock.monotonic(),
        visibility,
    };
    let renew_for = consumer.renew_for(&settings);
    let lease = |message: ReceivedMessage| Fetched {
        lease: Lease::hold(&context.renewals, queue, &message, receive, renew_for),
        message,
        settings,
    };
    Ok(messages.into_iter().map(lease).collect())
}
