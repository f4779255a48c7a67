//! The agent's decisions, without storage, processes or clock.
//!
//! ```text
//! look: depth, oldest, instances ─► measure ─► policy ─► within the range, no reversal ─► starts, stops, events
//! ```

use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;
use std::time::Duration;

use queue_runtime::Timestamp;
use queue_runtime::panic::catch;

use crate::agent::AgentEventKind;
use crate::instances::{Ended, Instance, Report};
use crate::measure::{Kind, Measure};
use crate::policy::{FleetLoad, InstancePolicy, Wanted};

/// The first pause before an instance that has died is replaced.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// The age from which the death of an instance is not one of a series.
const STABLE: Duration = Duration::from_secs(60);

/// The state of an agent.
#[derive(Debug)]
pub(crate) struct Control {
    policy: Box<dyn InstancePolicy>,
    /// How long the number of instances is not reduced after an increase, and the other way round.
    steady: Duration,
    /// The longest pause before an instance that has died is replaced.
    longest_pause: Duration,
    measure: Measure,
    tracked: HashMap<String, Tracked>,
    /// The number of instances that should run.
    wanted: Option<Wanted>,
    increased: Option<Duration>,
    reduced: Option<Duration>,
    /// Since when the queue has been empty at each look.
    empty_since: Option<Duration>,
    /// Deaths in a row.
    deaths: u32,
    /// Until when nothing is started, after a death.
    paused_until: Option<Duration>,
    start_up: StartUp,
    is_objective_broken: bool,
}

/// What is known of an instance.
#[derive(Debug)]
struct Tracked {
    /// `None` if the instance ran before this agent.
    started: Option<Duration>,
    has_reported: bool,
    is_stopping: bool,
    /// Whether the instance was asked to stop.
    is_asked: bool,
}

/// How long after its start an instance without a report may still be starting, besides the mean time of a start.
const STARTING: Duration = Duration::from_secs(60);

/// The mean time of a start.
#[derive(Debug, Default)]
struct StartUp {
    sum: Duration,
    starts: u32,
}

/// What an agent has seen.
#[derive(Debug)]
pub(crate) struct Look<'a> {
    /// When the agent looked, on the monotonic clock.
    pub(crate) at: Duration,
    /// The time of this machine.
    pub(crate) now: Timestamp,
    /// The number of messages that are stored, and the age of the first visible one if that is known. `None` if the queue
    /// could not be read.
    pub(crate) queue: Option<(usize, Option<Duration>)>,
    /// Whether the queue is paused for everybody, so that more instances would handle no more messages.
    pub(crate) is_paused: bool,
    pub(crate) instances: &'a [Instance],
    /// Whether the instances share the processors of this machine.
    pub(crate) are_local: bool,
}

/// What is to be done.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Step {
    pub(crate) starts: usize,
    pub(crate) stops: Vec<String>,
    pub(crate) events: Vec<AgentEventKind>,
    /// What the policy was asked, if anything.
    pub(crate) load: Option<FleetLoad>,
}

impl Control {
    pub(crate) fn new(
        policy: Box<dyn InstancePolicy>,
        steady: Duration,
        longest_pause: Duration,
    ) -> Self {
        Self {
            policy,
            steady,
            longest_pause,
            measure: Measure::default(),
            tracked: HashMap::new(),
            wanted: None,
            increased: None,
            reduced: None,
            empty_since: None,
            deaths: 0,
            paused_until: None,
            start_up: StartUp::default(),
            is_objective_broken: false,
        }
    }

    /// The number of instances that should run, and why. `None` before the first look.
    pub(crate) fn wanted(&self) -> Option<&Wanted> {
        self.wanted.as_ref()
    }

    /// Decides what to do after a look.
    pub(crate) fn decide(&mut self, look: &Look<'_>) -> Step {
        let mut step = Step::default();
        self.track(look, &mut step);
        self.objective(look, &mut step);
        let running = self.running(look);
        if let Some((stored, oldest)) = look.queue {
            let load = self.load(look, stored, oldest, running.len());
            self.scale(look, &load, &mut step);
            step.load = Some(load);
        }
        let wanted = match &self.wanted {
            Some(wanted) => wanted.instances,
            // The queue could not be read yet.
            None => return step,
        };
        if self.paused_until.is_none_or(|until| look.at >= until) {
            step.starts = wanted.saturating_sub(running.len());
        }
        let surplus = running.len().saturating_sub(wanted);
        step.stops.extend(running.into_iter().take(surplus));
        // Also stop instances that could not be asked before, or need a restart.
        let stopping = look.instances.iter().filter(|instance| {
            let is_stopping = |tracked: &Tracked| tracked.is_stopping && !tracked.is_asked;
            instance.ended.is_none() && self.tracked.get(&instance.id).is_some_and(is_stopping)
        });
        let again: Vec<_> = stopping.map(|instance| instance.id.clone()).collect();
        for id in &step.stops {
            self.stopping(id, &mut step.events);
        }
        step.stops.extend(again);
        step
    }

    /// Decides that all instances are to stop.
    pub(crate) fn stop_all(&mut self, at: Duration, instances: &[Instance]) -> Step {
        let mut step = Step::default();
        let known: Vec<_> = self.tracked.keys().cloned().collect();
        for id in known {
            self.stopping(&id, &mut step.events);
        }
        let look = Look {
            at,
            now: Timestamp::UNIX_EPOCH,
            queue: None,
            is_paused: false,
            instances,
            are_local: false,
        };
        self.track(&look, &mut step);
        let running = instances.iter().filter(|one| one.ended.is_none());
        for instance in running {
            self.stopping(&instance.id, &mut step.events);
            let tracked = self.tracked.get(&instance.id);
            if tracked.is_some_and(|tracked| !tracked.is_asked) {
                step.stops.push(instance.id.clone());
            }
        }
        step
    }

    /// Records that an instance was asked to stop.
    pub(crate) fn asked(&mut self, id: &str) {
        if let Some(tracked) = self.tracked.get_mut(id) {
            tracked.is_asked = true;
        }
    }

    /// Forgets all but what is known of the program, because another agent was at work meanwhile.
    pub(crate) fn begin_again(&mut self) {
        self.tracked.clear();
        (self.wanted, self.increased, self.reduced) = (None, None, None);
        (self.empty_since, self.paused_until, self.deaths) = (None, None, 0);
        self.measure.begin_again();
    }

    pub(crate) fn started(&mut self, at: Duration, id: String) -> AgentEventKind {
        let tracked = Tracked {
            started: Some(at),
            has_reported: false,
            is_stopping: false,
            is_asked: false,
        };
        self.tracked.insert(id.clone(), tracked);
        AgentEventKind::Started { id }
    }

    /// Records that an instance could not be started. Returns the pause before the next try.
    pub(crate) fn not_started(&mut self, at: Duration) -> Duration {
        self.pause(at, Duration::ZERO)
    }

    fn stopping(&mut self, id: &str, events: &mut Vec<AgentEventKind>) {
        if let Some(tracked) = self.tracked.get_mut(id)
            && !tracked.is_stopping
        {
            tracked.is_stopping = true;
            events.push(AgentEventKind::Stopping { id: id.to_owned() });
        }
    }

    /// Finds out which instances are new, have reported, and have ended.
    fn track(&mut self, look: &Look<'_>, step: &mut Step) {
        let mut alive = HashMap::new();
        for instance in look.instances {
            let known = self.tracked.remove(&instance.id);
            if let Some(ended) = &instance.ended {
                if let Some(tracked) = known {
                    let how = Some(ended.clone());
                    let event = self.ended(look.at, &instance.id, &tracked, how);
                    step.events.push(event);
                }
                continue;
            }
            let mut tracked = known.unwrap_or(Tracked {
                started: None,
                has_reported: false,
                is_stopping: false,
                is_asked: false,
            });
            if age(look.at, &tracked) >= STABLE && tracked.started.is_some() {
                self.deaths = 0;
            }
            if let Some(report) = &instance.report {
                if let Some(started) = tracked.started
                    && !tracked.has_reported
                {
                    self.start_up.sum += look.at.saturating_sub(started);
                    self.start_up.starts += 1;
                }
                tracked.has_reported = true;
                if let Some(why) = &report.needs_restart
                    && !tracked.is_stopping
                {
                    let (id, why) = (instance.id.clone(), why.clone());
                    tracked.is_stopping = true;
                    self.pause(look.at, age(look.at, &tracked));
                    step.events.push(AgentEventKind::Unhealthy { id, why });
                }
            }
            alive.insert(instance.id.clone(), tracked);
        }
        for (id, tracked) in std::mem::replace(&mut self.tracked, alive) {
            let event = self.ended(look.at, &id, &tracked, None);
            step.events.push(event);
        }
    }

    fn ended(
        &mut self,
        at: Duration,
        id: &str,
        tracked: &Tracked,
        ended: Option<Ended>,
    ) -> AgentEventKind {
        let id = id.to_owned();
        if tracked.is_stopping {
            return AgentEventKind::Stopped { id, ended };
        }
        let pause = self.pause(at, age(at, tracked));
        AgentEventKind::Died { id, ended, pause }
    }

    /// Begins the pause before a replacement for an instance that has died at this age.
    fn pause(&mut self, at: Duration, age: Duration) -> Duration {
        // Instances that die at the same time count once.
        let is_paused = self.paused_until.is_some_and(|until| at < until);
        if age < STABLE && !is_paused {
            self.deaths = self.deaths.saturating_add(1);
        }
        let pause = doubled(
            FIRST_PAUSE,
            self.deaths.saturating_sub(1),
            self.longest_pause,
        );
        self.paused_until = self.paused_until.max(Some(at.saturating_add(pause)));
        pause
    }

    /// Tells when the objective of an instance is broken, and when that of none is any more.
    fn objective(&mut self, look: &Look<'_>, step: &mut Step) {
        let mut reports = look.instances.iter().filter_map(|one| one.report.as_ref());
        let of = |report: &Report| report.is_objective_broken;
        let judged: Vec<_> = reports.by_ref().filter_map(of).collect();
        if judged.is_empty() {
            return;
        }
        let is_broken = judged.contains(&true);
        if is_broken != self.is_objective_broken {
            self.is_objective_broken = is_broken;
            step.events.push(if is_broken {
                AgentEventKind::ObjectiveBroken
            } else {
                AgentEventKind::ObjectiveKept
            });
        }
    }

    /// Returns the instances that run and are not stopping: those that are stopped first are first.
    fn running(&self, look: &Look<'_>) -> Vec<String> {
        let running = look.instances.iter().filter(|instance| {
            let stops = |tracked: &Tracked| tracked.is_stopping;
            instance.ended.is_none() && !self.tracked.get(&instance.id).is_some_and(stops)
        });
        let mut running: Vec<_> = running.collect();
        running.sort_by_key(|instance| {
            let in_flight = instance.report.as_ref().map(|report| report.in_flight);
            let started = self.tracked.get(&instance.id).and_then(|one| one.started);
            (in_flight, Reverse(started))
        });
        running.into_iter().map(|one| one.id.clone()).collect()
    }

    fn load(
        &mut self,
        look: &Look<'_>,
        stored: usize,
        oldest: Option<Duration>,
        running: usize,
    ) -> FleetLoad {
        let tracked = &self.tracked;
        let kind = |id: &str| match tracked.get(id) {
            Some(one) if one.is_stopping => Kind::Stopping,
            Some(one) if one.started.is_some() => Kind::Started,
            _ => Kind::Found,
        };
        let (instances, are_local) = (look.instances, look.are_local);
        let measure = &mut self.measure;
        let depth = measure.look(look.at, stored, instances, &kind, are_local);
        let reports = look.instances.iter().filter_map(|one| one.report.as_ref());
        // What is handled may be of a queue that was paused meanwhile, and does not count.
        let depth = depth.max(reports.map(|report| report.in_flight).sum());
        self.empty_since = match depth {
            0 => self.empty_since.or(Some(look.at)),
            _ => None,
        };
        let reports = look.instances.iter().filter_map(|one| one.report.as_ref());
        let in_flight = reports.filter_map(|report| report.oldest).max();
        let start_up = self.start_up.sum / self.start_up.starts.max(1);
        let starting = self.tracked.values().filter(|one| {
            let is_young = age(look.at, one) < start_up.saturating_add(STARTING);
            is_young && one.started.is_some() && !one.has_reported && !one.is_stopping
        });
        FleetLoad {
            now: look.now,
            depth,
            oldest: oldest.max(in_flight),
            instances: running,
            starting: starting.count(),
            rate: self.measure.rate(),
            arrivals: self.measure.arrivals(),
            start_up,
            wanted: self
                .wanted
                .as_ref()
                .map_or(running, |wanted| wanted.instances),
            processors: self.measure.processors(),
        }
    }

    /// Asks the policy, and changes the number that is wanted.
    fn scale(&mut self, look: &Look<'_>, load: &FleetLoad, step: &mut Step) {
        let at = look.at;
        let policy = &mut self.policy;
        let asked = catch(|| (policy.range().into_inner(), policy.instances(load)));
        let ((least, most), mut wanted) = match asked {
            Ok(asked) => asked,
            Err(panic) => {
                step.events.push(AgentEventKind::PolicyPanicked {
                    panic: panic.to_string(),
                });
                return;
            }
        };
        let from = load.wanted;
        let steady = |since: Option<Duration>| {
            let until = since?.saturating_add(self.steady);
            (at < until).then(|| (until - at).as_secs_f64().ceil())
        };
        let mut to = wanted.instances.min(most).max(least);
        if to != wanted.instances {
            wanted.why = format!("{}: {} would do", wanted.why, wanted.instances);
        }
        // While no instance runs, a message waits for a start.
        if to == 0
            && from > 0
            && let Some(left) = steady(self.empty_since.or(Some(at)))
        {
            to = 1;
            wanted.why = format!("{}; the last instance stops in {left} s", wanted.why);
        }
        if look.is_paused && to > from.max(least) {
            let why = wanted.why;
            wanted.why = format!("{why}; {to} would do, but the queue is paused");
            to = from.max(least);
        }
        let held = match to.cmp(&from) {
            Ordering::Greater => steady(self.reduced).map(|left| ("reduced", left)),
            Ordering::Less => steady(self.increased).map(|left| ("increased", left)),
            Ordering::Equal => None,
        };
        if let Some((what, left)) = held {
            let why = wanted.why;
            wanted.why = format!(
                "{why}; {to} would do, but the number was {what} before, and stays for {left} s"
            );
            to = from;
        }
        wanted.instances = to;
        if to != from {
            if to > from {
                self.increased = Some(at);
            } else {
                self.reduced = Some(at);
            }
            let why = wanted.why.clone();
            step.events.push(AgentEventKind::Scaled { from, to, why });
        }
        self.wanted = Some(wanted);
    }
}

/// Returns `base · 2^exponent`, or `cap` if that is greater or overflows.
fn doubled(base: Duration, exponent: u32, cap: Duration) -> Duration {
    1_u32
        .checked_shl(exponent)
        .and_then(|factor| base.checked_mul(factor))
        .map_or(cap, |d| d.min(cap))
}

fn age(at: Duration, tracked: &Tracked) -> Duration {
    match tracked.started {
        Some(started) => at.saturating_sub(started),
        None => STABLE,
    }
}

#[cfg(test)]
mod tests;
