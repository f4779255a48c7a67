//! The schedules of one service.

use std::sync::Mutex;

use queue_core::internal::LockExt as _;

use super::error::ScheduleError;
use super::handle::ScheduleHandle;

/// The schedules of one service, of which no two have the same name: the second one would never submit a tick.
#[derive(Debug, Default)]
pub(crate) struct Schedules(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// In the order in which they were started. Those that have stopped are removed when another starts.
    started: Vec<ScheduleHandle>,
    is_shut_down: bool,
}

impl Schedules {
    /// Adds a schedule that is about to start.
    pub(super) fn add(&self, schedule: &ScheduleHandle) -> Result<(), ScheduleError> {
        let name = || schedule.name().to_owned();
        let mut state = self.0.hold();
        if state.is_shut_down {
            return Err(ScheduleError::ShutDown(name()));
        }
        state.started.retain(ScheduleHandle::is_running);
        let mut others = state.started.iter();
        if others.any(|other| other.name() == schedule.name()) {
            return Err(ScheduleError::Runs(name()));
        }
        state.started.push(schedule.clone());
        Ok(())
    }

    /// Returns the schedules that run, in the order in which they were started.
    pub(crate) fn running(&self) -> Vec<ScheduleHandle> {
        let mut schedules = self.0.hold().started.clone();
        schedules.retain(ScheduleHandle::is_running);
        schedules
    }

    /// Has all schedules submit no further tick, and lets none start any more. Returns those that ran.
    pub(crate) fn shut_down(&self) -> Vec<ScheduleHandle> {
        self.0.hold().is_shut_down = true;
        let schedules = self.running();
        schedules.iter().for_each(ScheduleHandle::cancel);
        schedules
    }
}
