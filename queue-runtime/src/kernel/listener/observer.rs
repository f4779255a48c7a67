use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use bytes::Bytes;
use queue_core::internal::LockExt as _;
use queue_core::wire::{Body, Payload};
use queue_core::{DecodeError, Envelope, Message, QueueName, Timestamp};
use tokio::sync::Notify;
use tokio::sync::broadcast::error::RecvError;

/// A message that a listener is about to handle, as an [`Observer`] sees it.
#[derive(Clone)]
pub struct Observed(Arc<Seen>);

struct Seen {
    at: Timestamp,
    queue: QueueName,
    envelope: Arc<Envelope>,
    body: Body,
    attempt: u32,
}

impl Observed {
    pub(super) fn new(
        at: Timestamp,
        queue: &QueueName,
        envelope: &Arc<Envelope>,
        body: &Body,
        attempt: u32,
    ) -> Self {
        Self(Arc::new(Seen {
            at,
            queue: queue.clone(),
            envelope: Arc::clone(envelope),
            body: body.clone(),
            attempt,
        }))
    }

    /// When it was about to be handled, by this machine's clock.
    #[must_use]
    pub fn at(&self) -> Timestamp {
        self.0.at
    }

    /// The queue of the listener.
    #[must_use]
    pub fn queue(&self) -> &QueueName {
        &self.0.queue
    }

    /// The envelope. A bare body gets one, as its handler does.
    #[must_use]
    pub fn envelope(&self) -> &Envelope {
        &self.0.envelope
    }

    /// The number of the attempt, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.0.attempt
    }

    /// The payload as it was encoded, such as JSON, without compression. Cheap.
    #[must_use]
    pub fn payload(&self) -> Bytes {
        match &self.0.body {
            Body::Event(event) => match &event.payload {
                Payload::Json(bytes) | Payload::Binary(bytes) => bytes.clone(),
                // A message is handled once its data is here.
                _ => Bytes::new(),
            },
            Body::Bare(bytes) => bytes.clone(),
            Body::Malformed(_) => Bytes::new(),
        }
    }

    /// Decodes the message, for this observer alone.
    ///
    /// # Errors
    /// If it is of another type.
    pub fn decode<M: Message>(&self) -> Result<M, DecodeError> {
        self.0.body.decode()
    }
}

impl fmt::Debug for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observed")
            .field("at", &self.0.at)
            .field("queue", &self.0.queue)
            .field("envelope", &self.0.envelope)
            .field("attempt", &self.0.attempt)
            .finish_non_exhaustive()
    }
}

/// A subscription to the messages that a listener handles, from [`ListenerHandle::observe`](crate::ListenerHandle::observe).
/// There may be any number, and none has a say in what becomes of a message: not by what it does, nor by being slow.
///
/// An observer keeps up to 1,024 messages, with payloads of up to 16 MiB in all or one larger, until they are
/// [received](Self::recv). Beyond that it loses the oldest.
///
/// Each message is seen right before its handler is called. One that is handed back before that, because the listener stops for
/// example, is seen again, with the same attempt. How an attempt ended is an
/// [event](crate::ListenerEvent); together they are the push to subscribers of the observer pattern.
///
/// ```
/// use queue_runtime::{Message, Received, testing};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
/// struct Order {
///     number: u32,
/// }
/// # async fn ship(_: Received<Order>) {}
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let service = testing::service().await;
/// let listener = service.listener(ship);
/// let mut audit = listener.observe();
/// let listener = listener.start()?;
/// service.submit(Order { number: 7 }).await?;
///
/// let observed = audit.recv().await?;
/// println!("{} from {}", observed.envelope().kind, observed.envelope().client);
/// assert_eq!(&observed.payload()[..], br#"{"number":7}"#);
/// assert_eq!(observed.decode::<Order>()?, Order { number: 7 });
/// # drop(listener);
/// # Ok(())
/// # }
/// ```
#[must_use = "what an observer does not receive is lost"]
pub struct Observer(Arc<Inbox>);

#[derive(Default)]
struct Inbox {
    waiting: Mutex<Waiting>,
    changed: Notify,
}

#[derive(Default)]
struct Waiting {
    messages: VecDeque<Observed>,
    /// The bytes of their payloads.
    bytes: usize,
    /// How many were lost since this was told.
    lost: u64,
    is_closed: bool,
}

/// The number of messages that an observer may fall behind.
const MESSAGES_KEPT: usize = 1_024;

/// The bytes of payloads that an observer may fall behind.
const BYTES_KEPT: usize = 16 * 1024 * 1024;

impl Observer {
    /// Waits for the next message.
    ///
    /// # Errors
    /// [`RecvError::Lagged`] with the number of messages that were lost since the last call, because this observer is too slow.
    /// The next call goes on with the oldest that is left. [`RecvError::Closed`] when the listener has stopped, and all that was
    /// kept is received.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn recv(&mut self) -> Result<Observed, RecvError> {
        loop {
            if let Some(received) = self.0.waiting.hold().take() {
                return received;
            }
            self.0.changed.notified().await;
        }
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").finish_non_exhaustive()
    }
}

impl Waiting {
    fn take(&mut self) -> Option<Result<Observed, RecvError>> {
        if self.lost > 0 {
            return Some(Err(RecvError::Lagged(std::mem::take(&mut self.lost))));
        }
        match self.messages.pop_front() {
            Some(observed) => {
                self.bytes -= observed.payload().len();
                Some(Ok(observed))
            }
            None => self.is_closed.then_some(Err(RecvError::Closed)),
        }
    }

    fn put(&mut self, observed: Observed) {
        self.bytes += observed.payload().len();
        self.messages.push_back(observed);
        while self.messages.len() > MESSAGES_KEPT
            || self.bytes > BYTES_KEPT && self.messages.len() > 1
        {
            let oldest = self.messages.pop_front().expect("there are several");
            self.bytes -= oldest.payload().len();
            self.lost += 1;
        }
    }
}

/// The observers of one listener.
#[derive(Default)]
pub(super) struct Observers {
    inboxes: Mutex<Vec<Weak<Inbox>>>,
    /// Whether there may be one.
    any: AtomicBool,
    is_closed: AtomicBool,
}

impl Observers {
    pub(super) fn subscribe(&self) -> Observer {
        let inbox = Arc::<Inbox>::default();
        let mut inboxes = self.inboxes.hold();
        inbox.waiting.hold().is_closed = self.is_closed.load(Ordering::Relaxed);
        inboxes.push(Arc::downgrade(&inbox));
        self.any.store(true, Ordering::Release);
        Observer(inbox)
    }

    /// Shows a message, which is described only if there is an observer.
    pub(super) fn show(&self, observed: impl FnOnce() -> Observed) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let mut inboxes = self.inboxes.hold();
        inboxes.retain(|inbox| inbox.strong_count() > 0);
        if inboxes.is_empty() {
            self.any.store(false, Ordering::Release);
            return;
        }
        let observed = observed();
        for inbox in inboxes.iter().filter_map(Weak::upgrade) {
            inbox.waiting.hold().put(observed.clone());
            inbox.changed.notify_one();
        }
    }

    /// Tells all that there are no more messages.
    pub(super) fn close(&self) {
        let inboxes = self.inboxes.hold();
        self.is_closed.store(true, Ordering::Relaxed);
        for inbox in inboxes.iter().filter_map(Weak::upgrade) {
            inbox.waiting.hold().is_closed = true;
            inbox.changed.notify_one();
        }
    }
}

impl Drop for Observers {
    fn drop(&mut self) {
        self.close();
    }
}
