//! An agent, its queue and its instances in simulated time.

use std::collections::VecDeque;

use super::*;

/// How many messages an instance has in flight, and how long each takes: two a second.
const IN_FLIGHT: usize = 4;
const HANDLER: u64 = 2;
/// Messages that an instance handles in a second.
pub(super) const RATE: f64 = IN_FLIGHT as f64 / HANDLER as f64;

pub(super) const START_UP: u64 = 20;
pub(super) const STOP: u64 = 5;
pub(super) const MOST: usize = 16;

/// How often the agent looks.
const INTERVAL: u64 = 5;

pub(super) struct Found {
    pub(super) messages: u64,
    /// The share of messages that were completed within the objective.
    pub(super) in_time: f64,
    pub(super) instance_hours: f64,
    pub(super) peak: usize,
    /// The number of instances at the end.
    pub(super) last: usize,
    /// How often the number was changed.
    pub(super) changes: usize,
}

struct Simulated {
    id: String,
    ready_at: u64,
    /// When each message in flight is completed, and when it arrived.
    in_flight: Vec<(u64, u64)>,
    handled: usize,
    stopped_at: Option<u64>,
}

impl Simulated {
    fn listed(&self, now: u64) -> Instance {
        let instance = Instance::running(&self.id);
        if self.has_ended(now) {
            let (success, how) = (true, "exit status: 0".to_owned());
            return Instance::ended(&self.id, Ended { success, how });
        }
        if now < self.ready_at {
            return instance;
        }
        instance.with_report(Report {
            in_flight: self.in_flight.len(),
            in_flight_limit: IN_FLIGHT,
            handled: self.handled,
            ..Report::default()
        })
    }

    fn has_ended(&self, now: u64) -> bool {
        self.stopped_at.is_some_and(|at| now >= at + STOP) && self.in_flight.is_empty()
    }
}

/// What is unusual about a run.
#[derive(Default)]
pub(super) struct Unusual {
    /// How long a message takes, in seconds, if not [`HANDLER`].
    pub(super) handler: Option<u64>,
    /// Messages that are delayed until the end, from this second on.
    pub(super) delayed: Option<(u64, usize)>,
    /// In each such second, one instance is missing its report.
    pub(super) misses: Option<u64>,
    /// Whether instances report.
    pub(super) is_mute: bool,
    /// When the run ends, if before all messages are completed.
    pub(super) until: Option<u64>,
}

/// Runs an agent until all of these messages are completed, and the instances have stopped.
pub(super) fn run(arrivals: &[u32], unusual: &Unusual) -> Found {
    let handler = unusual.handler.unwrap_or(HANDLER);
    let policy = InstanceTarget::new(0..=MOST, OBJECTIVE);
    let mut control = Control::new(
        Box::new(policy),
        Duration::from_secs(120),
        Duration::from_secs(60),
    );
    let mut queue: VecDeque<u64> = VecDeque::new();
    let mut instances: Vec<Simulated> = Vec::new();
    let (mut messages, mut in_time, mut cost, mut peak, mut started) = (0, 0, 0, 0, 0);
    let mut changes: Vec<(u64, bool)> = Vec::new();
    for now in 0.. {
        assert!(
            (now as usize) < arrivals.len() + 36_000,
            "it does not end: {:?}",
            control.wanted()
        );
        let arrived = arrivals.get(now as usize).copied().unwrap_or(0);
        messages += u64::from(arrived);
        queue.extend((0..arrived).map(|_| now));
        for instance in &mut instances {
            instance.in_flight.retain(|(until, arrived)| {
                let is_completed = *until <= now;
                if is_completed {
                    instance.handled += 1;
                    in_time += u64::from(now - arrived <= OBJECTIVE.as_secs());
                }
                !is_completed
            });
            let receives = now >= instance.ready_at && instance.stopped_at.is_none();
            while receives
                && instance.in_flight.len() < IN_FLIGHT
                && let Some(arrived) = queue.pop_front()
            {
                instance.in_flight.push((now + handler, arrived));
            }
        }
        if now % INTERVAL == 0 {
            let mut listed: Vec<_> = instances.iter().map(|one| one.listed(now)).collect();
            let misses = unusual.misses.is_some_and(|every| now % every == 0);
            let silent = if unusual.is_mute {
                listed.len()
            } else {
                usize::from(misses).min(listed.len())
            };
            for instance in &mut listed[..silent] {
                instance.report = None;
            }
            let delayed = unusual.delayed.filter(|(from, _)| now >= *from);
            let delayed = delayed.map_or(0, |(_, messages)| messages);
            let in_flight: usize = instances.iter().map(|one| one.in_flight.len()).sum();
            let oldest = queue
                .front()
                .map(|arrived| Duration::from_secs(now - arrived));
            let look = Look {
                at: Duration::from_secs(now),
                now: Timestamp::UNIX_EPOCH,
                queue: Some((queue.len() + in_flight + delayed, oldest)),
                is_paused: false,
                instances: &listed,
                are_local: false,
            };
            let step = control.decide(&look);
            for event in &step.events {
                if let AgentEventKind::Scaled { from, to, .. } = event {
                    let is_increase = to > from;
                    let reversal = changes
                        .iter()
                        .rev()
                        .find(|(_, other)| *other != is_increase);
                    if let Some((at, _)) = reversal {
                        assert!(now - at >= 120, "reversed after {} s", now - at);
                    }
                    changes.push((now, is_increase));
                }
            }
            instances.retain(|one| !one.has_ended(now));
            for id in &step.stops {
                let one = instances.iter_mut().find(|one| one.id == *id);
                one.expect("listed").stopped_at.get_or_insert(now);
            }
            for _ in 0..step.starts {
                started += 1;
                let id = started.to_string();
                control.started(look.at, id.clone());
                instances.push(Simulated {
                    id,
                    ready_at: now + START_UP,
                    in_flight: Vec::new(),
                    handled: 0,
                    stopped_at: None,
                });
            }
            if now as usize >= arrivals.len() && queue.is_empty() && instances.is_empty() {
                break;
            }
        }
        cost += instances.iter().filter(|one| !one.has_ended(now)).count() as u64;
        peak = peak.max(instances.len());
        if unusual.until == Some(now) {
            break;
        }
    }
    Found {
        last: instances.len(),
        messages,
        in_time: in_time as f64 / messages as f64,
        instance_hours: cost as f64 / 3600.0,
        peak,
        changes: changes.len(),
    }
}
