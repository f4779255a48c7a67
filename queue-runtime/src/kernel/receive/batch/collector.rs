use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_core::internal::LockExt as _;
use queue_core::{DecodeError, Message, MessageType};
use tokio::sync::oneshot;

use super::disposition::IntoBatchDisposition;
use super::run::Run;
use super::{Batch, Batching};
use crate::kernel::context::Context;
use crate::kernel::receive::call::{Call, Ending, Erased, Seat, Unfit};
use crate::kernel::receive::handler::HandlerFuture;
use crate::kernel::receive::incoming::Incoming;
use crate::kernel::receive::parking::Parked;
use crate::kernel::receive::received::Received;
use crate::kernel::settings::InvalidSetting;

/// The handler of a listener.
pub(super) struct Batches<M, F>(pub(super) Arc<Collector<M, F>>);

/// Puts messages together.
pub(super) struct Collector<M, F> {
    pub(super) function: F,
    size: usize,
    within: Duration,
    open: Mutex<Open<M>>,
}

/// The batch that is collected.
struct Open<M> {
    members: Vec<Member<M>>,
    /// The number of batches before it.
    number: u64,
}

/// A message of a batch.
pub(super) struct Member<M> {
    pub(super) received: Arc<Received<M>>,
    pub(super) may_start: Box<dyn Fn() -> bool + Send + Sync>,
    /// Closed if the message has left the batch.
    pub(super) reply: oneshot::Sender<Ending>,
    pub(super) parked: Option<Parked>,
    pub(super) kept: Box<dyn Send>,
}

impl<M> Member<M> {
    pub(super) fn take_kept(&mut self) -> Box<dyn Send> {
        std::mem::replace(&mut self.kept, Box::new(()))
    }
}

impl<M, F> Collector<M, F> {
    pub(super) fn new(batching: Batching<F>) -> Self {
        Self {
            function: batching.function,
            size: batching.size,
            within: batching.within,
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
        let wait = self.within.min(seat.patience);
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
        // It is dropped without an answer only with its runtime.
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
            .and_then(|()| {
                InvalidSetting::positive("time within which a batch is collected", self.0.within)
            })
            .map_err(Unfit::Setting)
    }
}
