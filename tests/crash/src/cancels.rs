//! Messages are cancelled while the processes that handle them are killed and stopped at random, their queue is paused and
//! resumed, and its poison queue redriven; of some messages there are two. In the end, no handler may have begun after a
//! message was removed, and the history must say of the others what became of them.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use queue_runtime::service::Cancelled;
use queue_runtime::{Message, MessageId, QueueService};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::{JoinSet, block_in_place};
use tokio::time::{sleep, timeout};

use self::judge::{All, Known, judge, read_begun, read_history};
use crate::cancel::drop_after;
use crate::crew::Crew;
use crate::database::Database;
use crate::ledger::moment;
use crate::process::GUARD;
use crate::worker::{DATABASE, Role};

mod judge;

/// A message that may be cancelled.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, Message)]
#[message(
    kind = "crash.job",
    queue = "jobs",
    visibility_timeout = "3s",
    tracked,
    history = 1_000_000
)]
pub struct Cancellable {
    /// The number of the message.
    pub number: u32,
}

/// How many messages are submitted at a time, when there are fewer than half of that.
const AT_A_TIME: u32 = 400;

/// How many processes handle messages, and how many tasks cancel them.
const PROCESSES: usize = 3;
const TASKS: u64 = 3;

/// The largest number of messages that are handled between two kills.
const BETWEEN: usize = 60;

/// How long a process is stopped: two leases.
const STOP: Duration = Duration::from_secs(6);

/// How many messages are cancelled before anybody holds them, and after all are completed.
const CERTAIN: usize = 5;

/// Of so many messages, one has a copy.
const COPIED: u32 = 8;

/// The longest pause of the queue, and the longest time between two, in milliseconds.
const PAUSED: u64 = 6_000;
const RUNNING: u64 = 4_000;

/// What a run does, ending by count.
#[derive(Debug, Clone)]
pub struct Cancels<'a> {
    /// The program of the processes.
    pub program: &'a Path,
    /// Seed of random choices.
    pub seed: u64,
    /// The number of processes that are killed.
    pub kills: usize,
    /// The database of the queues, if they are not in a file.
    pub database: Option<&'a Database>,
    /// Over how many files the queues are spread, two shards in each, if they are in files and have shards. In several
    /// files, an entry of a history is not one step with the end of its message, so that only handlers are checked.
    pub shards: Option<usize>,
}

/// What a run has done.
#[derive(Debug, Clone, Copy, Default)]
pub struct CancelFigures {
    /// Messages that were submitted.
    pub messages: usize,
    /// Messages that were removed before anybody held them, while somebody held them or by a cancel whose answer was lost,
    /// and that were completed before.
    pub removed: usize,
    /// See `removed`.
    pub revoked: usize,
    /// See `removed`.
    pub completed: usize,
    /// Messages that were on the poison queue when they were cancelled, and were redriven.
    pub poison: usize,
    /// Handlers that began.
    pub runs: usize,
    /// Messages that were redriven.
    pub redriven: usize,
    /// Pauses of the queue.
    pub pauses: usize,
}

/// What was submitted.
#[derive(Debug, Default)]
struct Submitted {
    all: All,
    /// The next number. Those of a submission without an answer are not used again.
    next: u32,
    /// Whether a submission had no answer, so that there may be messages of which only the numbers are known.
    has_unknown: bool,
    cancelling: JoinSet<Vec<(MessageId, Cancelled, u64)>>,
}

impl Cancels<'_> {
    /// Performs the run.
    ///
    /// # Errors
    /// All that is wrong in the end.
    ///
    /// # Panics
    /// If nothing happens for a long time.
    pub async fn run(&self) -> Result<CancelFigures, Vec<String>> {
        let mut crew = Crew::new(self.program, self.seed);
        let service = match self.database {
            Some(database) => {
                let url = database.url();
                crew.environment.push((DATABASE, url.clone().into()));
                Arc::new(QueueService::connect(&url).await.expect("it opens"))
            }
            None => match self.shards {
                Some(files) => {
                    let url = shards(&crew, files);
                    crew.environment.push((DATABASE, url.clone().into()));
                    Arc::new(QueueService::connect(&url).await.expect("it opens"))
                }
                None => Arc::new(crew.connect().await),
            },
        };
        let mut submitted = Submitted::default();
        let first = self.submit(&service, &mut submitted).await;
        // Nobody holds them yet.
        let done = cancel_all(Arc::clone(&service), first[..CERTAIN].to_vec(), self.seed).await;
        submitted.note(done);
        self.cancel_half(&service, &first[CERTAIN..], &mut submitted);
        for _ in 0..PROCESSES {
            crew.start(Role::Cancels, None);
        }
        let (ends, ended) = watch::channel(());
        let meddling = tokio::spawn(meddle(Arc::clone(&service), self.seed, ended));
        for kill in 0..self.kills {
            let lines = crew.random.random_range(1..=BETWEEN);
            let mut handled = 0;
            if kill % 8 == 5 {
                crew.stop_any();
            }
            while handled < lines || crew.has_stopped() {
                handled += usize::from(crew.line().is_some());
                let more = async {
                    if left(&service).await < AT_A_TIME as usize / 2 {
                        let ids = self.submit(&service, &mut submitted).await;
                        self.cancel_half(&service, &ids, &mut submitted);
                    }
                };
                crew.beside(STOP, more).await;
            }
            if let Some(database) = self.database {
                // It waits for a runtime of its own.
                block_in_place(|| database.strike(&mut crew.random));
            }
            crew.kill_any();
            crew.start(Role::Cancels, None);
        }
        if let Some(database) = self.database {
            block_in_place(|| database.end());
        }
        while let Some(done) = submitted.cancelling.join_next().await {
            submitted.note(done.expect("it does not panic"));
        }
        drop(ends);
        let meddled = meddling.await.expect("it does not panic");
        let waiting = Instant::now();
        while left(&service).await > 0 || redrive(&service).await != Ok(0) {
            crew.line();
            assert!(waiting.elapsed() < GUARD, "messages are left behind");
        }
        crew.end(Role::Cancels);
        // All others have been handled.
        let others = submitted
            .all
            .iter()
            .filter(|(_, (_, known))| known.cancelled.is_none());
        let others = others.map(|(id, _)| id.clone()).take(CERTAIN).collect();
        let done = cancel_all(Arc::clone(&service), others, self.seed).await;
        submitted.note(done);
        let Submitted {
            mut all,
            has_unknown,
            ..
        } = submitted;
        read_begun(crew.folder(), &mut all);
        let unknown = read_history(&service, &mut all).await;
        drop(service);
        if let Some(entry) = unknown.filter(|_| !has_unknown) {
            crew.wrong
                .push(format!("an entry of no message: {entry:?}"));
        }
        let figures = CancelFigures {
            pauses: meddled.pauses,
            redriven: meddled.redriven,
            ..judge(&all, self.shards.unwrap_or(1) == 1, &mut crew.wrong)
        };
        match self.database {
            Some(_) if crew.wrong.is_empty() => Ok(figures),
            Some(_) => Err(crew.wrong),
            None => crew.judge(figures),
        }
    }

    /// Submits the next messages. Returns their ids, as far as they are known.
    async fn submit(&self, service: &QueueService, submitted: &mut Submitted) -> Vec<MessageId> {
        let first = submitted.next;
        submitted.next += AT_A_TIME;
        let numbers = first..submitted.next;
        let messages = numbers.clone().map(|number| Cancellable { number });
        let Ok(stored) = service.submit_all(messages).await else {
            submitted.has_unknown = true;
            return Vec::new();
        };
        let ids: Vec<_> = stored.into_iter().map(|one| one.id).collect();
        for (id, number) in ids.iter().zip(numbers) {
            let mut known = Known::default();
            if number % COPIED == 0 {
                known.is_copied = true;
                // Without an answer, there may be one.
                let copy = service.submit(Cancellable { number }).id(id.as_str());
                drop(copy.await);
            }
            submitted.all.insert(id.clone(), (number, known));
        }
        ids
    }

    /// Begins to cancel every second message.
    fn cancel_half(
        &self,
        service: &Arc<QueueService>,
        ids: &[MessageId],
        submitted: &mut Submitted,
    ) {
        for task in 0..TASKS {
            let ids = ids.iter().skip(task as usize).step_by(TASKS as usize * 2);
            let seed = self.seed ^ (u64::from(submitted.next) << 8) ^ task;
            let cancels = cancel_all(Arc::clone(service), ids.cloned().collect(), seed);
            submitted.cancelling.spawn(cancels);
        }
    }
}

impl Submitted {
    /// Notes what cancels have answered.
    fn note(&mut self, done: Vec<(MessageId, Cancelled, u64)>) {
        for (id, cancelled, at) in done {
            let (_, known) = self.all.get_mut(&id).expect("it was submitted");
            known.cancelled = Some((cancelled, at));
        }
    }
}

/// Cancels messages now and then, until each is answered. Some cancels are dropped, and done again.
async fn cancel_all(
    service: Arc<QueueService>,
    ids: Vec<MessageId>,
    seed: u64,
) -> Vec<(MessageId, Cancelled, u64)> {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut done = Vec::new();
    for id in ids {
        sleep(Duration::from_millis(random.random_range(0..8))).await;
        if random.random_range(0..4) == 0 {
            let polls = random.random_range(1..6);
            drop(drop_after(polls, service.cancel(&id)).await);
        }
        let cancelled = loop {
            match service.cancel(&id).await {
                Ok(cancelled) => break cancelled,
                // The network fails, or its answer was lost.
                Err(_) => sleep(Duration::from_millis(50)).await,
            }
        };
        done.push((id, cancelled, moment()));
    }
    done
}

/// The URL of queues that have two shards in each of so many files.
fn shards(crew: &Crew<'_>, files: usize) -> String {
    let file = crew.file();
    let urls = (0..files).map(|number| match number {
        0 => format!("|sqlite:{}", file.display()),
        _ => format!("|sqlite:{}-{number}", file.display()),
    });
    format!("sharded:{}{}", 2 * files, urls.collect::<String>())
}

/// What was done beside the cancels.
#[derive(Debug, Default)]
struct Meddled {
    pauses: usize,
    redriven: usize,
}

/// Pauses and resumes the queue, and redrives its poison queue, until `ended`.
async fn meddle(service: Arc<QueueService>, seed: u64, mut ended: watch::Receiver<()>) -> Meddled {
    let mut random = SmallRng::seed_from_u64(seed);
    let queue = service.queue::<Cancellable>().any();
    let mut meddled = Meddled::default();
    let mut has_ended = false;
    while !has_ended {
        let running = Duration::from_millis(random.random_range(0..RUNNING));
        has_ended = timeout(running, ended.changed()).await.is_ok();
        // The network may fail.
        if queue.pause(None).await.is_ok() {
            meddled.pauses += 1;
            let paused = Duration::from_millis(random.random_range(0..PAUSED));
            has_ended |= timeout(paused, ended.changed()).await.is_ok();
        }
        while queue.resume().await.is_err() {
            sleep(Duration::from_millis(50)).await;
        }
        meddled.redriven += redrive(&service).await.unwrap_or_else(|so_far| so_far);
    }
    meddled
}

/// Redrives what is poison, and returns how many messages that were: before the error, if there was one.
async fn redrive(service: &QueueService) -> Result<usize, usize> {
    let poison = service.queue::<Cancellable>().poison().expect("a name");
    let redriven = poison.redrive().run().await;
    match redriven {
        Ok(done) => Ok(done.redriven),
        Err(stopped) => Err(stopped.so_far.redriven),
    }
}

/// How many messages there are; many while the storage does not answer.
async fn left(service: &QueueService) -> usize {
    let queue = service.queue::<Cancellable>().any();
    let properties = queue.properties().await;
    properties.map_or(usize::MAX, |properties| properties.approximate_count)
}

impl fmt::Display for CancelFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            messages,
            removed,
            revoked,
            completed,
            poison,
            runs,
            redriven,
            pauses,
        } = self;
        write!(
            f,
            "{messages} messages, {runs} runs, {redriven} redriven, {pauses} pauses; cancels: {removed} removed, \
             {revoked} revoked, {completed} too late, {poison} poison"
        )
    }
}
