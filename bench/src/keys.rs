//! Messages of a hundred keys on SQLite, of which those of one key are handled one at a time: by a listener that knows the
//! keys, and by locks that the handlers take.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use queue_instructions::Parcel;
use queue_runtime::{QueueService, Received};

use crate::report::{Table, in_turn};
use crate::sqlite::Synchronous;
use crate::tasks::take_with;
use crate::{Options, Outcome, ours, runtime};

const OURS: &str = "one_at_a_time_by";
const LOCKS: &str = "a lock for each key, in a listener";
const TASKS: &str = "a lock for each key, in 64 tasks with accept + complete";
const SIDES: [&str; 3] = [OURS, LOCKS, TASKS];

const MESSAGES: u32 = 10_000;
const KEYS: u32 = 100;
const IN_FLIGHT: u32 = 64;

/// What a handler waits for.
const WORK: Duration = Duration::from_millis(2);

/// How the messages are distributed over the keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keys {
    Even,
    /// A tenth of messages has one key.
    Skewed,
}

pub(crate) fn measure(options: &Options) -> Outcome<Vec<Table>> {
    let dir = options.scratch()?;
    let runtime = runtime()?;
    let title = "Messages of 100 keys, one of a key at a time, SQLite, WAL, synchronous=FULL";
    let mut table = Table::new("keys", title, &SIDES).by("messages");
    let messages = options.messages(MESSAGES, KEYS);
    for round in options.rounds() {
        for (what, keys) in [("even", Keys::Even), ("a tenth of one key", Keys::Skewed)] {
            eprintln!("keys, round {round}: {what}");
            for side in in_turn(round, SIDES) {
                let path = dir.path().join(format!("{round}-{what}-{}", side.len()));
                let rate = runtime.block_on(async {
                    let url = Synchronous::Full.url(&path);
                    let service = QueueService::connect(&url).await?;
                    ours::submit_all(&service, messages, KEYS).await?;
                    handle(&service, messages, keys, side).await
                });
                table.add(what, messages, side, rate?);
            }
        }
    }
    Ok(vec![table])
}

/// Returns messages per second.
async fn handle(service: &QueueService, messages: u32, keys: Keys, side: &str) -> Outcome<f64> {
    let locks = Locks::default();
    let in_flight = IN_FLIGHT as usize;
    match side {
        OURS => {
            let start = |handled: Box<dyn Fn() + Send + Sync>| {
                let work = move |_: Received<Parcel>| {
                    handled();
                    tokio::time::sleep(WORK)
                };
                let listener = service.listener(work).max_in_flight(in_flight);
                let listener = listener.one_at_a_time_by(move |parcel| keys.of(parcel));
                listener.start()
            };
            ours::handle_all(messages, start).await
        }
        LOCKS => {
            let start = |handled: Box<dyn Fn() + Send + Sync>| {
                let work = move |parcel: Received<Parcel>| {
                    handled();
                    let lock = locks.of(keys.of(&parcel));
                    async move {
                        let _locked = lock.lock().await;
                        tokio::time::sleep(WORK).await;
                    }
                };
                service.listener(work).max_in_flight(in_flight).start()
            };
            ours::handle_all(messages, start).await
        }
        _ => {
            let service = service.clone();
            let take = move || {
                let (service, locks) = (service.clone(), locks.clone());
                async move {
                    let Some(delivery) = service.accept::<Parcel>().await? else {
                        return Ok(0);
                    };
                    let lock = locks.of(keys.of(&delivery));
                    let locked = lock.lock().await;
                    tokio::time::sleep(WORK).await;
                    drop(locked);
                    delivery.complete().await?;
                    Ok(1)
                }
            };
            take_with(messages, IN_FLIGHT, take).await
        }
    }
}

impl Keys {
    fn of(self, parcel: &Parcel) -> u32 {
        let mut hasher = DefaultHasher::new();
        parcel.number.hash(&mut hasher);
        let hash = hasher.finish() as u32;
        match self {
            Self::Skewed if hash.is_multiple_of(10) => 0,
            Self::Even | Self::Skewed => hash / 10 % KEYS,
        }
    }
}

type Lock = Arc<tokio::sync::Mutex<()>>;

/// A lock for each key.
#[derive(Clone, Default)]
struct Locks(Arc<Mutex<HashMap<u32, Lock>>>);

impl Locks {
    fn of(&self, key: u32) -> Lock {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(locks.entry(key).or_default())
    }
}
