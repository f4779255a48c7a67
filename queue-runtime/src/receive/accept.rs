use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use queue_core::clock::BoxFuture;
use queue_core::idempotency::IdempotencyStore;
use queue_core::internal::error_chain;
use queue_core::wire::Body;
use queue_core::{DecodeError, ErrorKind, InvalidName, Message, QueueName};

use super::admission::{admit, decode};
use super::consumer::{Caller, Consumer, InvalidConsumer, MissingQueue, Options};
use super::data::{fetch_data, lacks_data};
use super::delivery::Delivery;
use super::fetch::fetch;
use super::idempotency::Idempotency;
use super::idempotent::claim;
use super::incoming::Incoming;
use super::received::Received;
use super::refusal::Refusal;
use super::serves::Serves;
use super::setters::consumer_setters;
use super::settlement::{SettleProblem, Settled, Settling, outcome};
use crate::context::Context;
use crate::policy::{ExponentialIdle, Idle, IdlePolicy, StorageRetry, jitter};
use crate::repeat::Repeats;
use crate::served::KindMismatch;
use crate::settings::{ConsumerConfig, InvalidSetting};

/// A pending accept of one message. Configure it, then `.await` it.
///
/// Returns `None` only if the queue is empty. Messages that cannot be handled are moved to the poison queue,
/// logged, and skipped.
///
/// ```
/// use std::time::Duration;
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
/// service.submit(Order { number: 7 }).delay(Duration::from_secs(5)).await?;
///
/// let accept = service.accept::<Order>().wait(Duration::from_secs(20)).poison_threshold(3);
/// let order = accept.await?.expect("visible after 5 seconds");
/// assert_eq!(order.number, 7);
/// order.complete().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`AcceptError`] distinguishes a missing queue from an error of the backend.
///
/// # Cancel safety
/// If the future is dropped before it completes, no message is acknowledged. A message that it has received,
/// or receives after that, is handed back in the background without counting the attempt.
#[must_use = "nothing is accepted until this is awaited"]
#[derive(Debug)]
pub struct Accept<M> {
    context: Arc<Context>,
    queue: QueueName,
    wait: Duration,
    storage_retry: StorageRetry,
    options: Options,
    serves: Serves,
    decode: Decode<M>,
}

/// Decodes a message as `M`. The rest of an accept does not depend on the type.
type Decode<M> = fn(&Arc<Context>, &Incoming) -> Result<Received<M>, DecodeError>;

/// An error of accepting a message.
///
/// ```
/// use queue_runtime::{AcceptError, Message, testing};
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
/// match service.queue_named::<Order>("orders-europe")?.accept().await {
///     Ok(Some(order)) => println!("order {}", order.number),
///     Ok(None) => println!("no orders"),
///     Err(AcceptError::QueueNotFound(queue)) => println!("nothing was ever submitted to {queue}"),
///     Err(AcceptError::Storage(error)) => eprintln!("{error}"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// The name of the poison queue is invalid.
    #[error("failed to accept a message: {0}")]
    PoisonQueue(InvalidName),
    /// A setting is outside its allowed range.
    #[error("failed to accept a message: {0}")]
    Setting(InvalidSetting),
    /// A listener of the same service handles messages of another kind on the queue.
    #[error("failed to accept a message: {0}")]
    KindMismatch(KindMismatch),
    /// The queue, which was [named](crate::QueueService::queue_named), does not exist.
    #[error(
        "failed to accept from queue `{0}`: the queue does not exist; submit to it first, or call `create_queue()`"
    )]
    QueueNotFound(QueueName),
    /// The backend failed.
    #[error(transparent)]
    Storage(queue_core::Error),
    /// The [idempotency store](Accept::idempotent) failed. The message was handed back.
    #[error(transparent)]
    Idempotency(queue_core::Error),
    /// The data of a message is elsewhere, and the [resolver](Accept::data_resolver) cannot have it now. The message was
    /// handed back.
    #[error(transparent)]
    Data(queue_core::Error),
    /// A message that cannot be handled was received, and could not be settled.
    #[error(
        "failed to settle a message that cannot be handled on queue `{queue}`: {}",
        error_chain(problem)
    )]
    Settle {
        /// The queue.
        queue: QueueName,
        /// The cause.
        problem: SettleProblem,
    },
    /// The current thread has no Tokio runtime, or one without a timer. Leases need one.
    #[error(
        "failed to accept a message on a thread without a Tokio timer; build the runtime with `enable_all()`"
    )]
    NoTimer,
}

queue_core::debug_as_text!(AcceptError);

impl Accept<Body> {
    /// Accepts any event or bare body, as it is stored.
    pub(crate) fn any(context: Arc<Context>, queue: QueueName) -> Self {
        Self::of(
            context,
            queue,
            MissingQueue::Report,
            Serves::Any,
            |context, incoming| Ok(Received::stored(context, incoming)),
        )
    }
}

impl<M> Accept<M> {
    pub(crate) fn new(context: Arc<Context>, queue: QueueName, missing: MissingQueue) -> Self
    where
        M: Message,
    {
        Self::of(
            context,
            queue,
            missing,
            Serves::one(M::TYPE),
            Received::decode,
        )
    }

    fn of(
        context: Arc<Context>,
        queue: QueueName,
        missing: MissingQueue,
        serves: Serves,
        decode: Decode<M>,
    ) -> Self {
        Self {
            storage_retry: context.storage_retry.clone(),
            context,
            queue,
            wait: Duration::ZERO,
            options: Options::new(missing),
            serves,
            decode,
        }
    }

    /// Waits for a message for up to `wait`. The default is not to wait.
    ///
    /// A message that is announced by a [notifier](crate::notify) ends the wait at once. Others are found by polling,
    /// with exponential backoff and jitter.
    ///
    /// A failed receive is tried again meanwhile, according to the [`StorageRetry`] of the service. Tries and time
    /// are counted anew after each receive that succeeds.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Sets how often and until when a failed receive is tried again while this [waits](Self::wait). The default
    /// is that of the service.
    pub fn storage_retry(mut self, policy: StorageRetry) -> Self {
        self.storage_retry = policy;
        self
    }

    consumer_setters!();

    /// Applies the settings of a configuration that an accept has methods for. They replace those of earlier calls, and
    /// later calls replace them.
    pub fn config(mut self, config: &ConsumerConfig) -> Self {
        let config = ConsumerConfig {
            visibility_timeout: config.visibility_timeout,
            poison_threshold: config.poison_threshold,
            poison_queue: config.poison_queue.clone(),
            version_patience: config.version_patience,
            retry: config.retry.clone(),
            ..ConsumerConfig::default()
        };
        self.options.config.apply(&config);
        self
    }

    /// Puts an idempotency store in front of the caller: a message whose work was done before is completed and skipped,
    /// and one whose work is in flight elsewhere is put back. See
    /// [`ListenerBuilder::idempotent`](crate::ListenerBuilder::idempotent); completing the [`Delivery`] records that
    /// the work is done. If completing then fails, the work must not be undone: the next consumer of the message finds it
    /// recorded as done, and deletes the message. A bare body whose work is in flight elsewhere is held until that ends,
    /// also longer than [`wait`](Self::wait).
    ///
    /// If the store fails, the message is handed back, and accepting returns [`AcceptError::Idempotency`]. The receive
    /// counts as an attempt only of a bare body, which cannot record that it was handed back.
    pub fn idempotent(mut self, store: impl IdempotencyStore) -> Self {
        self.options.idempotency = Some(Idempotency::new(Arc::new(store)));
        self
    }
}

/// What the future of an [`Accept`] holds.
struct Accepting<M> {
    context: Arc<Context>,
    consumer: Result<Arc<Consumer>, InvalidConsumer>,
    wait: Duration,
    storage_retry: StorageRetry,
    decode: Decode<M>,
}

impl<M> Accepting<M> {
    async fn receive(self) -> Result<Option<Delivery<M>>, AcceptError> {
        let context = &self.context;
        if !context.timer.has_timer(&*context.clock) {
            return Err(AcceptError::NoTimer);
        }
        let consumer = self.consumer?;
        if let Serves::Types(types) = &consumer.serves {
            for one in &**types {
                let checked = context.served.check(&consumer.queue, one.kind());
                checked.map_err(AcceptError::KindMismatch)?;
            }
        }
        let until = context.clock.monotonic().saturating_add(self.wait);
        let idle = ExponentialIdle::up_to(context.backend.capabilities().idle_cap);
        let mut empty = 0;
        let mut repeats = Repeats::until(until, &self.storage_retry, &*context.clock);
        // Before the first receive, so that no message is missed between the two.
        let wakeups = (!self.wait.is_zero()).then(|| context.wakeups(&consumer.queue, 1));
        let mut woken = None;
        loop {
            if let Some(wakeups) = &wakeups {
                wakeups.receive_begins(woken);
            }
            match fetch(context, &consumer, 1, |settings| settings.visibility).await {
                Ok(mut fetched) => {
                    repeats.succeeded();
                    if let Some(fetched) = fetched.pop() {
                        // It is large, and moved often.
                        let incoming = Box::new(Incoming::read(context, &consumer, fetched));
                        (woken, empty) = (None, 0);
                        if let Some(wakeups) = &wakeups {
                            wakeups.found(false);
                        }
                        match deliver(context, &consumer, incoming, self.decode).await? {
                            Some(delivery) => return Ok(Some(delivery)),
                            None => continue,
                        }
                    }
                }
                Err(error) if error.kind() == ErrorKind::QueueNotFound => {
                    return Err(AcceptError::QueueNotFound(consumer.queue.clone()));
                }
                Err(error) => {
                    woken = None;
                    let paused = Box::pin(repeats.pause(error)).await;
                    paused.map_err(AcceptError::Storage)?;
                    continue;
                }
            }
            let left = until.saturating_sub(context.clock.monotonic());
            let (false, Some(wakeups)) = (left.is_zero(), &wakeups) else {
                return Ok(None);
            };
            empty = wakeups.found_none(woken, empty);
            let pause = idle.delay(Idle::new(empty, jitter()));
            woken = tokio::select! {
                wakeup = wakeups.wait(1) => Some(wakeup),
                () = context.clock.sleep(pause.min(left)) => None,
            };
        }
    }
}

/// Returns a delivery of the message, or settles the message if it cannot be handled.
async fn deliver<M>(
    context: &Arc<Context>,
    consumer: &Arc<Consumer>,
    incoming: Box<Incoming>,
    decode: Decode<M>,
) -> Result<Option<Delivery<M>>, AcceptError> {
    let mut undecided = Undecided::new(context, consumer, incoming);
    let refusal = match prepare(context, consumer, undecided.incoming(), decode).await {
        Ok(received) => {
            let incoming = undecided.decided();
            let (context, consumer) = (Arc::clone(context), Arc::clone(consumer));
            return Ok(Some(Delivery::new(received, incoming, context, consumer)));
        }
        Err(refusal) => refusal,
    };
    let refused = match refusal {
        Refusal::NoClaim(error) => Err(AcceptError::Idempotency(error)),
        Refusal::NoData(error) => Err(AcceptError::Data(error)),
        refusal => {
            let settling = Settling::new(context, consumer, undecided.incoming());
            refused(context, consumer, refusal.settle(settling).await)
        }
    };
    undecided.decided();
    refused
}

async fn prepare<M>(
    context: &Arc<Context>,
    consumer: &Consumer,
    incoming: &mut Incoming,
    decode_as: Decode<M>,
) -> Result<Received<M>, Refusal> {
    admit(context, consumer, incoming).await?;
    if lacks_data(consumer, incoming) {
        Box::pin(fetch_data(context, consumer, incoming, |_, _| {})).await?;
    }
    let decode_as = |incoming: &Incoming| decode_as(context, incoming);
    let received = decode(context, consumer, incoming, decode_as).await?;
    claim(context, consumer, incoming, |_, _| {}).await?;
    Ok(received)
}

/// Skips a message that is not handled, unless it could not be settled.
fn refused<M>(
    context: &Context,
    consumer: &Consumer,
    settled: Result<Settled, SettleProblem>,
) -> Result<Option<Delivery<M>>, AcceptError> {
    let measures = context.meter.measures(&consumer.queue);
    measures.settled(outcome(&settled));
    match settled {
        Ok(_) | Err(SettleProblem::LeaseLost(_) | SettleProblem::Expired(_)) => Ok(None),
        Err(problem) => Err(AcceptError::Settle {
            queue: consumer.queue.clone(),
            problem,
        }),
    }
}

/// A received message that an accept has not decided on. If the accept is dropped, the message is handed back:
/// nobody has seen it, so the attempt does not count.
struct Undecided<'a> {
    context: &'a Arc<Context>,
    consumer: &'a Arc<Consumer>,
    incoming: Option<Box<Incoming>>,
}

impl<'a> Undecided<'a> {
    fn new(
        context: &'a Arc<Context>,
        consumer: &'a Arc<Consumer>,
        incoming: Box<Incoming>,
    ) -> Self {
        Self {
            context,
            consumer,
            incoming: Some(incoming),
        }
    }

    fn incoming(&mut self) -> &mut Incoming {
        self.incoming.as_mut().expect(UNDECIDED)
    }

    fn decided(mut self) -> Box<Incoming> {
        self.incoming.take().expect(UNDECIDED)
    }
}

const UNDECIDED: &str = "only `decided` and `drop` take it";

impl Drop for Undecided<'_> {
    fn drop(&mut self) {
        let Some(incoming) = self.incoming.take() else {
            return;
        };
        let (context, consumer) = (Arc::clone(self.context), Arc::clone(self.consumer));
        self.context.background.spawn(async move {
            let settling = Settling::new(&context, &consumer, &incoming);
            settling.release_unasked().await;
        });
    }
}

impl From<InvalidConsumer> for AcceptError {
    fn from(invalid: InvalidConsumer) -> Self {
        match invalid {
            InvalidConsumer::PoisonQueue(error) => Self::PoisonQueue(error),
            InvalidConsumer::Setting(error) => Self::Setting(error),
        }
    }
}

impl<M: Send + 'static> IntoFuture for Accept<M> {
    type Output = Result<Option<Delivery<M>>, AcceptError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let capabilities = self.context.backend.capabilities();
        let consumer = self
            .options
            .build(self.queue, self.serves, Caller::Accept, capabilities);
        let accepting = Accepting {
            context: self.context,
            consumer: consumer.map(Arc::new),
            wait: self.wait,
            storage_retry: self.storage_retry,
            decode: self.decode,
        };
        Box::pin(accepting.receive())
    }
}
