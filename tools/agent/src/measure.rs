//! What an agent measures from one look to the next: how many messages arrive, and how many an instance handles.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::instances::{Instance, Report};

/// The number of looks over which arrivals are judged: by their median, so that messages that arrive all at once are not
/// taken for the first of many.
const ARRIVALS: usize = 7;

/// The time over which an instance's rate is averaged: longer than for arrivals, as it is a property of the program.
const RATE: f64 = 300.0;

/// The number of attempts from which their rate says something, and the number from which older attempts count less.
const ENOUGH: f64 = 3.0;
const MANY: f64 = 20.0;

/// The time of a busy instance, in seconds, after which it says something that fewer attempts have ended.
const LONG: f64 = 30.0;

/// The figures so far, and the last look.
#[derive(Debug, Default)]
pub(crate) struct Measure {
    last: Option<Look>,
    /// The last looks' arrivals in a second.
    arrivals: VecDeque<f64>,
    /// Attempts that ended while there was a backlog, and the time that instances with all room full took for them, in
    /// seconds.
    ended: f64,
    busy: f64,
    processors: Option<f64>,
    /// The mean number of messages that are stored as one, as was reported last.
    packed: f64,
}

#[derive(Debug)]
struct Look {
    at: Duration,
    depth: f64,
    /// Whether messages waited that no instance had received.
    has_backlog: bool,
    /// The last report of each instance that is there, also if it was missing at this look.
    reports: HashMap<String, Report>,
}

impl Measure {
    /// Records a look. Returns the number of messages on the queue, with those in packs.
    pub(crate) fn look(
        &mut self,
        at: Duration,
        stored: usize,
        instances: &[Instance],
        of: &dyn Fn(&str) -> Kind,
        are_local: bool,
    ) -> usize {
        let before = self.last.take();
        let living = instances.iter().filter(|one| one.ended.is_none());
        let reports = living.filter_map(|instance| {
            let id = &instance.id;
            let known = before.as_ref().and_then(|last| last.reports.get(id));
            Some((id.clone(), instance.report.as_ref().or(known)?.clone()))
        });
        let reports: HashMap<_, _> = reports.collect();
        // An instance that has handled nothing has hardly seen a pack.
        let seen = reports.values().filter(|one| one.handled > 0);
        let packed: Vec<_> = seen.map(|one| one.packed).collect();
        if !packed.is_empty() {
            self.packed = packed.iter().sum::<f64>() / packed.len() as f64;
        }
        let depth = stored as f64 * self.packed.max(1.0);
        let in_flight: usize = reports.values().map(|one| one.in_flight).sum();
        let now = Look {
            at,
            depth,
            has_backlog: depth > in_flight as f64,
            reports,
        };
        if let Some(last) = before {
            self.compare(&last, &now, of, are_local);
        }
        self.last = Some(now);
        depth.round() as usize
    }

    /// Forgets the last look.
    pub(crate) fn begin_again(&mut self) {
        self.last = None;
        self.arrivals.clear();
    }

    fn compare(&mut self, last: &Look, now: &Look, of: &dyn Fn(&str) -> Kind, are_local: bool) {
        let passed = now.at.saturating_sub(last.at).as_secs_f64();
        if passed <= 0.0 {
            return;
        }
        let nothing = Report::default();
        let (mut handled, mut ended, mut busy, mut used) = (0, 0, 0.0, 0.0);
        for (id, report) in &now.reports {
            let kind = of(id);
            let before = match last.reports.get(id) {
                Some(before) => before,
                None if kind == Kind::Started => &nothing,
                None => continue,
            };
            let since = report.handled.saturating_sub(before.handled);
            handled += since;
            let times = report.processor_time.zip(before.processor_time);
            used += times.map_or(0.0, |(now, before)| {
                now.saturating_sub(before).as_secs_f64()
            });
            // An instance that has room, or is stopping, could handle more.
            let is_full = |report: &Report| {
                let as_a_whole = is_full(report.in_flight, report.in_flight_limit);
                report.is_full.unwrap_or(as_a_whole)
            };
            if kind != Kind::Stopping && is_full(before) && is_full(report) {
                ended += since + report.retried.saturating_sub(before.retried);
                busy += passed;
            }
        }
        let arrived = (now.depth - last.depth + handled as f64).max(0.0) / passed;
        self.arrivals.push_back(arrived);
        if self.arrivals.len() > ARRIVALS {
            self.arrivals.pop_front();
        }
        if last.has_backlog && now.has_backlog {
            if self.ended > MANY {
                let kept = (-passed / RATE).exp();
                (self.ended, self.busy) = (self.ended * kept, self.busy * kept);
            }
            self.ended += ended as f64;
            self.busy += busy;
        }
        let processors = std::thread::available_parallelism().map_or(1.0, |n| n.get() as f64);
        let share = (used / passed / processors).clamp(0.0, 1.0);
        self.processors = (are_local && used > 0.0).then_some(share);
    }

    /// Messages that arrive in a second, beyond what instances that do not report have handled.
    pub(crate) fn arrivals(&self) -> Option<f64> {
        let mut sorted: Vec<_> = self.arrivals.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied()
    }

    /// Attempts that an instance ends in a second, or an upper bound if hardly any has ended for long.
    pub(crate) fn rate(&self) -> Option<f64> {
        if self.ended >= ENOUGH {
            Some(self.ended / self.busy.max(f64::MIN_POSITIVE))
        } else {
            (self.busy > LONG).then(|| (self.ended + 1.0) / self.busy)
        }
    }

    /// The share of the machine's processors that the instances use.
    pub(crate) fn processors(&self) -> Option<f64> {
        self.processors
    }
}

/// Whether who has so many messages in flight has hardly room for more.
pub(crate) fn is_full(in_flight: usize, limit: usize) -> bool {
    in_flight * 2 > limit
}

/// What an agent knows of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// This agent has started the instance, so that it began with nothing.
    Started,
    /// The instance ran before this agent.
    Found,
    Stopping,
}
