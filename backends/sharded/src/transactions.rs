//! Transactions of the application's, if all shards are on one storage that has them.

use std::sync::Arc;

use async_trait::async_trait;
use queue_core::backend::{
    Backend, Mark, Metadata, NO_GROUPS, NewMessage, Placement, PopReceipt, PutReceipt, StorageId,
    Token, TransactionOutcome, Transactions,
};
use queue_core::{Error, ErrorKind, Operation, QueueName, Result};

use crate::descriptor::Descriptor;
use crate::placement::{
    Keyless, Turns, no_such_id, of_queue, of_shard, own_receipt, shard_name, shard_of,
    shard_of_key, shard_of_message, translate_attachment,
};
use crate::round::Rounds;
use crate::topology::Topology;

/// The transactions of the only account. Each transaction reads which shards there are, which is true until the
/// transaction ends.
#[derive(Debug, Clone)]
pub(crate) struct ShardedTransactions {
    engine: Arc<dyn Transactions>,
    topology: Arc<Topology>,
    rounds: Arc<Rounds>,
    turns: Arc<Turns>,
}

impl ShardedTransactions {
    pub(crate) fn of(
        accounts: &[Arc<dyn Backend>],
        topology: &Arc<Topology>,
        rounds: &Arc<Rounds>,
        turns: &Arc<Turns>,
    ) -> Option<Self> {
        let [account] = accounts else { return None };
        let engine = account.transactions()?;
        engine.reads_directories().then(|| Self {
            engine,
            topology: Arc::clone(topology),
            rounds: Arc::clone(rounds),
            turns: Arc::clone(turns),
        })
    }

    fn read(&self, directory: &Metadata) -> Result<Descriptor> {
        let descriptor = Descriptor::from_metadata(directory)?;
        descriptor.check(self.topology.accounts())?;
        Ok(descriptor)
    }
}

#[async_trait]
impl Transactions for ShardedTransactions {
    async fn outcomes(&self, marks: &[Mark]) -> Result<Vec<TransactionOutcome>> {
        self.engine.outcomes(marks).await
    }

    fn forget(&self, token: Token) {
        self.engine.forget(token);
    }

    fn encode(&self, queue: &QueueName, _: &NewMessage) -> Result<String> {
        let detail = "the statement of other drivers cannot tell which shards there are when it is executed; \
                      `submit_within` can";
        let error = Error::new(ErrorKind::Unsupported, Operation::Put).with_queue(queue);
        Err(error.with_detail(detail).unsent())
    }

    fn placement(&self) -> Option<Arc<dyn Placement>> {
        Some(Arc::new(self.clone()))
    }
}

impl Placement for ShardedTransactions {
    fn engine(&self) -> Arc<dyn Transactions> {
        Arc::clone(&self.engine)
    }

    fn directory(&self) -> &QueueName {
        self.topology.queue()
    }

    fn place(
        &self,
        directory: &Metadata,
        puts: &[(QueueName, NewMessage)],
        home: Option<&StorageId>,
    ) -> Result<Vec<(QueueName, NewMessage)>> {
        let shards = self.read(directory)?.active;
        let home = home.and_then(shard_of_message).map(|(shard, _)| shard);
        let keyless = Keyless::of(puts.len(), shards, home, &self.turns);
        let place = |(before, (queue, message)): (usize, &(QueueName, NewMessage))| {
            let key = message.shard_key.as_deref();
            let shard = match key {
                Some(key) => shard_of_key(key, shards),
                None => keyless.shard(before, shards),
            };
            if message.group.is_some() {
                let refused = Error::new(ErrorKind::Unsupported, Operation::Put).with_queue(queue);
                return Err(refused.unsent().with_detail(NO_GROUPS));
            }
            let mut message = message.clone();
            translate_attachment(&mut message)?;
            Ok((shard_name(queue, shard, Operation::Put)?, message))
        };
        puts.iter().enumerate().map(place).collect()
    }

    fn siblings(&self, directory: &Metadata, queue: &QueueName) -> Result<Vec<QueueName>> {
        let Some((queue, _)) = shard_of(queue) else {
            return Ok(vec![queue.clone()]);
        };
        // Only the owner of a reply queue creates it.
        if queue.is_reply_queue() {
            return Ok(Vec::new());
        }
        let shards = 0..self.read(directory)?.active;
        shards
            .map(|shard| shard_name(&queue, shard, Operation::CreateQueue))
            .collect()
    }

    fn locate(
        &self,
        queue: &QueueName,
        id: &StorageId,
        receipt: &PopReceipt,
    ) -> Result<(QueueName, StorageId, PopReceipt)> {
        let (shard, own) =
            shard_of_message(id).ok_or_else(|| no_such_id(queue, Operation::Delete))?;
        let receipt = own_receipt(queue, shard, receipt, Operation::Delete)?;
        Ok((shard_name(queue, shard, Operation::Delete)?, own, receipt))
    }

    fn receipt(&self, queue: &QueueName, receipt: PutReceipt) -> PutReceipt {
        let Some((queue, shard)) = shard_of(queue) else {
            return receipt;
        };
        self.rounds.has_messages(&queue, shard);
        of_shard(shard, receipt)
    }

    fn error(&self, error: Error) -> Error {
        match error.queue().and_then(shard_of) {
            Some((queue, shard)) if shard == 0 || queue.is_reply_queue() => of_queue(error, &queue),
            Some((queue, shard)) => error.of_shard(&queue, shard),
            None => error,
        }
    }
}
