//! The one thread of a backend that writes.
//!
//! The writer executes all queued commands in one transaction, commits, and then answers (group commit): they share the
//! cost of a durable commit. A refused command leaves its transaction intact. If SQLite fails before the commit, the
//! transaction is rolled back and each command is retried in a transaction of its own, so that one that reads a damaged
//! page does not fail the others; that one is executed once more around the damage. If a transaction's commit fails,
//! all its commands' outcomes are *unknown*.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use queue_core::backend::Token;
use queue_core::store_clock::StoreClock;
use rusqlite::{Connection, Statement};

use crate::batch::{Answers, Pace, Pending};
use crate::command::{Answer, Command, Request};
use crate::failure::{Failure, Result};
use crate::file::connection::{self, Settings};
use crate::file::files::Files;
use crate::file::log::{Log, Sync};
use crate::file::turn::{self, Turn};
use crate::rows::attachments::Staging;
use crate::rows::schema;
use crate::rows::stored::Probe;
use crate::rows::tables::Tables;
use crate::time::StoreTime;
use crate::wake::{Consumers, Peers};

/// The longest pause between two attempts to take the write lock, or the turn to do so.
const MAX_PAUSE: Duration = Duration::from_micros(250);

/// The interval between two transactions of a purge while commands are waiting.
const PURGE_INTERVAL: Duration = Duration::from_millis(50);

use upkeep::{Space, Upkeep};

/// The read-write connection with its statements.
pub(super) struct Writer<'c> {
    connection: &'c Connection,
    files: Files,
    /// Whether the last commit went to files that the path does not lead to, or another path too.
    is_astray: bool,
    turn: Turn,
    log: Log,
    sync: Sync<'c>,
    store_clock: Arc<StoreClock>,
    busy_timeout: Duration,
    space: Space,
    pace: Pace,
    tables: Tables<'c>,
    upkeep: Upkeep<'c>,
    probe: Rc<Probe>,
    begin: Statement<'c>,
    commit: Statement<'c>,
    store_time: StoreTime<'c>,
    others: Others<'c>,
}

/// What other processes change.
struct Others<'c> {
    layout: Statement<'c>,
    any_dropped: Statement<'c>,
    consumers: Consumers<'c>,
    peers: Arc<Peers>,
}

impl<'c> Writer<'c> {
    pub(super) fn prepare(
        connection: &'c Connection,
        files: Files,
        store_clock: Arc<StoreClock>,
        peers: Arc<Peers>,
        settings: Settings,
    ) -> Result<Self> {
        let (busy_timeout, min_free_space) = (settings.busy_timeout, settings.min_free_space);
        let synchronous = settings.synchronous;
        let mut tables = Tables::new(connection);
        tables.messages.tracked.introduced = Arc::clone(&settings.introduced);
        let probe = Probe::new(move || connection::open_reader(&settings));
        // `begin` waits for the lock itself, with jitter and with the deadline of each command.
        connection.busy_timeout(Duration::ZERO)?;
        let mut writer = Self {
            connection,
            turn: files.turn(),
            files,
            is_astray: false,
            log: Log::default(),
            sync: Sync::new(connection, synchronous),
            store_clock,
            busy_timeout,
            space: Space::new(min_free_space),
            pace: Pace::default(),
            tables,
            upkeep: Upkeep::prepare(connection)?,
            probe: Rc::new(probe),
            begin: connection.prepare("BEGIN IMMEDIATE")?,
            commit: connection.prepare("COMMIT")?,
            store_time: StoreTime::new(connection),
            others: Others {
                layout: connection.prepare(schema::LAYOUT)?,
                any_dropped: connection.prepare("SELECT 1 FROM queue_dropped LIMIT 1")?,
                consumers: Consumers::prepare(connection)?,
                peers,
            },
        };
        // Detects what an earlier process left to purge.
        writer.refresh()?;
        Ok(writer)
    }

    /// Serves commands until every sender is gone or a command requests to close. Returns the requests to close, to be
    /// answered when the file is closed.
    pub(super) fn serve(&mut self, commands: &Receiver<Command>) -> Vec<Command> {
        let closing = self.serve_all(commands);
        if self.sync.is_pending() {
            self.sync_log();
        }
        closing
    }

    fn serve_all(&mut self, commands: &Receiver<Command>) -> Vec<Command> {
        let mut pending = Pending::default();
        loop {
            if pending.is_empty() {
                if pending.is_closing() {
                    return pending.into_closing();
                }
                let quiet = self.log.is_due();
                let shrinking = quiet && self.shrink();
                if shrinking {
                    self.let_others_write(commands, &mut pending);
                } else if quiet {
                    self.empty_log();
                }
                if self.sync.is_due(Instant::now()) {
                    self.sync_log();
                }
                if !shrinking && !self.has_work() {
                    match self.wait(commands) {
                        Ok(command) => pending.push(command),
                        Err(RecvTimeoutError::Timeout) => continue,
                        Err(RecvTimeoutError::Disconnected) => return Vec::new(),
                    }
                }
            }
            if self.log.is_too_long() {
                self.empty_log();
            }
            let open = self.pace.gather(commands, &mut pending);
            if !pending.is_empty() {
                self.pace.begin(&pending);
                let batch = self.admit(pending.take_batch());
                let unfinished = self.run(batch);
                if self.space.is_low {
                    self.lengthen();
                }
                pending.put_back(unfinished);
            } else if !open {
                return pending.into_closing();
            }
            if pending.is_closing() {
                continue;
            }
            let now = self.store_clock.now();
            if (self.has_work() || self.upkeep.purge.is_due(now))
                && (pending.is_empty() || self.upkeep.purged_at.elapsed() >= PURGE_INTERVAL)
            {
                self.purge();
                if pending.is_empty() && self.has_work() {
                    self.let_others_write(commands, &mut pending);
                }
            }
        }
    }

    /// Waits for a command, or until something is due to be done without one.
    fn wait(&self, commands: &Receiver<Command>) -> Result<Command, RecvTimeoutError> {
        let due = [self.log.due_in(), self.sync.due_in(Instant::now())];
        match due.into_iter().flatten().min() {
            None => commands.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(due) => commands.recv_timeout(due),
        }
    }

    /// Executes and answers a batch. Returns the commands that continue in the next batch.
    fn run(&mut self, mut batch: Vec<Command>) -> Vec<Command> {
        let only_receives = only_receives(&batch);
        // A check of the files follows each commit; once it has failed, nothing is committed before another check.
        if only_receives || self.is_astray {
            if let Err(failure) = self.files.identity.check() {
                fail(batch, &failure);
                return Vec::new();
            }
            self.is_astray = false;
        }
        if only_receives {
            let now = self.refresh();
            batch = self.tables.answer_idle_receives(batch, &now);
        }
        let batch = self.begin(batch);
        if batch.is_empty() {
            return batch;
        }
        let (batch, result) = match self.transact_or_make_room(batch) {
            (batch, Err(failure)) if batch.len() == 1 && failure.is_damage() => {
                self.around_damage(|writer| writer.attempt(batch))
            }
            executed => executed,
        };
        match result {
            Ok(answers) => {
                self.pace.answered(&answers);
                answer(batch, answers)
            }
            Err(failure) if failure.is_final() || batch.len() == 1 => {
                fail(batch, &failure);
                Vec::new()
            }
            Err(_) => batch
                .into_iter()
                .flat_map(|command| self.run(vec![command]))
                .collect(),
        }
    }

    /// Does work that has met a damaged page once more, around it: the readable part is read by another connection, and
    /// bodies stay where they are.
    fn around_damage<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        self.tables.messages.probe = Some(Rc::clone(&self.probe));
        let done = work(self);
        self.tables.messages.probe = None;
        done
    }

    /// Executes and commits a batch, and once more if there was no room in the log and now is. In between, the
    /// first transaction is rolled back, and the second overwrites what is left of it.
    fn transact_or_make_room(&mut self, batch: Vec<Command>) -> (Vec<Command>, Result<Answers>) {
        match self.transact(&batch) {
            Err(failure) if self.make_room(&failure) => self.attempt(batch),
            result => (batch, result),
        }
    }

    /// Executes and commits a batch. Returns the commands that did not time out, and their answers.
    fn attempt(&mut self, batch: Vec<Command>) -> (Vec<Command>, Result<Answers>) {
        let batch = self.begin(batch);
        let result = if batch.is_empty() {
            Ok(Vec::new())
        } else {
            self.transact(&batch)
        };
        (batch, result)
    }

    /// Takes the write lock. Answers the commands that time out meanwhile and returns the others.
    fn begin(&mut self, mut batch: Vec<Command>) -> Vec<Command> {
        if batch.is_empty() {
            return batch;
        }
        let only_receives = only_receives(&batch);
        let prepared = self
            .mend_log()
            .and_then(|()| self.sync.prepare(only_receives, Instant::now()));
        if let Err(failure) = prepared {
            fail(batch, &failure);
            return Vec::new();
        }
        let (start, patience) = (Instant::now(), turn::patience(self.busy_timeout));
        let mut pause = Duration::from_micros(50);
        while !batch.is_empty() {
            let now = Instant::now();
            if self.turn.take() || now.duration_since(start) >= patience {
                let failure = match self.begin.execute([]) {
                    Ok(_) => break,
                    Err(error) => Failure::from(error),
                };
                if !failure.is_busy() {
                    self.roll_back();
                    fail(batch, &failure);
                    batch = Vec::new();
                    break;
                }
            }
            let (late, waiting): (Vec<_>, Vec<_>) = batch
                .into_iter()
                .partition(|command| now.duration_since(command.since) >= self.busy_timeout);
            upkeep::fail_locked(late, &self.files, self.busy_timeout);
            batch = waiting;
            std::thread::sleep(pause.mul_f64(rand::random_range(0.5..1.5)));
            pause = (pause * 2).min(MAX_PAUSE);
        }
        self.turn.pass_on();
        batch
    }

    /// Executes and commits a batch. On failure the transaction is rolled back.
    fn transact(&mut self, batch: &[Command]) -> Result<Answers> {
        let before = self.connection.total_changes();
        let executed = self.execute(batch);
        if executed.is_err() {
            self.roll_back();
            return executed;
        }
        let start = Instant::now();
        if let Err(error) = self.commit.execute([]) {
            self.roll_back();
            let error = Arc::new(error);
            let failure = Failure::Sqlite(Arc::clone(&error));
            if failure.is_of_sync() {
                self.sync.failed(failure);
            }
            return Err(Failure::Commit(error));
        }
        if !self.sync.was_skipped() {
            self.pace.note(start.elapsed());
        }
        let wrote = self.connection.total_changes() != before;
        self.sync.committed(wrote, Instant::now());
        match self.files.identity.check() {
            Err(failure @ (Failure::Replaced(_) | Failure::Linked(..))) => {
                self.is_astray = true;
                Err(Failure::CommittedElsewhere(Box::new(failure)))
            }
            // Whether the path leads elsewhere is unknown; the commit is not.
            Err(_) => executed,
            Ok(log) => {
                self.log.committed(log);
                executed
            }
        }
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
        self.tables.answer_receives(batch, &mut answers, now)?;
        self.tables.messages.counts.write()?;
        self.store_time.write(now)?;
        Ok(answers)
    }

    fn request(&mut self, request: &Request, now: i64) -> Result<Answer> {
        match request {
            Request::Create { queue, metadata } => self
                .tables
                .queues
                .create(queue, metadata)
                .map(Answer::Created),
            Request::Remove { queue } => {
                self.upkeep.purge.expect_work();
                self.tables.queues.remove(queue).map(|()| Answer::Done)
            }
            Request::SetMetadata { queue, metadata } => {
                let set = self.tables.set_metadata(queue, metadata, now);
                set.map(|()| Answer::Done)
            }
            Request::Clear { queue } => {
                self.upkeep.purge.expect_work();
                self.tables.clear(queue).map(|()| Answer::Done)
            }
            Request::Stage(staging) => {
                if let Staging::Begin { queue, .. } = staging {
                    self.tables.queues.id(queue)?;
                }
                let staged = self.tables.messages.attachments.stage(staging, now);
                staged.map(Answer::Staged)
            }
            Request::Apply(steps) => {
                let done = self.tables.steps(steps, now);
                done.map(Answer::Applied)
            }
            Request::Ended { token } => self.is_committed(*token, now).map(Answer::Ended),
            Request::Register { port } => self
                .others
                .consumers
                .register(*port, now)
                .map(|()| Answer::Done),
            Request::Withdraw { port } => {
                self.others.consumers.remove(*port).map(|()| Answer::Done)
            }
            Request::Results(request) => self.tables.results(now).execute(request),
            Request::Receive { .. } | Request::Close => Ok(Answer::Done),
        }
    }

    /// Whether a completion with this token was committed: if not, the next commit of this transaction overwrites what
    /// a commit that failed may have left in the log, so that no recovery finds it.
    fn is_committed(&mut self, token: Option<Token>, now: i64) -> Result<bool> {
        let Some(token) = token else {
            return Ok(false);
        };
        let committed = self.tables.results(now).is_recorded(token)?;
        if !committed {
            self.store_time.forget();
        }
        Ok(committed)
    }

    /// Reads what other processes have changed, and returns the current time.
    fn refresh(&mut self) -> Result<i64> {
        let changed = self.tables.queues.changed_elsewhere()?;
        if changed {
            self.tables.messages.forget();
        }
        if changed && let Err(failure) = self.read_changes() {
            self.tables.queues.forget();
            return Err(failure);
        }
        let now = self.store_clock.now();
        if changed || self.others.consumers.is_outdated(now) {
            self.others
                .peers
                .set(self.others.consumers.read_or_none(now));
        }
        Ok(now)
    }

    fn read_changes(&mut self) -> Result<()> {
        schema::check_layout(&mut self.others.layout)?;
        self.store_time.follow(&self.store_clock)?;
        if self.others.any_dropped.exists([])? {
            self.upkeep.purge.expect_work();
        }
        Ok(())
    }

    fn roll_back(&mut self) {
        self.tables.queues.forget();
        self.store_time.forget();
        self.tables.messages.counts.roll_back(Vec::new());
        self.tables.messages.forget();
        if !self.connection.is_autocommit() {
            // If the rollback fails too, the next BEGIN reports it.
            drop(self.connection.execute_batch("ROLLBACK"));
        }
    }
}

fn only_receives(batch: &[Command]) -> bool {
    batch
        .iter()
        .all(|command| matches!(command.request, Request::Receive { .. }))
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
mod upkeep;
