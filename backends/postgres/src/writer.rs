//! The task that writes messages and records.
//!
//! The task carries out whatever has queued up in one transaction: single operations of all callers, and completions with
//! follow-ups, by a few statements, other operations of one caller each between savepoints. Nothing in it waits for another transaction. What another
//! transaction has locked is tried again, with what has come meanwhile, for a bounded time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use queue_core::backend::{Op, OpOutcomes, Ops, PutBackPlace, Swap};
use queue_core::idempotency::{Forgotten, Swept, WorkKey};
use tokio::sync::{mpsc, oneshot};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::completions::complete_together;
use crate::failure::{Failure, Result};
use crate::marks::Marks;
use crate::pending::Pending;
use crate::records::{self, SwapOf};
use crate::runs::{Order, Run, attachment_of, carry_out_run, divide};
use crate::session::{Link, Session};

/// How long a request is tried that another transaction holds up. Renewals come back before a lease ends.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long it is tried if it needs no message that another holds, only a record: each of many that want one has its turn.
const PATIENCE_OF_RECORDS: Duration = Duration::from_secs(10);
/// The pause between two tries.
const AGAIN: Duration = Duration::from_millis(20);

/// How many requests of a connection are enough for a transaction, so that further ones may have another connection.
const ENOUGH: usize = 16;

/// What a caller asks for.
#[derive(Debug)]
pub(crate) enum Work {
    Apply(Ops),
    /// A swap of the result store.
    Swap(Swap),
    Forget(WorkKey),
    Sweep,
}

impl Work {
    fn patience(&self) -> Duration {
        match self {
            Self::Apply(ops) if ops.iter().any(|op| op.received().is_some()) => PATIENCE,
            Self::Apply(ops) if !ops.iter().any(|op| matches!(op, Op::Swap { .. })) => PATIENCE,
            _ => PATIENCE_OF_RECORDS,
        }
    }
}

/// The answer to [`Work`].
#[derive(Debug)]
pub(crate) enum Done {
    Applied(OpOutcomes),
    Swapped,
    Forgotten(Forgotten),
    Swept(Swept),
}

/// The failure of [`Work`], and the index of the operation that failed.
#[derive(Debug, Clone)]
pub(crate) struct Failed {
    pub(crate) index: usize,
    pub(crate) failure: Failure,
}

/// The way to the tasks, which end with the last clone.
#[derive(Debug, Clone)]
pub(crate) struct Writer {
    first: Way,
    /// Has only puts, while the first one has enough to do.
    second: Option<Way>,
}

/// The way to a task.
#[derive(Debug, Clone)]
struct Way {
    jobs: mpsc::UnboundedSender<Job>,
    /// The number of requests that are not answered.
    unanswered: Arc<AtomicUsize>,
}

#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) work: Work,
    reply: oneshot::Sender<Answer>,
    /// Until when it is tried again, once another transaction has held it up.
    busy_until: Option<Instant>,
}

pub(crate) type Answer = Result<Done, Failed>;

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Self {
        Self { index: 0, failure }
    }
}

impl Writer {
    /// Starts a task for each connection.
    pub(crate) fn start(first: Link, second: Option<Link>, marks: &Marks) -> Self {
        Self {
            first: Way::start(first, marks.clone()),
            second: second.map(|second| Way::start(second, marks.clone())),
        }
    }

    pub(crate) async fn ask(&self, work: Work) -> Answer {
        self.way_of(&work).ask(work).await
    }

    /// Two transactions of puts overlap: while the server carries one out, this process prepares the other.
    fn way_of(&self, work: &Work) -> &Way {
        let unanswered = |way: &Way| way.unanswered.load(Ordering::Relaxed);
        match &self.second {
            Some(second) if !work.is_of_lease() => {
                let of_first = unanswered(&self.first);
                if of_first >= ENOUGH && of_first > unanswered(second) {
                    second
                } else {
                    &self.first
                }
            }
            _ => &self.first,
        }
    }
}

impl Way {
    fn start(link: Link, marks: Marks) -> Self {
        let (jobs, requests) = mpsc::unbounded_channel();
        let unanswered = Arc::new(AtomicUsize::new(0));
        let task = Task {
            link,
            marks,
            pending: Pending::default(),
            busy: Vec::new(),
            again_at: Instant::now(),
            unanswered: Arc::clone(&unanswered),
        };
        tokio::spawn(task.run(requests));
        Self { jobs, unanswered }
    }

    async fn ask(&self, work: Work) -> Answer {
        let (reply, answer) = oneshot::channel();
        let job = Job {
            work,
            reply,
            busy_until: None,
        };
        self.unanswered.fetch_add(1, Ordering::Relaxed);
        self.jobs.send(job).map_err(|_| Failure::Closed)?;
        answer.await.unwrap_or(Err(Failure::Unanswered.into()))
    }
}

struct Task {
    link: Link,
    marks: Marks,
    pending: Pending,
    /// The requests that other transactions hold up, and when they are tried again.
    busy: Vec<Job>,
    again_at: Instant,
    unanswered: Arc<AtomicUsize>,
}

impl Task {
    async fn run(mut self, mut requests: mpsc::UnboundedReceiver<Job>) {
        loop {
            if self.pending.is_empty() {
                let received = match self.busy.first() {
                    None => Ok(requests.recv().await),
                    Some(_) => timeout_at(self.again_at, requests.recv()).await,
                };
                match received {
                    Ok(Some(job)) => self.pending.push(job),
                    Ok(None) if self.busy.is_empty() => return,
                    Ok(None) => sleep_until(self.again_at).await,
                    Err(_) => {}
                }
            }
            // Whoever was answered by the last transaction may ask again at once, and shares this one.
            yield_now().await;
            while let Ok(job) = requests.try_recv() {
                self.pending.push(job);
            }
            if Instant::now() >= self.again_at {
                self.busy.drain(..).for_each(|job| self.pending.push(job));
            }
            let batch = self.pending.take();
            if !batch.is_empty() {
                self.write(batch).await;
            }
        }
    }

    async fn write(&mut self, batch: Vec<Job>) {
        let answers = self.together(&batch).await.map_err(|failed| failed.failure);
        // Before whoever is answered receives again.
        self.lower_marks();
        match answers {
            Ok(answers) => {
                for (job, answer) in batch.into_iter().zip(answers) {
                    self.answer_or_repeat(job, answer);
                }
            }
            // One request spoils the transaction of all: each has its own then.
            Err(failure) if failure.is_refusal() && batch.len() > 1 => {
                for job in batch {
                    let answer = self.alone(&job.work).await;
                    self.lower_marks();
                    self.answer_or_repeat(job, answer);
                }
            }
            Err(failure) => {
                for job in batch {
                    self.answer(job, Err(failure.clone().into()));
                }
            }
        }
    }

    fn lower_marks(&mut self) {
        for (queue, from) in self.link.take_freed() {
            self.marks.lower(queue, from);
        }
    }

    /// Answers, or keeps a request that another transaction holds up.
    fn answer_or_repeat(&mut self, mut job: Job, answer: Answer) {
        let is_busy = matches!(&answer, Err(failed) if matches!(failed.failure, Failure::Busy));
        let now = Instant::now();
        let until = *job.busy_until.get_or_insert(now + job.work.patience());
        if !is_busy || now >= until {
            return self.answer(job, answer);
        }
        if self.busy.is_empty() {
            self.again_at = now + AGAIN;
        }
        self.busy.push(job);
    }

    fn answer(&self, job: Job, answer: Answer) {
        if let (Ok(_), Work::Apply(ops)) = (&answer, &job.work) {
            for op in ops {
                if let Op::PutBack {
                    queue,
                    place: PutBackPlace::Kept,
                    ..
                } = op
                {
                    self.marks.forget(queue);
                }
            }
        }
        self.unanswered.fetch_sub(1, Ordering::Relaxed);
        // The caller may have stopped waiting.
        drop(job.reply.send(answer));
    }

    /// Carries out requests in one transaction, which is committed. One statement is a transaction by itself.
    async fn together(&mut self, batch: &[Job]) -> Result<Vec<Answer>, Failed> {
        let session = self.link.session().await?;
        let mut answers = batch.iter().map(|_| None).collect();
        let runs = runs(batch);
        if let [run] = &runs[..]
            && run.ops.len() == batch.len()
            && run.is_one_statement()
        {
            answer_run(session, run, &mut answers).await?;
            return Ok(answers.into_iter().flatten().collect());
        }
        let done = match session.begin().await {
            Ok(()) => carry_out_all(session, batch, &runs, answers).await,
            Err(failure) => Err(failure),
        };
        end(session, done.map_err(Failed::from)).await
    }

    /// Carries out one request in a transaction of its own.
    async fn alone(&mut self, work: &Work) -> Answer {
        let session = self.link.session().await?;
        let done = match session.begin().await {
            Ok(()) => carry_out(session, work).await,
            Err(failure) => Err(failure.into()),
        };
        end(session, done).await
    }
}

/// Commits what was done, or rolls back.
async fn end<T>(session: &mut Session, done: Result<T, Failed>) -> Result<T, Failed> {
    match done {
        Ok(done) => {
            session.commit().await?;
            Ok(done)
        }
        // Nothing was committed, whatever has failed.
        Err(Failed { index, failure }) => {
            session.roll_back().await;
            let failure = failure.not_done();
            Err(Failed { index, failure })
        }
    }
}

/// Divides the requests of one operation into runs. The callers do not wait for each other: the order of their operations
/// is free.
fn runs(batch: &[Job]) -> Vec<Run<'_>> {
    let single = batch.iter().enumerate().filter_map(|(at, job)| {
        let Work::Apply(ops) = &job.work else {
            return None;
        };
        match &ops[..] {
            // What is stored for a put that is refused has to be undone.
            [op] if attachment_of(op).is_none() => Some((at, op)),
            _ => None,
        }
    });
    divide(single.collect(), Order::Free)
}

/// The answers to a batch, as far as they are known.
type Answers = Vec<Option<Answer>>;

/// Carries out a run, without waiting for other transactions. Fails only if the transaction did.
async fn answer_run(session: &mut Session, run: &Run<'_>, answers: &mut Answers) -> Result<()> {
    let ops: Vec<&Op> = run.ops.iter().map(|(_, op)| *op).collect();
    let done = carry_out_run(session, &ops, None).await?;
    for ((at, _), outcome) in run.ops.iter().zip(done) {
        let outcome = outcome.map(|(outcome, _)| Done::Applied([outcome].into_iter().collect()));
        answers[*at] = Some(outcome.map_err(Failed::from));
    }
    Ok(())
}

/// Carries out requests of many callers, without waiting for other transactions. Fails only if the transaction did.
async fn carry_out_all(
    session: &mut Session,
    batch: &[Job],
    runs: &[Run<'_>],
    mut answers: Answers,
) -> Result<Vec<Answer>> {
    for run in runs {
        answer_run(session, run, &mut answers).await?;
    }
    complete_together(session, batch, &mut answers).await?;
    for (job, answer) in batch.iter().zip(&mut answers) {
        if answer.is_none() {
            *answer = Some(between_savepoints(session, &job.work).await?);
        }
    }
    Ok(answers.into_iter().flatten().collect())
}

/// Carries out a request, and undoes it if it is refused. Fails only if the transaction did.
async fn between_savepoints(session: &mut Session, work: &Work) -> Result<Answer> {
    session.command("SAVEPOINT request").await?;
    let answer = carry_out(session, work).await;
    match &answer {
        Err(Failed {
            failure: failure @ Failure::Trouble(_),
            ..
        }) => return Err(failure.clone()),
        Err(_) => {
            session
                .command("ROLLBACK TO request; RELEASE request")
                .await?
        }
        Ok(_) => session.command("RELEASE request").await?,
    }
    Ok(answer)
}

async fn carry_out(session: &mut Session, work: &Work) -> Answer {
    match work {
        Work::Apply(ops) => apply(session, ops).await,
        Work::Swap(swap) => {
            records::swap(session, swap, SwapOf::ResultStore).await??;
            Ok(Done::Swapped)
        }
        Work::Forget(key) => Ok(Done::Forgotten(records::forget(session, key).await??)),
        Work::Sweep => Ok(Done::Swept(records::sweep(session).await?)),
    }
}

/// Carries out operations in order, until one is refused.
async fn apply(session: &mut Session, ops: &[Op]) -> Answer {
    let mut outcomes = OpOutcomes::new();
    let mut last_put = None;
    for run in divide(ops.iter().enumerate().collect(), Order::Kept) {
        let of_run: Vec<&Op> = run.ops.iter().map(|(_, op)| *op).collect();
        let done = carry_out_run(session, &of_run, last_put).await;
        for outcome in done.map_err(|failure| Failed {
            index: outcomes.len(),
            failure,
        })? {
            let index = outcomes.len();
            let (outcome, put) = outcome.map_err(|failure| Failed { index, failure })?;
            outcomes.push(outcome);
            last_put = put.or(last_put);
        }
    }
    Ok(Done::Applied(outcomes))
}
