use std::future::Future;
use std::time::Instant;

use tokio::task::JoinSet;

use crate::Outcome;

/// Submits messages from concurrent tasks, each one message at a time. Returns messages per second.
pub(crate) async fn submit_with<S, F>(messages: u32, tasks: u32, submit: S) -> Outcome<f64>
where
    S: Fn(u32) -> F + Clone + Send + 'static,
    F: Future<Output = Outcome<()>> + Send + 'static,
{
    let started = Instant::now();
    side_by_side(tasks, |task| {
        let submit = submit.clone();
        async move {
            for number in (task..messages).step_by(tasks as usize) {
                submit(number).await?;
            }
            Ok(0)
        }
    })
    .await?;
    Ok(rate(messages, started))
}

/// Takes messages in concurrent tasks until there are none: `take` returns how many it took. Returns messages per second.
pub(crate) async fn take_with<T, F>(messages: u32, tasks: u32, take: T) -> Outcome<f64>
where
    T: Fn() -> F + Clone + Send + 'static,
    F: Future<Output = Outcome<u32>> + Send + 'static,
{
    let started = Instant::now();
    let taken = take_most(u32::MAX, tasks, take).await?;
    all_of(messages, taken, started)
}

/// Takes messages in concurrent tasks until there are none, but at most `each` in each task; returns how many.
pub(crate) async fn take_most<T, F>(each: u32, tasks: u32, take: T) -> Outcome<u32>
where
    T: Fn() -> F + Clone + Send + 'static,
    F: Future<Output = Outcome<u32>> + Send + 'static,
{
    side_by_side(tasks, |_| {
        let take = take.clone();
        async move {
            let mut taken = 0;
            while taken < each {
                match take().await? {
                    0 => break,
                    more => taken += more,
                }
            }
            Ok(taken)
        }
    })
    .await
}

/// Runs concurrent tasks, each with its number. Returns the sum of the results.
pub(crate) async fn side_by_side<F>(tasks: u32, work: impl FnMut(u32) -> F) -> Outcome<u32>
where
    F: Future<Output = Outcome<u32>> + Send + 'static,
{
    let mut workers: JoinSet<_> = (0..tasks).map(work).collect();
    let mut sum = 0;
    while let Some(ended) = workers.join_next().await {
        sum += ended??;
    }
    Ok(sum)
}

pub(crate) fn rate(messages: u32, started: Instant) -> f64 {
    f64::from(messages) / started.elapsed().as_secs_f64()
}

/// The rate of taking messages, or an error if any were missed or taken twice.
pub(crate) fn all_of(messages: u32, taken: u32, started: Instant) -> Outcome<f64> {
    let rate = rate(messages, started);
    if taken == messages {
        Ok(rate)
    } else {
        Err(format!("{taken} of {messages} messages were taken").into())
    }
}
