//! Processes that run the same schedules are killed at random; then each tick must have one message, or none if its
//! schedule was to leave it out.
//!
//! The clock of all processes is told the time, so that it is known which ticks are missed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use queue_core::backend::Backend;
use queue_core::clock::{BoxFuture, Clock, Timestamp};
use queue_runtime::QueueService;
use queue_runtime::clock::SystemClock;
use queue_runtime::recurring::{MAX_MISSED, Missed, ScheduleHandle, every};
use rand::RngExt as _;
use tokio::sync::watch;

use crate::crew::{Crew, messages, take};
use crate::ledger::moment;
use crate::messages::Tick;
use crate::process::GUARD;
use crate::sabotage::{Bug, Point};
use crate::worker::{Role, open};

/// The time between two ticks, in seconds: more than a tick may be late.
const INTERVAL: u64 = 100;

/// How long after the last tick the processes start after every other outage, in seconds: too late for it.
const LATE: u64 = 80;

/// When the clock begins: at a tick.
const START: Timestamp = Timestamp::constant(1_767_225_600, 0);

/// How much faster the monotonic clock is than that of the system, so that a change of the time is soon noticed.
const FASTER: u32 = 2000;

/// The processes at a time.
const PROCESSES: usize = 3;

const ALL: &str = "all";
const ONCE: &str = "once";
const SKIP: &str = "skip";

/// The schedules of each process: their names, and what they do about missed ticks.
pub const POLICIES: [(&str, Missed); 3] = [
    (ALL, Missed::All { limit: MAX_MISSED }),
    (ONCE, Missed::Once),
    (SKIP, Missed::Skip),
];

/// A wall clock that is told how many seconds have passed.
#[derive(Debug)]
pub struct ToldClock(watch::Receiver<String>);

/// What a run does, ending by count.
#[derive(Debug, Clone)]
pub struct Ticks<'a> {
    /// The program of the processes.
    pub program: &'a Path,
    /// Seed of random choices.
    pub seed: u64,
    /// How often all processes are killed. Between two outages, a process is killed at each tick.
    pub outages: usize,
    /// The bug of the first process, which aborts.
    pub bug: Option<Bug>,
}

/// What a run has done.
#[derive(Debug, Clone, Copy, Default)]
pub struct TickFigures {
    /// Ticks that were submitted.
    pub submitted: usize,
    /// Ticks that were missed and left out.
    pub missed: usize,
    /// Processes that were killed or have aborted.
    pub kills: usize,
}

struct Run<'a> {
    crew: Crew<'a>,
    service: QueueService,
    /// The last tick that is due.
    tick: u64,
    kills: usize,
    /// The ticks that must be submitted.
    expected: BTreeSet<(&'static str, u64)>,
    /// How often each tick was submitted.
    submitted: BTreeMap<(String, u64), usize>,
}

impl ToldClock {
    /// Creates a clock that follows the last line.
    #[must_use]
    pub fn new(lines: watch::Receiver<String>) -> Self {
        Self(lines)
    }
}

impl Clock for ToldClock {
    fn now(&self) -> Timestamp {
        let seconds = self.0.borrow().parse().expect("a number");
        START + Duration::from_secs(seconds)
    }

    fn monotonic(&self) -> Duration {
        Duration::from_nanos(moment()) * FASTER
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        SystemClock::new().sleep(duration / FASTER)
    }
}

/// Starts a schedule, which prints a line whenever it is about to submit a tick.
///
/// # Panics
/// If the schedule does not start.
pub fn start(service: &QueueService, (name, missed): (&'static str, Missed)) -> ScheduleHandle {
    let interval = every(Duration::from_secs(INTERVAL));
    let schedule = service.schedule(name, interval, move |at| {
        println!("{name}");
        Tick {
            schedule: name.to_owned(),
            number: at.duration_since(START).unsigned_abs().as_secs() / INTERVAL,
        }
    });
    schedule.missed(missed).start().expect("it is valid")
}

impl Ticks<'_> {
    /// Performs the run.
    ///
    /// # Errors
    /// All that is wrong in the end.
    ///
    /// # Panics
    /// If nothing happens for a long time.
    pub async fn run(&self) -> Result<TickFigures, Vec<String>> {
        let crew = Crew::new(self.program, self.seed);
        let backend = open(&crew.file(), None).await;
        let service = QueueService::with_backend(Arc::clone(&backend))
            .connect()
            .await;
        let mut run = Run {
            crew,
            service: service.expect("connecting opens nothing"),
            tick: 0,
            kills: 0,
            expected: BTreeSet::new(),
            submitted: BTreeMap::new(),
        };
        run.begin(backend).await;
        run.abort(self.bug);
        run.start_all();
        for outage in 0..self.outages {
            for _ in 0..run.crew.random.random_range(2..=5) {
                run.next().await;
            }
            run.outage(if outage % 2 == 0 { LATE } else { 0 }).await;
        }
        run.crew.end(Role::Schedule);
        run.take().await;
        run.judge()
    }
}

impl Run<'_> {
    /// Records in the file that the schedules begin at the first moment.
    async fn begin(&self, backend: Arc<dyn Backend>) {
        let created = self.service.queue::<Tick>().any().create().await;
        created.expect("created");
        let (_told, lines) = watch::channel("0".to_owned());
        let service = QueueService::with_backend(backend).clock(Arc::new(ToldClock::new(lines)));
        let service = service.connect().await.expect("connecting opens nothing");
        for policy in POLICIES {
            start(&service, policy).stop().await;
        }
    }

    /// Has processes abort at the first tick, of the first schedule only; without a bug, that tick is not over then.
    fn abort(&mut self, bug: Option<Bug>) {
        let points = [Point::BeforePut, Point::AfterPut].map(Bug::Aborts);
        let aborts = bug.as_ref().map_or(&points[..], std::slice::from_ref);
        for bug in aborts {
            self.crew.abort(Role::Schedule, *bug, &INTERVAL.to_string());
            self.kills += 1;
        }
        self.expected.insert((ALL, 1));
        // With a bug the tick may be lost, and nothing waits for it.
        self.tick = u64::from(bug.is_some());
    }

    fn start_all(&mut self) {
        for _ in 0..PROCESSES {
            self.crew.start(Role::Schedule, None);
        }
    }

    /// Goes on to the next tick, kills a process, and waits until the tick was submitted by other processes.
    async fn next(&mut self) {
        self.tick += 1;
        self.go_on(0, &[ALL, ONCE, SKIP]).await;
    }

    /// Kills all processes, goes on by some ticks, and starts others: in time for the last tick, or too late for that,
    /// too.
    async fn outage(&mut self, late: u64) {
        while !self.crew.processes.is_empty() {
            self.crew.kill_any();
            self.kills += 1;
        }
        self.take().await;
        let missed = self.tick + 1;
        self.tick += self.crew.random.random_range(2..=5);
        self.expected
            .extend((missed..self.tick).map(|tick| (ALL, tick)));
        self.start_all();
        match late {
            0 => self.go_on(0, &[ALL, ONCE, SKIP]).await,
            _ => self.go_on(late, &[ALL, ONCE]).await,
        }
    }

    /// Tells the processes that it is so much later than the last tick, kills one of them, and waits until the tick of
    /// these schedules was submitted.
    async fn go_on(&mut self, late: u64, schedules: &[&'static str]) {
        let tick = self.tick;
        let expected = schedules.iter().map(|schedule| (*schedule, tick));
        self.expected.extend(expected);
        let now = (tick * INTERVAL + late).to_string();
        drop(self.crew.unread());
        self.crew.tell(&now);
        // Two schedules print one at least. At the first tick, the processes that aborted may have submitted that of one.
        let mut active = None;
        for _ in 0..self.crew.random.random_range(1..=2) {
            active = loop {
                if let Some((process, _)) = self.crew.line() {
                    break Some(process);
                }
            };
        }
        // A process that is about to submit a tick, or any.
        let active = active.filter(|_| self.crew.random.random_bool(0.5));
        self.crew.kill(active);
        self.kills += 1;
        self.crew.start(Role::Schedule, None).tell(&now);
        self.wait_for(schedules).await;
    }

    /// Waits until the last tick of these schedules was submitted. That a tick is lost is certain only after a long
    /// time. Polls: a process prints before it submits, and one that is killed after that neither prints nor notifies.
    async fn wait_for(&mut self, schedules: &[&'static str]) {
        let started = Instant::now();
        loop {
            let ticks = messages::<Tick>(&self.service).await;
            let is_there = |schedule: &&str| {
                let mut ticks = ticks.iter();
                ticks.any(|(_, tick)| tick.schedule == *schedule && tick.number == self.tick)
            };
            if schedules.iter().all(is_there) {
                return;
            }
            assert!(started.elapsed() < GUARD, "tick {} is lost", self.tick);
            let ended = self.crew.ended();
            assert_eq!(ended, None, "{:?}", self.crew.wrong);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Takes the messages off the queue.
    async fn take(&mut self) {
        for (_, Tick { schedule, number }) in take(&self.service).await {
            *self.submitted.entry((schedule, number)).or_default() += 1;
        }
    }

    fn judge(mut self) -> Result<TickFigures, Vec<String>> {
        for (schedule, tick) in &self.expected {
            let found = self.submitted.remove(&((*schedule).to_owned(), *tick));
            if found != Some(1) {
                let times = found.unwrap_or_default();
                let wrong = format!("{schedule}: tick {tick} was submitted {times} times");
                self.crew.wrong.push(wrong);
            }
        }
        for (schedule, tick) in self.submitted.keys() {
            let wrong = format!("{schedule}: tick {tick} was submitted, and was to be left out");
            self.crew.wrong.push(wrong);
        }
        let submitted = self.expected.len();
        let figures = TickFigures {
            submitted,
            missed: POLICIES.len() * self.tick as usize - submitted,
            kills: self.kills,
        };
        self.crew.judge(figures)
    }
}

impl fmt::Display for TickFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            submitted,
            missed,
            kills,
        } = self;
        write!(
            f,
            "{submitted} ticks submitted once, {missed} missed and left out, {kills} kills"
        )
    }
}
