//! Executing a command although it reads a damaged page.

use std::rc::Rc;

use super::{Writer, answer, fail};
use crate::command::Command;
use crate::failure::{Failure, Result};
use crate::repair;

impl Writer<'_> {
    /// Executes a command that has read damage once more, around it: at first only where it reads, then also
    /// where removing a body would read the pages beside it, and at last after moving its queues away from a
    /// damaged part of the schedule.
    pub(super) fn run_carefully(&mut self, batch: Vec<Command>) -> Vec<Command> {
        self.messages.probe = Some(Rc::clone(&self.probe));
        let (mut batch, mut result) = self.attempt(batch);
        for repair in [false, true] {
            if !result.as_ref().is_err_and(Failure::is_damage) {
                break;
            }
            if repair {
                let repaired;
                (batch, repaired) = self.repair(batch);
                match repaired {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(failure) => {
                        result = Err(failure);
                        break;
                    }
                }
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

    /// Puts the damaged parts of the commands' queues aside. Returns the commands that did not time out, and
    /// whether another attempt may succeed.
    fn repair(&mut self, mut batch: Vec<Command>) -> (Vec<Command>, Result<bool>) {
        let mut result = Ok(false);
        for place in [repair::Place::Last, repair::Place::First] {
            batch = self.begin(batch);
            if batch.is_empty() {
                return (batch, Ok(false));
            }
            result = self.put_aside(&batch, place);
            if !result.as_ref().is_err_and(Failure::is_damage) {
                break;
            }
        }
        (batch, result)
    }

    /// Does so within the transaction that was begun, and ends it.
    fn put_aside(&mut self, batch: &[Command], place: repair::Place) -> Result<bool> {
        let probe = Rc::clone(&self.probe);
        let moved = self.refresh().and_then(|now| {
            let (probe, mut moved) = (probe.connection()?, false);
            for request in batch.iter().map(|command| &command.request) {
                for queue in request.queues() {
                    // A missing queue is not damaged.
                    if self.queues.id(queue).is_err() {
                        continue;
                    }
                    moved |= repair::put_aside(self.connection, probe, queue, place, now)?;
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
