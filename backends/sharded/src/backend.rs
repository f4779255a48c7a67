use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use queue_core::backend::{
    ApplyError, Atomicity, AttachmentPart, Attachments, Backend, BackendExt as _, BodyForm,
    BrowsedMessage, Browsing, Capabilities, ConditionalPuts, Created, Groups, Located, Metadata,
    NewMessage, Op, OpOutcome, OpOutcomes, Ops, Page, PageMark, PeekedMessage, Places, PutReceipt,
    QueueProperties, ReceivedMessage, Sharded, StaleReceipts, StorageId, Tracking, Transactions,
    check_ops,
};
use queue_core::clock::Clock;
use queue_core::idempotency::ResultStore;
use queue_core::notify::Notifier;
use queue_core::payload_store::PayloadStore;
use queue_core::wire::StoredPayload;
use queue_core::{ClientId, Error, ErrorKind, MessageId, Operation, QueueName, Result};

use crate::descriptor::Descriptor;
use crate::placement::{
    Turns, may_go_elsewhere, message_id, message_receipt, no_such_id, of_queue, of_shard,
    shard_name, shard_of, shard_of_key, shard_of_message, translate_attachment,
};
use crate::results::ShardedResults;
use crate::round::Rounds;
use crate::topology::Topology;
use crate::transactions::ShardedTransactions;

/// A backend whose queues are each spread over several queues, its shards, of one or several backends.
///
/// [`Shards`](crate::Shards) connects the backend.
pub struct ShardedBackend {
    pub(crate) accounts: Vec<Arc<dyn Backend>>,
    pub(crate) topology: Arc<Topology>,
    pub(crate) capabilities: Capabilities,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) rounds: Arc<Rounds>,
    pub(crate) turns: Arc<Turns>,
    /// How long a receive waits for each shard, if that is set.
    pub(crate) patience: Option<Duration>,
    transactions: Option<Arc<ShardedTransactions>>,
    results: Option<Arc<dyn ResultStore>>,
}

/// A shard of a queue: the account that has it, and its name there.
pub(crate) struct Shard<'a> {
    pub(crate) account: &'a Arc<dyn Backend>,
    pub(crate) name: QueueName,
}

impl ShardedBackend {
    pub(crate) fn new(
        accounts: Vec<Arc<dyn Backend>>,
        topology: Topology,
        clock: Arc<dyn Clock>,
        patience: Option<Duration>,
    ) -> Self {
        let (topology, rounds) = (Arc::new(topology), Arc::new(Rounds::default()));
        let turns = Arc::new(Turns::new());
        let transactions = ShardedTransactions::of(&accounts, &topology, &rounds, &turns);
        let records = &accounts[..usize::from(topology.known().record_accounts)];
        Self {
            results: results_of(records),
            capabilities: of_all(&accounts),
            accounts,
            topology,
            clock,
            rounds,
            turns,
            patience,
            transactions: transactions.map(Arc::new),
        }
    }

    /// The account that keeps what is not on a queue, and the first shard of each queue.
    pub(crate) fn first(&self) -> &Arc<dyn Backend> {
        &self.accounts[0]
    }

    /// Whether several operations can be one step: all shards are on one backend.
    pub(crate) fn is_one_account(&self) -> bool {
        self.accounts.len() == 1
    }

    pub(crate) fn shard(
        &self,
        descriptor: &Descriptor,
        queue: &QueueName,
        shard: u32,
        operation: Operation,
    ) -> Result<Shard<'_>> {
        let place = descriptor.places.get(shard as usize);
        let account = place.and_then(|place| self.accounts.get(usize::from(*place)));
        let account = account.ok_or_else(|| {
            let detail = format!("there is no shard {shard}");
            Error::new(ErrorKind::MessageNotFound, operation)
                .with_queue(queue)
                .with_detail(detail)
        })?;
        let name = shard_name(queue, shard, operation)?;
        Ok(Shard { account, name })
    }

    /// All shards that there are, the first one included.
    pub(crate) fn all_shards(
        &self,
        descriptor: &Descriptor,
        queue: &QueueName,
        operation: Operation,
    ) -> Result<Vec<Shard<'_>>> {
        let shards = 0..descriptor.all();
        shards
            .map(|shard| self.shard(descriptor, queue, shard, operation))
            .collect()
    }

    /// The shard of a message, by its id: the number, the shard, and the id there.
    pub(crate) fn shard_of(
        &self,
        queue: &QueueName,
        id: &StorageId,
        operation: Operation,
    ) -> Result<(u32, Shard<'_>, StorageId)> {
        let (number, id) = shard_of_message(id).ok_or_else(|| no_such_id(queue, operation))?;
        let shard = self.shard(&self.topology.known(), queue, number, operation)?;
        Ok((number, shard, id))
    }

    /// Returns the shard of a message's key, if it has one.
    pub(crate) fn place(&self, descriptor: &Descriptor, message: &NewMessage) -> Option<u32> {
        let key = message.shard_key.as_deref();
        key.map(|key| shard_of_key(key, descriptor.active))
    }

    /// Returns the shard that is next in turn.
    pub(crate) fn turn(&self, descriptor: &Descriptor) -> u32 {
        self.turns.next(descriptor.active)
    }

    /// Puts a message on the shard of its key, or on one that takes it.
    async fn put_message(&self, queue: &QueueName, mut message: NewMessage) -> Result<PutReceipt> {
        translate_attachment(&mut message)?;
        let mut descriptor = self.topology.for_puts().await?;
        let place = |descriptor: &Descriptor| {
            let of_key = self.place(descriptor, &message);
            of_key.unwrap_or_else(|| self.turn(descriptor))
        };
        let mut shard = place(&descriptor);
        let mut tries = 1;
        loop {
            let Shard { account, name } = self.shard(&descriptor, queue, shard, Operation::Put)?;
            let error = match account.put(&name, message.clone()).await {
                Ok(put) => {
                    self.rounds.has_messages(queue, shard);
                    return Ok(of_shard(shard, put));
                }
                Err(error) => error,
            };
            if error.is_queue_gone() {
                descriptor = self.missing_shard(queue, shard, &descriptor, error).await?;
                shard = place(&descriptor);
                continue;
            }
            // What may have been put must not be put elsewhere too.
            let is_tried_elsewhere = message.shard_key.is_none()
                && tries < descriptor.active
                && may_go_elsewhere(&error);
            if !is_tried_elsewhere {
                return Err(error.of_shard(queue, shard));
            }
            tracing::debug!(%queue, shard, %error, "failed to put a message on a shard; trying the next one");
            tries += 1;
            shard = (shard + 1) % descriptor.active;
        }
    }
}

fn unsupported(queue: &QueueName, operation: Operation) -> Error {
    Error::new(ErrorKind::Unsupported, operation)
        .with_queue(queue)
        .with_detail("shards on several accounts do not support this operation")
        .unsent()
}

#[async_trait]
#[warn(
    clippy::missing_trait_methods,
    reason = "a default method would not reach the shards"
)]
impl Backend for ShardedBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn queue_uri(&self, queue: &QueueName) -> String {
        self.first().queue_uri(queue)
    }

    fn sharded(&self) -> Option<&dyn Sharded> {
        Some(self)
    }

    fn notifier(&self) -> Option<Arc<dyn Notifier>> {
        self.first().notifier()
    }

    fn results(&self) -> Option<Arc<dyn ResultStore>> {
        let results = self.results.as_ref()?;
        Some(Arc::clone(results))
    }

    fn payload_store(&self, container: &str) -> Result<Option<Arc<dyn PayloadStore>>> {
        self.first().payload_store(container)
    }

    fn transactions(&self) -> Option<Arc<dyn Transactions>> {
        let transactions = Arc::clone(self.transactions.as_ref()?);
        Some(transactions)
    }

    fn introduce(&self, client: &ClientId) {
        for account in &self.accounts {
            account.introduce(client);
        }
    }

    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created> {
        let limits = self.capabilities.limits(Operation::CreateQueue, queue);
        limits.check_metadata(metadata)?;
        self.create(queue, metadata).await
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<()> {
        self.delete_all(queue).await
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>> {
        let names = self.first().list_queues(prefix).await?;
        let firsts = names
            .iter()
            .filter_map(shard_of)
            .filter(|(_, shard)| *shard == 0);
        let mut queues: Vec<QueueName> = firsts
            .map(|(queue, _)| queue)
            .filter(|queue| queue.as_str().starts_with(prefix))
            .collect();
        queues.sort();
        Ok(queues)
    }

    async fn properties(&self, queue: &QueueName) -> Result<QueueProperties> {
        self.count(queue).await
    }

    async fn metadata(&self, queue: &QueueName) -> Result<Metadata> {
        let name = shard_name(queue, 0, Operation::Properties)?;
        let metadata = self.first().metadata(&name).await;
        metadata.map_err(|error| of_queue(error, queue))
    }

    async fn set_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<()> {
        let limits = self.capabilities.limits(Operation::SetMetadata, queue);
        limits.check_metadata(metadata)?;
        let name = shard_name(queue, 0, Operation::SetMetadata)?;
        let set = self.first().set_metadata(&name, metadata).await;
        set.map_err(|error| of_queue(error, queue))
    }

    async fn receive(
        &self,
        queue: &QueueName,
        max: usize,
        visibility: Duration,
    ) -> Result<Vec<ReceivedMessage>> {
        self.receive_from_shards(queue, max, visibility).await
    }

    async fn peek(&self, queue: &QueueName, max: usize) -> Result<Vec<PeekedMessage>> {
        self.capabilities
            .limits(Operation::Peek, queue)
            .check_max(max)?;
        self.peek_all(queue, max).await
    }

    async fn attachment(
        &self,
        queue: &QueueName,
        id: &StorageId,
        stored: Option<&StoredPayload>,
        from: u64,
    ) -> Result<AttachmentPart> {
        if self.capabilities.attachments == Attachments::Unsupported {
            return Err(unsupported(queue, Operation::FetchData));
        }
        let (number, Shard { account, name }, id) =
            self.shard_of(queue, id, Operation::FetchData)?;
        let read = account.attachment(&name, &id, stored, from).await;
        match read {
            Ok(read) => Ok(read),
            Err(error) => Err(self.of_shard(error, queue, number).await),
        }
    }

    async fn browse(&self, queue: &QueueName, from: Option<&PageMark>, max: usize) -> Result<Page> {
        self.capabilities
            .limits(Operation::Browse, queue)
            .check_max(max)?;
        self.browse_shards(queue, from, max).await
    }

    async fn find(
        &self,
        queue: &QueueName,
        id: &MessageId,
        max: usize,
    ) -> Result<Vec<BrowsedMessage>> {
        self.capabilities
            .limits(Operation::Browse, queue)
            .check_max(max)?;
        self.find_in_shards(queue, id, max).await
    }

    async fn locate(&self, id: &MessageId, max: usize) -> Result<Vec<Located>> {
        let mut located = Vec::new();
        for account in &self.accounts {
            for mut one in account.locate(id, max).await? {
                // A queue that is no shard is not one of these.
                if let Some((queue, shard)) = shard_of(&one.queue) {
                    one.queue = queue;
                    one.message.id = message_id(shard, &one.message.id);
                    one.message.receipt = message_receipt(shard, &one.message.receipt);
                    located.push(one);
                }
            }
        }
        located.truncate(max);
        Ok(located)
    }

    async fn clear(&self, queue: &QueueName) -> Result<()> {
        self.clear_all(queue).await
    }

    async fn apply(&self, ops: Ops) -> Result<OpOutcomes, ApplyError> {
        check_ops(&self.capabilities, &ops, |_| Ok(()))?;
        match &ops[..] {
            [Op::Put { queue, message }] => {
                let put = self.put_message(queue, message.clone()).await;
                let put = put.map_err(|error| ApplyError::nothing_done(0, error))?;
                Ok(OpOutcomes::from([OpOutcome::Put(put)]))
            }
            _ => self.apply_to_shards(&ops).await,
        }
    }
}

impl fmt::Debug for ShardedBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardedBackend")
            .field("accounts", &self.accounts)
            .field("topology", &self.topology)
            .finish_non_exhaustive()
    }
}

/// Returns the result store of the accounts with records, if all of them have one.
fn results_of(accounts: &[Arc<dyn Backend>]) -> Option<Arc<dyn ResultStore>> {
    if let [only] = accounts {
        return only.results();
    }
    let stores: Option<Vec<_>> = accounts.iter().map(|account| account.results()).collect();
    Some(Arc::new(ShardedResults::new(stores?)))
}

/// Returns what all of these accounts can do together. Several accounts are never atomic, and a record of one cannot be
/// changed in one step with a message of another.
fn of_all(accounts: &[Arc<dyn Backend>]) -> Capabilities {
    let mut all = accounts.iter().map(|account| account.capabilities());
    let mut together = all.next().expect("there is an account").clone();
    // A resize would leave messages of a group on two shards.
    together.groups = Groups::Unsupported;
    for one in all {
        together.max_body = together.max_body.min(one.max_body);
        together.max_moved_body = together.max_moved_body.min(one.max_moved_body);
        together.max_metadata = together.max_metadata.min(one.max_metadata);
        together.max_receive = together.max_receive.min(one.max_receive);
        together.min_visibility = together.min_visibility.max(one.min_visibility);
        together.max_visibility = together.max_visibility.min(one.max_visibility);
        together.max_delay = together.max_delay.min(one.max_delay);
        together.idle_cap = together.idle_cap.max(one.idle_cap);
        together.max_apply = together.max_apply.min(one.max_apply);
        together.max_apply_bytes = together.max_apply_bytes.min(one.max_apply_bytes);
        if one.body == BodyForm::Text {
            together.body = BodyForm::Text;
        }
        if one.stale_receipts == StaleReceipts::Ambiguous {
            together.stale_receipts = StaleReceipts::Ambiguous;
        }
        if one.places == Places::Lost {
            together.places = Places::Lost;
        }
        if one.tracking == Tracking::Unsupported {
            together.tracking = Tracking::Unsupported;
        }
        if one.browsing == Browsing::Unsupported {
            together.browsing = Browsing::Unsupported;
        }
    }
    if accounts.len() > 1 {
        together.atomicity = Atomicity::InOrder;
        together.conditional_puts = ConditionalPuts::Unsupported;
        together.attachments = Attachments::Unsupported;
    }
    together
}
