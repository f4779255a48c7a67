use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::{Attachment, NewMessage, TimeToLive};
use queue_core::wire::{Body, Pack, Payload};
use queue_core::{Clock, Envelope, IdempotencyKey, Message, QueueName};

use super::received::ReceivedBuilder;
use super::{FaultInjector, TokioClock};
use crate::QueueService;
use crate::backend::MemoryBackend;
use crate::backend::memory::MAX_HISTORY;
use crate::service::ServiceBuilder;

/// A service with private queues, which remembers what was submitted to them. Derefs to [`QueueService`]. Clones share the
/// queues. A message whose type reads another value than it writes is refused: see
/// [`Encoded::read_back`](queue_core::encoder::Encoded::read_back).
///
/// ```
/// use queue_runtime::{Message, QueueService, testing};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
/// struct Order {
///     number: u32,
/// }
///
/// async fn checkout(service: &QueueService) -> Result<(), Box<dyn std::error::Error>> {
///     service.submit(Order { number: 7 }).await?;
///     Ok(())
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = testing::service().await;
/// checkout(&service).await?;
/// assert_eq!(service.submitted::<Order>(), [Order { number: 7 }]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct TestService {
    record: Arc<dyn Record>,
    service: QueueService,
}

/// What was put on the queues of a test.
pub(super) trait Record: fmt::Debug + Send + Sync {
    /// Returns what was put and not moved, in the order in which it was stored, or why that is not known.
    fn puts(&self) -> Result<Vec<(QueueName, NewMessage)>, String>;
}

impl TestService {
    /// Returns what was submitted of type `M`, in the order in which it was stored, whether or not it has been
    /// received since.
    ///
    /// A [`Submission`] is compared with a message directly. The list has follow-ups and duplicates, too, but no
    /// messages that were moved: to a poison queue, back by a redrive, or out of a pack, whose messages are each in the
    /// list. A bare body is of type `M` if it was submitted to the type's queue.
    ///
    /// # Panics
    /// If a message of the type does not decode; if more than 100,000 messages of any type were submitted to queues in
    /// memory, because the service remembers no more; or if the SQLite file cannot be read.
    #[must_use]
    #[track_caller]
    pub fn submitted<M: Message>(&self) -> Vec<Submission<M>> {
        let submitted = match self.record.puts() {
            Ok(puts) => puts.into_iter(),
            Err(why) => panic!("{why}"),
        };
        let limit = self.service.backend().capabilities().max_body;
        let messages = submitted.flat_map(|(queue, put)| {
            let items = items(put).into_iter();
            items.map(move |message| (queue.clone(), message))
        });
        messages
            .filter_map(|(queue, message)| Submission::read(&queue, &message, limit))
            .collect()
    }

    /// Makes a [`Received`](crate::Received) by hand, as [`testing::received`](super::received) does. Submissions by
    /// the `Received` go to this service.
    ///
    /// ```
    /// use queue_runtime::{Message, Received, SubmitError, testing};
    /// use serde::{Deserialize, Serialize};
    ///
    /// #[derive(Debug, Serialize, Deserialize, Message)]
    /// struct Order {
    ///     number: u32,
    /// }
    ///
    /// #[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
    /// struct Invoice {
    ///     order: u32,
    /// }
    ///
    /// async fn bill(order: Received<Order>) -> Result<(), SubmitError<Invoice>> {
    ///     order.submit(Invoice { order: order.number }).await?;
    ///     Ok(())
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let service = testing::service().await;
    /// bill(service.received(Order { number: 7 }).build()).await?;
    /// assert_eq!(service.submitted::<Invoice>(), [Invoice { order: 7 }]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn received<M: Message>(&self, message: M) -> ReceivedBuilder<M> {
        ReceivedBuilder::new(Arc::clone(&self.service.context), message)
    }
}

impl Deref for TestService {
    type Target = QueueService;

    fn deref(&self) -> &QueueService {
        &self.service
    }
}

impl From<TestService> for QueueService {
    fn from(test: TestService) -> Self {
        test.service
    }
}

/// Connects to private queues in memory, on a [`TokioClock`]. Leases are renewed on the current runtime.
///
/// See the [module](super) for an example.
///
/// # Panics
/// If called outside a Tokio runtime.
pub async fn service() -> TestService {
    let (clock, backend) = memory();
    let builder = QueueService::with_backend(Arc::clone(&backend) as _).relying_on_notifier();
    connect(builder, backend, clock).await
}

/// Connects as [`service`] does, and returns the [`FaultInjector`] in front of the queues.
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::testing::{self, Fault};
/// use queue_runtime::Message;
/// use queue_runtime::error::Operation;
/// use queue_runtime::receive::SettleErrorKind;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, Serialize, Deserialize, Message)]
/// struct Order {
///     number: u32,
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (service, faults) = testing::service_with_faults().await;
/// service.submit(Order { number: 7 }).await?;
/// let order = service.accept::<Order>().await?.expect("just submitted");
///
/// faults.fail_next(1, Operation::Delete, Fault::LeaseLost(Duration::from_secs(30)));
/// let error = order.complete().await.unwrap_err();
/// assert!(matches!(error.kind, SettleErrorKind::LeaseLost(_)));
/// assert_eq!(faults.injected(Operation::Delete), 1);
/// # Ok(())
/// # }
/// ```
///
/// # Panics
/// If called outside a Tokio runtime.
pub async fn service_with_faults() -> (TestService, FaultInjector) {
    let (clock, backend) = memory();
    let faults = FaultInjector::new(Arc::clone(&backend) as _);
    let builder = QueueService::with_backend(Arc::new(faults.clone()));
    let service = connect(builder, backend, clock).await;
    (service, faults)
}

fn memory() -> (Arc<dyn Clock>, Arc<MemoryBackend>) {
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
    let backend = MemoryBackend::new(Arc::clone(&clock)).with_history();
    (clock, Arc::new(backend))
}

pub(super) async fn connect(
    builder: ServiceBuilder,
    record: Arc<dyn Record>,
    clock: Arc<dyn Clock>,
) -> TestService {
    let service = builder
        .client_id("test")
        .clock(clock)
        .on_current_runtime()
        .reading_back()
        .connect()
        .await
        .expect("connecting a test service needs nothing but a Tokio runtime");
    TestService { record, service }
}

impl Record for MemoryBackend {
    fn puts(&self) -> Result<Vec<(QueueName, NewMessage)>, String> {
        let history = self.history();
        if history.forgotten > 0 {
            return Err(format!(
                "more than {MAX_HISTORY} messages were submitted, and the first {} are forgotten",
                history.forgotten
            ));
        }
        let submitted = history.puts().filter(|put| !put.message.moved);
        let submitted = submitted.map(|put| (put.queue.clone(), put.message.clone()));
        Ok(submitted.collect())
    }
}

/// Returns the messages of a pack, or the message itself if it is no pack.
fn items(put: NewMessage) -> Vec<NewMessage> {
    let event = Pack::find(&put.body);
    let pack = event.as_ref().map(|event| &event.payload);
    let Some(Payload::Pack(pack)) = pack else {
        return vec![put];
    };
    let events = pack.open().expect("it was packed by this library");
    let message = |body| NewMessage {
        body,
        ..put.clone()
    };
    events.into_iter().map(message).collect()
}

/// A message that was submitted to a [`TestService`](super::TestService). Derefs to the message, and can be compared with
/// one.
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::{Message, testing};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
/// #[message(queue = "reminders")]
/// struct Reminder {
///     #[message(key)]
///     order: u32,
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = testing::service().await;
/// service.submit(Reminder { order: 7 }).request_id("r-1").delay(Duration::from_secs(60)).await?;
///
/// let [reminder] = &service.submitted::<Reminder>()[..] else { panic!("one is expected") };
/// assert_eq!(*reminder, Reminder { order: 7 });
/// assert_eq!(reminder.queue().as_str(), "reminders");
/// assert_eq!(reminder.delay(), Duration::from_secs(60));
/// assert_eq!(reminder.key().unwrap().as_str(), r#"["reminder","r-1",7]"#);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Submission<M> {
    message: M,
    queue: QueueName,
    envelope: Option<Envelope>,
    delay: Duration,
    time_to_live: TimeToLive,
}

impl<M: Message> Submission<M> {
    /// Returns what was put as a submission, if it is of this type. A bare body is of the type that has `queue`.
    ///
    /// # Panics
    /// If the message is of this type, and does not decode.
    fn read(queue: &QueueName, new: &NewMessage, limit: usize) -> Option<Self> {
        let mut body = Body::read(&new.body, limit);
        if let (Body::Event(event), Some(Attachment::New(data))) = (&mut body, &new.attachment) {
            let attached = event.attach(data.clone(), usize::MAX);
            attached.expect("it was attached by this library");
        }
        let envelope = match &body {
            Body::Event(event) if M::TYPE.accepts(&event.envelope.kind) => {
                Some((*event.envelope).clone())
            }
            Body::Bare(_) if !M::TYPE.wire().is_event() && *queue == M::TYPE.queue() => None,
            _ => return None,
        };
        let message = body.decode().unwrap_or_else(|error| {
            let kind = M::TYPE.kind();
            panic!(
                "a `{kind}` message that was submitted to queue `{queue}` does not decode: {error}"
            )
        });
        Some(Self {
            message,
            queue: queue.clone(),
            envelope,
            delay: new.delay,
            time_to_live: new.time_to_live,
        })
    }
}

impl<M> Submission<M> {
    /// Returns the message.
    #[must_use]
    pub fn message(&self) -> &M {
        &self.message
    }

    /// Consumes this value and returns the message.
    #[must_use]
    pub fn into_message(self) -> M {
        self.message
    }

    /// Returns the queue that the message was submitted to.
    #[must_use]
    pub fn queue(&self) -> &QueueName {
        &self.queue
    }

    /// Returns the envelope: message id, client id, request id and other metadata. `None` for a body that is not an
    /// event.
    #[must_use]
    pub fn envelope(&self) -> Option<&Envelope> {
        self.envelope.as_ref()
    }

    /// Returns the idempotency key. `None` for a type without key fields, and for a body that is not an event.
    #[must_use]
    pub fn key(&self) -> Option<IdempotencyKey> {
        let subject = self.envelope.as_ref()?.subject.as_deref()?;
        Some(IdempotencyKey::from_subject(subject))
    }

    /// Returns how long the message stays invisible after it was submitted.
    #[must_use]
    pub fn delay(&self) -> Duration {
        self.delay
    }

    /// Returns how long until the storage deletes the message after it was submitted.
    #[must_use]
    pub fn time_to_live(&self) -> TimeToLive {
        self.time_to_live
    }
}

impl<M> Deref for Submission<M> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.message
    }
}

impl<M: PartialEq> PartialEq<M> for Submission<M> {
    fn eq(&self, message: &M) -> bool {
        self.message == *message
    }
}
