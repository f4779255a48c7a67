use tokio::sync::SetOnce;

/// The signal that work on a message should stop. The first cause is kept; later ones are ignored.
#[derive(Debug, Default)]
pub(crate) struct Cancellation(SetOnce<Cause>);

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
        // An error means that it was sent before.
        let _ = self.0.set(cause);
    }

    pub(crate) fn cause(&self) -> Option<Cause> {
        self.0.get().copied()
    }

    /// Waits for the signal.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn cancelled(&self) -> Cause {
        *self.0.wait().await
    }
}
