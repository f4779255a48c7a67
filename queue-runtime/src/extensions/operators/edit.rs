//! Replacing the payload of a message that was browsed.

use std::time::Duration;

use queue_core::backend::{Attachments, MessageState};
use queue_core::envelope::AttemptRecord;
use queue_core::internal::{rewrite, with_payload};
use queue_core::wire::{ACCOUNTING_RESERVE, Body, Event, JSON, Payload};
use queue_core::{Error, ErrorKind, Operation, Result};

use super::browse::Browsed;
use crate::kernel::send::{check_payload, check_readable, check_size, fit_payload};
use crate::service::AnyQueue;

impl AnyQueue {
    /// Replaces the payload of an event that was browsed or found, such as one on a poison queue before a
    /// [redrive](Self::redrive), unless it has changed since. Its envelope, attempts, poison record and dequeue count stay,
    /// and so does the time at which a delayed message becomes visible. The content type stays if JSON replaces JSON, or
    /// bytes replace bytes.
    ///
    /// A visible message goes behind the others that are visible. One that a consumer holds is refused, because the
    /// consumer would lose it, and so is one that a consumer has put back to be received later.
    ///
    /// ```
    /// use queue_runtime::wire::Payload;
    /// use queue_runtime::{Message, testing};
    /// # use serde::{Deserialize, Serialize};
    /// #
    /// # #[derive(Debug, Serialize, Deserialize, Message)]
    /// # struct Order {
    /// #     number: u32,
    /// # }
    /// #
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let service = testing::service().await;
    /// let submitted = service.submit(Order { number: 7 }).await?;
    ///
    /// let orders = service.queue::<Order>().any();
    /// let order = orders.find(&submitted.id).await?.remove(0);
    /// orders.edit(&order, Payload::Json(r#"{"number":8}"#.into())).await?;
    ///
    /// let order = service.accept::<Order>().await?.expect("it is visible");
    /// assert_eq!((order.number, &order.envelope().id), (8, &submitted.id));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// - [`ErrorKind::ReceiptMismatch`] if the message has changed since; [`ErrorKind::MessageNotFound`] if it is gone.
    /// - [`ErrorKind::InvalidInput`] if it is no event, a pack or an item of one, or hidden; if its data is attached or
    ///   elsewhere; if the new payload is neither [`Json`](Payload::Json) nor [`Binary`](Payload::Binary), or is not JSON that every reader
    ///   accepts.
    /// - [`ErrorKind::TooLarge`] if the new payload or the event is.
    /// - Otherwise the backend's error. If its outcome is unknown, the payload may have been replaced.
    ///
    /// # Cancel safety
    /// If the future is dropped, the payload may or may not have been replaced.
    pub async fn edit(&self, message: &Browsed, payload: Payload) -> Result<()> {
        let (context, queue) = (&self.context, self.name());
        let body = self.edited(message, &payload);
        let body = body.map_err(|error| error.with_queue(queue))?;
        let hidden = message.due.saturating_sub(context.clock.monotonic());
        let hidden = match message.state {
            MessageState::Visible => Duration::ZERO,
            _ => hidden,
        };
        let body = Some(context.encoder.stored(body));
        let (id, receipt) = (&message.id, &message.receipt);
        let updated = context.backend.update(queue, id, receipt, hidden, body);
        updated.await.map(drop)
    }

    /// Returns the event of a message with this payload.
    fn edited(&self, message: &Browsed, payload: &Payload) -> Result<Vec<u8>> {
        let encoder = self.context.encoder;
        let Body::Event(event) = &message.body else {
            return Err(refused(
                "it is no event; only the payload of an event can be replaced",
            ));
        };
        if self.context.packs.settles_together(&message.id) {
            return Err(refused(
                "it is an item of a pack, which cannot be changed by itself",
            ));
        }
        if message.state == MessageState::Hidden {
            return Err(refused(
                "a consumer holds it, or has put it back to be received later; wait until it is visible",
            ));
        }
        check_present(&event.payload)?;
        if !matches!(payload, Payload::Json(_) | Payload::Binary(_)) {
            return Err(refused("the new payload is neither JSON nor bytes"));
        }
        check_payload(payload, encoder, Operation::Update)?;
        let limit = encoder.raw_limit().saturating_sub(reserve(event));
        let content_type = content_type(event, payload);
        let (body, _) = fit_payload(limit, Attachments::Unsupported, payload, |stored| {
            let of_json = matches!(payload, Payload::Json(_)).then_some(JSON);
            let content_type = match stored {
                Payload::Compressed(_) => content_type.or(of_json),
                _ => content_type,
            };
            with_payload(event, stored, content_type)
        });
        check_size(body.len(), limit, Operation::Update)?;
        check_readable(&body, &event.envelope.id, Operation::Update)?;
        Ok(body)
    }
}

/// Refuses an event whose data is not in it, or is that of other messages.
fn check_present(payload: &Payload) -> Result<()> {
    match payload {
        Payload::Pack(_) => Err(refused("it is a pack of several messages")),
        Payload::Attached(_) => Err(refused(
            "its data is attached to it; accept it, and submit another one",
        )),
        Payload::Elsewhere(_) => Err(refused("its data is elsewhere, where `dataref` says")),
        _ => Ok(()),
    }
}

/// Returns the content type of an event once it has this payload.
fn content_type<'e>(event: &'e Event, payload: &Payload) -> Option<&'e str> {
    let present = event.envelope.content_type.as_deref();
    let was_json = match &event.payload {
        Payload::Compressed(_) => present == Some(JSON),
        Payload::Binary(_) => false,
        _ => true,
    };
    match (was_json, payload) {
        (true, Payload::Json(_)) | (false, Payload::Binary(_)) => present,
        (false, Payload::Json(_)) => Some(JSON),
        _ => None,
    }
}

/// Returns the bytes to leave free for attempts to come: fewer if it has recorded some.
fn reserve(event: &Event) -> usize {
    let without = rewrite(&event.body, &AttemptRecord::default(), None);
    let recorded = without.map_or(0, |without| event.body.len().saturating_sub(without.len()));
    ACCOUNTING_RESERVE.saturating_sub(recorded)
}

fn refused(problem: &str) -> Error {
    let refused = Error::new(ErrorKind::InvalidInput, Operation::Update);
    refused.unsent().with_detail(problem)
}
