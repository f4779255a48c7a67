//! Messages that are submitted at set times: [`QueueService::schedule`](crate::QueueService::schedule).
//!
//! Every process of an application starts the same schedules. Each tick is submitted once, by the first process that
//! finds it due, with an id that is derived from the schedule's name and the tick.
//!
//! # Guarantees
//! In memory, on SQLite and on PostgreSQL, each tick is submitted at most once by all processes of the storage, also if they are
//! killed, and [`Missed`] decides about ticks that no process submitted in time: the last tick of a schedule is
//! recorded in the queues' storage, in one step with the tick's message. A schedule that the storage does not know
//! begins with the first tick after its start.
//!
//! On storages such as Azure, the ticks are recorded in a store that [`Schedule::recorded_in`] sets, with a weaker
//! promise.
//!
//! # Steering
//! From any process of the storage, [`pause_schedule`](crate::QueueService::pause_schedule) stops the ticks at once,
//! [`resume_schedule`](crate::QueueService::resume_schedule) and [`run_schedule`](crate::QueueService::run_schedule) take
//! effect within 30 seconds, and [`recorded_schedules`](crate::QueueService::recorded_schedules) shows the last and the next
//! tick. [`Overlap`] decides about a tick while the message of an earlier one is not settled.
//!
//! # Clocks
//! Each process decides by its own wall clock when a tick is due, so a tick is submitted when the fastest clock has
//! reached it. Processes with slower clocks find each tick recorded. Ticks are recorded in order, and no tick before
//! the last recorded one is submitted any more: if a clock that is an hour ahead records a tick, the ticks of that hour
//! are submitted by that clock alone, and the other processes wait for their clocks to reach it. A clock that is
//! stepped is noticed within a minute.
//!
//! While the last tick is more than 30 seconds ahead of its clock, a process logs a warning: within a minute, and then
//! every hour. If the recorded tick is ahead by more than an hour and more than one period, as after a clock that was a
//! year ahead for two seconds, the first process that has seen the record unchanged for ten minutes, by a clock that
//! ran steadily, replaces the recorded tick by the time at which that process saw it first, so that [`Missed`] decides
//! about the ticks since then. [`QueueService::reset_schedule`](crate::QueueService::reset_schedule) replaces a
//! recorded tick at once.
//!
//! A process cannot know whose clock is wrong. A process whose own clock is behind by more than an hour and one period
//! for over ten minutes replaces a recorded tick that was right, unless other processes tick in that time: ticks that
//! were already submitted are submitted again, each with the id that it had. A handler that must not run twice for a
//! tick needs [idempotency](crate::ListenerBuilder::idempotent).
//!
//! ```text
//!               nothing recorded: record now
//!   start ──────────────────────────────────────┐
//!     │ read what is recorded                   ▼
//!     └──────────────────────────────────► last = tick
//!                                           ▲     │ the next tick is due:
//!      another was first: last = its tick   │     │ swap last for it, and put its message, in one step
//!      swapped: last = the tick             └─────┘
//!
//!   paused: no tick is due; every 30 s: read it again, for a run that is asked for
//!   last is ahead of the clock: read it again every 30 s; far ahead for ten steady minutes: swap it for a time in the past
//! ```

mod due;
mod last;
mod overlap;
mod records;
mod recurrence;
mod run;
mod schedule;
mod steering;

pub use due::{MAX_MISSED, Missed};
pub use overlap::Overlap;
pub use records::{RecordedSchedule, RecordedSchedules};
#[cfg(feature = "cron")]
pub use recurrence::cron::{cron, cron_in};
pub use recurrence::{InvalidRecurrence, Recurrence, every};
pub(crate) use schedule::Schedules;
pub use schedule::{Schedule, ScheduleError, ScheduleErrorKind, ScheduleHandle};
