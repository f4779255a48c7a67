use std::future::Future;
use std::time::Instant;

use tokio::task::JoinSet;

use crate::Outcome;

/// Runs so many tasks, each with its number, and adds up what they give.
pub(crate) async fn side_by_side<F>(tasks: u32, work: impl Fn(u32) -> F) -> Outcome<u32>
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

/// The rate, if none is missing and none came twice.
pub(crate) fn all_of(messages: u32, accepted: u32, started: Instant) -> Outcome<f64> {
    let rate = rate(messages, started);
    match accepted == messages {
        true => Ok(rate),
        false => Err(format!("{accepted} of {messages} messages were accepted").into()),
    }
}
