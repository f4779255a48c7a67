//! The run of one handler, which decides who settles its message: either the task that runs the handler or
//! the watchdog, never both.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use queue_core::Disposition;
use queue_core::internal::LockExt as _;
use tracing::Span;

use super::routes::{Routes, TypedRoute};
use crate::kernel::delay_queue::{DelayQueue, Ticket};
use crate::kernel::lease::{Cancellation, Cause};
use crate::kernel::listener::capacity::Room;
use crate::kernel::listener::core::Core;
use crate::kernel::listener::jobs::{Latency, TimedMessage};
use crate::kernel::observe;
use crate::kernel::panic::CaughtPanic;
use crate::kernel::receive::{Consumer, End, Ending, Incoming};

/// A message in flight and the progress of its handler.
///
/// ```text
///            begin_poll            end
///          ┌───────────► Polling ───────► Ended    the task settles
///        Ready ◄───────────┘ │ end_poll
///          │ │               │
///          │ └── end ────────│──────────► Ended    the task settles
///          │                 │
///          └──► Revoked      └──► Stuck            the watchdog settles
///     take_over                take_over
/// ```
pub(super) struct HandlerRun {
    pub(super) incoming: Incoming,
    pub(super) room: Room,
    pub(super) route: Arc<TypedRoute>,
    /// The span of handling and settling the message.
    pub(super) span: Span,
    handlers: Arc<Handlers>,
    /// The entry in the watchdog's list, closed once the handler has ended.
    ticket: Ticket,
    progress: AtomicU8,
    /// Counts the polls of the handler.
    polls: AtomicU32,
    stop: Mutex<Option<Stop>>,
    /// How the handler ended. The first value is kept.
    ended: OnceLock<HandlerEnd>,
    /// How the message ends, once the application's classifiers were asked.
    pub(super) end_of_message: OnceLock<End>,
    /// Whether the attempt counts if it failed, once that is decided.
    pub(super) counts: OnceLock<bool>,
    /// Whether the settlement of a handler that has ended was claimed.
    claimed: AtomicBool,
    /// Whether the handler has begun a transaction.
    in_transaction: AtomicBool,
    /// Whether the handler is counted as stuck in its transaction.
    holds_file: AtomicBool,
    /// The message for the objective, if there is one, until settled.
    known: Mutex<Option<TimedMessage>>,
}

/// The cancellation of a handler, as the watchdog sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stop {
    pub(super) cause: Cause,
    /// When the watchdog first saw the cancellation, on the monotonic clock.
    pub(super) since: Duration,
    /// The number of polls until `since`.
    polls: u32,
}

/// The handler's code is not running.
const READY: u8 = 0;
/// The handler's code is running on a thread.
const POLLING: u8 = 1;
/// The handler has ended, or will not be polled again.
const ENDED: u8 = 2;
/// The watchdog has taken the message over; the handler will not be polled again.
const REVOKED: u8 = 3;
/// The watchdog has taken the message over while the handler's code blocks its thread.
const STUCK: u8 = 4;

/// The watchdog has taken the message over, which the task must not settle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TakenOver;

/// How a handler ended.
#[derive(Debug)]
pub(super) enum HandlerEnd {
    Returned(Disposition),
    Panicked(CaughtPanic),
    /// The handler was cancelled.
    Stopped(Cause, HandlerState),
    /// The lease had ended when the handler was about to start.
    NotStarted,
}

impl HandlerEnd {
    pub(super) fn of_batch(ending: Ending) -> Self {
        match ending {
            Ending::Returned(disposition) => Self::Returned(disposition),
            Ending::Panicked(panic) => Self::Panicked(panic),
            Ending::TimedOut => Self::Stopped(Cause::TimedOut, HandlerState::Dropped),
            Ending::Stuck => Self::Stopped(Cause::TimedOut, HandlerState::Blocking),
            Ending::NotStarted => Self::NotStarted,
        }
    }
}

/// The state of a cancelled handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HandlerState {
    /// The handler was dropped at an `await`.
    Dropped,
    /// The handler waits at an `await`, and its runtime does not poll it.
    Unpolled,
    /// The handler blocks its thread.
    Blocking,
}

impl HandlerRun {
    pub(super) fn new(
        incoming: Incoming,
        room: Room,
        route: Arc<TypedRoute>,
        handlers: Arc<Handlers>,
    ) -> Self {
        let core = room.core();
        let queue = &core.consumer.queue;
        let latency = handlers.latency.as_ref();
        let known = latency.map(|latency| latency.received(&core.context, &incoming));
        Self {
            known: Mutex::new(known),
            route,
            span: observe::process(queue, &incoming.envelope, incoming.attempt()),
            incoming,
            room,
            handlers,
            ticket: Ticket::default(),
            progress: AtomicU8::new(READY),
            polls: AtomicU32::new(0),
            stop: Mutex::default(),
            ended: OnceLock::new(),
            end_of_message: OnceLock::new(),
            counts: OnceLock::new(),
            claimed: AtomicBool::new(false),
            in_transaction: AtomicBool::new(false),
            holds_file: AtomicBool::new(false),
        }
    }

    pub(super) fn core(&self) -> &Core {
        self.room.core()
    }

    /// Records that the handler has begun a transaction.
    pub(super) fn begin_transaction(&self) {
        self.in_transaction.store(true, Ordering::Relaxed);
    }

    /// Counts a stuck handler that is in a transaction.
    pub(super) fn count_transaction(&self) {
        if self.in_transaction.load(Ordering::Relaxed) {
            self.holds_file.store(true, Ordering::Relaxed);
            let stuck = &self.core().counters.stuck_transactions;
            stuck.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Undoes [`count_transaction`](Self::count_transaction), if it counted.
    pub(super) fn uncount_transaction(&self) {
        if self.holds_file.swap(false, Ordering::Relaxed) {
            let stuck = &self.core().counters.stuck_transactions;
            stuck.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Ends the count of the message's time.
    pub(super) fn take_known(&self) -> Option<TimedMessage> {
        self.known.hold().take()
    }

    /// Returns the settings for the message.
    pub(super) fn consumer(&self) -> &Consumer {
        &self.route.consumer
    }

    pub(super) fn cancellation(&self) -> &Cancellation {
        self.incoming.lease.cancellation()
    }

    /// Has the watchdog check the run at `due`, on the monotonic clock, in place of an earlier time. Does nothing
    /// after [`unwatch`](Self::unwatch).
    pub(super) fn watch_at(self: &Arc<Self>, due: Duration, watched: Watched) {
        self.handlers.watchlist.schedule(&self.ticket, due, watched);
    }

    /// Takes the run off the watchdog's list for good.
    pub(super) fn unwatch(&self) {
        self.handlers.watchlist.close(&self.ticket);
    }

    pub(super) fn watchlist(&self) -> &Watchlist {
        &self.handlers.watchlist
    }

    /// Records that the handler's code starts to run.
    pub(super) fn begin_poll(&self) -> Result<(), TakenOver> {
        self.polls.fetch_add(1, Ordering::Relaxed);
        self.advance(READY, POLLING)
    }

    /// Records that the handler's code has yielded at an `await`.
    pub(super) fn end_poll(&self) -> Result<(), TakenOver> {
        self.advance(POLLING, READY)
    }

    /// Records that the handler's code has ended.
    pub(super) fn end(&self, ended: HandlerEnd) -> Result<(), TakenOver> {
        // The end is kept even if the watchdog has just taken the message: it came in time then.
        self.keep_ended(ended);
        self.advance(POLLING, ENDED)
    }

    /// Records that the handler will not be polled again.
    pub(super) fn end_unpolled(&self, ended: HandlerEnd) -> Result<(), TakenOver> {
        self.advance(READY, ENDED)?;
        self.keep_ended(ended);
        Ok(())
    }

    /// Stores how the handler ended, for the settlement.
    pub(super) fn keep_ended(&self, ended: HandlerEnd) {
        // An error says that somebody was first.
        let _ = self.ended.set(ended);
    }

    pub(super) fn ended(&self) -> Option<&HandlerEnd> {
        self.ended.get()
    }

    /// Claims the settlement of a handler that has ended, for the first caller only.
    pub(super) fn claim(&self) -> bool {
        self.progress.load(Ordering::Acquire) == ENDED && !self.claimed.swap(true, Ordering::AcqRel)
    }

    /// Takes the message over from its task. Returns `None` if the handler has ended.
    pub(super) fn take_over(&self) -> Option<HandlerState> {
        // A poll may begin or end between two tries.
        loop {
            if self.advance(READY, REVOKED).is_ok() {
                return Some(HandlerState::Unpolled);
            }
            if self.advance(POLLING, STUCK).is_ok() {
                return Some(HandlerState::Blocking);
            }
            if !matches!(self.progress.load(Ordering::Acquire), READY | POLLING) {
                return None;
            }
        }
    }

    /// Returns whether the handler's code is running on a thread.
    pub(super) fn is_polled(&self) -> bool {
        self.progress.load(Ordering::Relaxed) == POLLING
    }

    /// Returns whether the watchdog took the message over while the handler's code was running.
    pub(super) fn is_stuck(&self) -> bool {
        self.progress.load(Ordering::Acquire) == STUCK
    }

    /// Returns the handler's cancellation, if it was cancelled. The first call that sees the cancellation records
    /// `now`.
    pub(super) fn told_to_stop(&self, now: Duration) -> Option<Stop> {
        let cause = self.cancellation().cause()?;
        let mut stop = self.stop.hold();
        let new = || self.stop_at(cause, now);
        Some(*stop.get_or_insert_with(new))
    }

    /// Returns whether the handler has been polled since `stop`, so that its grace period starts again at `now`.
    pub(super) fn polled_since(&self, stop: Stop, now: Duration) -> bool {
        let polled = self.polls.load(Ordering::Relaxed) != stop.polls;
        if polled {
            let again = self.stop_at(stop.cause, now);
            *self.stop.hold() = Some(again);
        }
        polled
    }

    fn stop_at(&self, cause: Cause, since: Duration) -> Stop {
        let polls = self.polls.load(Ordering::Relaxed);
        Stop {
            cause,
            since,
            polls,
        }
    }

    fn advance(&self, from: u8, to: u8) -> Result<(), TakenOver> {
        self.progress
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
            .map_err(|_| TakenOver)
    }
}

/// What the messages in flight and the watchdog share.
pub(super) struct Handlers {
    pub(super) routes: Routes,
    /// The running handlers, for the watchdog.
    pub(super) watchlist: Watchlist,
    /// The ages of messages, if there is an objective.
    pub(super) latency: Option<Arc<Latency>>,
}

/// The running handlers, by the time of the watchdog's next check.
pub(super) type Watchlist = DelayQueue<Watched>;

/// A run under the watchdog.
#[derive(Clone)]
pub(super) struct Watched {
    pub(super) run: Arc<HandlerRun>,
    /// The end of the handler timeout, on the monotonic clock.
    pub(super) deadline: Duration,
}
