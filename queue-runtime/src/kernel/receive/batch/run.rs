use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use queue_core::clock::{BoxFuture, Clock};
use queue_core::internal::LockExt as _;
use queue_core::{DecodeError, Message, MessageType};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinError, JoinHandle};

use super::{Batch, BatchDisposition, Batching, IntoBatchDisposition};
use crate::kernel::context::Context;
use crate::kernel::panic::{CaughtPanic, catch_async};
use crate::kernel::receive::call::{Call, Ending, Erased, Seat, Unfit};
use crate::kernel::receive::handler::HandlerFuture;
use crate::kernel::receive::incoming::Incoming;
use crate::kernel::receive::received::Received;
use crate::kernel::receive::waiting::Parked;
use crate::kernel::settings::InvalidSetting;

/// A listener's handler of batches.
pub(super) struct Batches<M, F>(pub(super) Arc<Collector<M, F>>);

/// Puts messages together into batches.
pub(super) struct Collector<M, F> {
    function: F,
    size: usize,
    max_wait: Duration,
    open: Mutex<Open<M>>,
}

/// The batch that is collected.
struct Open<M> {
    members: Vec<Member<M>>,
    /// The number of earlier batches.
    number: u64,
}

/// A message of a batch.
struct Member<M> {
    received: Arc<Received<M>>,
    may_start: Box<dyn Fn() -> bool + Send + Sync>,
    /// Closed if the message has left the batch.
    reply: oneshot::Sender<Ending>,
    parked: Option<Parked>,
    kept: Box<dyn Send>,
}

impl<M> Member<M> {
    fn take_kept(&mut self) -> Box<dyn Send> {
        std::mem::replace(&mut self.kept, Box::new(()))
    }
}

impl<M, F> Collector<M, F> {
    pub(super) fn new(batching: Batching<F>) -> Self {
        Self {
            function: batching.function,
            size: batching.size,
            max_wait: batching.max_wait,
            open: Mutex::new(Open {
                members: Vec::new(),
                number: 0,
            }),
        }
    }
}

impl<M, F, Fut> Collector<M, F>
where
    M: Send + Sync + 'static,
    F: Fn(Batch<M>) -> Fut + Send + Sync + 'static,
    Fut: HandlerFuture<Output: IntoBatchDisposition> + Send + 'static,
{
    async fn join(self: Arc<Self>, received: Received<M>, seat: Seat) -> Ending {
        let (reply, answer) = oneshot::channel();
        let wait = self.max_wait.min(seat.patience);
        let run = Run {
            collector: Arc::clone(&self),
            runtime: seat.runtime,
            clock: seat.clock,
            timeout: seat.timeout,
        };
        let member = Member {
            received: Arc::new(received),
            may_start: seat.may_start,
            reply,
            parked: Some(seat.parked),
            kept: seat.kept,
        };
        if seat.alone {
            run.start(vec![member]);
        } else {
            self.collect(member, wait, run);
        }
        // The reply is dropped without an answer only with its runtime.
        answer.await.unwrap_or(Ending::NotStarted)
    }

    /// Adds a message to the batch, which runs when it is full, or its first message has waited for this long.
    fn collect(self: Arc<Self>, member: Member<M>, wait: Duration, run: Run<M, F>) {
        let (full, first) = {
            let mut open = self.open.hold();
            open.members.push(member);
            let is_full = open.members.len() >= self.size;
            let first = (open.members.len() == 1).then_some(open.number);
            (is_full.then(|| open.take()), first)
        };
        if let Some(full) = full {
            run.start(full);
        } else if let Some(number) = first {
            let runtime = run.runtime.clone();
            runtime.spawn(async move {
                run.clock.sleep(wait).await;
                let late = {
                    let mut open = self.open.hold();
                    (open.number == number).then(|| open.take())
                };
                if let Some(members) = late {
                    run.start(members);
                }
            });
        }
    }
}

impl<M> Open<M> {
    fn take(&mut self) -> Vec<Member<M>> {
        self.number += 1;
        std::mem::take(&mut self.members)
    }
}

impl<M, F, Fut> Erased for Batches<M, F>
where
    M: Message + Sync,
    F: Fn(Batch<M>) -> Fut + Send + Sync + 'static,
    Fut: HandlerFuture<Output: IntoBatchDisposition> + Send + 'static,
{
    fn message_type(&self) -> MessageType {
        M::TYPE
    }

    fn call(&self, context: &Arc<Context>, incoming: &Incoming) -> Result<Call, DecodeError> {
        let received = Received::<M>::decode(context, incoming)?;
        let collector = Arc::clone(&self.0);
        Ok(Call::Batched(Box::new(move |seat| {
            Box::pin(collector.join(received, seat))
        })))
    }

    fn batch(&self) -> Option<usize> {
        Some(self.0.size)
    }

    fn check(&self, _context: &Context) -> Result<(), Unfit> {
        InvalidSetting::count("size of a batch", self.0.size, usize::MAX)
            .and_then(|()| InvalidSetting::positive("maximum wait of a batch", self.0.max_wait))
            .map_err(Unfit::Setting)
    }
}

/// How long a function whose time is over has to reach an `await`.
const GRACE: Duration = Duration::from_secs(1);

/// Handles the messages of a batch.
struct Run<M, F> {
    collector: Arc<Collector<M, F>>,
    runtime: Handle,
    clock: Arc<dyn Clock>,
    timeout: Duration,
}

/// How one call of the function ended.
enum Ended {
    Returned(BatchDisposition),
    Panicked(CaughtPanic),
    TimedOut,
    /// The call has not stopped although its time is over: it blocks its thread.
    Stuck,
    /// No message is left, or the runtime is gone.
    Abandoned,
}

impl<M, F, Fut> Run<M, F>
where
    M: Send + Sync + 'static,
    F: Fn(Batch<M>) -> Fut + Send + Sync + 'static,
    Fut: HandlerFuture<Output: IntoBatchDisposition> + Send + 'static,
{
    fn start(self, mut members: Vec<Member<M>>) {
        members.iter_mut().for_each(|member| member.parked = None);
        let runtime = self.runtime.clone();
        runtime.spawn(async move { self.handle(members).await });
    }

    /// Handles messages together or, if that fails, each half of them.
    fn handle(&self, members: Vec<Member<M>>) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let mut members = present(members);
            if members.is_empty() {
                return;
            }
            let ended = self.call(&mut members).await;
            let count = members.len();
            match endings(ended, count) {
                Some(endings) => {
                    for (member, ending) in members.into_iter().zip(endings) {
                        // The message may have left the batch.
                        let _ = member.reply.send(ending);
                    }
                }
                None => {
                    let rest = members.split_off(count / 2);
                    tokio::join!(self.handle(members), self.handle(rest));
                }
            }
        })
    }

    async fn call(&self, members: &mut [Member<M>]) -> Ended {
        let received = members.iter().map(|member| Arc::clone(&member.received));
        let batch = Batch(received.collect());
        let collector = Arc::clone(&self.collector);
        let call = async move {
            let handled = async { (collector.function)(batch).await.into_batch_disposition() };
            catch_async(handled).await
        };
        let mut task = self.runtime.spawn(call);
        let _stops = AbortOnDrop(task.abort_handle());
        let all_left = join_all(members.iter_mut().map(|member| member.reply.closed()));
        tokio::select! {
            biased;
            ended = &mut task => return self::ended(ended),
            _ = all_left => {
                self.give_up(members, task);
                return Ended::Abandoned;
            }
            () = self.clock.sleep(self.timeout) => task.abort(),
        }
        tokio::select! {
            biased;
            // The call may have come to its end in time.
            ended = &mut task => return self::ended(ended),
            () = self.clock.sleep(GRACE) => {}
        }
        self.give_up(members, task);
        Ended::Stuck
    }

    /// Stops a call that nobody waits for. What the messages keep is kept until the call has ended, which may block its
    /// thread.
    fn give_up<T: Send + 'static>(&self, members: &mut [Member<M>], task: JoinHandle<T>) {
        task.abort();
        let kept: Vec<_> = members.iter_mut().map(Member::take_kept).collect();
        self.runtime.spawn(async move {
            // An error says that the call was stopped.
            let _ = task.await;
            drop(kept);
        });
    }
}

/// Stops a call that nobody waits for.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Returns the messages that may be handled, and ends the others.
fn present<M>(members: Vec<Member<M>>) -> Vec<Member<M>> {
    let mut present = Vec::with_capacity(members.len());
    for member in members {
        if member.reply.is_closed() {
            continue;
        }
        if (member.may_start)() {
            present.push(member);
        } else {
            let _ = member.reply.send(Ending::NotStarted);
        }
    }
    present
}

fn ended(task: Result<Result<BatchDisposition, CaughtPanic>, JoinError>) -> Ended {
    match task {
        Ok(Ok(returned)) => Ended::Returned(returned),
        Ok(Err(panic)) => Ended::Panicked(panic),
        Err(_) => Ended::TimedOut,
    }
}

/// Returns the ending of each message, or `None` if the batch of several has failed as a whole.
fn endings(ended: Ended, messages: usize) -> Option<Vec<Ending>> {
    let failed = match ended {
        Ended::Returned(returned) if messages == 1 => {
            return Some(vec![Ending::Returned(returned.of_one())]);
        }
        Ended::Panicked(panic) if messages == 1 => return Some(vec![Ending::Panicked(panic)]),
        Ended::TimedOut if messages == 1 => return Some(vec![Ending::TimedOut]),
        Ended::Abandoned => return Some(Vec::new()),
        Ended::Stuck => {
            tracing::error!(
                messages,
                "the handler of a batch blocks its thread, and is given up"
            );
            return Some((0..messages).map(|_| Ending::Stuck).collect());
        }
        Ended::Returned(returned) => match returned.of_several(messages) {
            Some(each) => return Some(each.into_iter().map(Ending::Returned).collect()),
            None => "returned a failure".to_owned(),
        },
        Ended::Panicked(panic) => format!("panicked: {panic}"),
        Ended::TimedOut => "timed out".to_owned(),
    };
    tracing::warn!(
        messages,
        "the handler of a batch {failed}; its halves are handled again"
    );
    None
}

/// Returns how long handling a batch of this size may take, if it fails again and again until each message is alone.
pub(crate) fn longest(size: usize, timeout: Duration) -> Duration {
    let calls = size.max(1).ilog2() + 2;
    timeout.saturating_add(2 * GRACE).saturating_mul(calls)
}

#[cfg(test)]
mod tests {
    use queue_core::Disposition;

    use super::*;

    #[test]
    fn a_batch_is_halved_until_each_message_is_alone() {
        let second = Duration::from_secs(1);
        for (size, calls) in [(1, 2), (2, 3), (3, 3), (100, 8), (128, 9)] {
            assert_eq!(longest(size, second), calls * 3 * second, "{size}");
        }
    }

    #[test]
    fn only_a_message_alone_fails() {
        let failed = || Ended::Returned(Err::<(), _>("no").into_batch_disposition());
        assert!(endings(failed(), 2).is_none());
        let alone = endings(failed(), 1).expect("an ending");
        let [Ending::Returned(Disposition::Retry { .. })] = &alone[..] else {
            panic!("{alone:?}")
        };
        assert!(endings(Ended::TimedOut, 2).is_none());
        assert!(endings(Ended::TimedOut, 1).is_some());
    }
}
