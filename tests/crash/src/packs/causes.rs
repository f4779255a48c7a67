//! Why messages of packs ran twice: each time by a documented cause.
//!
//! | marks | a message runs again after |
//! |---|---|
//! | beside the message | a run whose settlement was not acknowledged |
//! | in the header | an unacknowledged settlement; or a settlement since the last renewal of its pack, whose lease then ended; or a move in two steps of which the second was not made, or the first made twice |

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::history::Violation;
use crate::ledger::{Entry, Event, Lease};
use crate::messages::Receipt;

/// Where it is recorded which items of a pack are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marks {
    /// Beside the message, in the step that settles an item.
    Beside,
    /// In the header of the pack, with the next renewal of its lease.
    InHeader,
}

/// The causes of what ran twice, in runs; and how much there was to go wrong.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Causes {
    /// Items in packs that were received.
    pub opened: usize,
    /// Items that became messages of their own.
    pub moved: usize,
    /// Runs whose process was killed before it knew of the settlement.
    pub killed: usize,
    /// Runs whose settlement failed, as when the lease was lost or the handler took too long.
    pub unsettled: usize,
    /// Settled runs whose process was killed before the pack's next renewal.
    pub unmarked_killed: usize,
    /// Settled runs whose process lost the lease before the pack's next renewal.
    pub unmarked_lost: usize,
    /// Runs of one of several copies: the message was put again before its pack, its place before a move, or the message
    /// that it follows was settled.
    pub copied: usize,
}

/// Something that a process has recorded about a message.
#[derive(Clone, Copy)]
struct Fact {
    at: u64,
    process: u64,
    event: Event,
    lease: Lease,
}

impl Fact {
    /// Whether this fact is about the run's settlement.
    fn ends(&self, run: &Self) -> bool {
        self.process == run.process && self.lease == run.lease && self.at > run.at
    }
}

struct Judge<'a> {
    marks: Marks,
    /// Whether the message follows up one whose work was done more than once.
    has_copies: bool,
    killed: &'a BTreeSet<u64>,
    facts: Vec<Fact>,
}

/// Explains what ran twice, from the ledgers of processes by their numbers. `killed` are processes that were killed or
/// aborted.
///
/// # Errors
/// What has no documented cause.
pub fn explain(
    ledgers: &BTreeMap<u64, Vec<Entry>>,
    killed: &BTreeSet<u64>,
    marks: Marks,
) -> Result<Causes, Vec<Violation>> {
    let mut messages: BTreeMap<&str, Vec<Fact>> = BTreeMap::new();
    for (process, entries) in ledgers {
        for entry in entries {
            let facts = messages.entry(&entry.name).or_default();
            facts.push(Fact {
                at: entry.at,
                process: *process,
                event: entry.event,
                lease: entry.lease,
            });
        }
    }
    let runs = |facts: &Vec<Fact>| {
        let runs = facts.iter().filter(|fact| fact.event == Event::Finishing);
        runs.count()
    };
    let runs: BTreeMap<&str, usize> = messages
        .iter()
        .map(|(name, facts)| (*name, runs(facts)))
        .collect();
    let (mut causes, mut wrong) = (Causes::default(), Vec::new());
    for (name, mut facts) in messages {
        facts.sort_by_key(|fact| fact.at);
        let order = name.strip_prefix(Receipt::PREFIX);
        let judge = Judge {
            marks,
            has_copies: order.is_some_and(|order| runs[order] > 1),
            killed,
            facts,
        };
        let found = judge.wrong().into_iter().chain(judge.causes(&mut causes));
        wrong.extend(found.map(|what| Violation::Other(format!("{name} {what}: {judge:?}"))));
    }
    if wrong.is_empty() {
        Ok(causes)
    } else {
        Err(wrong)
    }
}

impl Judge<'_> {
    fn all(&self, event: Event) -> impl Iterator<Item = &Fact> {
        self.facts.iter().filter(move |fact| fact.event == event)
    }

    fn any(&self, event: Event, is: impl Fn(&Fact) -> bool) -> bool {
        self.all(event).any(is)
    }

    /// Acknowledged operations after which the item is not in this pack any more.
    fn done_in(&self, pack: Lease) -> impl Iterator<Item = &Fact> {
        let facts = self.facts.iter();
        facts.filter(move |fact| {
            let ends = matches!(fact.event, Event::Completed | Event::Moved);
            ends && fact.lease.inserted == pack.inserted
        })
    }

    /// When what was acknowledged was asked for, or somewhat earlier. A process may have been stopped between the
    /// request and the record of the answer, and others may have received the pack meanwhile.
    fn asked_at(&self, done: &Fact) -> u64 {
        let runs = self.all(Event::Finishing).filter(|run| done.ends(run));
        let asked = runs.map(|run| run.at).max();
        asked
            .filter(|_| done.event == Event::Completed)
            .unwrap_or(done.at)
    }

    fn wrong(&self) -> Option<&'static str> {
        // What is done when a renewal begins is in what that writes.
        let kept = self.all(Event::Kept).any(|kept| {
            let received = self.all(Event::Opened).filter(|opened| {
                opened.at < kept.at && opened.process == kept.process && opened.lease == kept.lease
            });
            let since = received.map(|opened| opened.at).max();
            self.done_in(kept.lease).any(|done| {
                // The answer to a move that was asked for in an earlier receive of the pack may come in this one.
                let is_of_receive = match done.event {
                    Event::Moved => done.lease == kept.lease,
                    _ => since < Some(self.asked_at(done)),
                };
                done.process == kept.process && is_of_receive && done.at < kept.at
            })
        });
        if kept {
            return Some("is missing in what was written to its pack");
        }
        // A process may have been stopped before it wrote that it had received the pack, and another received it since.
        let comes_back = self.all(Event::Opened).any(|opened| {
            let before = |fact: &Fact| fact.at < opened.at && fact.lease <= opened.lease;
            let of_pack = |marked: &Fact| marked.lease.inserted == opened.lease.inserted;
            self.any(Event::Marked, |marked| before(marked) && of_pack(marked))
                || self.marks == Marks::Beside && self.done_in(opened.lease).any(before)
        });
        if comes_back {
            return Some("is in its pack again after it was recorded to be gone");
        }
        let is_explained =
            self.marks == Marks::InHeader && (self.has_copies || self.left_in_two_steps());
        let twice = self.all(Event::Completed).any(|completed| {
            let again = |started: &Fact| {
                // A process that was stopped since an earlier receive cannot complete the message.
                let is_stale = started.lease < completed.lease
                    && !self.any(Event::Completed, |fact| fact.ends(started));
                // Copies that were redriven together were inserted at the same moment.
                let is_copy = self.has_copies || started.lease.inserted != completed.lease.inserted;
                started.at > completed.at && !is_stale && !(is_copy && is_explained)
            };
            self.any(Event::Started, again)
        });
        twice.then_some("ran after its completion was acknowledged")
    }

    /// Whether the pack was received again from which the item had gone, or a move of two steps was not finished, or
    /// made again because the process did not know of it.
    fn left_in_two_steps(&self) -> bool {
        let leaves = |fact: &&Fact| matches!(fact.event, Event::Completed | Event::Moving);
        self.facts.iter().filter(leaves).any(|left| {
            let left_at = self.asked_at(left);
            let again =
                |opened: &Fact| opened.at > left_at && opened.lease.inserted == left.lease.inserted;
            let unfinished = || {
                self.killed.contains(&left.process)
                    || self.any(Event::Unsettled, |fact| {
                        fact.process == left.process && fact.at > left.at
                    })
            };
            let same = |fact: &&Fact| {
                let moves = matches!(fact.event, Event::Moving | Event::Moved);
                moves && fact.process == left.process && fact.lease == left.lease
            };
            let repeated = || {
                let mut next = self.facts.iter().filter(same);
                let next = next.find(|fact| fact.at > left.at);
                next.is_some_and(|next| next.event == Event::Moving)
            };
            let is_move = left.event == Event::Moving;
            self.any(Event::Opened, again) || is_move && (unfinished() || repeated())
        })
    }

    /// Counts the causes of all runs but the one that counts: the last that was completed, if there is one. Returns what
    /// is wrong if a run has no cause.
    fn causes(&self, causes: &mut Causes) -> Option<&'static str> {
        causes.opened += self.all(Event::Opened).count();
        causes.moved += self.all(Event::Moved).count();
        let is_completed = |run: &&Fact| self.any(Event::Completed, |fact| fact.ends(run));
        let completed = self.all(Event::Finishing).filter(is_completed).last();
        let counts = completed.or(self.all(Event::Finishing).last())?;
        let repeated = self.all(Event::Finishing).filter(|run| run.at != counts.at);
        let mut wrong = None;
        for run in repeated {
            let of_run = |fact: &Fact| fact.ends(run);
            let is_killed = self.killed.contains(&run.process);
            let in_pack = |opened: &Fact| opened.lease.inserted == run.lease.inserted;
            let cause = if self.any(Event::Completed, of_run) {
                match (self.any(Event::Opened, in_pack), is_killed) {
                    (true, true) => &mut causes.unmarked_killed,
                    (true, false) => &mut causes.unmarked_lost,
                    (false, _) => &mut causes.copied,
                }
            } else if self.any(Event::Unsettled, of_run) {
                &mut causes.unsettled
            } else if is_killed {
                &mut causes.killed
            } else {
                wrong = Some("ran again without a cause");
                continue;
            };
            *cause += 1;
        }
        wrong
    }
}

impl fmt::Debug for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            at,
            process,
            event,
            lease,
        } = self;
        let Lease { inserted, dequeued } = lease;
        write!(
            f,
            "{at}: {event:?} by {process}, receive {inserted}/{dequeued}"
        )
    }
}

impl fmt::Debug for Judge<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.facts).finish()
    }
}

impl fmt::Display for Causes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            opened,
            moved,
            killed,
            unsettled,
            unmarked_killed,
            unmarked_lost,
            copied,
        } = self;
        write!(
            f,
            "{opened} items received in packs, {moved} became messages of their own; \
             ran again: {killed} killed before the settlement was known, {unsettled} not settled, \
             {unmarked_killed} killed and {unmarked_lost} lost the lease before the next renewal, {copied} copies"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Event::{Completed, Finishing, Kept, Marked, Moved, Moving, Opened, Started, Unsettled};

    /// The process, what it has recorded, and when the message or its pack was inserted.
    type Noted = (u64, Event, i64);

    /// Explains what process 1, which is killed, and process 2 have recorded of a message, one after the other.
    fn explained(marks: Marks, facts: &[Noted]) -> Result<Causes, String> {
        let once = facts
            .iter()
            .map(|(process, event, inserted)| (*process, *event, (*inserted, 1)));
        explained_of_receives(marks, once)
    }

    /// Like `explained`, with the number of the receive.
    fn explained_of_receives(
        marks: Marks,
        facts: impl IntoIterator<Item = (u64, Event, (i64, usize))>,
    ) -> Result<Causes, String> {
        let mut ledgers: BTreeMap<u64, Vec<Entry>> = BTreeMap::new();
        for (at, (process, event, (inserted, dequeued))) in (1..).zip(facts) {
            let entry = Entry {
                at,
                event,
                name: "a".to_owned(),
                lease: Lease { inserted, dequeued },
            };
            ledgers.entry(process).or_default().push(entry);
        }
        let explained = explain(&ledgers, &BTreeSet::from([1]), marks);
        explained.map_err(|violations| format!("{violations:?}"))
    }

    const RUN: [Noted; 3] = [(1, Opened, 1), (1, Started, 1), (1, Finishing, 1)];
    const AGAIN: [Noted; 4] = [
        (2, Moved, 1),
        (2, Started, 2),
        (2, Finishing, 2),
        (2, Completed, 2),
    ];

    #[test]
    fn what_ran_twice_has_a_cause() {
        let unsettled = [&RUN[..], &[(2, Opened, 1)], &AGAIN].concat();
        let causes = explained(Marks::Beside, &unsettled).expect("explained");
        assert_eq!((causes.killed, causes.moved), (1, 1));
        let unmarked = [&RUN[..], &[(1, Completed, 1), (2, Opened, 1)], &AGAIN].concat();
        let causes = explained(Marks::InHeader, &unmarked).expect("explained");
        assert_eq!(causes.unmarked_killed, 1);
        let beside = explained(Marks::Beside, &unmarked).expect_err("it was settled");
        assert!(beside.contains("in its pack again"), "{beside}");

        let by_other = |facts: &[Noted]| {
            let other = facts
                .iter()
                .map(|(_, event, inserted)| (2, *event, *inserted));
            explained(Marks::InHeader, &other.collect::<Vec<_>>())
        };
        let without = by_other(&unsettled).expect_err("nobody was killed");
        assert!(without.contains("without a cause"), "{without}");
        let unsettled = [&RUN[..], &[(1, Unsettled, 1), (1, Opened, 1)], &AGAIN].concat();
        assert_eq!(by_other(&unsettled).expect("explained").unsettled, 1);
    }

    #[test]
    fn each_broken_promise_is_found() {
        let broken: [(&str, &[Noted]); 4] = [
            (
                "is missing in what was written",
                &[(1, Completed, 1), (1, Kept, 1)],
            ),
            (
                "in its pack again",
                &[(1, Completed, 1), (1, Marked, 1), (2, Opened, 1)],
            ),
            (
                "ran after its completion",
                &[(1, Completed, 1), (2, Started, 2)],
            ),
            (
                "ran after its completion",
                &[(1, Completed, 1), (2, Opened, 1), (2, Started, 1)],
            ),
        ];
        for (what, facts) in broken {
            let found = explained(Marks::InHeader, &[&RUN, facts].concat());
            let found = found.expect_err(what);
            assert!(found.contains(what), "{found}");
        }
        let renewed = [&RUN[..], &[(1, Kept, 1), (1, Completed, 1), (1, Marked, 1)]].concat();
        explained(Marks::InHeader, &renewed).expect("done after the first renewal");
    }

    #[test]
    fn a_run_of_an_earlier_receive_may_begin_late_and_completes_nothing() {
        let late = [
            (1, Opened, 1),
            (2, Opened, 1),
            (2, Moved, 1),
            (2, Started, 2),
        ];
        let late = [
            &late[..],
            &[(2, Finishing, 2), (2, Completed, 2), (1, Started, 1)],
        ]
        .concat();
        explained(Marks::Beside, &late).expect("it was stopped");
        let both = [&late[..], &[(1, Finishing, 1), (1, Completed, 1)]].concat();
        let both = explained(Marks::Beside, &both).expect_err("it has completed it");
        assert!(both.contains("ran after its completion"), "{both}");
    }

    #[test]
    fn a_completion_may_be_recorded_after_its_pack_was_received_again() {
        let run = |process| [Started, Finishing].map(|event| (process, event, 1));
        let late = [
            &[(2, Opened, 1)],
            &run(2)[..],
            &[(1, Opened, 1), (2, Completed, 1)],
            &AGAIN.map(|(_, event, inserted)| (1, event, inserted)),
        ];
        let causes = explained(Marks::InHeader, &late.concat()).expect("its pack was not renewed");
        assert_eq!(causes.unmarked_lost, 1);
        let before = [
            &[(2, Opened, 1), (1, Opened, 1)],
            &run(2)[..],
            &[(2, Completed, 1), (1, Started, 2)],
        ];
        let before = explained(Marks::InHeader, &before.concat()).expect_err("not the last");
        assert!(before.contains("ran after its completion"), "{before}");
    }

    #[test]
    fn what_was_asked_for_in_an_earlier_receive_may_be_missing_in_what_is_written() {
        let written = |facts: &[(Event, usize)]| {
            let facts = [facts, &[(Kept, 2)]].concat();
            let facts = facts
                .into_iter()
                .map(|(event, dequeued)| (2, event, (1, dequeued)));
            explained_of_receives(Marks::InHeader, facts)
        };
        let earlier = [
            [(Moving, 1), (Opened, 2), (Moved, 1)],
            [(Finishing, 1), (Opened, 2), (Completed, 1)],
        ];
        for facts in earlier {
            written(&facts).expect("that receive is over");
        }
        let same = [
            [(Opened, 2), (Moving, 2), (Moved, 2)],
            [(Opened, 2), (Finishing, 1), (Completed, 1)],
        ];
        for facts in same {
            let missing = written(&facts).expect_err("it is of this receive");
            assert!(missing.contains("is missing"), "{missing}");
        }
    }

    #[test]
    fn a_move_in_two_steps_makes_copies_only_if_it_is_not_finished() {
        let moved = |process| {
            let run = |inserted| [Started, Finishing, Completed].map(|event| (2, event, inserted));
            explained(
                Marks::InHeader,
                &[&[(process, Moving, 3)][..], &run(4), &run(5)].concat(),
            )
        };
        assert_eq!(moved(1).expect("it was killed").copied, 1);
        let twice = moved(2).expect_err("it was not killed");
        assert!(twice.contains("ran after its completion"), "{twice}");
        let twice = |answered: &[Noted]| {
            let runs = [4, 5]
                .map(|inserted| [Started, Finishing, Completed].map(|event| (2, event, inserted)));
            let facts = [
                &[(2, Moving, 3)],
                answered,
                &[(2, Moving, 3), (2, Moved, 3)],
                &runs.concat(),
            ];
            explained(Marks::InHeader, &facts.concat())
        };
        assert_eq!(twice(&[]).expect("it was made twice").copied, 1);
        twice(&[(2, Moved, 3)]).expect_err("the answer was known");
    }
}
