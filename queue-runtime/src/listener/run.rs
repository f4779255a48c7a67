//! One handler's run, and who may settle its message: exactly one of the task that runs the handler and
//! the watchdog.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use queue_core::Disposition;

use super::room::Room;
use crate::lease::{Cancellation, Cause};
use crate::panic::CaughtPanic;
use crate::receive::Incoming;
use crate::schedule::Ticket;

/// A message in flight, and how far its handler is.
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
#[derive(Debug)]
pub(super) struct Run {
    pub(super) incoming: Incoming,
    pub(super) room: Room,
    /// Its place with the watchdog; closed once the handler has ended.
    pub(super) ticket: Ticket,
    progress: AtomicU8,
    /// Counts the polls of the handler.
    polls: AtomicU32,
    stop: Mutex<Option<Stop>>,
    /// How the handler ended. The first to say so is believed.
    ended: OnceLock<Ended>,
    /// Whether somebody settles the message of a handler that has ended.
    claimed: AtomicBool,
}

/// A handler was told to stop.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stop {
    pub(super) cause: Cause,
    /// When the watchdog first saw that, on the monotonic clock.
    pub(super) since: Duration,
    /// The handler's polls until then.
    polls: u32,
}

/// No code of the handler's runs.
const READY: u8 = 0;
/// The handler's code runs on some thread.
const POLLING: u8 = 1;
/// The handler is done and dropped, or will not be polled again.
const ENDED: u8 = 2;
/// The watchdog has taken the message; the handler is not polled again.
const REVOKED: u8 = 3;
/// The watchdog has taken the message while the handler's code blocks its thread.
const STUCK: u8 = 4;

/// The watchdog has taken the message. The task is not to touch it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Taken;

/// How a handler ended.
#[derive(Debug)]
pub(super) enum Ended {
    Returned(Disposition),
    Panicked(CaughtPanic),
    /// It was told to stop.
    Stopped(Cause, Handler),
}

/// Where a handler is that was told to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Handler {
    /// It was dropped at an `await`.
    Dropped,
    /// It is at an `await`, and its runtime does not poll it.
    Unpolled,
    /// It blocks its thread.
    Blocking,
}

impl Run {
    pub(super) fn new(incoming: Incoming, room: Room) -> Self {
        Self {
            incoming,
            room,
            ticket: Ticket::default(),
            progress: AtomicU8::new(READY),
            polls: AtomicU32::new(0),
            stop: Mutex::default(),
            ended: OnceLock::new(),
            claimed: AtomicBool::new(false),
        }
    }

    pub(super) fn cancellation(&self) -> &Cancellation {
        self.incoming.lease.cancellation()
    }

    /// Begins to run the handler's code.
    pub(super) fn begin_poll(&self) -> Result<(), Taken> {
        self.polls.fetch_add(1, Ordering::Relaxed);
        self.advance(READY, POLLING)
    }

    /// Ends to run the handler's code, which is to go on later.
    pub(super) fn end_poll(&self) -> Result<(), Taken> {
        self.advance(POLLING, READY)
    }

    /// The handler's code has ended like this.
    pub(super) fn end(&self, ended: Ended) -> Result<(), Taken> {
        // Kept even if the watchdog has just taken the message: it came in time then.
        self.keep_ended(ended);
        self.advance(POLLING, ENDED)
    }

    /// The handler is not polled again.
    pub(super) fn end_unpolled(&self, ended: Ended) -> Result<(), Taken> {
        self.advance(READY, ENDED)?;
        self.keep_ended(ended);
        Ok(())
    }

    /// Keeps how the handler ended, for whoever settles the message.
    pub(super) fn keep_ended(&self, ended: Ended) {
        // An error says that somebody was first.
        let _ = self.ended.set(ended);
    }

    pub(super) fn ended(&self) -> Option<&Ended> {
        self.ended.get()
    }

    /// Claims the settlement of a handler that has ended. Only the first caller gets it.
    pub(super) fn claim(&self) -> bool {
        self.progress.load(Ordering::Acquire) == ENDED && !self.claimed.swap(true, Ordering::AcqRel)
    }

    /// Takes the message from its task, unless the handler has ended.
    pub(super) fn take_over(&self) -> Option<Handler> {
        if self.advance(READY, REVOKED).is_ok() {
            Some(Handler::Unpolled)
        } else if self.advance(POLLING, STUCK).is_ok() {
            Some(Handler::Blocking)
        } else if self.advance(READY, REVOKED).is_ok() {
            // Its poll ended between the two.
            Some(Handler::Unpolled)
        } else {
            None
        }
    }

    /// Whether the watchdog took the message while the handler's code was running.
    pub(super) fn is_stuck(&self) -> bool {
        self.progress.load(Ordering::Acquire) == STUCK
    }

    /// Returns why the handler is to stop, if it is. It is seen first at `now`, unless it was seen before.
    pub(super) fn stop(&self, now: Duration) -> Option<Stop> {
        let cause = self.cancellation().cause()?;
        let mut stop = lock(&self.stop);
        let new = || self.stop_at(cause, now);
        Some(*stop.get_or_insert_with(new))
    }

    /// Whether the handler has been polled since, so that its time to react begins at `now`.
    pub(super) fn polled_since(&self, stop: Stop, now: Duration) -> bool {
        let polled = self.polls.load(Ordering::Relaxed) != stop.polls;
        if polled {
            let again = self.stop_at(stop.cause, now);
            *lock(&self.stop) = Some(again);
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

    fn advance(&self, from: u8, to: u8) -> Result<(), Taken> {
        self.progress
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
            .map_err(|_| Taken)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A run under the watchdog.
#[derive(Debug, Clone)]
pub(super) struct Watched {
    pub(super) run: Arc<Run>,
    /// When the handler timeout is over, on the monotonic clock.
    pub(super) deadline: Duration,
}
