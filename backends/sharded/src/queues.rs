//! Creating, deleting and clearing queues with all their shards.
//!
//! A queue exists if and only if its first shard does: that is created last, and deleted last.

use std::sync::Arc;

use futures_util::future::join_all;
use queue_core::backend::{Backend as _, BackendExt as _, Created, Metadata};
use queue_core::{Error, ErrorKind, Operation, QueueName, Result};

use crate::backend::{Shard, ShardedBackend};
use crate::descriptor::Descriptor;
use crate::errors::{of_queue, shard_is_missing, unless_missing};

impl ShardedBackend {
    pub(crate) async fn create(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created> {
        let mut descriptor = self.topology.read_now().await?;
        let first = self.shard(&descriptor, queue, 0, Operation::CreateQueue)?;
        // It is created last. Where it exists, missing shards are a resize's to create.
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
}

async fn create_first(
    first: &Shard<'_>,
    queue: &QueueName,
    metadata: &Metadata,
) -> Result<Created> {
    let created = first.account.create_queue(&first.name, metadata).await;
    created.map_err(|error| of_queue(error, queue))
}
