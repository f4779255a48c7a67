//! The one thread of a backend that writes.
//!
//! It executes all queued commands in one transaction, commits, and then answers (group commit): they
//! share the cost of a durable commit. A refused command leaves the transaction intact. If SQLite fails
//! before the commit, the transaction is rolled back and each command is retried in a transaction of its
//! own, so that one that reads a damaged page does not fail the others. If the commit fails, the outcome
//! is *unknown* for every command.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use rusqlite::{Connection, Statement};

use super::batch::{Answers, Pace, Pending};
use super::command::{Answer, Command, Request, Step, StepDone};
use super::failure::{Failure, Result};
use super::messages::Messages;
use super::purge::Purge;
use super::queues::Queues;
use super::receive::Receives;
use super::schema;
use super::store_time::StoreTime;
use crate::backend::store_clock::StoreClock;

/// The longest pause between two attempts to take the write lock.
const MAX_PAUSE: Duration = Duration::from_millis(2);

/// The pause between two chunks of a purge, so that other processes get the lock.
const PURGE_PAUSE: Duration = Duration::from_millis(1);

/// The read-write connection with its statements.
pub(super) struct Writer<'c> {
    connection: &'c Connection,
    store_clock: Arc<StoreClock>,
    busy_timeout: Duration,
    pace: Pace,
    queues: Queues<'c>,
    messages: Messages<'c>,
    purge: Purge<'c>,
    begin: Statement<'c>,
    commit: Statement<'c>,
    version: Statement<'c>,
    any_dropped: Statement<'c>,
    store_time: StoreTime<'c>,
}

impl<'c> Writer<'c> {
    pub(super) fn prepare(
        connection: &'c Connection,
        store_clock: Arc<StoreClock>,
        busy_timeout: Duration,
    ) -> Result<Self> {
        // `begin` waits for the lock itself, with jitter and with the deadline of each command.
        connection.busy_timeout(Duration::ZERO)?;
        let mut writer = Self {
            connection,
            store_clock,
            busy_timeout,
            pace: Pace::default(),
            queues: Queues::prepare(connection)?,
            messages: Messages::prepare(connection)?,
            purge: Purge::prepare(connection)?,
            begin: connection.prepare("BEGIN IMMEDIATE")?,
            commit: connection.prepare("COMMIT")?,
            version: connection.prepare("PRAGMA user_version")?,
            any_dropped: connection.prepare("SELECT 1 FROM dropped LIMIT 1")?,
            store_time: StoreTime::prepare(connection)?,
        };
        // Detects what an earlier process left to purge.
        writer.refresh()?;
        Ok(writer)
    }

    /// Serves commands until every sender is gone or a command requests to close. Returns those commands,
    /// to be answered when the file is closed.
    pub(super) fn serve(&mut self, commands: &Receiver<Command>) -> Vec<Command> {
        let mut pending = Pending::default();
        loop {
            if pending.is_empty() {
                if pending.is_closing() {
                    return pending.into_closing();
                }
                if !self.purge.has_work() {
                    match commands.recv() {
                        Ok(command) => pending.push(command),
                        Err(_) => return Vec::new(),
                    }
                }
            }
            let open = self.pace.gather(commands, &mut pending);
            if !pending.is_empty() {
                let batch = pending.take_batch();
                let unfinished = self.run(batch);
                pending.put_back(unfinished);
            } else if !open {
                return pending.into_closing();
            } else if !pending.is_closing() {
                match self.purge_alone() {
                    Ok(()) => commands
                        .recv_timeout(PURGE_PAUSE)
                        .into_iter()
                        .for_each(|command| pending.push(command)),
                    Err(failure) => {
                        tracing::error!(?failure, "failed to remove expired or deleted messages");
                        self.purge.rest(self.store_clock.now());
                    }
                }
            }
        }
    }

    /// Executes and answers a batch. Returns the commands that continue in the next one.
    fn run(&mut self, mut batch: Vec<Command>) -> Vec<Command> {
        let only_receives = batch
            .iter()
            .all(|command| matches!(command.request, Request::Receive { .. }));
        if only_receives {
            let asked = batch.len();
            let now = self.refresh();
            batch = self.receives().answer_idle(batch, &now);
            if batch.is_empty() {
                self.pace.note_idle(asked);
            }
        }
        let batch = self.begin(batch);
        if batch.is_empty() {
            return batch;
        }
        match self.transact(&batch) {
            Ok(answers) => answer(batch, answers),
            Err(failure) if batch.len() == 1 || matches!(failure, Failure::Commit(_)) => {
                fail(batch, &failure);
                Vec::new()
            }
            Err(_) => batch
                .into_iter()
                .flat_map(|command| self.run(vec![command]))
                .collect(),
        }
    }

    /// Takes the write lock. Answers the commands that time out meanwhile and returns the others.
    fn begin(&mut self, mut batch: Vec<Command>) -> Vec<Command> {
        let mut pause = Duration::from_micros(50);
        while !batch.is_empty() {
            let failure = match self.begin.execute([]) {
                Ok(_) => return batch,
                Err(error) => Failure::from(error),
            };
            if !failure.is_busy() {
                self.roll_back();
                fail(batch, &failure);
                return Vec::new();
            }
            let now = Instant::now();
            let (late, waiting): (Vec<_>, Vec<_>) = batch
                .into_iter()
                .partition(|command| now.duration_since(command.since) >= self.busy_timeout);
            fail(late, &Failure::Locked(self.busy_timeout));
            batch = waiting;
            std::thread::sleep(pause.mul_f64(rand::random_range(0.5..1.5)));
            pause = (pause * 2).min(MAX_PAUSE);
        }
        batch
    }

    /// Executes and commits a batch. On failure the transaction is rolled back.
    fn transact(&mut self, batch: &[Command]) -> Result<Answers> {
        let executed = self.execute(batch);
        if executed.is_err() {
            self.roll_back();
            return executed;
        }
        let start = Instant::now();
        if let Err(error) = self.commit.execute([]) {
            self.roll_back();
            return Err(Failure::Commit(Arc::new(error)));
        }
        self.pace.note(batch.len(), start.elapsed());
        executed
    }

    fn execute(&mut self, batch: &[Command]) -> Result<Answers> {
        let now = self.refresh()?;
        let mut answers = Vec::with_capacity(batch.len());
        for command in batch {
            let answer = match &command.request {
                Request::Receive { .. } => None,
                request => Some(spare_others(self.request(request, now))?),
            };
            answers.push(answer);
        }
        self.receives().answer_all(batch, &mut answers, now)?;
        self.purge(now)?;
        self.messages.counts.write()?;
        self.store_time.write(now)?;
        Ok(answers)
    }

    /// Removes what can no longer be received. If it reads damage, it undoes its own changes and rests: that
    /// must not fail the commands of the transaction.
    fn purge(&mut self, now: i64) -> Result<()> {
        if !self.purge.is_due(now) {
            return Ok(());
        }
        let saved = self.messages.counts.save();
        self.connection.execute_batch("SAVEPOINT purge")?;
        let Err(failure) = self.purge.run(&mut self.messages, now) else {
            return Ok(self.connection.execute_batch("RELEASE purge")?);
        };
        if !failure.is_damage() {
            return Err(failure);
        }
        self.connection
            .execute_batch("ROLLBACK TO purge; RELEASE purge")?;
        self.messages.counts.roll_back(saved);
        self.purge.rest(now);
        tracing::error!(?failure, "failed to remove expired or deleted messages");
        Ok(())
    }

    fn receives(&mut self) -> Receives<'_, 'c> {
        Receives {
            queues: &mut self.queues,
            messages: &mut self.messages,
        }
    }

    fn request(&mut self, request: &Request, now: i64) -> Result<Answer> {
        match request {
            Request::Create { queue, metadata } => {
                self.queues.create(queue, metadata).map(Answer::Created)
            }
            Request::Remove { queue } => {
                self.purge.expect_work();
                self.queues.remove(queue).map(|()| Answer::Done)
            }
            Request::SetMetadata { queue, metadata } => self
                .queues
                .set_metadata(queue, metadata)
                .map(|()| Answer::Done),
            Request::Clear { queue } => {
                self.purge.expect_work();
                self.queues.clear(queue).map(|()| Answer::Done)
            }
            Request::Step(step) => self.step(step, now).map(Answer::Step),
            Request::Apply(steps) => self.apply(steps, now).map(Answer::Applied),
            Request::Receive { .. } | Request::Close => Ok(Answer::Done),
        }
    }

    fn step(&mut self, step: &Step, now: i64) -> Result<StepDone> {
        let queue = self.queues.id(step.queue())?;
        match step {
            Step::Put { parcel, .. } => self.messages.put(queue, parcel, now).map(StepDone::Put),
            Step::Update {
                handle,
                visibility,
                body,
                ..
            } => self
                .messages
                .update(queue, *handle, *visibility, body.as_ref(), now)
                .map(|(visible_at, nonce)| StepDone::Updated { visible_at, nonce }),
            Step::Delete { handle, .. } => self
                .messages
                .delete(queue, *handle, now)
                .map(|()| StepDone::Deleted),
        }
    }

    /// Executes all steps or none. A refused step changes nothing itself; the savepoint undoes those
    /// before it.
    fn apply(&mut self, steps: &[Step], now: i64) -> Result<Vec<StepDone>> {
        self.connection.execute_batch("SAVEPOINT apply")?;
        let saved = self.messages.counts.save();
        let mut done = Vec::with_capacity(steps.len());
        for (index, step) in steps.iter().enumerate() {
            match self.step(step, now) {
                Ok(step) => done.push(step),
                Err(failure) if failure.is_refusal() => {
                    self.connection
                        .execute_batch("ROLLBACK TO apply; RELEASE apply")?;
                    self.messages.counts.roll_back(saved);
                    let queue = step.queue().clone();
                    return Err(Failure::Step(index, queue, Box::new(failure)));
                }
                Err(failure) => return Err(failure),
            }
        }
        self.connection.execute_batch("RELEASE apply")?;
        Ok(done)
    }

    /// Reads what other processes have changed, and returns the current time.
    fn refresh(&mut self) -> Result<i64> {
        if self.queues.changed_elsewhere()?
            && let Err(failure) = self.read_changes()
        {
            self.queues.forget();
            return Err(failure);
        }
        Ok(self.store_clock.now())
    }

    fn read_changes(&mut self) -> Result<()> {
        schema::check_version(self.version.query_row([], |row| row.get(0))?)?;
        self.store_time.follow(&self.store_clock)?;
        if self.any_dropped.exists([])? {
            self.purge.expect_work();
        }
        Ok(())
    }

    /// Purges in a transaction of its own, when no command is pending.
    fn purge_alone(&mut self) -> Result<()> {
        self.begin.execute([])?;
        self.transact(&[]).map(drop)
    }

    fn roll_back(&mut self) {
        self.queues.forget();
        self.store_time.forget();
        self.messages.counts.roll_back(Vec::new());
        if !self.connection.is_autocommit() {
            // If this fails too, the next BEGIN reports it.
            drop(self.connection.execute_batch("ROLLBACK"));
        }
    }
}

/// Separates a refusal, which concerns one command, from an error of SQLite, which fails the batch.
fn spare_others(answer: Result<Answer>) -> Result<Result<Answer>> {
    match answer {
        Err(failure) if !failure.is_refusal() => Err(failure),
        answer => Ok(answer),
    }
}

fn answer(batch: Vec<Command>, answers: Answers) -> Vec<Command> {
    let mut unfinished = Vec::new();
    for (command, answer) in batch.into_iter().zip(answers) {
        match answer {
            Some(answer) => command.answer(answer),
            None => unfinished.push(command),
        }
    }
    unfinished
}

fn fail(batch: Vec<Command>, failure: &Failure) {
    for command in batch {
        command.fail(failure);
    }
}

#[cfg(test)]
mod tests;
