//! Executing a command although it reads a damaged page.

use std::rc::Rc;

use super::{Writer, answer, fail};
use crate::backend::sqlite::command::Command;
use crate::backend::sqlite::failure::{Failure, Result};
use crate::backend::sqlite::repair;

impl Writer<'_> {
    /// Executes a command that has read damage once more, around it: at first only where it reads, then also
    /// where removing a body would read the pages beside it, and at last after moving its queues away from a
    /// damaged part of the schedule.
    pub(super) fn run_carefully(&mut self, batch: Vec<Command>) -> Vec<Command> {
        self.messages.probe = Some(Rc::clone(&self.probe));
        let (mut batch, mut result) = self.attempt(batch);
        for repair in [false, true] {
            if !result.as_ref().is_err_and(Failure::is_damage) || repair && !self.repair(&batch) {
                break;
            }
            self.messages.leave_bodies = true;
            (batch, result) = self.attempt(batch);
            self.messages.leave_bodies = false;
        }
        self.messages.probe = None;
        match result {
            Ok(answers) => answer(batch, answers),
            Err(failure) => {
                fail(batch, &failure);
                Vec::new()
            }
        }
    }

    /// Puts the damaged parts of the commands' queues aside. Returns whether another attempt may succeed.
    fn repair(&mut self, batch: &[Command]) -> bool {
        for place in [repair::Place::Last, repair::Place::First] {
            match self.put_aside(batch, place) {
                Ok(moved) => return moved,
                Err(failure) if failure.is_damage() => {}
                // Another process may hold the lock: the next command that reads the damage tries again.
                Err(_) => return false,
            }
        }
        false
    }

    fn put_aside(&mut self, batch: &[Command], place: repair::Place) -> Result<bool> {
        let probe = Rc::clone(&self.probe);
        self.begin.execute([])?;
        let moved = self.refresh().and_then(|now| {
            let (probe, mut moved) = (probe.connection()?, false);
            for request in batch.iter().map(|command| &command.request) {
                for queue in request.queues() {
                    // A missing queue is not damaged.
                    if self.queues.id(queue).is_err() {
                        continue;
                    }
                    // A change can fail because of a damaged page beside the queue's own. To move away from it
                    // once is enough; if that does not help, the damage is elsewhere.
                    let beside = !self.moved.contains(queue);
                    if repair::put_aside(self.connection, probe, queue, place, beside, now)? {
                        self.moved.insert(queue.clone());
                        moved = true;
                    }
                }
            }
            Ok(moved)
        });
        if moved.is_err() {
            self.roll_back();
            return moved;
        }
        self.queues.forget();
        self.transact(&[])?;
        moved
    }
}
