use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::Outcome;

/// The same message as in the benchmark.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Parcel {
    pub number: u32,
    recipient: String,
    street: String,
    note: String,
}

impl Parcel {
    pub fn new(number: u32) -> Self {
        Self {
            number,
            recipient: "Ada Lovelace, Analytical Engines Ltd".to_owned(),
            street: "12 St James's Square, London".to_owned(),
            note: "Handle with care: gears inside. Leave with the porter if nobody answers."
                .to_owned(),
        }
    }
}

/// Counts the messages that handlers have handled.
#[derive(Debug)]
pub struct Handled {
    left: AtomicU32,
    all: Notify,
}

impl Handled {
    /// Expects this many messages, at least one.
    pub fn new(messages: u32) -> Self {
        Self {
            left: AtomicU32::new(messages),
            all: Notify::new(),
        }
    }

    /// Counts one message. Returns true for the last one.
    pub fn one(&self) -> bool {
        let last = self.left.fetch_sub(1, Ordering::AcqRel) == 1;
        if last {
            self.all.notify_one();
        }
        last
    }

    /// Waits for the last message.
    pub async fn all(&self) {
        self.all.notified().await;
    }

    /// Returns the rate since `started`, or an error if messages are missing or were handled twice.
    pub fn rate(&self, messages: u32, started: Instant) -> Outcome<f64> {
        let left = self.left.load(Ordering::Acquire);
        all_taken(messages, messages.wrapping_sub(left), started)
    }
}

/// Submits messages from concurrent tasks, each one message at a time. Returns messages per second.
pub async fn submit_with<S, F>(messages: u32, tasks: u32, submit: S) -> Outcome<f64>
where
    S: Fn(u32) -> F + Clone + Send + 'static,
    F: Future<Output = Outcome<()>> + Send + 'static,
{
    let started = Instant::now();
    let mut running = JoinSet::new();
    for task in 0..tasks {
        let submit = submit.clone();
        running.spawn(async move {
            for number in (task..messages).step_by(tasks as usize) {
                submit(number).await?;
            }
            Outcome::Ok(())
        });
    }
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    Ok(f64::from(messages) / started.elapsed().as_secs_f64())
}

/// Takes messages in concurrent tasks until there are none. `take` returns how many it took and
/// acknowledged. Returns messages per second.
pub async fn take_with<T, F>(messages: u32, tasks: u32, take: T) -> Outcome<f64>
where
    T: Fn() -> F + Clone + Send + 'static,
    F: Future<Output = Outcome<u32>> + Send + 'static,
{
    let started = Instant::now();
    let mut running = JoinSet::new();
    for _ in 0..tasks {
        let take = take.clone();
        running.spawn(async move {
            let mut taken = 0;
            loop {
                match take().await? {
                    0 => break Outcome::Ok(taken),
                    more => taken += more,
                }
            }
        });
    }
    let mut taken = 0;
    while let Some(ended) = running.join_next().await {
        taken += ended??;
    }
    all_taken(messages, taken, started)
}

/// Returns the rate, or an error if messages are missing or were taken twice.
pub fn all_taken(messages: u32, taken: u32, started: Instant) -> Outcome<f64> {
    let rate = f64::from(messages) / started.elapsed().as_secs_f64();
    if taken == messages {
        Ok(rate)
    } else {
        Err(format!("{taken} of {messages} messages were taken").into())
    }
}

/// Returns an error if the queue's tables have messages left that are not done.
pub fn all_done(messages: u32, left: i64) -> Outcome<()> {
    match left {
        0 => Ok(()),
        left => Err(format!("{left} of {messages} messages are not done").into()),
    }
}
