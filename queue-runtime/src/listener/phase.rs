//! The listener's phase: one value, which only moves forward but for pausing.

use tokio::sync::watch;

/// The phase that a listener is in.
///
/// ```text
///             pause                     shutdown
///            ┌──────► Paused ───────────────────────┐
///  start     │          │                           ▼
/// ───────► Running ◄────┘                        Stopping ──── all settled ────► Stopped
///            │        resume                        │                              ▲
///            └──────────────────────────────────────┤ grace over,                  │
///                                                   │ handle dropped,              │
///                                                   ▼ or runtime gone              │
///                                                Aborting ──── all settled ────────┘
/// ```
///
/// Running and Paused also go to Aborting, where the handle is dropped or the application's runtime is
/// gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
#[non_exhaustive]
pub enum ListenerPhase {
    /// Receives messages while there is room in flight.
    #[default]
    Running,
    /// Receives nothing; handlers continue.
    Paused,
    /// Receives nothing; waits for handlers to finish. Messages of a receive under way are handed back.
    Stopping,
    /// Cancels handlers and hands their messages back.
    Aborting,
    /// No message is left to settle.
    Stopped,
}

/// The phase as the parts of a listener share it.
#[derive(Debug)]
pub(super) struct Phase(watch::Sender<ListenerPhase>);

impl Phase {
    pub(super) fn running() -> Self {
        Self(watch::Sender::new(ListenerPhase::Running))
    }

    pub(super) fn current(&self) -> ListenerPhase {
        *self.0.borrow()
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

    /// Returns whether this call began the abort.
    pub(super) fn abort(&self) -> bool {
        self.forward(ListenerPhase::Aborting)
    }

    pub(super) fn stopped(&self) {
        self.forward(ListenerPhase::Stopped);
    }

    /// Waits until the listener runs, or stops; which of the two, the caller looks at.
    pub(super) async fn not_paused(&self) -> ListenerPhase {
        self.wait_for(|phase| phase != ListenerPhase::Paused).await
    }

    /// Waits until this phase or a later one.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(super) async fn reached(&self, least: ListenerPhase) -> ListenerPhase {
        self.wait_for(|phase| phase >= least).await
    }

    async fn wait_for(&self, wanted: impl Fn(ListenerPhase) -> bool) -> ListenerPhase {
        let mut phases = self.0.subscribe();
        let phase = phases.wait_for(|phase| wanted(*phase)).await;
        *phase.expect("the sender is borrowed here, so it is not dropped")
    }

    fn forward(&self, next: ListenerPhase) -> bool {
        self.change(|phase| phase < next, next)
    }

    fn change(&self, allowed: impl Fn(ListenerPhase) -> bool, next: ListenerPhase) -> bool {
        self.0.send_if_modified(|phase| {
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
                let phase = Phase(watch::Sender::new(from));
                change(&phase);
                assert_eq!(phase.current(), expected, "from {from:?}");
            }
        }
    }
}
