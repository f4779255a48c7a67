//! A storage that answers something else than what it was asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use queue_core::internal::forward_backend;
use queue_runtime::backend::{
    ApplyError, Atomicity, Backend, Capabilities, MemoryBackend, OpOutcome, OpOutcomes, Ops,
};
use queue_runtime::error::{Operation, Outcome};
use queue_runtime::testing::TokioClock;
use queue_runtime::{Disposition, Error, ErrorKind, FollowUp, QueueService};
use queue_tests::orders::{Order, order};

use crate::support::{accepted, count};

type Answer = Result<OpOutcomes, ApplyError>;

/// Makes an answer to this many operations, whatever they are.
type OfNothing = fn(usize) -> Answer;

/// Makes an answer of the right one.
type OfAll = fn(OpOutcomes) -> Answer;

const OF_NOTHING: [(&str, OfNothing); 3] = [
    ("no outcome", |_| Ok(OpOutcomes::new())),
    ("outcomes of others", |ops| {
        Ok(vec![OpOutcome::Swapped; ops].into())
    }),
    ("a failure beyond the last", |ops| {
        Err(ApplyError::nothing_done(ops, throttled()))
    }),
];

const OF_ALL: [(&str, OfAll); 5] = [
    ("all but the last", |mut right| {
        right.pop();
        Ok(right)
    }),
    ("one more", |mut right| {
        right.push(OpOutcome::Deleted);
        Ok(right)
    }),
    ("the last one alone", |mut right| {
        let last = right.pop();
        right.clear();
        right.extend(last);
        right.push(OpOutcome::Swapped);
        Ok(right)
    }),
    ("a failure of what is done", |right| {
        Err(ApplyError::new(0, right, throttled()))
    }),
    ("a failure beyond the last", |right| {
        Err(ApplyError::new(right.len(), right, throttled()))
    }),
];

fn throttled() -> Error {
    Error::new(ErrorKind::Throttled, Operation::Apply)
}

/// What a [`Misanswering`] storage does with operations.
#[derive(Debug, Clone, Copy)]
enum Does {
    Nothing(OfNothing),
    All(OfAll),
}

#[derive(Debug)]
struct Misanswering {
    inner: MemoryBackend,
    capabilities: Capabilities,
    does: Does,
    misanswers: AtomicBool,
}

#[async_trait]
impl Backend for Misanswering {
    forward_backend!(self => self.inner; all but capabilities apply);

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn apply(&self, ops: Ops) -> Answer {
        match self.does {
            _ if !self.misanswers.load(Ordering::SeqCst) => self.inner.apply(ops).await,
            Does::Nothing(answer) => answer(ops.len()),
            Does::All(answer) => {
                self.misanswers.store(false, Ordering::SeqCst);
                answer(self.inner.apply(ops).await?)
            }
        }
    }
}

/// Connects to such a storage, which answers rightly until it is told not to.
async fn connected(does: Does, atomicity: Atomicity) -> (QueueService, Arc<Misanswering>) {
    let inner = MemoryBackend::new(Arc::new(TokioClock::new()));
    let mut capabilities = inner.capabilities().clone();
    capabilities.atomicity = atomicity;
    let storage = Arc::new(Misanswering {
        inner,
        capabilities,
        does,
        misanswers: AtomicBool::new(false),
    });
    let service = QueueService::with_backend(Arc::clone(&storage) as _)
        .clock(Arc::new(TokioClock::new()))
        .on_current_runtime()
        .connect();
    let service = service.await.expect("connects");
    let bills = service.queue_named::<Order>("bills").expect("a name");
    bills.any().create().await.expect("created");
    (service, storage)
}

const EACH: [Atomicity; 2] = [Atomicity::Atomic, Atomicity::InOrder];

/// A settlement alone, and one beside a put.
fn completions() -> [Disposition; 2] {
    let bill = FollowUp::new(&order(2))
        .with_queue("bills")
        .expect("a name");
    [
        Disposition::complete(),
        Disposition::complete().then_follow_up(bill),
    ]
}

#[tokio::test(start_paused = true)]
async fn a_settlement_without_an_answer_of_its_own_is_unknown() {
    for ((name, answer), atomicity) in OF_NOTHING.iter().flat_map(|how| EACH.map(|it| (how, it))) {
        for completion in completions() {
            let (service, storage) = connected(Does::Nothing(*answer), atomicity).await;
            service.submit(order(1)).await.expect("submitted");
            let delivery = accepted::<Order>(&service).await;
            storage.misanswers.store(true, Ordering::SeqCst);
            let error = delivery.settle(completion).await.expect_err(name);
            assert_eq!(error.outcome(), Outcome::Unknown, "{name}: {error}");
            storage.misanswers.store(false, Ordering::SeqCst);
            assert_eq!(count(&service, "orders").await, 1, "{name}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_settlement_that_was_carried_out_is_found_done_by_the_next_try() {
    for ((name, answer), atomicity) in OF_ALL.iter().flat_map(|how| EACH.map(|it| (how, it))) {
        for (completion, bills) in completions().into_iter().zip(0..) {
            let (service, storage) = connected(Does::All(*answer), atomicity).await;
            service.submit(order(1)).await.expect("submitted");
            let delivery = accepted::<Order>(&service).await;
            storage.misanswers.store(true, Ordering::SeqCst);
            delivery.settle(completion).await.expect(name);
            assert!(!storage.misanswers.load(Ordering::SeqCst), "{name}");
            assert_eq!(count(&service, "orders").await, 0, "{name}");
            assert_eq!(count(&service, "bills").await, bills, "{name}");
        }
    }
}
