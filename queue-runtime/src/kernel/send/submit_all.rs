//! Submitting several messages with as few operations as possible.

use std::fmt;
use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::OpOutcome;
use queue_core::clock::BoxFuture;
use queue_core::{
    Error, ErrorKind, InvalidName, Message, MessageType, Operation, Outcome, QueueName,
};
use tracing::Instrument as _;

use super::dispatch::Outgoing;
use super::error::{SubmitAllError, SubmitErrorKind};
use super::packing::{Grouped, Puts, as_given};
use super::submit::{Submit, Submitted};
use crate::kernel::context::Context;
use crate::kernel::notify::Announced;
use crate::kernel::observe;
use crate::kernel::policy::StorageRetry;
use crate::kernel::repeat::Repeats;

/// A pending submission of several messages. Configure the call, then `.await` it.
///
/// Puts that certainly failed are tried again as for [`Submit`]. If the backend is not atomic, messages that were
/// already stored are not repeated.
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
/// let orders = (1..=3).map(|number| Order { number });
/// let submitted = service.submit_all(orders).request_id("import-42").await?;
/// assert_eq!(submitted.len(), 3);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`SubmitAllError`] tells which messages were submitted: more messages than one operation of the backend can put
/// ([`Capabilities::max_apply`](crate::backend::Capabilities::max_apply)) are submitted in several. If the backend is
/// atomic, all or none of the messages of one operation are submitted.
///
/// # Cancel safety
/// If the future is dropped before it completes, any of the messages may have been submitted.
#[must_use = "a submission does nothing until it is awaited"]
pub struct SubmitAll<M> {
    context: Arc<Context>,
    submissions: Vec<Submit<M>>,
    storage_retry: StorageRetry,
    retry_unknown: bool,
    /// The type of the messages, if they travel in packs.
    packed: Option<MessageType>,
    on_progress: Box<dyn FnMut(usize) + Send>,
}

impl<M> SubmitAll<M> {
    pub(crate) fn new(context: Arc<Context>, submissions: Vec<Submit<M>>) -> Self
    where
        M: Message,
    {
        Self {
            storage_retry: context.storage_retry.clone(),
            context,
            submissions,
            retry_unknown: false,
            packed: M::TYPE.packs().then_some(M::TYPE),
            on_progress: Box::new(|_| {}),
        }
    }

    /// Sets the queue of all the messages, as [`Submit::to`] does.
    ///
    /// # Errors
    /// [`InvalidName`] if `queue` is not a valid queue name.
    pub fn to(
        self,
        queue: impl TryInto<QueueName, Error: Into<InvalidName>>,
    ) -> Result<Self, InvalidName> {
        let queue = queue.try_into().map_err(Into::into)?;
        Ok(self.each(|submission| submission.on(queue.clone())))
    }

    /// Sets the request id of all the messages. By default each message has a request id of its own.
    pub fn request_id(self, id: impl Into<String>) -> Self {
        let id = id.into();
        self.each(|submission| submission.request_id(id.as_str()))
    }

    /// Sets how long the messages stay invisible. The default is zero.
    pub fn delay(self, delay: Duration) -> Self {
        self.each(|submission| submission.delay(delay))
    }

    /// Sets how long until the storage deletes messages that have not been completed. The default is the
    /// type's, or unlimited.
    pub fn time_to_live(self, time_to_live: Duration) -> Self {
        self.each(|submission| submission.time_to_live(time_to_live))
    }

    /// Sets the retry policy for storing the messages. The default is that of the service.
    ///
    /// If the backend is not atomic, tries and time are counted anew after each message that was stored.
    pub fn storage_retry(mut self, policy: StorageRetry) -> Self {
        self.storage_retry = policy;
        self
    }

    /// Retries with the same message ids also if the outcome is unknown, instead of returning the error.
    ///
    /// Retried messages may be stored twice, which is safe for consumers that deduplicate by id or key. The
    /// copies of bare bodies, which do not contain the id, cannot be recognised.
    pub fn retry_unknown(mut self) -> Self {
        self.retry_unknown = true;
        self
    }

    /// Has the messages travel in packs: as many as fit, compressed together, are one message of the storage, with one
    /// put, one receive and one delete. Consumers handle and settle each message by itself. Messages of a type that
    /// declares `#[message(packed)]` are packed anyway.
    ///
    /// Some messages are submitted one by one: messages of a type with a [threshold of one
    /// attempt](crate::message::MessageType::poison_threshold), which could otherwise be handled twice; a message whose
    /// payload is stored [elsewhere](crate::payloads); and a last message that is left over. The messages of a pack
    /// have been submitted all or none.
    ///
    /// ```
    /// use queue_runtime::{Message, Received, testing};
    /// # use serde::{Deserialize, Serialize};
    /// #
    /// # #[derive(Debug, Serialize, Deserialize, Message)]
    /// # struct Order {
    /// #     number: u32,
    /// # }
    /// # async fn ship(_: Received<Order>) {}
    /// #
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let service = testing::service().await;
    /// service.submit_all((1..=500).map(|number| Order { number })).packed().await?;
    /// assert!(service.any_queue("order")?.properties().await?.approximate_count < 10);
    ///
    /// let listener = service.listener(ship).until_empty().start()?;
    /// assert_eq!(listener.drained().await.info.completed, 500);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The submission fails with [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) if the type declares
    /// another `wire` than `"event"`: only events can be packed.
    pub fn packed(mut self) -> Self
    where
        M: Message,
    {
        self.packed = Some(M::TYPE);
        self
    }

    /// Calls a function with the number of messages that are certainly submitted so far, whenever an operation of the
    /// backend has submitted some.
    ///
    /// Messages are submitted in the given order: the submitted ones are the first. Packed messages
    /// on [shards](crate::sharded) are submitted shard by shard. The function runs within the submission, so it should
    /// return soon. If the function panics, so does the submission.
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
    /// let orders = (0..10_000).map(|number| Order { number });
    /// let submission = service.submit_all(orders);
    /// submission.on_progress(|stored| println!("{stored} of 10,000 orders are stored")).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_progress(mut self, report: impl FnMut(usize) + Send + 'static) -> Self {
        self.on_progress = Box::new(report);
        self
    }

    fn each(mut self, set: impl FnMut(Submit<M>) -> Submit<M>) -> Self {
        self.submissions = self.submissions.into_iter().map(set).collect();
        self
    }

    async fn send(self) -> Result<Vec<Submitted>, SubmitAllError<M>> {
        let (context, mut report) = (self.context, self.on_progress);
        let policy = self.storage_retry.or_unknown(self.retry_unknown);
        let (outgoing, messages) = encode(self.submissions)?;
        let Grouped {
            outgoing,
            messages,
            places,
        } = match self.packed {
            None => Grouped::as_one(outgoing, messages),
            Some(_) => Grouped::by_part(&context, outgoing, messages),
        };
        let puts = match self.packed {
            None => Puts::single(&outgoing),
            Some(message_type) => match Puts::packed(&context, &message_type, &outgoing) {
                Ok(puts) => puts,
                Err(error) => {
                    let rest = as_given(&places, messages).into_iter();
                    return Err(SubmitAllError {
                        submitted: Vec::new(),
                        rest: rest.map(|message| (None, message)).collect(),
                        kind: SubmitErrorKind::Storage(error),
                    });
                }
            },
        };
        let ops = &puts.ops;
        let backend = &*context.backend;
        let mut repeats = Repeats::by(&policy, &*context.clock).creating(&context.creations);
        let mut submitted: Vec<Submitted> = Vec::with_capacity(outgoing.len());
        let mut done = 0;
        while done < ops.len() {
            let rest = &ops[done..];
            let batch = &rest[..backend.capabilities().fitting(rest).max(1)];
            let (outcomes, error) = match backend.apply(batch.to_vec().into()).await {
                Ok(outcomes) => (outcomes, None),
                Err(failed) => (failed.completed.into(), Some(failed.error)),
            };
            if !outcomes.is_empty() {
                repeats.succeeded();
            }
            let (before, expected) = (done, done + batch.len());
            for outcome in outcomes.into_iter().take(batch.len()) {
                let OpOutcome::Put(receipt) = outcome else {
                    break;
                };
                let first = submitted.len();
                let sent = &outgoing[first..first + puts.counts[done]];
                submitted.extend(sent.iter().map(|one| one.submitted(receipt.visible_at)));
                done += 1;
            }
            let stored = &ops[before..done];
            context.notifiers.publish(Announced::puts_of(stored));
            if !stored.is_empty() {
                report(submitted.len());
            }
            let again = match error {
                None if done == expected => continue,
                None => Err(outcomes_missing(expected - done)),
                Some(error) => repeats.put_again(error).await,
            };
            if let Err(error) = again {
                if error.outcome() == Outcome::Unknown {
                    context.notifiers.publish(Announced::puts_of(batch));
                }
                let ids = outgoing.into_iter().map(|outgoing| Some(outgoing.id));
                let rest = ids.zip(messages).skip(submitted.len()).collect();
                let (done, left) = places.split_at(submitted.len());
                return Err(SubmitAllError {
                    submitted: as_given(done, submitted),
                    rest: as_given(left, rest),
                    kind: SubmitErrorKind::Storage(error),
                });
            }
        }
        Ok(as_given(&places, submitted))
    }
}

/// Encodes the messages for the backend, all of them or none.
fn encode<M>(submissions: Vec<Submit<M>>) -> Result<(Vec<Outgoing>, Vec<M>), SubmitAllError<M>> {
    let mut outgoing = Vec::with_capacity(submissions.len());
    let mut messages = Vec::with_capacity(submissions.len());
    let mut submissions = submissions.into_iter();
    while let Some(submission) = submissions.next() {
        match submission.encode() {
            Ok((one, message)) => {
                outgoing.push(one);
                messages.push(message);
            }
            Err(failed) => {
                let messages = messages.into_iter().chain([failed.message]);
                let rest = messages.chain(submissions.map(Submit::into_message));
                return Err(SubmitAllError {
                    submitted: Vec::new(),
                    rest: rest.map(|message| (None, message)).collect(),
                    kind: failed.kind,
                });
            }
        }
    }
    Ok((outgoing, messages))
}

/// Returns the error of a backend that reports success without an outcome for each put.
fn outcomes_missing(count: usize) -> Error {
    Error::new(ErrorKind::Corrupt, Operation::Apply)
        .with_detail(format!("the backend reported no outcome of {count} puts"))
        .with_outcome(Outcome::Unknown)
}

impl<M: Send + 'static> IntoFuture for SubmitAll<M> {
    type Output = Result<Vec<Submitted>, SubmitAllError<M>>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let Some(first) = self.submissions.first() else {
            return Box::pin(self.send());
        };
        let span = observe::send(&first.queue, self.submissions.len());
        Box::pin(self.send().instrument(span))
    }
}

impl<M> fmt::Debug for SubmitAll<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubmitAll")
            .field("messages", &self.submissions.len())
            .finish_non_exhaustive()
    }
}
