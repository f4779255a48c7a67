use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::{
    BackendExt as _, ConditionalPuts, Located, MessageHolder, MessageState, PutBackPlace,
};
use queue_core::envelope::PoisonRecord;
use queue_core::name::HISTORY_SUFFIX;
use queue_core::{ClientId, Error, ErrorKind, MessageId, Operation, QueueName, Result, Timestamp};
use serde_json::Value;

use super::browse::Browsed;
use super::cancelled;
use super::delete::Along;
use crate::extensions::history::{HistoryEntry, HowEnded, locator};
use crate::kernel::notify::Announced;
use crate::kernel::send::Unreplied;
use crate::service::{AnyQueue, QueueService};

/// How often a change looks for a message that is received, put back or moved meanwhile.
pub(super) const LOOKS: usize = 10;

/// Where a tracked message is, from [`QueueService::status`].
#[derive(Debug, Clone, serde::Serialize)]
#[serde(rename_all = "snake_case", tag = "status")]
#[non_exhaustive]
pub enum Status {
    /// The message can be received.
    #[non_exhaustive]
    Waiting {
        /// The queue that the message is on.
        queue: QueueName,
    },
    /// The message was submitted with a delay that is not over.
    #[non_exhaustive]
    Delayed {
        /// The queue that the message is on.
        queue: QueueName,
        /// When the message can be received, by the storage's clock.
        until: Timestamp,
    },
    /// The message lies behind others of its [group](crate::send::Submit::group).
    #[non_exhaustive]
    Behind {
        /// The queue that the message is on.
        queue: QueueName,
    },
    /// A consumer holds the message.
    #[non_exhaustive]
    Held {
        /// The queue that the message is on.
        queue: QueueName,
        /// When the message was received, by the storage's clock.
        since: Timestamp,
        /// The [client id](QueueService::client_id) of the service that received the message; `None` if it is unknown, as
        /// if several services with different ids share one [`Backend`](crate::backend::Backend).
        client_id: Option<ClientId>,
        /// When the lease ends unless it is renewed, by the storage's clock.
        until: Timestamp,
        /// How often the message has been received.
        receives: usize,
        /// The last [checkpoint](crate::Received::checkpoint) of its handler, if there is one.
        checkpoint: Option<Value>,
    },
    /// The message was received, and put back for later, as it is until its next attempt.
    #[non_exhaustive]
    PutBack {
        /// The queue that the message is on.
        queue: QueueName,
        /// When the message can be received again, by the storage's clock.
        until: Timestamp,
        /// How often the message has been received.
        receives: usize,
        /// The last [checkpoint](crate::Received::checkpoint) of its handler, if there is one.
        checkpoint: Option<Value>,
    },
    /// The message was given up, and is on a poison queue.
    #[non_exhaustive]
    Poison {
        /// The poison queue.
        queue: QueueName,
        /// Why, and after how many attempts.
        record: PoisonRecord,
    },
    /// No queue has the message, and the [history](crate::service::HistoryEntry) of its queue says how it ended.
    #[non_exhaustive]
    Ended {
        /// When the message ended, by the storage's clock.
        at: Timestamp,
        /// How the message ended, for the last time if it was redriven.
        entry: HistoryEntry,
    },
    /// The message was [cancelled](QueueService::cancel) within the last 7 days, and no queue has it.
    Cancelled,
    /// No queue has the message: it was completed without a history or deleted, has expired, was not submitted, or is not
    /// tracked.
    Gone,
}

/// What a cancel has done, from [`QueueService::cancel`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Cancelled {
    /// The message was removed, and nobody held it: no handler runs for it from now on.
    Removed,
    /// The message was removed while a consumer held it, or had put it back for later. A handler that runs is told when its
    /// lease is renewed, within half of the visibility timeout, and cannot put the message back or submit follow-ups.
    Revoked,
    /// The message is on a poison queue, and stays there.
    Poison,
    /// The message was completed before, as the [history](crate::service::HistoryEntry) of its queue says.
    Completed,
    /// The message was cancelled before, within the last 7 days: also by an earlier try whose answer was lost. Copies of it
    /// that are on a poison queue stay there.
    Before,
    /// No queue has the message, for one of the reasons of [`Status::Gone`].
    Gone,
}

/// What a reschedule has done, from [`QueueService::reschedule`].
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case", tag = "rescheduled")]
#[non_exhaustive]
pub enum Rescheduled {
    /// The message can be received from this time on, unless it lies behind others of its group.
    #[non_exhaustive]
    To {
        /// By the storage's clock.
        time: Timestamp,
    },
    /// A consumer holds the message, or has put it back for later: it stays as it is.
    Hidden,
    /// The message is on a poison queue, and stays there.
    Poison,
    /// The message was completed before, as the [history](crate::service::HistoryEntry) of its queue says.
    Completed,
    /// No queue has the message, for one of the reasons of [`Status::Gone`].
    Gone,
}

impl QueueService {
    /// Tells where a tracked message is, whatever queue it is on, without changing anything. The storage finds it by its
    /// id, in the same time however long the queues are. If there are copies of the message, that one decides which is
    /// handled first.
    ///
    /// Messages are tracked whose type says `#[message(tracked)]`. Others are found by
    /// [`AnyQueue::find`](crate::AnyQueue::find), which searches a queue.
    ///
    /// ```
    /// use std::time::Duration;
    /// use queue_runtime::service::{Cancelled, Status};
    /// use queue_runtime::{Message, testing};
    /// # use serde::{Deserialize, Serialize};
    ///
    /// #[derive(Debug, Serialize, Deserialize, Message)]
    /// #[message(tracked)]
    /// struct Order {
    ///     number: u32,
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let service = testing::service().await;
    /// let order = service.submit(Order { number: 7 }).delay(Duration::from_secs(60)).await?;
    /// assert!(matches!(service.status(&order.id).await?, Status::Delayed { .. }));
    ///
    /// assert_eq!(service.cancel(&order.id).await?, Cancelled::Removed);
    /// assert!(matches!(service.status(&order.id).await?, Status::Cancelled));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The backend's error; [`ErrorKind::Unsupported`] where the storage finds no message by its id, as on Azure.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn status(&self, id: &MessageId) -> Result<Status> {
        let located = self.locate(id).await?;
        let first = located.into_iter().min_by_key(|copy| {
            let is_poison = copy.message.poison().is_some();
            let rank = match copy.message.state {
                MessageState::Hidden => 0,
                MessageState::Visible => 1,
                _ => 2,
            };
            (is_poison, rank, copy.message.visible_at)
        });
        let Some(Copy {
            queue,
            message,
            holder,
            ..
        }) = first
        else {
            return Ok(match self.past(id).await? {
                Past::Ended { at, entry } => Status::Ended { at, entry },
                Past::Cancelled => Status::Cancelled,
                Past::Unknown => Status::Gone,
            });
        };
        if let Some(record) = message.poison().cloned() {
            return Ok(Status::Poison { queue, record });
        }
        let (until, receives) = (message.visible_at, message.dequeue_count);
        let envelope = message.body.envelope();
        let checkpoint = envelope.and_then(|envelope| envelope.attempts.progress.as_deref());
        let checkpoint = checkpoint.and_then(|text| serde_json::from_str(text).ok());
        Ok(match message.state {
            MessageState::Delayed => Status::Delayed { queue, until },
            MessageState::Behind => Status::Behind { queue },
            MessageState::Hidden => match holder {
                Some(MessageHolder {
                    since, client_id, ..
                }) => Status::Held {
                    queue,
                    since,
                    client_id,
                    until,
                    receives,
                    checkpoint,
                },
                None => Status::PutBack {
                    queue,
                    until,
                    receives,
                    checkpoint,
                },
            },
            _ => Status::Waiting { queue },
        })
    }

    /// Takes a tracked message back: removes it from its queue, and so all copies of it, unless they are on a poison queue.
    /// A key that the message [holds](crate::send::Submit::unique_until_settled) is released, and its
    /// [group](crate::send::Submit::group) goes on. Whoever waits for a [reply](QueueService::request) to the message is
    /// [told](crate::request::RequestErrorKind::Cancelled). For 7 days, it is recorded that the message was cancelled. All
    /// of that is one step with the removal; with shards on several storages, it is done when `cancel` answers. Calling
    /// `cancel` again is safe.
    ///
    /// # Errors
    /// The backend's error; [`ErrorKind::Unsupported`] where the storage finds no message by its id, as on Azure.
    /// [`ErrorKind::Timeout`] if the message is received or put back each time that it is found: try again.
    ///
    /// # Cancel safety
    /// If the future is dropped, the message may or may not have been removed. With shards on several storages, nothing may
    /// be recorded then, nor if `cancel` fails: the next one may answer [`Gone`](Cancelled::Gone), and a copy that was on
    /// its way to a poison queue is redriven.
    pub async fn cancel(&self, id: &MessageId) -> Result<Cancelled> {
        let mut done = None;
        // Until when the message is cancelled, where that is not recorded in the step that removes it.
        let mut unrecorded = None;
        for _ in 0..LOOKS {
            let (poison, copies): (Vec<_>, Vec<_>) = self
                .locate(id)
                .await?
                .into_iter()
                .partition(|copy| copy.message.poison().is_some());
            if copies.is_empty() {
                let records = poison.iter().filter_map(|copy| copy.message.poison());
                let last_put = records.map(|record| record.first).max();
                let done = match (done, last_put) {
                    // As a redrive decides.
                    (None, Some(put_at)) if cancelled::is(&self.context, id, put_at).await? => {
                        Some(Cancelled::Before)
                    }
                    _ => done,
                };
                if let Some(done) = done {
                    // A copy that was redriven, and has become poison again, meanwhile is cancelled, too.
                    if let Some(until) = last_put.max(unrecorded) {
                        cancelled::record(&self.context, id, until).await?;
                    }
                    if self.keeps_poison(&poison).await? {
                        return Ok(done);
                    }
                    continue;
                }
                return Ok(match last_put {
                    Some(_) => Cancelled::Poison,
                    None => match self.past(id).await? {
                        Past::Cancelled => Cancelled::Before,
                        Past::Ended { entry, .. } if entry.how == HowEnded::Completed => {
                            Cancelled::Completed
                        }
                        _ => Cancelled::Gone,
                    },
                });
            }
            for Copy {
                queue,
                message,
                seen_at,
                ..
            } in copies
            {
                let queue = AnyQueue::new(Arc::clone(&self.context), queue);
                let along = self.along(id, &message, seen_at).await?;
                match queue.delete_browsed(&message, &along).await {
                    Ok(()) => {
                        done = match message.state {
                            MessageState::Hidden => Some(Cancelled::Revoked),
                            _ => done.or(Some(Cancelled::Removed)),
                        };
                        if along.record.is_none() {
                            unrecorded = unrecorded.max(Some(seen_at));
                        }
                    }
                    // It was received, put back or moved meanwhile, or is gone.
                    Err(error) if error.is_lease_gone() => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Err(changes(Operation::Delete))
    }

    /// Has a tracked message that nobody has received become visible after `delay` from now, instead of when it would; at
    /// once with zero. All copies of the message change. A visible message goes behind the other visible ones.
    ///
    /// ```
    /// use std::time::Duration;
    /// use queue_runtime::service::{Rescheduled, Status};
    /// use queue_runtime::{Message, testing};
    /// # use serde::{Deserialize, Serialize};
    ///
    /// #[derive(Debug, Serialize, Deserialize, Message)]
    /// #[message(tracked)]
    /// struct Reminder {
    ///     text: String,
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let service = testing::service().await;
    /// let reminder = Reminder { text: "stand up".into() };
    /// let submitted = service.submit(reminder).delay(Duration::from_secs(3600)).await?;
    ///
    /// let rescheduled = service.reschedule(&submitted.id, Duration::ZERO).await?;
    /// assert!(matches!(rescheduled, Rescheduled::To { .. }));
    /// assert!(matches!(service.status(&submitted.id).await?, Status::Waiting { .. }));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`cancel`](Self::cancel); [`ErrorKind::InvalidInput`] if the delay exceeds the storage's
    /// [`max_visibility`](crate::backend::Capabilities::max_visibility) and
    /// [`max_delay`](crate::backend::Capabilities::max_delay).
    ///
    /// # Cancel safety
    /// If the future is dropped, the message may or may not have been rescheduled.
    pub async fn reschedule(&self, id: &MessageId, delay: Duration) -> Result<Rescheduled> {
        let context = &self.context;
        'look: for _ in 0..LOOKS {
            let mut done = Rescheduled::Gone;
            for Copy { queue, message, .. } in self.locate(id).await? {
                if message.poison().is_some() {
                    if done == Rescheduled::Gone {
                        done = Rescheduled::Poison;
                    }
                    continue;
                }
                if message.state == MessageState::Hidden {
                    return Ok(Rescheduled::Hidden);
                }
                let (id, receipt, place) =
                    (&message.id, &message.receipt, PutBackPlace::After(delay));
                let put_back = || context.backend.put_back(&queue, id, receipt, place, None);
                match context.ask(put_back).await {
                    Ok(lease) => {
                        let time = lease.visible_at;
                        done = Rescheduled::To { time };
                        let announced = Announced::put_back(&queue, delay);
                        context.notifiers.publish([announced]);
                    }
                    // It was received or moved meanwhile, or is gone.
                    Err(error) if error.is_lease_gone() => continue 'look,
                    Err(error) => return Err(error),
                }
            }
            if done == Rescheduled::Gone
                && let Past::Ended { entry, .. } = self.past(id).await?
                && entry.how == HowEnded::Completed
            {
                done = Rescheduled::Completed;
            }
            return Ok(done);
        }
        Err(changes(Operation::Update))
    }

    /// Has redrives fail that have looked at these poison copies before it was recorded that they are cancelled. Returns
    /// whether all copies are still there.
    async fn keeps_poison(&self, poison: &[Copy]) -> Result<bool> {
        let backend = &self.context.backend;
        // A redrive moves none that a consumer holds.
        let visible = poison
            .iter()
            .filter(|copy| copy.message.state == MessageState::Visible);
        for Copy { queue, message, .. } in visible {
            let (id, receipt) = (&message.id, &message.receipt);
            let put_back = || backend.put_back(queue, id, receipt, PutBackPlace::Kept, None);
            match self.context.ask(put_back).await {
                Ok(_) => {}
                Err(error) if error.is_lease_gone() => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// What goes along with the removal of a message that is cancelled.
    async fn along(&self, id: &MessageId, message: &Browsed, seen_at: Timestamp) -> Result<Along> {
        let context = &self.context;
        let envelope = message.body.envelope();
        let record = match context.backend.capabilities().conditional_puts {
            ConditionalPuts::Supported => cancelled::next(context, id, seen_at).await?,
            _ => None,
        };
        Ok(Along {
            notice: envelope.and_then(|request| Unreplied::Cancelled.notice(context, request, &[])),
            record,
        })
    }

    /// Tells what is recorded of a message that no queue has.
    async fn past(&self, id: &MessageId) -> Result<Past> {
        let cancelled_at = cancelled::at(&self.context, id).await?;
        let ends = self.locate(&locator(id)).await?.into_iter();
        // On another queue, a sender wrote it.
        let ends = ends.filter(|copy| copy.queue.as_str().ends_with(HISTORY_SUFFIX));
        let ends = ends.filter_map(|Copy { message, .. }| {
            let entry = message.history()?;
            Some((message.inserted_at, entry))
        });
        let last = ends.max_by_key(|(at, _)| *at);
        // A message that has ended may be submitted again, as may one that was cancelled.
        Ok(
            match last.filter(|(at, _)| cancelled_at.is_none_or(|cancelled_at| cancelled_at < *at))
            {
                Some((at, entry)) => Past::Ended { at, entry },
                None if cancelled_at.is_some() => Past::Cancelled,
                None => Past::Unknown,
            },
        )
    }

    async fn locate(&self, id: &MessageId) -> Result<Vec<Copy>> {
        let context = &self.context;
        let capabilities = context.backend.capabilities();
        let (limit, most) = (capabilities.max_moved_body, capabilities.max_receive);
        let located = context.ask(|| context.backend.locate(id, most)).await?;
        let arrived = context.clock.monotonic();
        let copies = located.into_iter().map(
            |Located {
                 queue,
                 message,
                 holder,
                 ..
             }| Copy {
                queue,
                holder,
                seen_at: message.read_at,
                message: Browsed::new(message, limit, arrived),
            },
        );
        Ok(copies.collect())
    }
}

pub(super) fn changes(operation: Operation) -> Error {
    let detail = "the message was received, put back or moved each time that it was found";
    Error::new(ErrorKind::Timeout, operation).with_detail(detail)
}

/// One of the messages with an id.
struct Copy {
    queue: QueueName,
    message: Browsed,
    holder: Option<MessageHolder>,
    /// The storage's time when the message was seen.
    seen_at: Timestamp,
}

/// What is recorded of a message that no queue has.
enum Past {
    Cancelled,
    Ended { at: Timestamp, entry: HistoryEntry },
    Unknown,
}
