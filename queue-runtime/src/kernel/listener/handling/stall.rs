//! Whether handlers hold up the application's runtime: a task of the runtime should run at once, and does not for a
//! second, while a handler is being polled.
//!
//! The background asks, which has a thread of its own, and counts its own ticks: a tick is counted once, however long it
//! took, so that a process that was stopped, a machine that was suspended, and one that is too busy to let the
//! background run are not mistaken for a handler that blocks its thread.

use std::future::pending;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::oneshot::{Receiver, channel};
use tokio::time::sleep;

use super::run::Handlers;
use crate::kernel::listener::core::Core;
use crate::kernel::panic::log_caught;

/// The pause between two questions, while handlers run.
const PAUSE: Duration = Duration::from_secs(1);
/// The interval at which the answer is looked for.
const TICK: Duration = Duration::from_millis(125);
/// The number of ticks without an answer after which the runtime counts as held up: a second.
const LATE: u32 = 8;

/// The question to the runtime, if one is not answered.
#[derive(Debug, Default)]
pub(super) struct Stall {
    asked: Option<Receiver<()>>,
    ticks: u32,
}

impl Stall {
    /// Waits a moment, and then asks, or looks for the answer. Warns once per service. Does nothing if the background has
    /// no thread, or handlers have threads of their own, which may block.
    ///
    /// # Cancel safety
    /// Cancel safe: what was asked is kept.
    pub(super) async fn watch(&mut self, core: &Core, handlers: &Handlers) {
        let context = &core.context;
        if context.stall_seen.load(Ordering::Relaxed)
            || !context.background.has_thread()
            || handlers.routes.threads().is_some()
        {
            return pending().await;
        }
        let ask = || {
            let (answer, asked) = channel();
            // An error says that the listener has stopped.
            drop(
                core.runtime
                    .spawn(async move { answer.send(()).unwrap_or(()) }),
            );
            asked
        };
        let is_polled = || handlers.watchlist.any(|watched| watched.run.is_polled());
        if self.step(ask, is_polled).await {
            warn(core, self.ticks * TICK);
        }
    }

    /// Asks after a pause, or looks for the answer after a tick. Returns whether handlers hold up the runtime.
    async fn step(
        &mut self,
        ask: impl FnOnce() -> Receiver<()>,
        is_polled: impl FnOnce() -> bool,
    ) -> bool {
        let Some(asked) = &mut self.asked else {
            sleep(PAUSE).await;
            (self.asked, self.ticks) = (Some(ask()), 0);
            return false;
        };
        tokio::select! {
            biased;
            // An error says that the runtime is gone.
            _ = asked => {
                self.asked = None;
                false
            }
            () = sleep(TICK) => {
                self.ticks = self.ticks.saturating_add(1);
                self.ticks >= LATE && is_polled()
            }
        }
    }
}

fn warn(core: &Core, late: Duration) {
    if core.context.stall_seen.swap(true, Ordering::Relaxed) {
        return;
    }
    let (queue, late_ms) = (&core.consumer.queue, late.as_millis());
    let in_flight = core.counters.in_flight();
    log_caught(|| {
        tracing::warn!(
            %queue, late_ms, in_flight,
            "the runtime runs no other tasks and timers while handlers run: a handler probably blocks its thread; \
             make it `queue_runtime::blocking(…)`, or call what blocks in `tokio::task::spawn_blocking`"
        );
    });
}

#[cfg(test)]
mod tests {
    use queue_tests::HOUR;
    use tokio::sync::oneshot::Sender;
    use tokio::time::{Instant, advance};

    use super::*;

    /// Asks, and returns who may answer.
    async fn ask(stall: &mut Stall) -> Sender<()> {
        let (answer, asked) = channel();
        assert!(!stall.step(|| asked, || true).await);
        answer
    }

    async fn tick(stall: &mut Stall, is_polled: bool) -> bool {
        let ask = || unreachable!("it has asked");
        stall.step(ask, || is_polled).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_without_an_answer_counts_only_while_a_handler_is_polled() {
        let mut stall = Stall::default();
        let _answer = ask(&mut stall).await;
        for _ in 0..100 {
            assert!(!tick(&mut stall, false).await, "it waits for something");
        }
        assert!(tick(&mut stall, true).await);

        let mut stall = Stall::default();
        let _answer = ask(&mut stall).await;
        let started = Instant::now();
        while !tick(&mut stall, true).await {}
        assert_eq!(started.elapsed(), PAUSE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_runtime_that_answers_is_asked_again() {
        let mut stall = Stall::default();
        for _ in 0..10 {
            let answer = ask(&mut stall).await;
            for _ in 1..LATE {
                assert!(!tick(&mut stall, true).await);
            }
            answer.send(()).expect("it waits");
            assert!(!tick(&mut stall, true).await && stall.asked.is_none());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_was_stopped_for_an_hour_has_missed_a_tick() {
        let mut stall = Stall::default();
        let answer = ask(&mut stall).await;
        let (told, ()) = tokio::join!(biased; tick(&mut stall, true), advance(HOUR));
        assert!(!told);
        answer.send(()).expect("it waits");
        assert!(!tick(&mut stall, true).await);
    }
}
