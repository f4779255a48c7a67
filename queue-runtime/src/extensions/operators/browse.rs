//! Messages in any state: looked at, found by their id, removed, and given another payload.

use std::time::Duration;

use queue_core::backend::{
    Attachments, BackendExt as _, BrowsedMessage, MessageState, PageMark, PopReceipt, PutBackPlace,
    ReceivedMessage, StorageId,
};
use queue_core::envelope::{AttemptRecord, PoisonRecord};
use queue_core::internal::{between, rewrite, with_payload};
use queue_core::wire::{ACCOUNTING_RESERVE, Body, Event, JSON, Payload};
use queue_core::{Error, ErrorKind, MessageId, Operation, QueueName, Result, Timestamp};

use crate::kernel::context::Context;
use crate::kernel::receive::body_unhandled;
use crate::kernel::send::{check_payload, check_readable, check_size, fit_payload};
use crate::service::AnyQueue;

/// A part of a queue's messages, from [`AnyQueue::browse`].
///
/// ```
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
/// service.submit_all((1..=3).map(|number| Order { number })).await?;
///
/// let orders = service.queue::<Order>().any();
/// let first = orders.browse(None, 2).await?;
/// let second = orders.browse(first.next.as_ref(), 2).await?;
/// assert_eq!((first.messages.len(), second.messages.len()), (2, 1));
/// assert!(second.next.is_none());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, serde::Serialize)]
#[non_exhaustive]
pub struct BrowsedPage {
    /// The messages, in the order in which they become visible.
    pub messages: Vec<Browsed>,
    /// The storage's time.
    pub now: Timestamp,
    /// Where the next page starts. `None` after the last page.
    pub next: Option<PageMark>,
}

/// A message of a queue, visible or not.
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::{Message, backend::MessageState, testing};
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
/// service.submit(Order { number: 7 }).delay(Duration::from_secs(60)).await?;
///
/// let page = service.queue::<Order>().any().browse(None, 100).await?;
/// let order = &page.messages[0];
/// assert_eq!((order.state, order.dequeue_count), (MessageState::Delayed, 0));
/// assert!(order.visible_at > page.now);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, serde::Serialize)]
#[non_exhaustive]
pub struct Browsed {
    /// The storage id.
    pub id: StorageId,
    /// The body.
    pub body: Body,
    /// Whether the message can be received, and why not.
    pub state: MessageState,
    /// How often the message has been received.
    pub dequeue_count: usize,
    /// The time when the message was put, by the storage's clock.
    pub inserted_at: Timestamp,
    /// The time when the message becomes or became visible, by the storage's clock.
    pub visible_at: Timestamp,
    /// The time when the message expires, by the storage's clock. `None` if never.
    pub expires_at: Option<Timestamp>,
    #[serde(skip)]
    pub(super) receipt: PopReceipt,
    /// When the message becomes visible, by the monotonic clock of the service.
    #[serde(skip)]
    due: Duration,
}

impl Browsed {
    /// Returns what was read of a message, which arrived at this time of the monotonic clock.
    pub(super) fn new(message: BrowsedMessage, limit: usize, arrived: Duration) -> Self {
        let hidden = between(message.read_at, message.visible_at);
        Self {
            body: Body::of_stored(&message.body, message.damage.as_deref(), limit),
            id: message.id,
            state: message.state,
            dequeue_count: message.dequeue_count,
            inserted_at: message.inserted_at,
            visible_at: message.visible_at,
            expires_at: message.expires_at,
            receipt: message.receipt,
            due: arrived.saturating_add(hidden),
        }
    }

    /// The poison record, if the message has one: why the message was moved to the poison queue. Trust the record only
    /// on a poison queue: elsewhere, the sender wrote it.
    #[must_use]
    pub fn poison(&self) -> Option<&PoisonRecord> {
        self.body.poison()
    }
}

impl AnyQueue {
    /// Returns up to `max` messages, visible or not, without changing anything: the first page, or the page at `from`.
    ///
    /// A message that does not change between the pages is on exactly one page.
    ///
    /// ```
    /// use std::time::Duration;
    /// use queue_runtime::{Message, backend::MessageState, testing};
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
    /// service.submit(Order { number: 7 }).delay(Duration::from_secs(3600)).await?;
    /// service.submit(Order { number: 8 }).await?;
    ///
    /// let (queue, mut from) = (service.queue::<Order>().any(), None);
    /// loop {
    ///     let page = queue.browse(from.as_ref(), 100).await?;
    ///     for message in &page.messages {
    ///         if message.state == MessageState::Delayed {
    ///             queue.delete_message(message).await?; // cancelled
    ///         }
    ///     }
    ///     from = page.next;
    ///     if from.is_none() {
    ///         break;
    ///     }
    /// }
    /// assert_eq!(queue.properties().await?.approximate_count, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The backend's error; [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the
    /// [`browsing`](crate::backend::Capabilities::browsing) of the storage is not supported, as on Azure. `max` must be
    /// from 1 to the storage's [`max_receive`](crate::backend::Capabilities::max_receive).
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn browse(&self, from: Option<&PageMark>, max: usize) -> Result<BrowsedPage> {
        let backend = &self.context.backend;
        let limit = backend.capabilities().max_moved_body;
        let browse = || backend.browse(&self.name, from, max);
        let page = self.context.ask(browse).await?;
        let arrived = self.context.clock.monotonic();
        let messages = page.messages.into_iter();
        Ok(BrowsedPage {
            messages: messages
                .map(|one| Browsed::new(one, limit, arrived))
                .collect(),
            now: page.now,
            next: page.next,
        })
    }

    /// Returns the messages with this id, visible or not, without changing anything: several if there are copies of the
    /// message, and at most as many as the [`max_receive`](crate::backend::Capabilities::max_receive) of the storage.
    ///
    /// The whole queue is searched, which takes about a second for a million small messages on SQLite. A message that
    /// is in a [pack](crate::send::SubmitAll) is not found by its id, and a message that is received or put back during
    /// the search may be left out.
    ///
    /// ```
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
    /// service.submit_all((1..=100).map(|number| Order { number })).await?;
    /// let order = service.submit(Order { number: 7 }).await?;
    ///
    /// let found = service.queue::<Order>().any().find(&order.id).await?;
    /// assert_eq!(found.len(), 1);
    /// assert_eq!(found[0].body.decode::<Order>()?.number, 7);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The backend's error; [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the
    /// [`browsing`](crate::backend::Capabilities::browsing) of the storage is not supported, as on Azure.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn find(&self, id: &MessageId) -> Result<Vec<Browsed>> {
        let backend = &self.context.backend;
        let capabilities = backend.capabilities();
        let (limit, most) = (capabilities.max_moved_body, capabilities.max_receive);
        let find = || backend.find(&self.name, id, most);
        let found = self.context.ask(find).await?;
        let arrived = self.context.clock.monotonic();
        let messages = found.into_iter();
        Ok(messages
            .map(|one| Browsed::new(one, limit, arrived))
            .collect())
    }
}

impl AnyQueue {
    /// Replaces the payload of an event that was browsed or found, such as one on a poison queue before a
    /// [redrive](Self::redrive), unless it has changed since. The message's envelope, attempts, poison record and
    /// dequeue count stay, and so does the time at which a delayed message becomes visible. The content type stays if
    /// JSON replaces JSON, or bytes replace bytes.
    ///
    /// A visible message that is edited goes behind the other visible messages. A message that a consumer holds is
    /// refused, because the consumer would lose it, and so is a message that a consumer has put back for later.
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
    /// - [`ErrorKind::ReceiptMismatch`] if the message has changed since it was browsed; [`ErrorKind::MessageNotFound`]
    ///   if it is gone.
    /// - [`ErrorKind::InvalidInput`] if the message is no event, a pack or an item of a pack, or hidden; if its data is
    ///   attached, or elsewhere by `dataref`; if the new payload is neither [`Json`](Payload::Json) nor
    ///   [`Binary`](Payload::Binary), or is not JSON that every reader accepts.
    /// - [`ErrorKind::TooLarge`] if the new payload or the event is too large.
    /// - All other errors are the backend's. If the outcome of the error is unknown, the payload may have been
    ///   replaced.
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
        let place = PutBackPlace::After(hidden);
        let put_back = context.backend.put_back(queue, id, receipt, place, body);
        put_back.await.map(drop)
    }

    /// Returns the event of a message with this payload.
    fn edited(&self, message: &Browsed, payload: &Payload) -> Result<Vec<u8>> {
        let encoder = self.context.encoder;
        let Body::Event(event) = &message.body else {
            return Err(refused(
                "it is no event; only the payload of an event can be replaced",
            ));
        };
        if self.context.parts.settles_together(&message.id) {
            return Err(refused(
                "the message is in a pack, and cannot be changed by itself",
            ));
        }
        if message.state == MessageState::Hidden {
            return Err(refused(
                "a consumer holds the message, or has put the message back for later; wait until it is visible",
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

/// Makes a received message visible again, without counting the receive. Returns false if the lease has ended.
pub(super) async fn hand_back(
    context: &Context,
    queue: &QueueName,
    message: &ReceivedMessage,
) -> Result<bool> {
    let body = body_unhandled(context, message);
    let handed_back = context.backend.put_back(
        queue,
        &message.id,
        &message.receipt,
        PutBackPlace::Kept,
        body,
    );
    match handed_back.await {
        Ok(_) => Ok(true),
        Err(error) if error.is_lease_gone() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Refuses an event whose data is not in it, or is that of other messages.
fn check_present(payload: &Payload) -> Result<()> {
    match payload {
        Payload::Pack(_) => Err(refused("it is a pack of several messages")),
        Payload::Attached(_) => Err(refused(
            "the data is attached to the message; accept the message, and submit another message",
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

/// Returns the bytes to leave free for attempts to come: fewer if the event has recorded some.
fn reserve(event: &Event) -> usize {
    let without = rewrite(&event.body, &AttemptRecord::default(), None);
    let recorded = without.map_or(0, |without| event.body.len().saturating_sub(without.len()));
    ACCOUNTING_RESERVE.saturating_sub(recorded)
}

fn refused(problem: &str) -> Error {
    let refused = Error::new(ErrorKind::InvalidInput, Operation::Update);
    refused.unsent().with_detail(problem)
}
