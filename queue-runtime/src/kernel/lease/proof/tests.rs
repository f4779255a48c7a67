//! Compares [`Evidence::proof`] with every history of a small model: one message, the requests of this
//! consumer that got no answer, another consumer, and an expiry.

use std::collections::HashSet;

use super::*;

/// What may have happened up to the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct World {
    request: LastOp,
    distinct: bool,
    message: State,
    renewal: Sent,
    /// An earlier try of the request.
    same: Sent,
    other_delete: Sent,
    other_put_back: Sent,
    known_end_passed: bool,
    expiry_passed: bool,
    /// Whether the request was carried out.
    done: bool,
    /// Whether an unanswered settlement of another kind was carried out.
    other_done: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum State {
    /// Leased to us, with the receipt that we know.
    Held,
    /// Leased to us, with a receipt that we do not know.
    Renewed,
    /// Put back by us.
    PutBack,
    /// Received by another consumer, who may also have put it back.
    Theirs,
    Gone,
}

/// A request of ours that gets no answer. It may arrive late, or never.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Sent {
    Never,
    OnItsWay,
    Arrived,
}

impl World {
    fn start(request: LastOp, distinct: bool) -> Self {
        Self {
            request,
            distinct,
            message: State::Held,
            renewal: Sent::Never,
            same: Sent::Never,
            other_delete: Sent::Never,
            other_put_back: Sent::Never,
            known_end_passed: false,
            expiry_passed: false,
            done: false,
            other_done: false,
        }
    }

    /// The worlds that one more event leads to.
    fn next(self) -> Vec<Self> {
        let mut next = Vec::new();
        let mut event = |happens: bool, change: &dyn Fn(&mut Self)| {
            if happens {
                let mut world = self;
                change(&mut world);
                next.push(world);
            }
        };
        let held = self.message == State::Held;
        let deletes = self.request != LastOp::PutBack;
        let settled = if deletes { State::Gone } else { State::PutBack };
        event(self.renewal == Sent::Never, &|w| w.renewal = Sent::OnItsWay);
        event(self.same == Sent::Never, &|w| w.same = Sent::OnItsWay);
        event(self.other_delete == Sent::Never, &|w| {
            w.other_delete = Sent::OnItsWay;
        });
        event(self.other_put_back == Sent::Never, &|w| {
            w.other_put_back = Sent::OnItsWay;
        });
        // A request with a stale receipt has no effect.
        event(self.renewal == Sent::OnItsWay && held, &|w| {
            (w.renewal, w.message) = (Sent::Arrived, State::Renewed);
        });
        event(self.same == Sent::OnItsWay && held, &|w| {
            (w.same, w.message, w.done) = (Sent::Arrived, settled, true);
        });
        event(self.other_delete == Sent::OnItsWay && held, &|w| {
            (w.other_delete, w.message, w.other_done) = (Sent::Arrived, State::Gone, true);
        });
        event(self.other_put_back == Sent::OnItsWay && held, &|w| {
            (w.other_put_back, w.message, w.other_done) = (Sent::Arrived, State::PutBack, true);
        });
        event(true, &|w| w.known_end_passed = true);
        event(true, &|w| w.expiry_passed = true);
        let visible = match self.message {
            State::Held => self.known_end_passed,
            // A renewal may also shorten the lease.
            State::Renewed | State::PutBack => true,
            State::Theirs | State::Gone => false,
        };
        event(visible, &|w| w.message = State::Theirs);
        event(self.message == State::Theirs || self.expiry_passed, &|w| {
            w.message = State::Gone;
        });
        next
    }

    /// The request as the backend answers it with *gone*: the evidence for us, and the world after it.
    fn answers(self) -> Vec<(Evidence, Self)> {
        let (mut world, mut answers) = (self, vec![Gone::NotFound, Gone::Mismatch]);
        if self.message == State::Held {
            // It is carried out. If it arrives twice, the answer may be that to the second copy. This is told
            // only where no other explanation is left.
            let other = self.known_end_passed || self.expiry_passed || self.renewal != Sent::Never;
            if self.request != LastOp::Delete || other {
                return Vec::new();
            }
            (world.message, world.done) = (State::Gone, true);
            answers.retain(|answer| *answer == Gone::NotFound);
        }
        if self.distinct {
            let exists = world.message != State::Gone;
            answers.retain(|answer| (*answer == Gone::Mismatch) == exists);
        }
        let answers = answers.into_iter();
        answers
            .map(|answer| (self.evidence(answer), world))
            .collect()
    }

    fn evidence(&self, answer: Gone) -> Evidence {
        let others = [self.other_delete, self.other_put_back];
        Evidence {
            request: self.request,
            answer,
            stale_receipts: if self.distinct {
                StaleReceipts::Distinct
            } else {
                StaleReceipts::Ambiguous
            },
            earlier: if others.iter().any(|sent| *sent != Sent::Never) {
                Earlier::Other
            } else if self.same == Sent::Never {
                Earlier::Nothing
            } else {
                Earlier::Same
            },
            renewal_unanswered: self.renewal != Sent::Never,
            lease_may_have_ended: self.known_end_passed,
            may_have_expired: self.expiry_passed,
        }
    }
}

/// Every answer that a history of the model leads to, with the world after it.
fn histories() -> Vec<(Evidence, World)> {
    let mut seen = HashSet::new();
    let mut ahead: Vec<_> = REQUESTS
        .iter()
        .flat_map(|request| [true, false].map(|distinct| World::start(*request, distinct)))
        .collect();
    while let Some(world) = ahead.pop() {
        if seen.insert(world) {
            ahead.extend(world.next());
        }
    }
    seen.into_iter().flat_map(World::answers).collect()
}

const REQUESTS: [LastOp; 3] = [LastOp::Delete, LastOp::DeleteWithPuts, LastOp::PutBack];

fn every_evidence() -> Vec<Evidence> {
    let mut every = Vec::new();
    for request in REQUESTS {
        for answer in [Gone::NotFound, Gone::Mismatch] {
            for stale_receipts in [StaleReceipts::Distinct, StaleReceipts::Ambiguous] {
                for earlier in [Earlier::Nothing, Earlier::Same, Earlier::Other] {
                    for bits in 0..8 {
                        every.push(Evidence {
                            request,
                            answer,
                            stale_receipts,
                            earlier,
                            renewal_unanswered: bits & 1 != 0,
                            lease_may_have_ended: bits & 2 != 0,
                            may_have_expired: bits & 4 != 0,
                        });
                    }
                }
            }
        }
    }
    every
}

#[test]
fn a_proof_holds_in_every_history() {
    for (evidence, world) in histories() {
        let untouched = !world.done && !world.other_done;
        let holds = match evidence.proof() {
            Proof::CarriedOut => world.done,
            Proof::LeaseLost => untouched && matches!(world.message, State::Theirs | State::Gone),
            Proof::Expired => untouched && world.expiry_passed,
            Proof::NotCarriedOut => untouched,
            Proof::Nothing => true,
        };
        assert!(
            holds,
            "{evidence:?} proves {:?}, but {world:?}",
            evidence.proof()
        );
    }
}

/// Nothing is left unknown that the evidence tells, with two exceptions.
#[test]
fn nothing_is_proved_only_if_both_are_possible() {
    let histories = histories();
    for evidence in every_evidence() {
        let worlds = || histories.iter().filter(|(found, _)| *found == evidence);
        let mismatch = evidence.request != LastOp::PutBack && evidence.answer == Gone::Mismatch;
        let only_we = !evidence.lease_may_have_ended
            && !evidence.renewal_unanswered
            && !evidence.may_have_expired;
        let no_exception = evidence.earlier != Earlier::Other && !(mismatch && only_we);
        match evidence.proof() {
            Proof::Nothing if no_exception => {
                assert!(worlds().any(|(_, world)| world.done), "{evidence:?}");
                assert!(worlds().any(|(_, world)| !world.done), "{evidence:?}");
            }
            Proof::NotCarriedOut => {
                let renewed = |world: &World| world.message == State::Renewed;
                assert!(worlds().any(|(_, world)| renewed(world)), "{evidence:?}");
            }
            // An answer that cannot be is no success either.
            Proof::CarriedOut => assert!(worlds().next().is_some(), "{evidence:?}"),
            _ => {}
        }
    }
}

/// What the sources of this project promise in so many words.
#[test]
fn a_mismatch_never_proves_a_delete() {
    for evidence in every_evidence() {
        if evidence.answer == Gone::Mismatch && evidence.request != LastOp::PutBack {
            assert_ne!(evidence.proof(), Proof::CarriedOut, "{evidence:?}");
        }
    }
}

/// Every row of the table in the documentation, and no other.
#[test]
fn the_table_in_the_documentation_is_complete_and_true() {
    let settlements = [
        ("delete", LastOp::Delete),
        ("delete with follow-ups, atomic", LastOp::DeleteWithPuts),
        ("put-back", LastOp::PutBack),
    ];
    let circumstances = [
        ("", [false, false, false]),
        ("the known end has passed", [true, false, false]),
        ("a renewal is unanswered", [false, true, false]),
        ("the message may have expired", [false, false, true]),
    ];
    let answers = [
        (Gone::NotFound, StaleReceipts::Distinct),
        (Gone::Mismatch, StaleReceipts::Distinct),
        (Gone::NotFound, StaleReceipts::Ambiguous),
        (Gone::Mismatch, StaleReceipts::Ambiguous),
    ];
    let mut expected = Vec::new();
    for (settlement, request) in settlements {
        for (unanswered, earlier) in [("no", Earlier::Nothing), ("yes", Earlier::Same)] {
            for (circumstance, [ended, renewal, expired]) in circumstances {
                let cells = answers.map(|(answer, stale_receipts)| {
                    let evidence = Evidence {
                        request,
                        answer,
                        stale_receipts,
                        earlier,
                        renewal_unanswered: renewal,
                        lease_may_have_ended: ended,
                        may_have_expired: expired,
                    };
                    match evidence.proof() {
                        Proof::CarriedOut => "done",
                        Proof::LeaseLost => "lease lost",
                        Proof::Expired => "expired",
                        Proof::NotCarriedOut => "not done",
                        Proof::Nothing => "unknown",
                    }
                });
                let cells = cells.join(" | ");
                expected.push(format!(
                    "| {settlement} | {unanswered} | {circumstance} | {cells} |"
                ));
            }
        }
    }
    let documentation = include_str!("../../../../../docs/states.md");
    let mut found = documentation.lines();
    found.find(|line| line.starts_with("| settlement | unanswered before |"));
    let found: Vec<_> = found
        .skip(1)
        .take_while(|line| line.starts_with('|'))
        .collect();
    assert_eq!(
        found,
        expected,
        "the table should be\n{}",
        expected.join("\n")
    );
}
