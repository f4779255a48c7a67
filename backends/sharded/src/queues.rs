//! Queues as wholes: create, delete, clear; count, peek, find and browse.

use std::sync::Arc;

use futures_util::future::join_all;
use queue_core::backend::{
    Backend as _, BackendExt as _, BrowsedMessage, Created, Metadata, Page, PageMark,
    PeekedMessage, QueueProperties, QueueTotals,
};
use queue_core::{Error, ErrorKind, MessageId, Operation, QueueName, Result};

use crate::backend::{Shard, ShardedBackend};
use crate::descriptor::Descriptor;
use crate::placement::{
    first_is_missing, message_id, message_receipt, of_queue, shard_is_missing, shard_name,
    unless_missing,
};

impl ShardedBackend {
    pub(crate) async fn create(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created> {
        let mut descriptor = self.topology.read_now().await?;
        let first = self.shard(&descriptor, queue, 0, Operation::CreateQueue)?;
        // The first shard is created last: where it exists, missing shards are a resize's to create.
        match first.account.metadata(&first.name).await {
            Ok(_) => {
                let created = create_first(&first, queue, metadata).await?;
                self.check_active(&descriptor, queue).await?;
                return Ok(created);
            }
            Err(error) if error.kind() == ErrorKind::QueueNotFound => {}
            Err(error) => return Err(of_queue(error, queue)),
        }
        loop {
            self.create_active(&descriptor, queue).await?;
            let created = create_first(&first, queue, metadata).await?;
            // A resize lists the queues that there are after it has written the new descriptor.
            let current = self.topology.read_now().await?;
            if current == descriptor {
                return Ok(created);
            }
            descriptor = current;
        }
    }

    /// Creates the shards of a queue that messages are put on, except for the first.
    pub(crate) async fn create_active(
        &self,
        descriptor: &Descriptor,
        queue: &QueueName,
    ) -> Result<()> {
        for shard in 1..descriptor.active {
            let Shard { account, name } =
                self.shard(descriptor, queue, shard, Operation::CreateQueue)?;
            let created = account.ensure_queue(&name).await;
            created.map_err(|error| error.of_shard(queue, shard))?;
        }
        Ok(())
    }

    /// Checks that all shards of a queue are there that messages are put on.
    async fn check_active(&self, descriptor: &Descriptor, queue: &QueueName) -> Result<()> {
        let mut shards = self.all_shards(descriptor, queue, Operation::CreateQueue)?;
        shards.truncate(descriptor.active as usize);
        let read = shards
            .iter()
            .map(|shard| shard.account.metadata(&shard.name));
        for (read, number) in join_all(read).await.into_iter().zip(0..) {
            match read {
                Ok(_) => {}
                Err(error) if error.is_queue_gone() => {
                    return Err(shard_is_missing(queue, number, Operation::CreateQueue));
                }
                Err(error) => return Err(error.of_shard(queue, number)),
            }
        }
        Ok(())
    }

    pub(crate) async fn delete_all(&self, queue: &QueueName) -> Result<()> {
        let descriptor = self.topology.read_now().await?;
        let shards = self.all_shards(&descriptor, queue, Operation::DeleteQueue)?;
        let (first, others) = shards.split_first().expect("there is one");
        let deleted = others
            .iter()
            .map(|shard| shard.account.delete_queue(&shard.name));
        for (deleted, number) in join_all(deleted).await.into_iter().zip(1..) {
            unless_missing(deleted).map_err(|error| error.of_shard(queue, number))?;
        }
        let deleted = first.account.delete_queue(&first.name).await;
        self.rounds.forget(queue);
        deleted.map_err(|error| of_queue(error, queue))
    }

    pub(crate) async fn clear_all(&self, queue: &QueueName) -> Result<()> {
        let descriptor = self.topology.read_now().await?;
        let shards = self.all_shards(&descriptor, queue, Operation::Clear)?;
        let cleared = shards.iter().map(|shard| shard.account.clear(&shard.name));
        for (cleared, number) in join_all(cleared).await.into_iter().zip(0..) {
            match cleared {
                Err(error) if error.is_queue_gone() && number >= descriptor.active => {}
                Err(error) => return Err(self.of_shard(error, queue, number).await),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Returns the descriptor by which to place again what was to be put on a shard that does not exist.
    ///
    /// # Errors
    /// If the whole queue does not exist, or a shard of it is missing that is in use.
    pub(crate) async fn missing_shard(
        &self,
        queue: &QueueName,
        shard: u32,
        placed_by: &Descriptor,
        error: Error,
    ) -> Result<Arc<Descriptor>> {
        let descriptor = self.topology.read_now().await?;
        if *descriptor != *placed_by {
            return Ok(descriptor);
        }
        Err(self.of_shard(error, queue, shard).await)
    }

    /// Returns the error of a shard as that of its queue. Tells a missing queue from a queue that misses a shard in
    /// use: no other function may, so that all operations say the same.
    pub(crate) async fn of_shard(&self, error: Error, queue: &QueueName, shard: u32) -> Error {
        if shard == 0 {
            return of_queue(error, queue);
        }
        if !error.is_queue_gone() || shard >= self.topology.known().active {
            return error.of_shard(queue, shard);
        }
        let operation = error.operation();
        let name = match shard_name(queue, 0, operation) {
            Ok(name) => name,
            Err(error) => return error,
        };
        match self.first().metadata(&name).await {
            Ok(_) => shard_is_missing(queue, shard, operation),
            Err(error) => of_queue(error, queue),
        }
    }

    pub(crate) async fn count(&self, queue: &QueueName) -> Result<QueueProperties> {
        let descriptor = self.topology.for_receives().await;
        let shards = self.all_shards(&descriptor, queue, Operation::Properties)?;
        let read = shards
            .iter()
            .map(|shard| shard.account.properties(&shard.name));
        let mut read = join_all(read).await;
        let others = read.split_off(1);
        let first = read.pop().expect("there is one");
        let mut properties = first.map_err(|error| {
            let has_some = |read: &Result<QueueProperties>| {
                matches!(read, Ok(properties) if properties.approximate_count > 0)
            };
            if error.is_queue_gone() && others.iter().any(has_some) {
                first_is_missing(queue)
            } else {
                of_queue(error, queue)
            }
        })?;
        // That of one shard says nothing of the others.
        properties.next_visible_in = None;
        for (read, number) in others.into_iter().zip(1..) {
            match read {
                Ok(more) => {
                    properties.approximate_count += more.approximate_count;
                    properties.totals = sum(properties.totals, more.totals);
                }
                Err(error) if error.is_queue_gone() && number >= descriptor.active => {}
                Err(error) => return Err(self.of_shard(error, queue, number).await),
            }
        }
        Ok(properties)
    }

    pub(crate) async fn find_in_shards(
        &self,
        queue: &QueueName,
        id: &MessageId,
        max: usize,
    ) -> Result<Vec<BrowsedMessage>> {
        let descriptor = self.topology.for_receives().await;
        let shards = self.all_shards(&descriptor, queue, Operation::Browse)?;
        let found = shards
            .iter()
            .map(|shard| shard.account.find(&shard.name, id, max));
        let mut messages = Vec::new();
        for (found, number) in join_all(found).await.into_iter().zip(0..) {
            let found = match found {
                Err(error) if error.is_queue_gone() && number >= descriptor.active => continue,
                Err(error) => return Err(self.of_shard(error, queue, number).await),
                Ok(found) => found,
            };
            messages.extend(found.into_iter().map(|mut message| {
                message.id = message_id(number, &message.id);
                message.receipt = message_receipt(number, &message.receipt);
                message
            }));
        }
        messages.truncate(max);
        Ok(messages)
    }

    pub(crate) async fn peek_all(
        &self,
        queue: &QueueName,
        max: usize,
    ) -> Result<Vec<PeekedMessage>> {
        let descriptor = self.topology.for_receives().await;
        let shards = self.all_shards(&descriptor, queue, Operation::Peek)?;
        let mut messages = Vec::new();
        for (number, shard) in (0..).zip(&shards) {
            let room = max.saturating_sub(messages.len());
            if room == 0 && number > 0 {
                break;
            }
            let peeked = match shard.account.peek(&shard.name, room).await {
                Err(error) if error.is_queue_gone() && number >= descriptor.active => continue,
                Err(error) => return Err(self.of_shard(error, queue, number).await),
                Ok(peeked) => peeked,
            };
            messages.extend(peeked.into_iter().map(|mut message| {
                message.id = message_id(number, &message.id);
                message
            }));
        }
        Ok(messages)
    }

    pub(crate) async fn browse_shards(
        &self,
        queue: &QueueName,
        from: Option<&PageMark>,
        max: usize,
    ) -> Result<Page> {
        let descriptor = self.topology.for_receives().await;
        let limits = self.capabilities.limits(Operation::Browse, queue);
        let (mut number, mut mark) = match from {
            None => (0, None),
            Some(from) => parse_mark(from).ok_or_else(|| limits.invalid_mark(from))?,
        };
        let mut now = self.clock.now();
        loop {
            let shard = self.shard(&descriptor, queue, number, Operation::Browse);
            let shard =
                shard.map_err(|_| limits.invalid_mark(from.expect("the first shard exists")))?;
            let page = shard.account.browse(&shard.name, mark.as_ref(), max).await;
            let mut page = match page {
                Err(error) if error.is_queue_gone() && number >= descriptor.active => None,
                Err(error) if error.kind() == ErrorKind::InvalidInput && from.is_some() => {
                    return Err(limits.invalid_mark(from.expect("it is there")));
                }
                Err(error) => return Err(self.of_shard(error, queue, number).await),
                Ok(page) => Some(page),
            };
            let next = page.as_mut().and_then(|page| page.next.take());
            now = page.as_ref().map_or(now, |page| page.now);
            let is_last = next.is_none() && number + 1 == descriptor.all();
            if let Some(mut page) = page
                && (is_last || !page.messages.is_empty())
            {
                for message in &mut page.messages {
                    message.id = message_id(number, &message.id);
                    message.receipt = message_receipt(number, &message.receipt);
                }
                page.next = match next {
                    Some(next) => Some(mark_of(number, Some(&next))),
                    None if is_last => None,
                    None => Some(mark_of(number + 1, None)),
                };
                return Ok(page);
            }
            if is_last {
                return Ok(Page::new(Vec::new(), now));
            }
            (number, mark) = (number + u32::from(next.is_none()), next);
        }
    }
}

/// Returns the totals of two parts of a queue together, if both are known.
fn sum(one: Option<QueueTotals>, other: Option<QueueTotals>) -> Option<QueueTotals> {
    let (one, other) = (one?, other?);
    let (put, deleted) = (one.put + other.put, one.deleted + other.deleted);
    Some(QueueTotals::new(put, deleted))
}

/// Returns the mark of a page: the shard, and the mark there.
fn mark_of(shard: u32, mark: Option<&PageMark>) -> PageMark {
    PageMark::new(format!("{shard}/{}", mark.map_or("", PageMark::as_str)))
}

fn parse_mark(mark: &PageMark) -> Option<(u32, Option<PageMark>)> {
    let (shard, mark) = mark.as_str().split_once('/')?;
    let mark = (!mark.is_empty()).then(|| PageMark::new(mark));
    Some((shard.parse().ok()?, mark))
}

async fn create_first(
    first: &Shard<'_>,
    queue: &QueueName,
    metadata: &Metadata,
) -> Result<Created> {
    let created = first.account.create_queue(&first.name, metadata).await;
    created.map_err(|error| of_queue(error, queue))
}
