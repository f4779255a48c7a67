use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{BackendExt, Capabilities, NewMessage, Op, ReceivedMessage};
use queue_core::envelope::{Envelope, PoisonRecord};
use queue_core::wire::{Body, Event};
use queue_core::{ClientId, MessageId, QueueName, Result};

use crate::context::Context;

type Filter = Box<dyn Fn(&Envelope, &PoisonRecord) -> bool + Send + Sync>;

/// Puts the messages of a poison queue back on the queues that they came from, as they were: the same
/// id, no failed attempts, and the raw bytes of what was no event. They never expire, whatever their
/// type says.
#[must_use = "nothing is redriven until `run`"]
pub struct Redrive {
    context: Arc<Context>,
    queue: QueueName,
    filter: Option<Filter>,
}

/// What a redrive did, or would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Redriven {
    /// Messages put back.
    pub redriven: u64,
    /// Messages that the filter left where they are.
    pub filtered: u64,
    /// Messages without a poison record, left where they are: somebody else's, or so large that there
    /// was no room for a record.
    pub without_record: u64,
    /// Copies of a message that was redriven already, deleted.
    pub duplicates: u64,
}

/// How long a redrive leases what it looks at.
const REDRIVE_LEASE: Duration = Duration::from_secs(60);

impl Redrive {
    pub(crate) fn new(context: Arc<Context>, queue: QueueName) -> Self {
        Self {
            context,
            queue,
            filter: None,
        }
    }

    /// Redrives only what this says.
    pub fn filter(
        mut self,
        filter: impl Fn(&Envelope, &PoisonRecord) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.filter = Some(Box::new(filter));
        self
    }

    /// Counts what [`run`](Self::run) would do to the messages that one peek shows, and changes
    /// nothing.
    ///
    /// # Errors
    /// The backend's.
    pub async fn dry_run(&self) -> Result<Redriven> {
        let backend = &self.context.backend;
        let Capabilities {
            max_receive,
            max_body,
            ..
        } = *backend.capabilities();
        let mut seen = HashSet::new();
        let mut counts = Redriven::default();
        for peeked in backend.peek(&self.queue, max_receive).await? {
            self.plan(&Body::read(&peeked.body, max_body), &mut seen, &mut counts);
        }
        Ok(counts)
    }

    /// Redrives every message that is visible now. Each is put back and deleted from the poison queue
    /// in one step where the backend can, otherwise in this order, so that none is lost; copies that a
    /// crash in between leaves share the message's id.
    ///
    /// # Errors
    /// The backend's; what was redriven until then stays so.
    ///
    /// # Cancel safety
    /// What was redriven until then stays so; at most one batch stays invisible for a minute.
    pub async fn run(&self) -> Result<Redriven> {
        let backend = &self.context.backend;
        let max = backend.capabilities().max_receive;
        let mut seen = HashSet::new();
        let mut counts = Redriven::default();
        let mut kept = HashMap::new();
        let mut came_round = false;
        while !came_round {
            let batch = backend.receive(&self.queue, max, REDRIVE_LEASE).await?;
            came_round = batch.is_empty();
            for message in batch {
                // What is kept comes back when a pass takes longer than its lease.
                if let Some(receipt) = kept.get_mut(&message.id) {
                    *receipt = message.receipt;
                    came_round = true;
                } else if !self.redrive_one(&message, &mut seen, &mut counts).await? {
                    kept.insert(message.id, message.receipt);
                }
            }
        }
        for (id, receipt) in kept {
            let released = backend.update(&self.queue, &id, &receipt, Duration::ZERO, None);
            match released.await {
                Err(error) if !error.is_lease_gone() => return Err(error),
                _ => {}
            }
        }
        Ok(counts)
    }

    async fn redrive_one(
        &self,
        message: &ReceivedMessage,
        seen: &mut HashSet<Identity>,
        counts: &mut Redriven,
    ) -> Result<bool> {
        let backend = &self.context.backend;
        let body = Body::read(&message.body, backend.capabilities().max_body);
        let put = match self.plan(&body, seen, counts) {
            Plan::Keep => return Ok(false),
            Plan::Drop => None,
            Plan::Put(queue, body) => Some(Op::Put {
                queue,
                message: NewMessage::new(body),
            }),
        };
        let delete = Op::Delete {
            queue: self.queue.clone(),
            id: message.id.clone(),
            receipt: message.receipt.clone(),
        };
        let puts = put.is_some();
        let ops: Vec<Op> = put.into_iter().chain([delete]).collect();
        match backend.apply(ops.clone()).await {
            Ok(_) => Ok(true),
            Err(failed) if puts && failed.index == 0 => {
                backend.create_missing(failed.error).await?;
                let applied = backend.apply(ops).await;
                applied.map(|_| true).map_err(|failed| failed.error)
            }
            Err(failed) => Err(failed.error),
        }
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

/// What copies of one poison entry share, and nothing else does.
#[derive(PartialEq, Eq, Hash)]
struct Identity {
    queue: String,
    storage_id: String,
    client: ClientId,
    id: MessageId,
}

impl Identity {
    fn of(envelope: &Envelope, record: PoisonRecord) -> Self {
        Self {
            queue: record.queue,
            storage_id: record.storage_id,
            client: envelope.client.clone(),
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
