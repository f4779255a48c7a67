use std::sync::OnceLock;

use tokio::sync::Notify;

/// The signal that work on a message should stop. The first cause is kept; later ones are ignored.
#[derive(Debug, Default)]
pub(crate) struct Cancellation {
    cause: OnceLock<Cause>,
    given: Notify,
}

/// Why work on a message should stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The lease was certainly lost.
    LeaseLost,
    /// The handler timeout is over.
    TimedOut,
    /// The listener is stopping.
    Stopping,
    /// Another may have taken over the work of the message's key.
    ClaimLost,
}

impl Cancellation {
    /// Sends the signal, unless it was sent before.
    pub(crate) fn cancel(&self, cause: Cause) {
        if self.cause.set(cause).is_ok() {
            self.given.notify_waiters();
        }
    }

    pub(crate) fn cause(&self) -> Option<Cause> {
        self.cause.get().copied()
    }

    /// Waits for the signal.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn cancelled(&self) -> Cause {
        // Created before the cause is read, so that a signal in between is not missed.
        let given = self.given.notified();
        match self.cause() {
            Some(cause) => cause,
            None => {
                given.await;
                self.cause()
                    .expect("the cause is set before anybody is woken")
            }
        }
    }
}
