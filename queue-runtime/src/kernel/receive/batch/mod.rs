//! Handlers of several messages at a time.
//!
//! ```text
//! message ─ admitted ─► collector ─ full, or the first has waited long enough ─► run ─► an ending for each message
//!                                                                                 ▲            │ failed as a whole
//!                                                                                 └─ two halves ┘
//! ```
//!
//! To the listener, a message of a batch is like any other: it has its lease, its settlement, and a future that ends
//! with how it was handled. A `Collector` puts messages together; a `Run` calls the batch function, and decides what
//! its result means for each of them.

mod run;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use queue_core::{Disposition, Failure, IntoDisposition, Message};

use super::call::ErasedHandler;
use super::handler::{Handler, HandlerFuture, HandlerWith};
use super::received::Received;
use run::{Batches, Collector};

pub(crate) use run::longest;

/// Messages that are handled together, from one to as many as [`Batching::size`] says. See [`batch`].
///
/// ```
/// use queue_runtime::{Batch, Message, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// fn sum(orders: &Batch<Order>) -> u32 {
///     orders.iter().map(|order| order.number).sum()
/// }
///
/// let orders = [3, 4].map(|number| testing::received(Order { number }).build());
/// assert_eq!(sum(&Batch::from_iter(orders)), 7);
/// ```
pub struct Batch<M>(Vec<Arc<Received<M>>>);

impl<M> Batch<M> {
    /// The messages.
    #[must_use]
    pub fn iter(&self) -> BatchIter<'_, M> {
        self.into_iter()
    }

    /// The number of messages. A batch has at least one message.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the batch is empty, which no batch of a listener is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<M> std::ops::Index<usize> for Batch<M> {
    type Output = Received<M>;

    fn index(&self, at: usize) -> &Received<M> {
        &self.0[at]
    }
}

impl<'a, M> IntoIterator for &'a Batch<M> {
    type Item = &'a Received<M>;
    type IntoIter = BatchIter<'a, M>;

    fn into_iter(self) -> Self::IntoIter {
        BatchIter(self.0.iter())
    }
}

/// The messages of a [`Batch`].
#[derive(Debug)]
pub struct BatchIter<'a, M>(std::slice::Iter<'a, Arc<Received<M>>>);

impl<'a, M> Iterator for BatchIter<'a, M> {
    type Item = &'a Received<M>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|received| &**received)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl<M> ExactSizeIterator for BatchIter<'_, M> {}

impl<M> FromIterator<Received<M>> for Batch<M> {
    fn from_iter<I: IntoIterator<Item = Received<M>>>(messages: I) -> Self {
        Self(messages.into_iter().map(Arc::new).collect())
    }
}

impl<M> Clone for Batch<M> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<M: fmt::Debug> fmt::Debug for Batch<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Creates a handler from an async function of several messages, `fn(Batch<M>) -> impl IntoBatchDisposition`, such as one
/// that inserts rows in bulk. See [`Batching`].
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::{Batch, Message, batch, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
///
/// async fn insert(orders: Batch<Order>) -> Result<(), std::io::Error> {
///     println!("INSERT of {} orders", orders.len());
///     Ok(())
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = testing::service().await;
/// service.submit_all((1..=1000).map(|number| Order { number })).await?;
///
/// let insert = batch(insert).size(100).max_wait(Duration::from_millis(200));
/// let listener = service.listener(insert).start()?;
/// assert_eq!(testing::drain([&listener]).await?.completed(), 1000);
/// # Ok(())
/// # }
/// ```
pub fn batch<F>(function: F) -> Batching<F> {
    Batching {
        function,
        size: 100,
        max_wait: Duration::from_millis(100),
    }
}

/// A handler of several messages at a time, created by [`batch`].
///
/// Each message is leased, counted and settled by itself. The result of the function settles all messages alike, or
/// each by itself ([`IntoBatchDisposition`]). If the function fails as a whole, because it returns an error, panics or
/// exceeds the handler timeout, the failure counts against no message: the two halves of the batch are handled again,
/// side by side, until a message that fails does so alone. A failure that [postpones](crate::Failure::postpone)
/// postpones all messages.
///
/// Messages with an attempt that failed, or ended without a record as in a crash, are handled alone, and so are those
/// of types with a threshold of one attempt. One receive that ended without a record does not count as an attempt,
/// because it may have been another message of the batch that ended the process.
///
/// The listener has at least twice as many messages in flight as a batch has, unless
/// [`max_in_flight`](crate::ListenerBuilder::max_in_flight) says otherwise. A batch whose function blocks its thread for
/// longer than the handler timeout is given up, which is a failed attempt of each message.
///
/// When a listener is stopped at once, the function is dropped at its next `await`, which may be a moment after its
/// messages are visible to others. Items of a [pack](crate::send::SubmitAll::packed) whose receive left no record are
/// handled in batches again, as new messages. While a system downstream is down, return a failure that postpones: after
/// any other failure, each message is tried alone.
#[derive(Clone, Copy)]
pub struct Batching<F> {
    function: F,
    size: usize,
    max_wait: Duration,
}

impl<F> Batching<F> {
    /// Sets how many messages a batch has at most. The default is 100.
    #[must_use]
    pub fn size(mut self, messages: usize) -> Self {
        self.size = messages;
        self
    }

    /// Sets how long the first message of a batch waits for further messages. The default is 100 ms; a quarter of the
    /// visibility timeout is the most.
    #[must_use]
    pub fn max_wait(mut self, wait: Duration) -> Self {
        self.max_wait = wait;
        self
    }
}

#[diagnostic::do_not_recommend]
impl<M, F, Fut> Handler<M> for Batching<F>
where
    M: Sync + Send + 'static,
    F: Fn(Batch<M>) -> Fut + Send + Sync + 'static,
    Fut: HandlerFuture<Output: IntoBatchDisposition> + Send + 'static,
{
    type Output = Disposition;

    /// Handles a batch of one message.
    async fn call(&self, received: Received<M>) -> Disposition {
        let returned = (self.function)(Batch::from_iter([received])).await;
        returned.into_batch_disposition().of_one()
    }

    fn erase(self) -> ErasedHandler
    where
        M: Message,
    {
        ErasedHandler::new(Batches(Arc::new(Collector::new(self))))
    }
}

#[diagnostic::do_not_recommend]
impl<S, M, F, Fut> HandlerWith<S, M> for Batching<F>
where
    S: Clone + Send + Sync + 'static,
    M: Message + Sync,
    F: Fn(S, Batch<M>) -> Fut + Send + Sync + 'static,
    Fut: HandlerFuture<Output: IntoBatchDisposition> + Send + 'static,
{
    fn with(self, state: S) -> ErasedHandler {
        let Self {
            function,
            size,
            max_wait,
        } = self;
        Batching {
            function: move |messages: Batch<M>| function(state.clone(), messages),
            size,
            max_wait,
        }
        .erase()
    }
}

impl<F> fmt::Debug for Batching<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batching")
            .field("size", &self.size)
            .field("max_wait", &self.max_wait)
            .finish_non_exhaustive()
    }
}

/// The outcome of the handler of a batch: what to do with each message, from [`IntoBatchDisposition`].
#[derive(Debug)]
pub struct BatchDisposition(Returned);

#[derive(Debug)]
enum Returned {
    /// All messages of the batch are completed.
    Completed,
    /// The batch failed as a whole.
    Failed(Failure),
    /// A disposition for each message, in the order of the batch.
    Each(Vec<Disposition>),
}

/// A value that a handler of a [batch](crate::batch) can return.
///
/// `()` completes all messages. `Err` is a failure of the batch as a whole. A vector decides on each message, in order:
/// each item is what a handler of a single message can return. If the vector has another length than the batch, the
/// batch has failed as a whole.
///
/// ```
/// use queue_runtime::{Batch, Disposition, Message};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
///
/// async fn check(orders: Batch<Order>) -> Vec<Disposition> {
///     let check = |number| match number {
///         0 => Disposition::reject("orders are numbered from 1"),
///         _ => Disposition::complete(),
///     };
///     orders.iter().map(|order| check(order.number)).collect()
/// }
/// # let _ = queue_runtime::batch(check);
/// ```
#[diagnostic::on_unimplemented(
    message = "a handler of a batch cannot return `{Self}`",
    label = "not a disposition of a batch",
    note = "a handler of a batch returns `()`, a `Vec` of what handlers of single messages return, or a `Result` of either \
            whose error is an `std::error::Error + Send + Sync` or a `Failure`"
)]
pub trait IntoBatchDisposition {
    /// Converts the value.
    fn into_batch_disposition(self) -> BatchDisposition;
}

impl IntoBatchDisposition for () {
    fn into_batch_disposition(self) -> BatchDisposition {
        BatchDisposition(Returned::Completed)
    }
}

impl<D: IntoDisposition> IntoBatchDisposition for Vec<D> {
    fn into_batch_disposition(self) -> BatchDisposition {
        let each = self.into_iter().map(D::into_disposition);
        BatchDisposition(Returned::Each(each.collect()))
    }
}

impl<T: IntoBatchDisposition, E: Into<Failure>> IntoBatchDisposition for Result<T, E> {
    fn into_batch_disposition(self) -> BatchDisposition {
        match self {
            Ok(value) => value.into_batch_disposition(),
            Err(error) => BatchDisposition(Returned::Failed(error.into())),
        }
    }
}

impl BatchDisposition {
    /// Returns what becomes of the only message of a batch.
    fn of_one(self) -> Disposition {
        match self.0 {
            Returned::Completed => Disposition::complete(),
            Returned::Failed(failure) => failure.into(),
            Returned::Each(mut each) => {
                let returned = each.len();
                let one = each.pop().filter(|_| returned == 1);
                one.unwrap_or_else(|| wrong_number(returned))
            }
        }
    }

    /// Returns what becomes of each of several messages, or `None` if the batch has failed as a whole.
    fn of_several(self, messages: usize) -> Option<Vec<Disposition>> {
        match self.0 {
            Returned::Completed => Some((0..messages).map(|_| Disposition::complete()).collect()),
            Returned::Failed(failure) => {
                let each = (0..messages).map(|_| Disposition::from(failure.clone()));
                let each: Vec<_> = each.collect();
                let is_postponed = |one: &Disposition| matches!(one, Disposition::Postpone { .. });
                each.iter().all(is_postponed).then_some(each)
            }
            Returned::Each(each) => (each.len() == messages).then_some(each),
        }
    }
}

fn wrong_number(returned: usize) -> Disposition {
    let error = format!("the handler of a batch returned {returned} results for 1 message");
    Disposition::retry(error)
}
