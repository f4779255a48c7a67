//! Received messages that nobody has seen. When they are dropped, they are handed back, and the attempt does not count.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use crate::kernel::context::Context;
use crate::kernel::receive::consumer::Consumer;
use crate::kernel::receive::delivery::Delivery;
use crate::kernel::receive::incoming::Incoming;
use crate::kernel::settlement::Settling;

/// A received message that an accept has not decided on.
pub(super) struct Undecided<'a> {
    context: &'a Arc<Context>,
    consumer: &'a Arc<Consumer>,
    incoming: Option<Box<Incoming>>,
}

/// Deliveries that the caller of an accept does not have yet.
pub(super) struct Unclaimed<M>(VecDeque<Delivery<M>>);

impl<'a> Undecided<'a> {
    pub(super) fn new(
        context: &'a Arc<Context>,
        consumer: &'a Arc<Consumer>,
        incoming: Box<Incoming>,
    ) -> Self {
        Self {
            context,
            consumer,
            incoming: Some(incoming),
        }
    }

    pub(super) fn incoming(&mut self) -> &mut Incoming {
        self.incoming.as_mut().expect(UNDECIDED)
    }

    pub(super) fn decided(mut self) -> Box<Incoming> {
        self.incoming.take().expect(UNDECIDED)
    }
}

const UNDECIDED: &str = "only `decided` and `drop` take it";

impl Drop for Undecided<'_> {
    fn drop(&mut self) {
        if let Some(incoming) = self.incoming.take() {
            hand_back(
                Arc::clone(self.context),
                Arc::clone(self.consumer),
                incoming,
            );
        }
    }
}

impl<M> Unclaimed<M> {
    pub(super) fn len(&self) -> u32 {
        self.0.len() as u32
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn append(&mut self, mut others: Self) {
        if self.is_empty() {
            mem::swap(self, &mut others);
        } else {
            self.0.append(&mut others.0);
        }
    }

    /// Has the leases renewed from now on for as long as a handler may take.
    pub(super) fn keep_leased(&self) {
        self.0.iter().for_each(Delivery::keep_leased);
    }

    /// Has the leases renewed until the deliveries are taken out.
    pub(super) fn hold(&self) {
        for delivery in &self.0 {
            delivery.incoming.lease.renew_until(Duration::MAX);
        }
    }

    pub(super) fn first(&self) -> Option<&Delivery<M>> {
        self.0.front()
    }

    /// Takes out the first delivery.
    pub(super) fn take_first(&mut self) -> Option<Delivery<M>> {
        self.0.pop_front()
    }

    /// Takes out all deliveries.
    pub(super) fn take_all(&mut self) -> Vec<Delivery<M>> {
        self.0.drain(..).collect()
    }
}

impl<M> Default for Unclaimed<M> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<M> From<Delivery<M>> for Unclaimed<M> {
    fn from(delivery: Delivery<M>) -> Self {
        Self(VecDeque::from([delivery]))
    }
}

impl<M> Drop for Unclaimed<M> {
    fn drop(&mut self) {
        for delivery in self.0.drain(..) {
            let (context, consumer, incoming) = delivery.into_parts();
            hand_back(context, consumer, incoming);
        }
    }
}

/// Hands a message back in the background.
fn hand_back(context: Arc<Context>, consumer: Arc<Consumer>, incoming: Box<Incoming>) {
    let background = Arc::clone(&context);
    background.background.spawn(async move {
        let settling = Settling::new(&context, &consumer, &incoming);
        settling.release_unasked().await;
    });
}
