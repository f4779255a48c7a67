//! Every interleaving of two owners of one key, over the transitions of `protocol`: each request is one step, and
//! between any two steps an owner may crash, lose an answer, be stopped while the other's clock runs on, or renew.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use bytes::Bytes;
use queue_core::idempotency::{Claim, ClaimOutcome, ClaimStatus, Owner};

use super::super::protocol::{
    Ask, Asked, Begin, ClaimObject, EndObject, NextStep, Seen, StoreAnswer, Watch, finish,
    finishing, renewing,
};

const TICK: Duration = Duration::from_secs(1);
/// The length of a lease, in ticks of an owner's clock.
const LEASE: u32 = 2;
/// Each owner's clock ticks this often while it waits for the other: enough to watch the leases of three generations
/// end, and another one that is renewed meanwhile.
const MAX_TICKS: u32 = 4 * LEASE + 2;

/// The objects of the key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Objects {
    claims: BTreeMap<u64, ClaimObject>,
    beats: BTreeMap<u64, u64>,
    ends: BTreeMap<u64, EndObject>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Phase {
    Beginning(Begin, Ask),
    /// Waits for the other, whose work is in flight.
    Waiting,
    Working(Claim),
    Renewing(Claim, Ask),
    Finishing(Claim, Ask),
    Finished,
    Lost,
    /// Has read the other's result.
    Read(Bytes),
    Crashed,
    /// Has waited for as long as the clock of this model runs.
    TimedOut,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Worker {
    owner: Owner,
    phase: Phase,
    watch: Option<Watch>,
    /// The owner's monotonic clock. The two clocks are not related.
    ticks: u32,
    effects: u32,
    beats_left: u32,
    answers_to_lose: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    objects: Objects,
    workers: [Worker; 2],
    crashes_left: u32,
}

impl Objects {
    fn serve(&mut self, ask: &Ask) -> StoreAnswer {
        match ask {
            Ask::List => {
                StoreAnswer::Listed(self.claims.last_key_value().map(|(&generation, _)| Seen {
                    generation,
                    beat: self.beats.get(&generation).copied().unwrap_or(0),
                    ended: self.ends.contains_key(&generation),
                }))
            }
            Ask::ReadClaim(generation) => StoreAnswer::Claim(self.claims.get(generation).cloned()),
            Ask::ReadEnd(generation) => StoreAnswer::End(self.ends.get(generation).cloned()),
            Ask::Create(generation, claim) => create(&mut self.claims, *generation, claim.clone()),
            Ask::End(generation, end) => create(&mut self.ends, *generation, end.clone()),
            Ask::Beat(generation, beat) => {
                let last = self.beats.entry(*generation).or_insert(0);
                if *last >= *beat {
                    return StoreAnswer::Exists;
                }
                *last = *beat;
                StoreAnswer::Created
            }
        }
    }

    fn results(&self) -> Vec<&Bytes> {
        let done = self.ends.values().filter_map(|end| match end {
            EndObject::Done { result, .. } => Some(result),
            EndObject::Over => None,
        });
        done.collect()
    }
}

fn create<T>(objects: &mut BTreeMap<u64, T>, generation: u64, object: T) -> StoreAnswer {
    if objects.contains_key(&generation) {
        return StoreAnswer::Exists;
    }
    objects.insert(generation, object);
    StoreAnswer::Created
}

impl Worker {
    fn new(number: u64, answers_to_lose: u32) -> Self {
        let owner = Owner::from_u64(number);
        let mut worker = Self {
            owner,
            phase: Phase::Waiting,
            watch: None,
            ticks: 0,
            effects: 0,
            beats_left: 1,
            answers_to_lose,
        };
        worker.begin();
        worker
    }

    fn begin(&mut self) {
        let begin = Begin::new(self.owner, TICK * LEASE);
        self.phase = Phase::Beginning(begin, Ask::List);
    }

    fn result(&self) -> Bytes {
        Bytes::from(self.owner.to_u64().to_string())
    }

    /// Takes the answer to the request of this phase.
    fn answer(&mut self, reply: StoreAnswer) {
        self.phase = match self.phase.clone() {
            Phase::Beginning(mut begin, ask) => {
                let now = TICK * self.ticks;
                let asked = Asked {
                    at: now,
                    answered_at: now,
                };
                match begin.answer(&ask, reply, asked, &mut self.watch) {
                    NextStep::Ask(ask) => Phase::Beginning(begin, ask),
                    NextStep::Finished(ClaimOutcome::Fresh(claim)) => Phase::Working(claim),
                    NextStep::Finished(ClaimOutcome::Done(result)) => Phase::Read(result),
                    NextStep::Finished(ClaimOutcome::InFlight { .. })
                        if self.ticks == MAX_TICKS =>
                    {
                        Phase::TimedOut
                    }
                    NextStep::Finished(ClaimOutcome::InFlight { .. }) => Phase::Waiting,
                }
            }
            Phase::Renewing(claim, _) => match renewing(claim, &reply) {
                NextStep::Ask(ask) => Phase::Renewing(claim, ask),
                NextStep::Finished(ClaimStatus::Held) => Phase::Working(claim),
                NextStep::Finished(ClaimStatus::Lost) => Phase::Lost,
            },
            Phase::Finishing(claim, _) => match finishing(claim, &reply) {
                NextStep::Ask(ask) => Phase::Finishing(claim, ask),
                NextStep::Finished(ClaimStatus::Held) => Phase::Finished,
                NextStep::Finished(ClaimStatus::Lost) => Phase::Lost,
            },
            phase => phase,
        };
    }

    /// Repeats the operation from its start, as after an answer that was lost.
    fn repeat(&mut self) {
        match self.phase.clone() {
            Phase::Beginning(..) => self.begin(),
            Phase::Renewing(claim, _) => self.phase = Phase::Renewing(claim, Ask::List),
            Phase::Finishing(claim, _) => {
                let ask = finish(claim, self.result(), Duration::MAX);
                self.phase = Phase::Finishing(claim, ask);
            }
            _ => {}
        }
    }
}

impl World {
    fn new(crashes: u32, answers_to_lose: u32) -> Self {
        Self {
            objects: Objects::default(),
            workers: [Worker::new(1, answers_to_lose), Worker::new(2, 0)],
            crashes_left: crashes,
        }
    }

    /// Every world that one step of one worker leads to.
    fn next(&self, crashes: bool) -> Vec<Self> {
        let mut worlds = Vec::new();
        for at in 0..2 {
            let mut with = |change: &dyn Fn(&mut Self, usize)| {
                let mut world = self.clone();
                change(&mut world, at);
                worlds.push(world);
            };
            let worker = &self.workers[at];
            match &worker.phase {
                Phase::Beginning(_, ask) | Phase::Renewing(_, ask) | Phase::Finishing(_, ask) => {
                    with(&|world, at| {
                        let reply = world.objects.serve(ask);
                        world.workers[at].answer(reply);
                    });
                    if worker.answers_to_lose > 0 {
                        with(&|world, at| {
                            world.objects.serve(ask);
                            world.workers[at].answers_to_lose -= 1;
                            world.workers[at].repeat();
                        });
                    }
                }
                Phase::Waiting => with(&|world, at| {
                    world.workers[at].ticks += 1;
                    world.workers[at].begin();
                }),
                Phase::Working(claim) => {
                    with(&|world, at| {
                        let worker = &mut world.workers[at];
                        worker.effects += 1;
                        let ask = finish(*claim, worker.result(), Duration::MAX);
                        worker.phase = Phase::Finishing(*claim, ask);
                    });
                    if worker.beats_left > 0 {
                        with(&|world, at| {
                            world.workers[at].beats_left -= 1;
                            world.workers[at].phase = Phase::Renewing(*claim, Ask::List);
                        });
                    }
                }
                Phase::Finished
                | Phase::Lost
                | Phase::Read(_)
                | Phase::Crashed
                | Phase::TimedOut => continue,
            }
            if crashes && self.crashes_left > 0 {
                with(&|world, at| {
                    world.crashes_left -= 1;
                    world.workers[at].phase = Phase::Crashed;
                });
            }
        }
        worlds
    }

    fn check(&self) {
        let results = self.objects.results();
        assert!(results.len() <= 1, "two results: {self:#?}");
        let finished = |worker: &&Worker| worker.phase == Phase::Finished;
        assert!(
            self.workers.iter().filter(finished).count() <= 1,
            "both have finished: {self:#?}"
        );
        for worker in &self.workers {
            match &worker.phase {
                Phase::Finished => assert_eq!(results, [&worker.result()], "{self:#?}"),
                Phase::Read(result) => assert_eq!(results, [result], "{self:#?}"),
                // All leases have been watched for long enough.
                Phase::TimedOut => panic!("nobody works, and it waits: {self:#?}"),
                _ => {}
            }
            assert!(worker.effects <= 1, "one try, one effect: {self:#?}");
        }
        let effects: u32 = self.workers.iter().map(|worker| worker.effects).sum();
        let stood_still = self.workers.iter().all(|worker| worker.ticks < LEASE);
        if stood_still {
            assert!(effects <= 1, "no lease has ended: {self:#?}");
        }
    }
}

/// Visits every world that can be reached, and returns those in which nothing is left to do.
fn explore(start: World, crashes: bool) -> Vec<World> {
    let mut known = HashSet::from([start.clone()]);
    let (mut left, mut ends) = (vec![start], Vec::new());
    while let Some(world) = left.pop() {
        world.check();
        let next = world.next(crashes);
        if next.is_empty() {
            ends.push(world);
            continue;
        }
        left.extend(next.into_iter().filter(|world| known.insert(world.clone())));
    }
    ends
}

#[test]
fn two_owners_with_unrelated_clocks_record_one_result() {
    let ends = explore(World::new(0, 0), false);
    for end in &ends {
        assert_eq!(end.objects.results().len(), 1, "{end:#?}");
    }
    let effects = |world: &World| {
        world
            .workers
            .iter()
            .map(|worker| worker.effects)
            .sum::<u32>()
    };
    // Also that the worst case is among them: one is stopped, and the other takes over.
    assert!(ends.iter().any(|end| effects(end) == 1));
    assert!(ends.iter().any(|end| effects(end) == 2));
}

#[test]
fn after_a_crash_anywhere_the_other_takes_over() {
    let ends = explore(World::new(1, 0), true);
    let crashed = |world: &&World| world.workers.iter().any(|w| w.phase == Phase::Crashed);
    let crashed: Vec<_> = ends.iter().filter(crashed).collect();
    // One whose claim was taken by the other, which then crashed, has to begin again; here it does not.
    let lost = |world: &World| world.workers.iter().any(|w| w.phase == Phase::Lost);
    let survived: Vec<_> = crashed.iter().filter(|world| !lost(world)).collect();
    assert!(!survived.is_empty());
    for end in survived {
        assert_eq!(end.objects.results().len(), 1, "{end:#?}");
    }
    // Crashes before, during and after the effect are all among them.
    let has = |effects: u32| {
        crashed.iter().any(|world| {
            let crashed = world.workers.iter().find(|w| w.phase == Phase::Crashed);
            crashed.is_some_and(|worker| worker.effects == effects)
        })
    };
    assert!(has(0) && has(1));
}

#[test]
fn an_operation_whose_answer_was_lost_may_be_repeated() {
    let ends = explore(World::new(0, 2), false);
    for end in &ends {
        assert_eq!(end.objects.results().len(), 1, "{end:#?}");
        let lost = end
            .workers
            .iter()
            .filter(|w| w.phase == Phase::Lost)
            .count();
        let ticked = end.workers.iter().any(|worker| worker.ticks >= LEASE);
        assert!(lost == 0 || ticked, "lost without a takeover: {end:#?}");
    }
}

#[test]
fn one_alone_never_waits_for_itself() {
    let mut world = World::new(0, 3);
    world.workers[1].phase = Phase::Crashed;
    let ends = explore(world, false);
    assert!(ends.iter().any(|end| end.workers[0].answers_to_lose == 0));
    for end in &ends {
        let alone = &end.workers[0];
        assert_eq!(
            (&alone.phase, alone.ticks),
            (&Phase::Finished, 0),
            "{end:#?}"
        );
    }
}

#[test]
fn a_lease_that_is_renewed_between_two_looks_never_ends() {
    let mut objects = Objects::default();
    let mut holder = Worker::new(1, 0);
    while !matches!(holder.phase, Phase::Working(_)) {
        step(&mut holder, &mut objects);
    }
    let Phase::Working(claim) = holder.phase else {
        unreachable!("the loop ends there")
    };
    let mut other = Worker::new(2, 0);
    for beat in 1..=20 {
        while matches!(other.phase, Phase::Beginning(..)) {
            step(&mut other, &mut objects);
        }
        assert_eq!(other.phase, Phase::Waiting, "after beat {beat}");
        holder.phase = Phase::Renewing(claim, Ask::List);
        while matches!(holder.phase, Phase::Renewing(..)) {
            step(&mut holder, &mut objects);
        }
        assert_eq!(holder.phase, Phase::Working(claim));
        // As long as it likes, as after a stop: what counts is what is seen then.
        other.begin();
    }
}

fn step(worker: &mut Worker, objects: &mut Objects) {
    let ask = match &worker.phase {
        Phase::Beginning(_, ask) | Phase::Renewing(_, ask) | Phase::Finishing(_, ask) => {
            ask.clone()
        }
        phase => unreachable!("{phase:?} asks nothing"),
    };
    let reply = objects.serve(&ask);
    worker.answer(reply);
}
