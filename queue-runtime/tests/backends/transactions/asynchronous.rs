//! An engine whose driver is asynchronous: the same methods return futures.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_core::backend::{
    Backend, Mark, NewMessage, Op, PopReceipt, PutReceipt, StorageId, StorageTransaction, Token,
    TransactionOutcome, Transactions, Writes, Written,
};
use queue_core::clock::BoxFuture;
use queue_core::{ErrorKind, QueueName, Timestamp};
use queue_runtime::backend::MemoryBackend;
use queue_runtime::clock::SystemClock;
use queue_runtime::receive::SettleErrorKind;
use queue_runtime::send::SubmitErrorKind;
use queue_runtime::{FollowUp, QueueService};

use crate::transactions::bank::{Deposit, Notice, notice};

/// A storage in memory with transactions, which knows those that were committed.
#[derive(Debug)]
struct Store(MemoryBackend, Arc<Engine>);

#[derive(Debug, Default)]
struct Engine(Mutex<HashSet<Token>>);

/// A transaction of the driver. Dropped without a commit, it is rolled back.
#[derive(Default)]
struct Transaction {
    ops: Vec<Op>,
    tokens: Vec<Token>,
}

#[async_trait::async_trait]
impl Backend for Store {
    queue_core::forward_backend!(self => self.0; all but transactions);

    fn transactions(&self) -> Option<Arc<dyn Transactions>> {
        let engine = Arc::clone(&self.1);
        Some(engine)
    }
}

#[async_trait::async_trait]
impl Transactions for Engine {
    async fn outcomes(&self, marks: &[Mark]) -> queue_core::Result<Vec<TransactionOutcome>> {
        let committed = self.0.lock().expect("sound");
        let outcome = |mark: &Mark| match mark.token() {
            Some(token) if !committed.contains(&token) => TransactionOutcome::RolledBack,
            _ => TransactionOutcome::Committed,
        };
        Ok(marks.iter().map(outcome).collect())
    }

    fn forget(&self, _: Token) {}

    fn encode(&self, _: &QueueName, _: &NewMessage) -> queue_core::Result<String> {
        unimplemented!("it has no outbox")
    }
}

impl<'a> StorageTransaction<Engine> for &'a mut Transaction {
    type Output<T: Send + 'static> = BoxFuture<'a, T>;

    fn write<W: Writes>(self, _: Arc<Engine>, mut writes: W) -> BoxFuture<'a, W::Output> {
        Box::pin(async move {
            loop {
                tokio::task::yield_now().await;
                let staged = self.stage(&writes);
                match writes.written(Ok(staged)) {
                    ControlFlow::Break(output) => return output,
                    ControlFlow::Continue(changed) => writes = changed,
                }
            }
        })
    }

    fn ready<T: Send + 'static>(value: T) -> BoxFuture<'a, T> {
        Box::pin(std::future::ready(value))
    }
}

impl Transaction {
    fn stage(&mut self, writes: &impl Writes) -> Written {
        for (queue, message) in writes.puts() {
            let (queue, message) = (queue.clone(), message.clone());
            self.ops.push(Op::Put { queue, message });
        }
        if let Some(completion) = writes.completion() {
            self.tokens.push(completion.token);
            self.ops.push(Op::Delete {
                queue: completion.queue.clone(),
                id: completion.id.clone(),
                receipt: completion.receipt,
                moved: false,
            });
        }
        let (id, receipt) = (StorageId::new("staged"), PopReceipt::new("staged"));
        let receipt = PutReceipt::new(id, receipt, Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH);
        let token = writes.completion().map(|completion| completion.token);
        Written::new(vec![receipt; writes.puts().len()], Mark::new(0, token))
    }

    async fn commit(self, store: &Store) {
        for op in &self.ops {
            if let Op::Put { queue, .. } = op {
                let created = store.create_queue(queue, &Default::default()).await;
                created.expect("created");
            }
        }
        store.apply(self.ops.into()).await.expect("committed");
        store.1.0.lock().expect("sound").extend(self.tokens);
    }
}

async fn open() -> (Arc<Store>, QueueService) {
    let clock = Arc::new(SystemClock::new());
    let memory = MemoryBackend::new(clock);
    let store = Arc::new(Store(memory, Arc::default()));
    let service = QueueService::with_backend(store.clone()).connect().await;
    (store, service.expect("connected"))
}

#[tokio::test]
async fn a_submission_is_awaited_and_takes_effect_with_the_commit() {
    let (store, service) = open().await;
    let mut tx = Transaction::default();
    service
        .submit_within(&mut tx, notice("kept"))
        .await
        .expect("written");
    assert!(service.accept::<Notice>().await.expect("asked").is_none());
    tx.commit(&store).await;
    let kept = service.accept::<Notice>().await.expect("asked");
    assert_eq!(kept.expect("committed").text, "kept");
}

#[tokio::test]
async fn a_completion_is_awaited_and_its_outcome_is_that_of_the_transaction() {
    let (store, service) = open().await;
    let deposit = Deposit {
        number: 1,
        amount: 5,
    };
    service.submit(deposit).await.expect("submitted");
    let accept = service.accept::<Deposit>().wait(Duration::from_secs(60));
    let delivery = accept.await.expect("asked").expect("submitted");

    let mut tx = Transaction::default();
    let completing = delivery
        .complete_within(&mut tx, [])
        .await
        .expect("written");
    drop(tx);
    let error = completing.confirm().await.expect_err("rolled back");
    assert!(
        matches!(&error.kind, SettleErrorKind::NotDone(why) if why.kind() == ErrorKind::NotCommitted)
    );

    let mut tx = Transaction::default();
    let follow_up = FollowUp::new(&notice("done"));
    let completing = error.delivery.complete_within(&mut tx, [follow_up]).await;
    let completing = completing.expect("written");
    tx.commit(&store).await;
    completing.confirm().await.expect("committed");
    let done = service.accept::<Notice>().await.expect("asked");
    assert_eq!(done.expect("committed").text, "done");
}

#[tokio::test]
async fn a_transaction_of_another_engine_is_refused() {
    let service = QueueService::connect("memory:").await.expect("connected");
    let mut tx = Transaction::default();
    let refused = service.submit_within(&mut tx, notice("lost")).await;
    let SubmitErrorKind::Storage(error) = refused.expect_err("another engine").kind else {
        panic!("another problem");
    };
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(tx.ops.is_empty());
}
