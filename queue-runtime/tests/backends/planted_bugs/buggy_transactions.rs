//! Transactions with a planted bug.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use queue_core::backend::{
    Backend, BackendExt as _, BrowsedMessage, Completion, Mark, MessageState, Metadata, NewMessage,
    PutIf, Swap, SwapIf, TransactionOutcome, Written,
};
use queue_core::clock::BoxFuture;
use queue_core::conformance::transactions::{End, Harness, OpenedTransactions, Step};
use queue_core::{Error, ErrorKind, Operation, QueueName, Result};

use crate::sqlite::transactions::SqliteStore;
use crate::threads;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Bug {
    None,
    CommitsNever,
    CommitsAlways,
    PutsAtOnce,
    CompletesAtOnce,
    ForgetsToPut,
    ForgetsToComplete,
    AnswersWhileItIsOpen,
    AnswersYes,
    AnswersNo,
    AnswersForTheLastOne,
    ForgetsWhenClosed,
    DropsTheDelay,
    DropsTheGroup,
    PutsBackwards,
    CreatesQueuesAtOnce,
    CreatesReplyQueues,
    LeavesOutWhatIsTooLarge,
    WritesInTwoSteps,
    EndsWithAnError,
    CompletesWhatOthersReceived,
    CompletesWhatIsGone,
    LeavesOutTheSecond,
    NeedsALease,
    NeedsTheLastReceipt,
    ForgetsTheResult,
    RecordsAtOnce,
    KeepsTheKey,
    ReleasesAnyKey,
    FailsForAnothersKey,
}

pub(super) struct BuggyHarness(pub(super) Bug);

struct BuggyStore {
    bug: Bug,
    inner: SqliteStore,
    /// Whether the last transaction was committed.
    committed: AtomicBool,
    reopened: bool,
}

type Puts = Vec<(QueueName, NewMessage)>;

#[async_trait]
impl Harness for BuggyHarness {
    async fn open(&self) -> Box<dyn OpenedTransactions> {
        Box::new(BuggyStore {
            bug: self.0,
            inner: SqliteStore::open(None).await,
            committed: AtomicBool::new(false),
            reopened: false,
        })
    }

    fn block_on(&self, test: BoxFuture<'_, ()>) {
        threads::block_on(test);
    }
}

#[async_trait]
impl OpenedTransactions for BuggyStore {
    fn client(&self) -> Arc<dyn Backend> {
        self.inner.client()
    }

    async fn reopen(&mut self) -> Arc<dyn Backend> {
        self.reopened = true;
        self.inner.reopen().await
    }

    async fn advance(&self, duration: Duration) {
        self.inner.advance(duration).await;
    }

    async fn transact(&self, steps: Vec<Step<'_>>, end: End) -> Vec<Result<Written>> {
        let end = match self.bug {
            Bug::CommitsNever => End::RollBack,
            Bug::CommitsAlways => End::Commit,
            _ => end,
        };
        let (mut kept, mut refused, mut split, mut writes) = (Vec::new(), Vec::new(), None, 0);
        for step in steps {
            let Step::Write(mut puts, mut completion) = step else {
                kept.push(step);
                continue;
            };
            if let Err(error) = self.change(writes, &mut puts, &mut completion).await {
                refused.push((writes, error));
            } else if self.bug == Bug::WritesInTwoSteps && !puts.is_empty() && completion.is_some()
            {
                split = Some(writes);
                kept.push(Step::Write(puts, None));
                kept.push(Step::Write(Vec::new(), completion));
            } else {
                kept.push(Step::Write(puts, completion));
            }
            writes += 1;
        }
        let mut answers = self.inner.transact(kept, end).await;
        if let Some(at) = split {
            let completed = answers.remove(at + 1);
            if completed.is_err() {
                answers[at] = completed;
            }
        }
        for (at, error) in refused {
            answers.insert(at, Err(error));
        }
        self.committed.store(end == End::Commit, Ordering::Relaxed);
        answers
    }

    async fn rows(&self) -> Vec<String> {
        let mut rows = self.inner.rows().await;
        if self.bug == Bug::EndsWithAnError {
            // As if the transaction had been rolled back with the error.
            rows.clear();
        }
        rows
    }

    async fn outcome(&self, mark: Mark) -> Result<TransactionOutcome> {
        let asked = self.inner.outcome(mark).await?;
        let is_open = asked == TransactionOutcome::Open;
        let committed = match self.bug {
            Bug::AnswersWhileItIsOpen if is_open => false,
            Bug::AnswersYes => true,
            Bug::AnswersNo => false,
            Bug::AnswersForTheLastOne => self.committed.load(Ordering::Relaxed),
            Bug::ForgetsWhenClosed if self.reopened => false,
            _ => return Ok(asked),
        };
        Ok(if committed {
            TransactionOutcome::Committed
        } else {
            TransactionOutcome::RolledBack
        })
    }
}

impl BuggyStore {
    /// Changes a write, or does a part of it outside the transaction, or refuses it.
    async fn change(
        &self,
        number: usize,
        puts: &mut Puts,
        completion: &mut Option<Completion<'_>>,
    ) -> Result<()> {
        let client = self.inner.client();
        match self.bug {
            Bug::ForgetsToPut => puts.clear(),
            Bug::PutsAtOnce => {
                for (queue, message) in puts.drain(..) {
                    client.put(&queue, message).await?;
                }
            }
            Bug::DropsTheDelay => {
                let messages = puts.iter_mut().map(|(_, message)| message);
                messages.for_each(|message| message.delay = Duration::ZERO);
            }
            Bug::DropsTheGroup => {
                for (_, message) in puts.iter_mut() {
                    message.group = None;
                }
            }
            Bug::PutsBackwards => puts.reverse(),
            Bug::CreatesQueuesAtOnce | Bug::CreatesReplyQueues => {
                let replies = self.bug == Bug::CreatesReplyQueues;
                for (queue, _) in puts.iter().filter(|(q, _)| q.is_reply_queue() == replies) {
                    client.create_queue(queue, &Metadata::new()).await?;
                }
            }
            Bug::LeavesOutWhatIsTooLarge => {
                puts.retain(|(_, message)| message.body.len() <= client.capabilities().max_body);
            }
            _ => {}
        }
        if let Some(current) = completion {
            let keep = self.change_completion(number, &*client, current).await?;
            if !keep {
                *completion = None;
            }
        }
        Ok(())
    }

    /// Returns whether the completion is still to be written.
    async fn change_completion(
        &self,
        number: usize,
        client: &dyn Backend,
        completion: &mut Completion<'_>,
    ) -> Result<bool> {
        let refused = |kind| Err(Error::new(kind, Operation::Delete));
        let stored = stored(client, completion).await;
        let found = stored.as_ref();
        match self.bug {
            Bug::ForgetsToComplete => return Ok(false),
            Bug::CompletesAtOnce => {
                let (id, receipt) = (completion.id, &completion.receipt);
                client.delete(completion.queue, id, receipt).await?;
                return Ok(false);
            }
            Bug::CompletesWhatOthersReceived => {
                if let Some(stored) = stored {
                    completion.receipt = stored.receipt;
                    completion.dequeue_count = stored.dequeue_count;
                }
            }
            Bug::CompletesWhatIsGone => return Ok(stored.is_some()),
            Bug::LeavesOutTheSecond => return Ok(number == 0),
            Bug::NeedsALease if found.is_some_and(|m| m.state == MessageState::Visible) => {
                return refused(ErrorKind::ReceiptMismatch);
            }
            Bug::NeedsTheLastReceipt if found.is_some_and(|m| m.receipt != completion.receipt) => {
                return refused(ErrorKind::ReceiptMismatch);
            }
            Bug::ForgetsTheResult => completion.finish = None,
            Bug::RecordsAtOnce => {
                if let (Some(finish), Some(results)) = (&completion.finish, client.results()) {
                    let _ = results.swap(finish).await?;
                }
            }
            Bug::KeepsTheKey => completion.release = None,
            Bug::ReleasesAnyKey | Bug::FailsForAnothersKey => {
                if let Some(release) = &mut completion.release {
                    let SwapIf::Value(expected) = release.condition.clone() else {
                        panic!("a release of another kind: {release:?}");
                    };
                    let same = Swap::new(release.key.clone(), expected.clone(), Duration::MAX);
                    let same = same.in_place_of(expected);
                    let held = client.put_if(completion.queue, None, &same).await?;
                    match (self.bug, held) {
                        (Bug::FailsForAnothersKey, PutIf::Differs(_)) => {
                            return refused(ErrorKind::Conflict);
                        }
                        (_, PutIf::Differs(another)) => {
                            release.condition = another.map_or(SwapIf::Absent, SwapIf::Value);
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
        Ok(true)
    }
}

/// The message of a completion as it is stored, if it is.
async fn stored(client: &dyn Backend, completion: &Completion<'_>) -> Option<BrowsedMessage> {
    let page = client.browse(completion.queue, None, 10).await;
    let messages = page.expect("browse").messages;
    messages.into_iter().find(|one| one.id == *completion.id)
}
