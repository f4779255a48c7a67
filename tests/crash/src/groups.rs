//! Processes that handle messages of groups are killed and stopped at random, and started anew after they have ended in
//! order. In the end, each message of a group must have been handled in its turn, or never more at once than the limit of
//! groups, and the history must have an entry of each.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use queue_core::backend::{Backend, GroupLimit};
use queue_runtime::service::{Browsed, HistoryEntry, HowEnded};
use queue_runtime::{Message, MessageId, QueueService};
use rand::RngExt as _;
use serde::{Deserialize, Serialize};

use crate::crew::Crew;
use crate::process::GUARD;
use crate::sabotage::Bug;
use crate::worker::{DATABASE, Role, open};

/// A message of a group.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, Message)]
#[message(
    kind = "crash.step",
    queue = "steps",
    visibility_timeout = "3s",
    history = 1_000_000
)]
pub struct Step {
    /// The group.
    #[message(group)]
    pub group: u32,
    /// The number of the message in its group.
    pub number: u32,
}

/// The groups, and how many messages of each are submitted at a time: with a limit, so few groups that many messages of
/// each could be handled at once.
const IN_ORDER: (u32, u32) = (1000, 4);
const IN_TURNS: (u32, u32) = (5, 800);

/// More messages are submitted when there are fewer.
const LOW: usize = 2_000;

/// How many processes handle messages.
const PROCESSES: usize = 4;

/// The largest number of messages that are handled between two kills.
const BETWEEN: usize = 120;

/// How long a process is stopped: two leases.
const STOP: Duration = Duration::from_secs(6);

/// Within this time of its beginning, a handler has its lease also on a machine that stands still for a while, in
/// nanoseconds.
const CERTAIN: u64 = 1_000_000_000;

/// What a run does, ending by count.
#[derive(Debug, Clone)]
pub struct Steps<'a> {
    /// The program of the processes.
    pub program: &'a Path,
    /// Seed of random choices.
    pub seed: u64,
    /// The number of processes that are killed.
    pub kills: usize,
    /// The planted bug.
    pub bug: Option<Bug>,
    /// The URL of the queues, if they are not in a file.
    pub url: Option<&'a str>,
    /// How many messages of a group may be leased at once; in order if this is `None`.
    pub limit: Option<NonZeroU32>,
}

/// What a run has done.
#[derive(Debug, Clone, Copy)]
pub struct StepFigures {
    /// Messages that were submitted, and handled in their turn.
    pub messages: u32,
    /// Handlers that ran.
    pub runs: usize,
    /// Handlers that were killed.
    pub killed: usize,
    /// Processes that ended in order, and were replaced.
    pub restarts: usize,
    /// Processes that were stopped for longer than their leases, and went on.
    pub stops: usize,
    /// The highest number of messages of a group that were leased at once, for certain.
    pub at_once: usize,
}

/// A handler that ran.
#[derive(Debug, Clone, Copy)]
struct Run {
    number: u32,
    begun: u64,
    /// `None` if the process was killed.
    ended: Option<u64>,
    /// Whether the process was stopped, or had just gone on: the lease may have ended before.
    is_late: bool,
}

/// The number of a process, and when it was stopped or had just gone on.
type Stop = (u64, RangeInclusive<u64>);

/// The handlers of each group, by fence number.
#[derive(Debug, Default)]
struct Runs(BTreeMap<u32, BTreeMap<u64, Vec<Run>>>);

impl Steps<'_> {
    /// Performs the run.
    ///
    /// # Errors
    /// All that is wrong in the end.
    ///
    /// # Panics
    /// If nothing happens for a long time.
    pub async fn run(&self) -> Result<StepFigures, Vec<String>> {
        let mut crew = Crew::new(self.program, self.seed);
        let service = self.connect(&crew).await;
        if let Some(url) = self.url {
            crew.environment.push((DATABASE, url.into()));
        }
        if let Some(limit) = self.limit {
            let queue = service.queue::<Step>().any();
            queue.create().await.expect("created");
            let set = queue.set_group_limit(GroupLimit::AtMost(limit)).await;
            set.expect("there are no messages");
        }
        let (mut submitted, mut restarts, mut steps) = (0, 0, BTreeMap::new());
        submitted += self.submit(&service, submitted, &mut steps).await;
        for _ in 0..PROCESSES {
            crew.start(Role::Groups, None);
        }
        for kill in 0..self.kills {
            let lines = crew.random.random_range(1..=BETWEEN);
            let mut handled = 0;
            if kill % 12 == 5 {
                crew.stop_any();
            }
            while handled < lines || crew.has_stopped() {
                handled += usize::from(crew.line().is_some());
                let more = async {
                    match left(&service).await {
                        0..LOW => self.submit(&service, submitted, &mut steps).await,
                        _ => 0,
                    }
                };
                submitted += crew.beside(STOP, more).await;
            }
            crew.kill_any();
            crew.start(Role::Groups, None);
            // A rolling restart: each ends in order, and another takes its place.
            if kill % 8 == 7 {
                for _ in 0..PROCESSES {
                    crew.end_first();
                    crew.start(Role::Groups, None);
                    restarts += 1;
                }
            }
        }
        let waiting = Instant::now();
        while left(&service).await > 0 {
            crew.line();
            assert!(waiting.elapsed() < GUARD, "messages are left behind");
        }
        crew.end(Role::Groups);
        let late = |(process, stop): &Stop| (*process, *stop.start()..=stop.end() + CERTAIN);
        let stops: Vec<_> = crew.stops.iter().map(late).collect();
        let runs = Runs::read(crew.folder(), &stops);
        let at_once = match self.limit {
            Some(limit) => runs.judge_limit(submitted, limit.get() as usize, &mut crew.wrong),
            None => runs.judge(submitted, &mut crew.wrong),
        };
        let entries = read_history(&service).await;
        judge_history(entries, steps, &runs.begun(), &mut crew.wrong);
        let all = || runs.0.values().flat_map(BTreeMap::values).flatten();
        let figures = StepFigures {
            messages: submitted * self.groups().0,
            runs: all().count(),
            killed: all().filter(|run| run.ended.is_none()).count(),
            restarts,
            stops: stops.len(),
            at_once,
        };
        drop(service);
        if self.url.is_some() {
            return if crew.wrong.is_empty() {
                Ok(figures)
            } else {
                Err(crew.wrong)
            };
        }
        crew.judge(figures)
    }

    /// How many groups there are, and how many messages of each are submitted at a time.
    fn groups(&self) -> (u32, u32) {
        match self.limit {
            None => IN_ORDER,
            Some(_) => IN_TURNS,
        }
    }

    /// Submits the next messages of each group, from this number on: in turn, or group by group if groups have a limit.
    /// Returns how many of each, and adds them by their ids.
    async fn submit(
        &self,
        service: &QueueService,
        from: u32,
        by_id: &mut BTreeMap<MessageId, Step>,
    ) -> u32 {
        let (groups, at_a_time) = self.groups();
        let step = |at| match self.limit {
            None => Step {
                group: at % groups,
                number: from + at / groups,
            },
            Some(_) => Step {
                group: at / at_a_time,
                number: from + at % at_a_time,
            },
        };
        let steps: Vec<Step> = (0..groups * at_a_time).map(step).collect();
        let submitted = service.submit_all(steps.clone()).await.expect("stored");
        by_id.extend(submitted.into_iter().map(|one| one.id).zip(steps));
        at_a_time
    }

    async fn connect(&self, crew: &Crew<'_>) -> QueueService {
        let backend: Arc<dyn Backend> = match self.url {
            Some(url) => queue_runtime::backend::connect(url)
                .await
                .expect("connected"),
            None => open(&crew.file(), self.bug).await,
        };
        let service = QueueService::with_backend(backend).connect().await;
        service.expect("connecting opens nothing")
    }
}

async fn left(service: &QueueService) -> usize {
    let queue = service.queue::<Step>().any();
    queue.properties().await.expect("read").approximate_count
}

/// Reads the whole history.
async fn read_history(service: &QueueService) -> Vec<HistoryEntry> {
    let history = service.queue::<Step>().any().history().expect("a name");
    let (mut entries, mut from) = (Vec::new(), None);
    loop {
        let page = history.browse(from.as_ref(), 256).await.expect("read");
        let of_page = page.messages.iter().map(Browsed::history);
        entries.extend(of_page.map(|entry| entry.expect("an entry")));
        from = page.next;
        if from.is_none() {
            return entries;
        }
    }
}

/// Checks that a history says of each message once that it was completed, after no fewer attempts than have `begun`, by
/// group and number.
fn judge_history(
    entries: Vec<HistoryEntry>,
    mut steps: BTreeMap<MessageId, Step>,
    begun: &BTreeMap<(u32, u32), usize>,
    wrong: &mut Vec<String>,
) {
    for entry in entries {
        let Some(step) = steps.remove(&entry.id) else {
            wrong.push(format!(
                "an entry of no message, or a second one: {entry:?}"
            ));
            continue;
        };
        let begun = begun.get(&(step.group, step.number)).copied();
        if entry.how != HowEnded::Completed || entry.attempts < begun.unwrap_or(0) {
            wrong.push(format!("{step:?} began {begun:?} times: {entry:?}"));
        }
    }
    if let Some((id, step)) = steps.first_key_value() {
        let missing = steps.len();
        wrong.push(format!(
            "{missing} messages have no entry, such as {id}, {step:?}"
        ));
    }
}

impl Runs {
    fn read(folder: &Path, stops: &[Stop]) -> Self {
        let mut runs = Self::default();
        for file in std::fs::read_dir(folder).expect("a folder") {
            let path = file.expect("a file").path();
            if path
                .extension()
                .is_some_and(|extension| extension == "runs")
            {
                // A line that was being written when its process was killed is incomplete, or missing.
                let log = std::fs::read_to_string(&path).expect("readable");
                let process = path.file_stem().and_then(|stem| stem.to_str());
                let process: u64 = process
                    .and_then(|stem| stem.parse().ok())
                    .expect("a number");
                let stops: Vec<_> = stops.iter().filter(|(of, _)| *of == process).collect();
                log.split_inclusive('\n')
                    .for_each(|line| runs.add(line, &stops));
            }
        }
        runs
    }

    fn add(&mut self, line: &str, stops: &[&Stop]) {
        let words: Vec<&str> = line.trim_end().split(' ').collect();
        let ([what, group, number, fence, at], true) = (&words[..], line.ends_with('\n')) else {
            return;
        };
        let parse = |word: &str| word.parse::<u64>().expect("a number");
        let (group, number) = (parse(group) as u32, parse(number) as u32);
        let runs = self
            .0
            .entry(group)
            .or_default()
            .entry(parse(fence))
            .or_default();
        match *what {
            "begin" => runs.push(Run {
                number,
                begun: parse(at),
                ended: None,
                is_late: stops.iter().any(|(_, stop)| stop.contains(&parse(at))),
            }),
            _ => {
                let run = runs.iter_mut().find(|run| run.number == number);
                run.expect("it has begun").ended = Some(parse(at));
            }
        }
    }

    /// Returns how often the handler of each message began, by group and number.
    fn begun(&self) -> BTreeMap<(u32, u32), usize> {
        let mut begun = BTreeMap::new();
        for (group, runs) in &self.0 {
            for run in runs.values().flatten() {
                *begun.entry((*group, run.number)).or_default() += 1;
            }
        }
        begun
    }

    /// Checks how many handlers of each group ran at once, and that each message was handled. Returns the highest number.
    fn judge_limit(&self, submitted: u32, limit: usize, wrong: &mut Vec<String>) -> usize {
        let mut most = 0;
        for group in 0..IN_TURNS.0 {
            let of_group = self.0.get(&group).into_iter().flatten();
            let mut runs: Vec<Run> = of_group.flat_map(|(_, runs)| runs).copied().collect();
            runs.sort_by_key(|run| run.begun);
            for (at, run) in runs.iter().enumerate() {
                // A process that was killed has not given its lease back.
                let is_leased = |other: &&Run| {
                    let is_certain = !other.is_late && run.begun < other.begun + CERTAIN;
                    is_certain && other.ended.is_none_or(|ended| run.begun < ended)
                };
                let at_once = runs[..=at].iter().filter(is_leased).count();
                if at_once > limit {
                    wrong.push(format!("group {group}: {at_once} at once: {run:?}"));
                }
                most = most.max(at_once);
            }
            let handled: BTreeSet<u32> = runs.iter().map(|run| run.number).collect();
            if handled != (0..submitted).collect() {
                let handled = handled.len();
                wrong.push(format!(
                    "group {group}: {handled} of {submitted} messages were handled"
                ));
            }
        }
        most
    }

    /// Checks the handlers of each group, in the order of their leases. Returns how many there were at once.
    fn judge(&self, submitted: u32, wrong: &mut Vec<String>) -> usize {
        for group in 0..IN_ORDER.0 {
            let (mut last, mut next): (Option<Run>, u32) = (None, 0);
            let of_group = self.0.get(&group).into_iter().flatten();
            for (fence, runs) in of_group {
                let mut note = |what: &str, run: &Run| {
                    wrong.push(format!(
                        "{what}: group {group}, fence {fence}, {run:?} after {last:?}"
                    ));
                };
                let [run] = runs[..] else {
                    note("a fence number was given twice", &runs[0]);
                    continue;
                };
                if run.number > next {
                    note("out of order", &run);
                } else if run.number + 1 < next {
                    note("handled again after the next one", &run);
                }
                if let Some(Run { begun, ended, .. }) = last.filter(|last| !last.is_late) {
                    let is_certain = run.begun < begun + CERTAIN;
                    if run.begun < begun || is_certain && ended.is_some_and(|end| run.begun < end) {
                        note("two at a time", &run);
                    }
                }
                next = next.max(run.number + 1);
                last = Some(run);
            }
            if next != submitted {
                wrong.push(format!(
                    "group {group}: {next} of {submitted} messages were handled"
                ));
            }
        }
        1
    }
}

impl fmt::Display for StepFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            messages,
            runs,
            killed,
            restarts,
            stops,
            at_once,
        } = self;
        write!(
            f,
            "{messages} messages, {runs} runs, {killed} of them killed, {restarts} restarts, {stops} stops, at most {at_once} at once"
        )
    }
}

#[cfg(test)]
mod tests {
    use queue_runtime::{Delivery, testing};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn entries_that_are_missing_or_wrong_are_detected() {
        let service = testing::service().await;
        let mut steps = BTreeMap::new();
        for number in 0..3 {
            let step = Step { group: 0, number };
            steps.insert(service.submit(step).await.expect("submitted").id, step);
            let delivery: Option<Delivery<Step>> = service.accept().await.expect("accepted");
            let completed = delivery.expect("a step").complete().await;
            completed.expect("completed");
        }
        let entries = read_history(&service).await;
        let found = |entries: Vec<HistoryEntry>, begun: usize| {
            let mut wrong = Vec::new();
            let begun = BTreeMap::from([((0, 1), begun)]);
            judge_history(entries, steps.clone(), &begun, &mut wrong);
            wrong.join("; ")
        };
        assert_eq!(found(entries.clone(), 1), "");
        assert!(found(entries.clone(), 2).contains("began Some(2) times"));
        assert!(found(entries[1..].to_vec(), 1).starts_with("1 messages have no entry"));
        let twice = [&entries[..], &entries[..1]].concat();
        assert!(found(twice, 1).contains("or a second one"));
    }
}
