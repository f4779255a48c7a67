use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{
    BackendExt, Capabilities, NewMessage, Op, PopReceipt, ReceivedMessage, StorageId,
};
use queue_core::envelope::{Envelope, PoisonRecord};
use queue_core::wire::{Body, Event};
use queue_core::{ClientId, MessageId, QueueName, Result};

use crate::context::Context;
use crate::notify::Announced;

type Filter = Box<dyn Fn(&Envelope, &PoisonRecord) -> bool + Send + Sync>;

/// Moves the messages of a poison queue back to the queues that they came from. Configure it, then call
/// [`run`](Self::run).
///
/// An event keeps its id and starts without failed attempts; a body that was not an event is restored byte
/// for byte. Redriven messages never expire, whatever the time to live of their type.
///
/// ```
/// use queue_runtime::{Message, envelope::PoisonReason, testing};
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
/// service.submit(Order { number: 7 }).await?;
/// let order = service.accept::<Order>().await?.expect("just submitted");
/// order.reject("the warehouse is closed").await?;
///
/// let poison = service.queue_at("order-poison")?;
/// let redrive = poison.redrive().filter(|_, record| record.reason == PoisonReason::Rejected);
/// assert_eq!(redrive.dry_run().await?.redriven, 1);
/// assert_eq!(redrive.run().await?.redriven, 1);
/// assert!(service.accept::<Order>().await?.is_some());
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is redriven until `run`"]
pub struct Redrive {
    context: Arc<Context>,
    queue: QueueName,
    filter: Option<Filter>,
}

/// The result of a redrive: the number of messages by what happened to them.
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
/// let poison = service.queue_named::<Order>("order-poison")?;
/// poison.submit(Order { number: 7 }).await?; // not moved here by a consumer
///
/// let result = poison.any().redrive().run().await?;
/// assert_eq!((result.redriven, result.without_record), (0, 1));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Redriven {
    /// Messages moved back.
    pub redriven: u64,
    /// Messages left on the poison queue because of the filter.
    pub filtered: u64,
    /// Messages left on the poison queue because they have no poison record: submitted by other programs, or,
    /// on Azure, too large to add one.
    pub without_record: u64,
    /// Deleted copies of messages that this redrive had already moved back.
    pub duplicates: u64,
}

/// How long a redrive leases the messages that it receives.
const REDRIVE_LEASE: Duration = Duration::from_secs(60);

impl Redrive {
    pub(crate) fn new(context: Arc<Context>, queue: QueueName) -> Self {
        Self {
            context,
            queue,
            filter: None,
        }
    }

    /// Redrives only messages for which `filter` returns true.
    pub fn filter(
        mut self,
        filter: impl Fn(&Envelope, &PoisonRecord) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.filter = Some(Box::new(filter));
        self
    }

    /// Returns what [`run`](Self::run) would do to the messages that one peek returns, without changing
    /// anything.
    ///
    /// A peek returns at most the backend's [`max_receive`](Capabilities::max_receive) messages.
    ///
    /// # Errors
    /// The backend's error.
    pub async fn dry_run(&self) -> Result<Redriven> {
        let backend = &self.context.backend;
        let Capabilities {
            max_receive,
            max_moved_body,
            ..
        } = *backend.capabilities();
        let mut seen = HashSet::new();
        let mut counts = Redriven::default();
        for peeked in backend.peek(&self.queue, max_receive).await? {
            let body = Body::of_stored(&peeked.body, peeked.damage.as_deref(), max_moved_body);
            self.plan(&body, &mut seen, &mut counts);
        }
        Ok(counts)
    }

    /// Redrives all messages that are visible now.
    ///
    /// Each message is put on its queue and deleted from the poison queue, in one step if the backend is
    /// atomic. Otherwise a crash between the two leaves a copy with the same message id, and loses nothing.
    ///
    /// # Errors
    /// The backend's error. Messages redriven before it are not moved back.
    ///
    /// # Cancel safety
    /// Dropping the future, or an error, stops the redrive. Messages redriven before that are not moved back. The
    /// other messages of the last receive, at most the backend's [`max_receive`](Capabilities::max_receive),
    /// stay invisible for up to a minute. More do on a storage that returns a message again before others that
    /// have been visible for longer.
    pub async fn run(&self) -> Result<Redriven> {
        let backend = &self.context.backend;
        let max = backend.capabilities().max_receive;
        let mut seen = HashSet::new();
        let mut counts = Redriven::default();
        let mut looked_at = HashSet::new();
        let mut held = HashMap::new();
        // Redriven messages may fail and come back: their number bounds the pass.
        let present = backend.properties(&self.queue).await?.approximate_count;
        let mut came_round = false;
        while !came_round && (looked_at.len() as u64) < present {
            let batch = backend.receive(&self.queue, max, REDRIVE_LEASE).await?;
            came_round = batch.is_empty();
            for message in batch {
                if looked_at.insert(message.id.clone()) {
                    if !self.redrive_one(&message, &mut seen, &mut counts).await? {
                        self.hand_back(&message.id, &message.receipt).await?;
                    }
                } else {
                    // Out of the way of those behind it. Seen once more, the pass has outlasted its lease.
                    came_round |= held.insert(message.id, message.receipt).is_some();
                }
            }
        }
        for (id, receipt) in held {
            self.hand_back(&id, &receipt).await?;
        }
        Ok(counts)
    }

    /// Makes a message visible again that stays on the poison queue.
    async fn hand_back(&self, id: &StorageId, receipt: &PopReceipt) -> Result<()> {
        let backend = &self.context.backend;
        let released = backend.update(&self.queue, id, receipt, Duration::ZERO, None);
        match released.await {
            Ok(_) => {
                let visible = Announced::put_back(&self.queue, Duration::ZERO);
                self.context.notifiers.publish([visible]);
                Ok(())
            }
            Err(error) if error.is_lease_gone() => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn redrive_one(
        &self,
        message: &ReceivedMessage,
        seen: &mut HashSet<Identity>,
        counts: &mut Redriven,
    ) -> Result<bool> {
        let backend = &self.context.backend;
        let limit = backend.capabilities().max_moved_body;
        let body = Body::of_stored(&message.body, message.damage.as_deref(), limit);
        let put = match self.plan(&body, seen, counts) {
            Plan::Keep => return Ok(false),
            Plan::Drop => None,
            Plan::Put(queue, body) => Some(Op::Put {
                queue,
                message: NewMessage::moved(body),
            }),
        };
        let delete = Op::Delete {
            queue: self.queue.clone(),
            id: message.id.clone(),
            receipt: message.receipt.clone(),
        };
        let puts = put.is_some();
        let ops: Vec<Op> = put.into_iter().chain([delete]).collect();
        let moved = match backend.apply(ops.clone()).await {
            Ok(_) => Ok(true),
            Err(failed) if puts && failed.index == 0 => {
                match backend.create_missing(failed.error).await {
                    Ok(_) => {
                        let applied = backend.apply(ops.clone()).await;
                        applied.map(|_| true).map_err(|failed| failed.error)
                    }
                    Err(error) => Err(error),
                }
            }
            Err(failed) => Err(failed.error),
        };
        // Even after an error the message may have been put.
        self.context.notifiers.publish(Announced::puts_of(&ops));
        moved
    }

    fn plan(&self, body: &Body, seen: &mut HashSet<Identity>, counts: &mut Redriven) -> Plan {
        let found = match body {
            Body::Event(event) => self.restored(event),
            Body::Bare(_) | Body::Malformed(_) => None,
        };
        let Some((envelope, record, body)) = found else {
            counts.without_record += 1;
            return Plan::Keep;
        };
        let Ok(queue) = record.queue.parse() else {
            counts.without_record += 1;
            return Plan::Keep;
        };
        if self
            .filter
            .as_ref()
            .is_some_and(|filter| !filter(envelope, &record))
        {
            counts.filtered += 1;
            return Plan::Keep;
        }
        if !seen.insert(Identity::of(envelope, record)) {
            counts.duplicates += 1;
            return Plan::Drop;
        }
        counts.redriven += 1;
        Plan::Put(queue, body)
    }

    fn restored<'e>(&self, event: &'e Event) -> Option<(&'e Envelope, PoisonRecord, Bytes)> {
        let record = event.envelope.poison.clone()?;
        let body = self.context.encoder.restore(event)?;
        Some((&event.envelope, record, body))
    }
}

/// What identifies a poisoned message: equal for its copies, different for all others.
#[derive(PartialEq, Eq, Hash)]
struct Identity {
    queue: String,
    storage_id: String,
    /// `None` if the message is inside an event of whoever moved it, and each copy may have been moved by another.
    client: Option<ClientId>,
    id: MessageId,
}

impl Identity {
    fn of(envelope: &Envelope, record: PoisonRecord) -> Self {
        Self {
            client: (!record.raw).then(|| envelope.client.clone()),
            queue: record.queue,
            storage_id: record.storage_id,
            id: envelope.id.clone(),
        }
    }
}

enum Plan {
    Keep,
    Drop,
    Put(QueueName, Bytes),
}

impl fmt::Debug for Redrive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redrive")
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}
