use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as Polling, Poll};
use std::time::Duration;

use futures_util::stream::{self, BoxStream, Stream, StreamExt as _};
use queue_core::RetryAdvice;

use super::accepting::Accepting;
use super::accepting::Unclaimed;
use super::{AcceptError, AcceptErrorKind, AcceptMany};
use crate::kernel::policy::{jitter, outage_pause};
use crate::kernel::receive::delivery::Delivery;

/// The messages of a queue, from [`QueueService::messages`](crate::QueueService::messages), as a [`Stream`] that waits
/// while the queue is empty.
///
/// Messages are received when the stream is polled and has none: up to the stream's bound at once, which wait in the
/// stream with leases that are renewed while the stream exists. Combinators of streams decide how many messages are
/// handled at a time.
///
/// ```
/// use futures_util::StreamExt as _;
/// use queue_runtime::{Message, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # async fn ship(_: &Order) {}
/// let service = testing::service().await;
/// service.submit_all((1..=100).map(|number| Order { number })).await?;
///
/// let orders = service.messages::<Order>(32).take(100);
/// orders
///     .for_each_concurrent(8, async |order| match order {
///         Ok(order) => {
///             ship(&order).await;
///             if let Err(error) = order.complete().await {
///                 eprintln!("{error}");
///             }
///         }
///         Err(error) => eprintln!("{error}; the stream goes on"),
///     })
///     .await;
/// assert!(service.accept::<Order>().await?.is_none());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// An item is an error if no message can be accepted now. The stream tries again when it is polled again, after a pause
/// that grows with the failures in a row, up to 30 s. The stream ends only after an error that cannot pass: of its
/// settings, or [`AcceptErrorKind::NoTimer`].
///
/// # Cancel safety
/// When the stream is dropped, messages that wait in it are handed back in the background without counting the attempt,
/// and so are the messages of a receive that is under way. If the process ends before messages are handed back, they
/// become visible when their leases end.
pub struct Messages<M>(BoxStream<'static, Result<Delivery<M>, AcceptError>>);

/// Longer than any program waits.
const FOREVER: Duration = Duration::MAX;

impl<M: Send + 'static> AcceptMany<M> {
    /// Turns the accept into an endless stream of messages, of which up to the `max` of `accept_many` are received at
    /// once and wait in the stream. The stream waits for messages while it is polled, whatever [`wait`](Self::wait)
    /// says. The stream with the default settings is [`QueueService::messages`](crate::QueueService::messages).
    #[must_use = "nothing is accepted until the stream is polled"]
    pub fn into_stream(self) -> Messages<M> {
        Messages::of(self.wait(FOREVER).build())
    }
}

/// What the stream holds.
struct Source<M> {
    accepting: Accepting<M>,
    waiting: Unclaimed<M>,
    /// Failures in a row.
    failures: usize,
    has_ended: bool,
}

impl<M: Send + 'static> Messages<M> {
    fn of(accepting: Result<Accepting<M>, AcceptError>) -> Self {
        let accepting = match accepting {
            Ok(accepting) => accepting,
            Err(invalid) => return Self(stream::iter([Err(invalid)]).boxed()),
        };
        let source = Source {
            accepting,
            waiting: Unclaimed::default(),
            failures: 0,
            has_ended: false,
        };
        let next = |mut source: Source<M>| async {
            if source.has_ended {
                return None;
            }
            let next = source.next().await;
            Some((next, source))
        };
        Self(stream::unfold(source, next).boxed())
    }
}

impl<M> Source<M> {
    /// Returns the next message that waits, or accepts more.
    async fn next(&mut self) -> Result<Delivery<M>, AcceptError> {
        let clock = Arc::clone(&self.accepting.context.clock);
        loop {
            while let Some(first) = self.waiting.first() {
                let is_leased = first.claim().await;
                // The delivery is taken only now: if this future is dropped before, it is handed back.
                match self.waiting.take_first() {
                    Some(first) if is_leased => return Ok(first),
                    late => drop(late.map(Unclaimed::from)),
                }
            }
            if self.failures > 0 {
                let pause = outage_pause(RetryAdvice::Temporary, self.failures, jitter());
                clock.sleep(pause).await;
            }
            match self.accepting.accept().await {
                Ok(accepted) => {
                    self.failures = 0;
                    accepted.hold();
                    self.waiting = accepted;
                }
                Err(error) => {
                    self.failures = self.failures.saturating_add(1);
                    self.has_ended = matches!(error, AcceptErrorKind::NoTimer);
                    return Err(self.accepting.error(error));
                }
            }
        }
    }
}

impl<M> Stream for Messages<M> {
    type Item = Result<Delivery<M>, AcceptError>;

    fn poll_next(mut self: Pin<&mut Self>, polling: &mut Polling<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(polling)
    }
}

impl<M> fmt::Debug for Messages<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Messages").finish_non_exhaustive()
    }
}
