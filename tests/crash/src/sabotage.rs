//! Planted bugs: each makes the storage break a promise, and a suite must detect it; and planted aborts, which break
//! none.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use queue_core::backend::{
    ApplyError, Atomicity, Backend, BackendExt as _, Capabilities, Lease, NewMessage, Op,
    OpOutcome, OpOutcomes, Ops, PopReceipt, PutReceipt, ReceivedMessage, StorageId, Swap,
};
use queue_core::internal::forward_backend;
use queue_core::{ErrorKind, Outcome, QueueName, Result, Timestamp};

/// A planted bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// A put is acknowledged before it is carried out.
    AcknowledgesEarly,
    /// A message is deleted when it is received, before its handler runs.
    DeletesEarly,
    /// Renewals and deletes with a stale receipt are acknowledged, and the service's clock stands still.
    AcceptsStaleReceipts,
    /// A delete whose outcome is unknown is acknowledged.
    PresumesDone,
    /// A put whose outcome is unknown is said not to be done.
    PresumesNotDone,
    /// Operations that belong together are carried out one after the other, deletes first.
    AppliesInSteps,
    /// A commit is not synced, where it should be: the file is opened so, not by [`Sabotaged`].
    SkipsSync,
    /// The handler, not [`Sabotaged`], commits the rows of a transfer before it completes the message, and a process
    /// aborts in between.
    CompletesApart,
    /// Work is begun though another process holds its claim or has done it, not by [`Sabotaged`]: processes that work
    /// `once` do so, and those that submit keep the keys in a folder of their own each.
    BeginsAlways,
    /// Portions of a job are not recorded by the handler; [`Sabotaged`] has no part in it.
    SkipsCheckpoints,
    /// A conditional put records its value before it puts the message, and the process aborts in between.
    RecordsFirst,
    /// A conditional put puts the message before it records its value, and the process aborts in between.
    PutsFirst,
    /// Renewals do not write which items of a pack are gone: part of [`Observed`](crate::packs::Observed), not of
    /// [`Sabotaged`].
    ForgetsMarks,
    /// A listener does not know the keys of its messages: it is started so, not by [`Sabotaged`].
    IgnoresKeys,
    /// Messages are put without their groups.
    DropsGroups,
    /// No bug: the process aborts when it first gets to a point.
    Aborts(Point),
}

/// A point at which a process aborts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// A message is about to be stored.
    BeforePut,
    /// A message is stored, and its producer does not know.
    AfterPut,
    /// A message is leased, and its consumer does not know.
    AfterReceive,
    /// A handler has succeeded, and nothing is deleted.
    BeforeCompletion,
    /// A message is deleted, and its consumer does not know.
    AfterCompletion,
    /// A message is about to be put back.
    BeforePutBack,
    /// A message was put back, and its consumer does not know.
    AfterPutBack,
    /// A message is copied to another queue, by a consumer to its poison queue or by a redrive, and not deleted
    /// yet. Operations that belong together are carried out one after the other, as on a backend that is not atomic.
    BetweenCopyAndDelete,
    /// A follow-up is stored, and the message not deleted yet, as without atomicity.
    BetweenFollowUpAndDelete,
    /// A pack is about to be stored.
    BeforePackPut,
    /// A pack is stored, and its producer does not know.
    AfterPackPut,
    /// A pack is leased, and none of its items has run.
    AfterPackReceive,
    /// Items are about to be settled, and recorded beside their pack.
    BeforeItemSettled,
    /// Items are settled, and their consumer does not know.
    AfterItemSettled,
    /// A pack is about to be renewed, and to say which items are gone.
    BeforeMark,
    /// A pack says which items are gone, and its consumer does not know.
    AfterMark,
    /// A pack is about to be given back.
    BeforeGiveBack,
    /// A pack was given back, and its consumer does not know.
    AfterGiveBack,
    /// A pack is about to be split, because an earlier receive of it ended without a record.
    BeforeSplit,
    /// Items of a split pack are messages of their own. Where the storage is not atomic, the pack is still there.
    AfterSplit,
    /// An item is about to leave its pack, as for a retry.
    BeforeLeaving,
    /// An item has left its pack; where the storage is not atomic, the pack does not say so yet.
    AfterLeaving,
}

impl Point {
    /// All points.
    pub const ALL: [Self; 22] = [
        Self::BeforePut,
        Self::AfterPut,
        Self::AfterReceive,
        Self::BeforeCompletion,
        Self::AfterCompletion,
        Self::BeforePutBack,
        Self::AfterPutBack,
        Self::BetweenCopyAndDelete,
        Self::BetweenFollowUpAndDelete,
        Self::BeforePackPut,
        Self::AfterPackPut,
        Self::AfterPackReceive,
        Self::BeforeItemSettled,
        Self::AfterItemSettled,
        Self::BeforeMark,
        Self::AfterMark,
        Self::BeforeGiveBack,
        Self::AfterGiveBack,
        Self::BeforeSplit,
        Self::AfterSplit,
        Self::BeforeLeaving,
        Self::AfterLeaving,
    ];

    /// Whether operations that belong together are carried out one after the other.
    #[must_use]
    pub fn is_between(self) -> bool {
        matches!(
            self,
            Self::BetweenCopyAndDelete | Self::BetweenFollowUpAndDelete
        )
    }

    /// Aborts the process if it is to abort here.
    pub(crate) fn pass(self, bug: Option<Bug>) {
        if bug == Some(Bug::Aborts(self)) {
            std::process::abort();
        }
    }
}

const NAMES: [(Bug, &str); 37] = [
    (Bug::AcknowledgesEarly, "acknowledges-early"),
    (Bug::DeletesEarly, "deletes-early"),
    (Bug::AcceptsStaleReceipts, "accepts-stale-receipts"),
    (Bug::PresumesDone, "presumes-done"),
    (Bug::PresumesNotDone, "presumes-not-done"),
    (Bug::AppliesInSteps, "applies-in-steps"),
    (Bug::SkipsSync, "skips-sync"),
    (Bug::CompletesApart, "completes-apart"),
    (Bug::BeginsAlways, "begins-always"),
    (Bug::SkipsCheckpoints, "skips-checkpoints"),
    (Bug::RecordsFirst, "records-first"),
    (Bug::PutsFirst, "puts-first"),
    (Bug::ForgetsMarks, "forgets-marks"),
    (Bug::IgnoresKeys, "ignores-keys"),
    (Bug::DropsGroups, "drops-groups"),
    (Bug::Aborts(Point::BeforePut), "aborts-before-put"),
    (Bug::Aborts(Point::AfterPut), "aborts-after-put"),
    (Bug::Aborts(Point::AfterReceive), "aborts-after-receive"),
    (
        Bug::Aborts(Point::BeforeCompletion),
        "aborts-before-completion",
    ),
    (
        Bug::Aborts(Point::AfterCompletion),
        "aborts-after-completion",
    ),
    (Bug::Aborts(Point::BeforePutBack), "aborts-before-put-back"),
    (Bug::Aborts(Point::AfterPutBack), "aborts-after-put-back"),
    (
        Bug::Aborts(Point::BetweenCopyAndDelete),
        "aborts-between-copy-and-delete",
    ),
    (
        Bug::Aborts(Point::BetweenFollowUpAndDelete),
        "aborts-between-follow-up-and-delete",
    ),
    (Bug::Aborts(Point::BeforePackPut), "aborts-before-pack-put"),
    (Bug::Aborts(Point::AfterPackPut), "aborts-after-pack-put"),
    (
        Bug::Aborts(Point::AfterPackReceive),
        "aborts-after-pack-receive",
    ),
    (
        Bug::Aborts(Point::BeforeItemSettled),
        "aborts-before-item-settled",
    ),
    (
        Bug::Aborts(Point::AfterItemSettled),
        "aborts-after-item-settled",
    ),
    (Bug::Aborts(Point::BeforeMark), "aborts-before-mark"),
    (Bug::Aborts(Point::AfterMark), "aborts-after-mark"),
    (
        Bug::Aborts(Point::BeforeGiveBack),
        "aborts-before-give-back",
    ),
    (Bug::Aborts(Point::AfterGiveBack), "aborts-after-give-back"),
    (Bug::Aborts(Point::BeforeSplit), "aborts-before-split"),
    (Bug::Aborts(Point::AfterSplit), "aborts-after-split"),
    (Bug::Aborts(Point::BeforeLeaving), "aborts-before-leaving"),
    (Bug::Aborts(Point::AfterLeaving), "aborts-after-leaving"),
];

/// How long an early acknowledgement precedes the put.
const AHEAD: Duration = Duration::from_millis(300);

impl Bug {
    /// The name on a command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        let named = NAMES.iter().find(|named| named.0 == self);
        named.expect("every bug has a name").1
    }
}

impl FromStr for Bug {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let named = NAMES.iter().find(|named| named.1 == name);
        named
            .map(|named| named.0)
            .ok_or_else(|| format!("unknown bug `{name}`"))
    }
}

/// A backend with a planted bug.
#[derive(Debug)]
pub struct Sabotaged {
    inner: Arc<dyn Backend>,
    bug: Bug,
    capabilities: Capabilities,
}

impl Sabotaged {
    /// Plants a bug in a backend.
    #[must_use]
    pub fn new(inner: Arc<dyn Backend>, bug: Bug) -> Self {
        let mut capabilities = inner.capabilities().clone();
        if matches!(bug, Bug::Aborts(point) if point.is_between()) {
            capabilities.atomicity = Atomicity::InOrder;
        }
        Self {
            inner,
            bug,
            capabilities,
        }
    }

    fn pass(&self, point: Point) {
        point.pass(Some(self.bug));
    }

    async fn put(&self, queue: &QueueName, message: NewMessage) -> Result<PutReceipt> {
        if self.bug != Bug::AcknowledgesEarly {
            self.pass(Point::BeforePut);
            let put = self.inner.put(queue, message).await;
            if put.is_ok() {
                self.pass(Point::AfterPut);
            }
            return put.map_err(|error| match self.bug {
                Bug::PresumesNotDone => error.with_outcome(Outcome::NotDone),
                _ => error,
            });
        }
        let (inner, queue) = (Arc::clone(&self.inner), queue.clone());
        tokio::spawn(async move {
            tokio::time::sleep(AHEAD).await;
            inner.put(&queue, message).await
        });
        let (id, receipt) = (StorageId::new("early"), PopReceipt::new("early"));
        let now = Timestamp::UNIX_EPOCH;
        Ok(PutReceipt::new(id, receipt, now, now))
    }

    async fn put_if(
        &self,
        queue: &QueueName,
        message: NewMessage,
        swap: &Swap,
    ) -> Result<OpOutcomes, ApplyError> {
        let put = Op::Put {
            queue: queue.clone(),
            message,
        };
        let swap = Op::Swap {
            queue: queue.clone(),
            swap: swap.clone(),
        };
        match self.bug {
            Bug::RecordsFirst => {
                let swapped = self.inner.apply(Ops::from([swap])).await;
                swapped.map_err(|mut failed| {
                    // That of the swap, which the caller has behind the put.
                    failed.index = 1;
                    failed
                })?;
                std::process::abort()
            }
            Bug::PutsFirst => {
                self.inner.apply(Ops::from([put])).await?;
                std::process::abort()
            }
            _ => {
                self.pass(Point::BeforePut);
                let done = self.inner.apply([put, swap].into_iter().collect()).await?;
                self.pass(Point::AfterPut);
                Ok(done)
            }
        }
    }

    /// Renews a lease, or puts a message back.
    async fn update(&self, ops: Ops) -> Result<OpOutcome> {
        let receipt = ops[0].received().map(|(_, _, receipt)| receipt.clone());
        let has_body = |op: &Op| {
            matches!(
                op,
                Op::Renew { body: Some(_), .. } | Op::PutBack { body: Some(_), .. }
            )
        };
        let puts_back = ops.iter().any(has_body);
        if puts_back {
            self.pass(Point::BeforePutBack);
        }
        let updated = self.inner.apply(ops).await;
        if puts_back {
            self.pass(Point::AfterPutBack);
        }
        match (self.bug, updated.map_err(|failed| failed.error)) {
            (Bug::AcceptsStaleReceipts, Err(error)) if is_gone(error.kind()) => {
                let receipt = receipt.expect("of a received message");
                Ok(OpOutcome::Updated(Lease::new(
                    receipt,
                    Timestamp::UNIX_EPOCH,
                )))
            }
            (_, updated) => Ok(updated?.remove(0)),
        }
    }

    async fn apply_several(&self, mut ops: Ops) -> Result<OpOutcomes, ApplyError> {
        match self.bug {
            Bug::AppliesInSteps => {}
            Bug::Aborts(point) if point.is_between() => return self.apply_in_order(ops).await,
            _ => return self.inner.apply(ops).await,
        }
        ops.reverse();
        let mut outcomes = OpOutcomes::new();
        for op in ops {
            outcomes.extend(self.inner.apply(Ops::from([op])).await?);
            tokio::task::yield_now().await;
        }
        outcomes.reverse();
        Ok(outcomes)
    }

    /// Carries out the operations one after the other.
    async fn apply_in_order(&self, ops: Ops) -> Result<OpOutcomes, ApplyError> {
        let mut outcomes = OpOutcomes::new();
        for (index, op) in ops.into_iter().enumerate() {
            let point = match &op {
                Op::Put { message, .. } if message.moved => Some(Point::BetweenCopyAndDelete),
                Op::Put { .. } => Some(Point::BetweenFollowUpAndDelete),
                _ => None,
            };
            match self.inner.apply(Ops::from([op])).await {
                Ok(done) => outcomes.extend(done),
                Err(failed) => return Err(ApplyError::new(index, outcomes, failed.error)),
            }
            if let Some(point) = point {
                self.pass(point);
            }
        }
        Ok(outcomes)
    }

    fn forgive(&self, deleted: Result<()>) -> Result<()> {
        match (self.bug, deleted) {
            (Bug::DeletesEarly | Bug::AcceptsStaleReceipts, Err(error))
                if is_gone(error.kind()) =>
            {
                Ok(())
            }
            (Bug::PresumesDone, Err(error)) if error.outcome() == Outcome::Unknown => Ok(()),
            (_, deleted) => deleted,
        }
    }
}

fn is_gone(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::MessageNotFound | ErrorKind::ReceiptMismatch
    )
}

#[async_trait]
impl Backend for Sabotaged {
    forward_backend!(self => self.inner; all but capabilities receive apply);

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn receive(
        &self,
        queue: &QueueName,
        max: usize,
        visibility: Duration,
    ) -> Result<Vec<ReceivedMessage>> {
        let received = self.inner.receive(queue, max, visibility).await?;
        if self.bug == Bug::DeletesEarly {
            for message in &received {
                self.inner
                    .delete(queue, &message.id, &message.receipt)
                    .await?;
            }
        }
        if !received.is_empty() {
            self.pass(Point::AfterReceive);
        }
        Ok(received)
    }

    async fn apply(&self, mut ops: Ops) -> Result<OpOutcomes, ApplyError> {
        if self.bug == Bug::DropsGroups {
            for op in &mut ops {
                if let Op::Put { message, .. } = op {
                    message.group = None;
                }
            }
        }
        let one = match &ops[..] {
            [Op::Put { queue, message }] => {
                let put = self.put(queue, message.clone()).await;
                put.map(OpOutcome::Put)
            }
            [Op::Put { queue, message }, Op::Swap { swap, .. }] => {
                return self.put_if(queue, message.clone(), swap).await;
            }
            [Op::Renew { .. } | Op::PutBack { .. }] => self.update(ops).await,
            [Op::Delete { .. }] => {
                self.pass(Point::BeforeCompletion);
                let deleted = self.inner.apply(ops).await;
                let deleted = deleted.map(drop).map_err(|failed| failed.error);
                let deleted = self.forgive(deleted);
                self.pass(Point::AfterCompletion);
                deleted.map(|()| OpOutcome::Deleted)
            }
            _ => return self.apply_several(ops).await,
        };
        let one = one.map(|one| OpOutcomes::from([one]));
        one.map_err(|error| ApplyError::nothing_done(0, error))
    }
}
