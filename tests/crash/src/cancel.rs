//! Futures that are dropped before they complete.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

/// Polls a future up to `polls` times, then drops it. Returns the output if the future completed before.
pub async fn drop_after<T>(polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_future_is_dropped_at_each_of_its_awaits() {
        let mut reached = Vec::new();
        for polls in 0..4 {
            let mut steps = 0;
            let future = async {
                steps += 1;
                tokio::task::yield_now().await;
                steps += 1;
                tokio::task::yield_now().await;
                steps += 1;
            };
            let completed = drop_after(polls, future).await.is_some();
            reached.push((steps, completed));
        }
        assert_eq!(reached, [(0, false), (1, false), (2, false), (3, true)]);
    }
}
