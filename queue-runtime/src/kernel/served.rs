//! The kinds of messages that the listeners of one service handle. All listeners of a queue take the same kinds: a
//! listener that lacks a kind would move its messages to the poison queue.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use queue_core::internal::LockExt as _;
use queue_core::{MessageType, QueueName};

/// The queues that are listened to.
#[derive(Debug, Clone, Default)]
pub(crate) struct ServedKinds {
    queues: Arc<Mutex<HashMap<QueueName, Served>>>,
}

#[derive(Debug)]
struct Served {
    kinds: Kinds,
    listeners: usize,
}

/// The kinds of one consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kinds(BTreeSet<&'static str>);

/// A listener, until it [ends](Self::end) or is dropped.
#[derive(Debug)]
pub(crate) struct Serving {
    kinds: ServedKinds,
    queue: QueueName,
    ended: AtomicBool,
}

/// An error of consuming a queue as messages of some kinds while a listener of the same service handles messages of other
/// kinds there. The error names the queue and the kinds.
///
/// ```
/// use queue_runtime::{Message, Received, StartError, testing};
/// use queue_runtime::listener::StartErrorKind;
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
///     Err(StartError { kind: StartErrorKind::KindMismatch(error), .. }) => assert_eq!(
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
    "queue `{queue}` is for {served} messages while a listener of this service handles them, not for {kinds} messages"
)]
pub struct KindMismatch {
    queue: QueueName,
    kinds: Kinds,
    served: Kinds,
}

queue_core::debug_as_text!(KindMismatch);

impl Kinds {
    pub(crate) fn of(types: &[MessageType]) -> Self {
        Self(types.iter().map(MessageType::kind).collect())
    }
}

impl fmt::Display for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (quoted, last) = (self.0.iter().map(|kind| format!("`{kind}`")), self.0.len());
        for (at, kind) in quoted.enumerate() {
            let before = match at {
                0 => "",
                at if at + 1 == last => " and ",
                _ => ", ",
            };
            write!(f, "{before}{kind}")?;
        }
        Ok(())
    }
}

impl ServedKinds {
    /// Checks that no listener handles messages of other kinds.
    pub(crate) fn check(
        &self,
        queue: &QueueName,
        types: &[MessageType],
    ) -> Result<(), KindMismatch> {
        match self.queues.hold().get(queue) {
            Some(served) => served.check(queue, &Kinds::of(types)),
            None => Ok(()),
        }
    }

    /// Records a listener.
    pub(crate) fn serve(&self, queue: &QueueName, kinds: &Kinds) -> Result<Serving, KindMismatch> {
        let mut queues = self.queues.hold();
        let served = queues.entry(queue.clone()).or_insert_with(|| Served {
            kinds: kinds.clone(),
            listeners: 0,
        });
        served.check(queue, kinds)?;
        served.listeners += 1;
        Ok(Serving {
            kinds: self.clone(),
            queue: queue.clone(),
            ended: AtomicBool::new(false),
        })
    }
}

impl Served {
    fn check(&self, queue: &QueueName, kinds: &Kinds) -> Result<(), KindMismatch> {
        if self.kinds == *kinds {
            return Ok(());
        }
        Err(KindMismatch {
            queue: queue.clone(),
            kinds: kinds.clone(),
            served: self.kinds.clone(),
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
