//! SQLite and the reference model give the same answers to the same random calls.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use queue_core::backend::{
    Backend, BackendExt as _, Metadata, NewMessage, Op, OpOutcome, PopReceipt, PutBackPlace, PutIf,
    StorageId, Swap, TimeToLive,
};
use queue_core::idempotency::WorkKey;
use queue_core::{ErrorKind, ManualClock, QueueName, Timestamp};
use queue_runtime::backend::{MemoryBackend, SqliteBackend, Synchronous};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use tempfile::TempDir;

use crate::threads;

const STEPS: usize = 400;

/// An id and receipt of one backend. The same index in both lists is the same message.
#[derive(Debug, Clone)]
struct Handle {
    id: StorageId,
    receipt: PopReceipt,
}

#[derive(Debug, Clone)]
enum Call {
    Create(QueueName),
    Remove(QueueName),
    Clear(QueueName),
    Put(QueueName, NewMessage),
    Receive(QueueName, usize, Duration),
    Peek(QueueName, usize),
    Update(QueueName, usize, Duration, Option<&'static str>),
    Delete(QueueName, usize),
    /// Records the second value in place of the first.
    Swap(QueueName, [Option<&'static str>; 2], Duration),
    Apply(Vec<Call>),
    List,
}

/// The part of an answer that must be equal; ids and receipts differ.
#[derive(Debug, PartialEq)]
enum Answer {
    Done,
    Failed(ErrorKind),
    ApplyFailed(usize, ErrorKind),
    Time(Timestamp, Option<Timestamp>),
    Received(Vec<(Vec<u8>, usize, Timestamp, Option<Timestamp>)>),
    Listed(Vec<QueueName>),
    Applied(Vec<Answer>),
    Differs(Option<Vec<u8>>),
}

#[test]
fn sqlite_answers_like_the_model() {
    let first: u64 = match std::env::var("MODEL_SEED") {
        Ok(seed) => seed.parse().expect("MODEL_SEED is a number"),
        Err(_) => rand::random(),
    };
    for seed in (0..20).map(|n| first.wrapping_add(n)) {
        threads::block_on(compare(seed));
    }
}

async fn compare(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let clock = ManualClock::new();
    let directory = TempDir::new().expect("a directory");
    let model = MemoryBackend::new(Arc::new(clock.clone()));
    let path = directory.path().join("queue.db");
    let mut sqlite = open(&path, &clock).await;
    let mut handles: [Vec<Handle>; 2] = Default::default();
    for step in 0..STEPS {
        let call = random_call(&mut random, handles[0].len());
        let expected = perform(&model, &call, &mut handles[0]).await;
        let answered = perform(&sqlite, &call, &mut handles[1]).await;
        assert_eq!(answered, expected, "seed {seed}, step {step}: {call:?}");
        match random.random_range(0..40) {
            0..10 => clock.advance(Duration::from_millis(random.random_range(0..3000))),
            10 => {
                let step = random.random_range(-7200..7200);
                clock.step_wall_clock(SignedDuration::from_secs(step));
            }
            11 => {
                sqlite.close().await;
                sqlite = open(&path, &clock).await;
            }
            _ => {}
        }
    }
}

async fn open(path: &Path, clock: &ManualClock) -> SqliteBackend {
    let builder = SqliteBackend::builder(path, Arc::new(clock.clone()));
    // Durability is not tested here.
    let opened = builder.synchronous(Synchronous::Normal).open().await;
    opened.expect("open")
}

fn random_call(random: &mut StdRng, handles: usize) -> Call {
    let queue: QueueName = ["one", "two"]
        .choose(random)
        .expect("two")
        .parse()
        .expect("a name");
    let millis = |random: &mut StdRng| Duration::from_millis(random.random_range(900..4900));
    match random.random_range(0..100) {
        0..6 => Call::Create(queue),
        6 => Call::Remove(queue),
        7 => Call::Clear(queue),
        8 => Call::List,
        9..15 => Call::Peek(queue, random.random_range(1..5)),
        15..45 => Call::Receive(queue, random.random_range(1..4), millis(random)),
        45..55 => {
            let calls = (0..random.random_range(1..4))
                .map(|_| random_step(random, handles))
                .collect();
            Call::Apply(calls)
        }
        _ => random_step(random, handles),
    }
}

fn random_step(random: &mut StdRng, handles: usize) -> Call {
    let queue = ["one", "one", "two"].choose(random).expect("three");
    let queue: QueueName = queue.parse().expect("a name");
    let visibility = Duration::from_millis(random.random_range(0..4000));
    // Recent handles are more likely to be valid.
    let recent = handles.saturating_sub(random.random_range(1..12));
    match random.random_range(0..4) {
        3 => {
            let value = |random: &mut StdRng| [None, Some("1"), Some("2")].choose(random).copied();
            let values = [value(random).flatten(), value(random).flatten()];
            Call::Swap(queue, values, visibility)
        }
        0 if handles > 0 => Call::Delete(queue, recent),
        1 if handles > 0 => {
            let body = [None, Some("changed"), Some("")].choose(random).copied();
            Call::Update(queue, recent, visibility, body.flatten())
        }
        _ => {
            let mut message = NewMessage::new(random.random::<u32>().to_string());
            if random.random_bool(0.3) {
                message = message.with_delay(visibility);
            }
            if random.random_bool(0.3) {
                let lifetime = Duration::from_millis(random.random_range(0..6000));
                message = message.with_time_to_live(TimeToLive::After(lifetime));
            }
            Call::Put(queue, message)
        }
    }
}

async fn perform(backend: &dyn Backend, call: &Call, handles: &mut Vec<Handle>) -> Answer {
    match attempt(backend, call, handles).await {
        Ok(answer) => answer,
        Err(error) => Answer::Failed(error.kind()),
    }
}

async fn attempt(
    backend: &dyn Backend,
    call: &Call,
    handles: &mut Vec<Handle>,
) -> queue_core::Result<Answer> {
    Ok(match call {
        Call::Create(queue) => {
            backend.create_queue(queue, &Metadata::new()).await?;
            Answer::Done
        }
        Call::Remove(queue) => {
            backend.delete_queue(queue).await?;
            Answer::Done
        }
        Call::Clear(queue) => {
            backend.clear(queue).await?;
            Answer::Done
        }
        Call::List => Answer::Listed(backend.list_queues("").await?),
        Call::Peek(queue, max) => {
            let peeked = backend.peek(queue, *max).await?.into_iter();
            Answer::Received(
                peeked
                    .map(|m| {
                        (
                            m.body.to_vec(),
                            m.dequeue_count,
                            m.inserted_at,
                            m.expires_at,
                        )
                    })
                    .collect(),
            )
        }
        Call::Receive(queue, max, visibility) => {
            let received = backend.receive(queue, *max, *visibility).await?;
            for message in &received {
                handles.push(Handle {
                    id: message.id.clone(),
                    receipt: message.receipt.clone(),
                });
            }
            let received = received.into_iter();
            Answer::Received(
                received
                    .map(|m| (m.body.to_vec(), m.dequeue_count, m.visible_at, m.expires_at))
                    .collect(),
            )
        }
        Call::Apply(calls) => {
            let ops = calls.iter().map(|call| op(call, handles)).collect();
            match backend.apply(ops).await {
                Ok(outcomes) => Answer::Applied(
                    outcomes
                        .into_iter()
                        .map(|o| record(o, None, handles))
                        .collect(),
                ),
                Err(failure) => Answer::ApplyFailed(failure.index, failure.error.kind()),
            }
        }
        Call::Put(queue, message) => {
            let put = backend.put(queue, message.clone()).await?;
            record(OpOutcome::Put(put), None, handles)
        }
        Call::Update(queue, at, visibility, body) => {
            let Handle { id, receipt } = handles[*at].clone();
            let body = body.map(Into::into);
            let lease = backend.renew(queue, &id, &receipt, *visibility, body);
            record(OpOutcome::Updated(lease.await?), Some(id), handles)
        }
        Call::Delete(queue, at) => {
            let Handle { id, receipt } = &handles[*at];
            backend.delete(queue, id, receipt).await?;
            Answer::Done
        }
        Call::Swap(queue, values, retention) => {
            let swap = swap(values, *retention);
            match backend.put_if(queue, None, &swap).await? {
                PutIf::Swapped(_) => Answer::Done,
                PutIf::Differs(current) => Answer::Differs(current.map(|value| value.to_vec())),
            }
        }
    })
}

/// Returns the swap of two values of one key. Without a second value, the first is forgotten.
fn swap([expected, value]: &[Option<&'static str>; 2], retention: Duration) -> Swap {
    let key = WorkKey::new("model", "key");
    let swap = match value {
        Some(value) => Swap::new(key, *value, retention),
        None => Swap::forget(key),
    };
    match expected {
        Some(expected) => swap.in_place_of(*expected),
        None => swap,
    }
}

/// An update for less than this is a put-back, as part of an `apply`: in place if the time is zero.
const SHORT: Duration = Duration::from_secs(1);

fn op(call: &Call, handles: &[Handle]) -> Op {
    match call.clone() {
        Call::Put(queue, message) => Op::Put { queue, message },
        Call::Update(queue, at, visibility, body) if visibility < SHORT => Op::PutBack {
            queue,
            id: handles[at].id.clone(),
            receipt: handles[at].receipt.clone(),
            place: match visibility {
                Duration::ZERO => PutBackPlace::Kept,
                delay => PutBackPlace::After(delay),
            },
            body: body.map(Into::into),
        },
        Call::Update(queue, at, visibility, body) => Op::Renew {
            queue,
            id: handles[at].id.clone(),
            receipt: handles[at].receipt.clone(),
            visibility,
            body: body.map(Into::into),
        },
        Call::Delete(queue, at) => Op::Delete {
            queue,
            id: handles[at].id.clone(),
            receipt: handles[at].receipt.clone(),
            moved: false,
        },
        Call::Swap(queue, values, retention) => Op::Swap {
            queue,
            swap: swap(&values, retention),
        },
        other => unreachable!("{other:?} is no operation of apply"),
    }
}

/// Records the handle, and returns the part of the outcome that must be equal.
fn record(outcome: OpOutcome, id: Option<StorageId>, handles: &mut Vec<Handle>) -> Answer {
    match outcome {
        OpOutcome::Put(put) => {
            handles.push(Handle {
                id: put.id,
                receipt: put.receipt,
            });
            Answer::Time(put.visible_at, put.expires_at)
        }
        OpOutcome::Updated(lease) => {
            handles.extend(id.map(|id| Handle {
                id,
                receipt: lease.receipt,
            }));
            Answer::Time(lease.visible_at, None)
        }
        _ => Answer::Done,
    }
}
