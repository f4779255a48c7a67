//! The listener's phase: one value, which only moves forward, except for pausing and resuming.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

/// The phase of a listener.
///
/// ```text
///             pause                     shutdown
///            ┌──────► Paused ───────────────────────┐
///  start     │          │                           ▼
/// ───────► Running ◄────┘                        Stopping ──── all settled ────► Stopped
///            │        resume                        │                              ▲
///            └──────────────────────────────────────┤ grace over,                  │
///                                                   │ guard dropped,               │
///                                                   ▼ or runtime gone              │
///                                                Aborting ──── all settled ────────┘
/// ```
///
/// Running and Paused also change to Aborting: when a [guard](crate::StopOnDrop) is dropped, or the application's runtime
/// has shut down.
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
/// # let service = testing::service().await;
/// # let listener = service.listener(ship).start()?;
/// listener.pause();
/// assert_eq!(listener.phase(), ListenerPhase::Paused);
/// // Later phases are greater.
/// assert!(listener.phase() < ListenerPhase::Stopping);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ListenerPhase {
    /// Receives messages while fewer than `max_in_flight` are in flight.
    #[default]
    Running,
    /// Receives no messages. Handlers continue.
    Paused,
    /// Receives no messages and waits for handlers to finish. Messages of a receive in progress are handed
    /// back.
    Stopping,
    /// Cancels the handlers and hands their messages back.
    Aborting,
    /// All messages are settled.
    Stopped,
}

/// The phase, shared by the parts of a listener.
#[derive(Debug)]
pub(super) struct Phase {
    current: watch::Sender<ListenerPhase>,
    aborted: AtomicBool,
}

impl Phase {
    pub(super) fn running() -> Self {
        Self::of(ListenerPhase::Running)
    }

    fn of(phase: ListenerPhase) -> Self {
        Self {
            current: watch::Sender::new(phase),
            aborted: AtomicBool::new(false),
        }
    }

    pub(super) fn current(&self) -> ListenerPhase {
        *self.current.borrow()
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.current() >= ListenerPhase::Stopping
    }

    pub(super) fn pause(&self) {
        self.change(
            |phase| phase == ListenerPhase::Running,
            ListenerPhase::Paused,
        );
    }

    pub(super) fn resume(&self) {
        self.change(
            |phase| phase == ListenerPhase::Paused,
            ListenerPhase::Running,
        );
    }

    pub(super) fn stop(&self) {
        self.forward(ListenerPhase::Stopping);
    }

    /// Returns false if the abort had already begun.
    pub(super) fn abort(&self) -> bool {
        self.current.send_if_modified(|phase| {
            let begins = *phase < ListenerPhase::Aborting;
            if begins {
                *phase = ListenerPhase::Aborting;
                // Before anybody sees a later phase.
                self.aborted.store(true, Ordering::Relaxed);
            }
            begins
        })
    }

    /// Returns whether the phase was ever [`Aborting`](ListenerPhase::Aborting).
    pub(super) fn was_aborted(&self) -> bool {
        self.aborted.load(Ordering::Relaxed)
    }

    pub(super) fn stopped(&self) {
        self.forward(ListenerPhase::Stopped);
    }

    /// Waits until the phase is not [`Paused`](ListenerPhase::Paused), and returns it.
    pub(super) async fn not_paused(&self) -> ListenerPhase {
        self.wait_for(|phase| phase != ListenerPhase::Paused).await
    }

    /// Waits until the phase is `least` or a later one, and returns it.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(super) async fn reached(&self, least: ListenerPhase) -> ListenerPhase {
        self.wait_for(|phase| phase >= least).await
    }

    async fn wait_for(&self, wanted: impl Fn(ListenerPhase) -> bool) -> ListenerPhase {
        let mut phases = self.current.subscribe();
        let phase = phases.wait_for(|phase| wanted(*phase)).await;
        *phase.expect("the sender is borrowed here, so it is not dropped")
    }

    fn forward(&self, next: ListenerPhase) -> bool {
        self.change(|phase| phase < next, next)
    }

    fn change(&self, allowed: impl Fn(ListenerPhase) -> bool, next: ListenerPhase) -> bool {
        self.current.send_if_modified(|phase| {
            let changes = allowed(*phase);
            if changes {
                *phase = next;
            }
            changes
        })
    }
}

#[cfg(test)]
mod tests {
    use super::ListenerPhase::{Aborting, Paused, Running, Stopped, Stopping};
    use super::*;

    #[test]
    fn every_transition_from_every_phase() {
        type Change = fn(&Phase);
        let changes: [(Change, [ListenerPhase; 5]); 5] = [
            // From Running, Paused, Stopping, Aborting, Stopped.
            (Phase::pause, [Paused, Paused, Stopping, Aborting, Stopped]),
            (
                Phase::resume,
                [Running, Running, Stopping, Aborting, Stopped],
            ),
            (
                Phase::stop,
                [Stopping, Stopping, Stopping, Aborting, Stopped],
            ),
            (
                |phase| _ = phase.abort(),
                [Aborting, Aborting, Aborting, Aborting, Stopped],
            ),
            (Phase::stopped, [Stopped; 5]),
        ];
        for (change, expected) in changes {
            let from = [Running, Paused, Stopping, Aborting, Stopped];
            for (from, expected) in from.into_iter().zip(expected) {
                let phase = Phase::of(from);
                change(&phase);
                assert_eq!(phase.current(), expected, "from {from:?}");
            }
        }
    }
}
