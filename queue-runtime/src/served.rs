//! The kinds of messages that the listeners of one service handle. A queue is for one kind: a listener of another
//! would move all its messages to the poison queue.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use queue_core::QueueName;
use queue_core::internal::LockExt as _;

/// The queues that are listened to.
#[derive(Debug, Clone, Default)]
pub(crate) struct ServedKinds {
    queues: Arc<Mutex<HashMap<QueueName, Served>>>,
}

#[derive(Debug)]
struct Served {
    kind: &'static str,
    listeners: usize,
}

/// A listener, until it [ends](Self::end) or is dropped.
#[derive(Debug)]
pub(crate) struct Serving {
    kinds: ServedKinds,
    queue: QueueName,
    ended: AtomicBool,
}

/// An error of consuming a queue as messages of one kind while a listener of the same service handles messages of
/// another kind there. The text names the queue and both kinds.
///
/// ```
/// use queue_runtime::{Message, Received, StartError, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # #[message(queue = "orders")]
/// # struct Order {
/// #     number: u32,
/// # }
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Invoice {
/// #     number: u32,
/// # }
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # async fn ship(_: Received<Order>) {}
/// # async fn send(_: Received<Invoice>) {}
/// let service = testing::service().await;
/// service.listener(ship).start()?;
/// let invoices = service.queue_named::<Invoice>("orders")?.listener(send).start();
/// match invoices {
///     Err(StartError::KindMismatch(error)) => assert_eq!(
///         error.to_string(),
///         "queue `orders` is for `order` messages while a listener of this service handles them, not for \
///          `invoice` messages"
///     ),
///     other => panic!("{other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "queue `{queue}` is for `{served}` messages while a listener of this service handles them, not for `{kind}` \
     messages"
)]
pub struct KindMismatch {
    queue: QueueName,
    kind: &'static str,
    served: &'static str,
}

queue_core::debug_as_text!(KindMismatch);

impl ServedKinds {
    /// Checks that no listener handles messages of another kind.
    pub(crate) fn check(&self, queue: &QueueName, kind: &'static str) -> Result<(), KindMismatch> {
        match self.queues.hold().get(queue) {
            Some(served) => served.check(queue, kind),
            None => Ok(()),
        }
    }

    /// Records a listener.
    pub(crate) fn serve(
        &self,
        queue: &QueueName,
        kind: &'static str,
    ) -> Result<Serving, KindMismatch> {
        let mut queues = self.queues.hold();
        let served = queues
            .entry(queue.clone())
            .or_insert(Served { kind, listeners: 0 });
        served.check(queue, kind)?;
        served.listeners += 1;
        Ok(Serving {
            kinds: self.clone(),
            queue: queue.clone(),
            ended: AtomicBool::new(false),
        })
    }
}

impl Served {
    fn check(&self, queue: &QueueName, kind: &'static str) -> Result<(), KindMismatch> {
        if self.kind == kind {
            return Ok(());
        }
        Err(KindMismatch {
            queue: queue.clone(),
            kind,
            served: self.kind,
        })
    }
}

impl Serving {
    /// Records that the listener has stopped.
    pub(crate) fn end(&self) {
        if self.ended.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut queues = self.kinds.queues.hold();
        let Some(served) = queues.get_mut(&self.queue) else {
            return;
        };
        served.listeners -= 1;
        if served.listeners == 0 {
            queues.remove(&self.queue);
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.end();
    }
}
