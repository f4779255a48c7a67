use std::fmt;
use std::ops::Deref;

/// A guard that stops a listener, a group of lanes or a schedule when it is dropped, from `stop_on_drop` of its handle.
/// The guard derefs to the handle.
///
/// The guard is for a listener that must not outlive a value or a scope, such as a test or a connection. A listener is
/// stopped at once, as [`shutdown`](crate::ListenerHandle::shutdown) without a grace period does; a schedule submits no
/// further tick. A guard in the handler's own state is never dropped.
///
/// ```
/// use queue_runtime::listener::ListenerPhase;
/// use queue_runtime::{Message, Received, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # async fn ship(_: Received<Order>) {}
/// let service = testing::service().await;
/// let listener = service.listener(ship).start()?.stop_on_drop();
/// assert_eq!(listener.phase(), ListenerPhase::Running);
///
/// let orders = service.listeners().remove(0);
/// drop(listener);
/// assert_eq!(orders.phase(), ListenerPhase::Aborting);
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping the guard stops what it guards"]
pub struct StopOnDrop<H> {
    handle: H,
    stop: fn(&H),
}

impl<H> StopOnDrop<H> {
    pub(crate) fn new(handle: H, stop: fn(&H)) -> Self {
        Self { handle, stop }
    }

    /// Returns the handle without stopping anything.
    pub fn disarm(mut self) -> H
    where
        H: Clone,
    {
        self.stop = |_| ();
        self.handle.clone()
    }
}

impl<H> Deref for StopOnDrop<H> {
    type Target = H;

    fn deref(&self) -> &H {
        &self.handle
    }
}

impl<H> Drop for StopOnDrop<H> {
    fn drop(&mut self) {
        (self.stop)(&self.handle);
    }
}

impl<H: fmt::Debug> fmt::Debug for StopOnDrop<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StopOnDrop").field(&self.handle).finish()
    }
}
