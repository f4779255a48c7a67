//! Every history of a small world, over the transitions of [`Machine`]: one message, the requests of this consumer,
//! another consumer, and a backend whose requests and answers may be lost, late or delivered twice. A settlement, the
//! end of the owner and a stop of the process may come at any moment.
//!
//! Time is in quarters of a visibility timeout. What is due between two quarters happens at the later one.

use std::collections::{BTreeSet, HashSet, VecDeque};

use super::*;
use crate::kernel::lease::unanswered::Purpose;

mod consumer;
mod tests;

/// A quarter of the visibility timeout, as long as the margin, so that all leases end at whole ticks.
const TICK: Duration = MARGIN;
const VISIBILITY: u32 = 4;
/// How long the process is stopped.
const STOP: u32 = 6;
/// How much later a lease can end by renewals without an answer: the last is sent a quarter before the end, given up
/// after half a visibility timeout, and may have been carried out just then.
const LONGEST_DOUBT: u32 = VISIBILITY / 2 + VISIBILITY - 1;

/// What is the same throughout a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Scene {
    distinct: bool,
    /// When the backend carried out the receive, which was sent at 0 and answered at 1.
    received_at: u32,
    life: Option<u32>,
    renew_until: u32,
    /// When the histories end.
    end: u32,
    /// How often something goes wrong at most.
    faults: u32,
    /// How often a settlement is requested at most.
    calls: u32,
    bug: Option<Bug>,
}

/// A fault that is planted in the transitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Bug {
    CertainEndStays,
    StaleReceiptProvesLoss,
    RenewsInVain,
    DoubtStays,
    RenewsAfterTheEnd,
    RepeatsAtOnce,
    GoneIsSettled,
    KnownEndFromTheAnswer,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    scene: Scene,
    now: u32,
    /// Until when the process is stopped.
    stopped_until: u32,

    // The backend.
    message: Message,
    visible_at: u32,
    /// Requests that were given up, with the receipt that we know, and may still arrive.
    late: Vec<Request>,
    /// Whether a settlement was carried out.
    done: bool,
    /// Whether a renewal was carried out after it was given up, or a request arrived twice and the answer was that to
    /// the second.
    stray: bool,

    // This consumer.
    machine: Machine,
    check_at: Option<u32>,
    checks_now: u32,
    /// The request whose turn it is.
    sent: Option<Sent>,
    /// The settlement whose turn it is, and when it was tried last.
    settling: Option<(Kind, u32)>,
    report: Report,
    /// Whether the owner has dropped the lease.
    dropped: bool,
    last_renewal: Option<u32>,
    /// The certain end of the last lease that was confirmed.
    confirmed_end: u32,
    /// Whether a request has had no answer since the last confirmed lease.
    doubt: bool,

    stopped: bool,

    /// How often something may still go wrong.
    faults: u32,
    /// How often a settlement may still be requested.
    calls: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Message {
    Ours(Receipt),
    /// Put back by us, and visible.
    PutBack,
    Theirs,
    Gone,
}

/// What this consumer knows of the receipt of the lease that it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Receipt {
    Known,
    /// The receipt is in a renewal's answer.
    InAnswer,
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Request {
    Renew(Renewal),
    Settle(Kind),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Delete,
    PutBack,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Sent {
    request: Request,
    /// When the request is given up, if it is a renewal.
    until: Option<u32>,
    /// Set once the request has arrived.
    answer: Option<Answer>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Answer {
    Done,
    Gone(Gone),
    Temporary,
    Permanent,
}

/// What the last settlement returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Report {
    Nothing,
    Settled,
    NotDone,
    Unknown,
}

/// The transitions that were taken: state, event and next state.
type Taken = BTreeSet<(&'static str, &'static str, &'static str)>;

/// The world after an event, or what is wrong with it.
type Checked = Result<World, (&'static str, Box<World>)>;

impl World {
    fn start(scene: Scene) -> Self {
        let life = |from: u32| scene.life.map_or(Duration::MAX, |life| at(from + life));
        let receive = Receive {
            asked_at: at(0),
            answered_at: at(1),
            visibility: at(VISIBILITY),
            renewal: at(VISIBILITY),
        };
        let expiry = Expiry {
            known: life(0),
            certain: life(1).saturating_add(MARGIN),
        };
        let machine = Machine::new(receive, at(scene.renew_until), expiry);
        Self {
            scene,
            now: 1,
            stopped_until: 0,
            message: Message::Ours(Receipt::Known),
            visible_at: scene.received_at + VISIBILITY,
            late: Vec::new(),
            done: false,
            stray: false,
            check_at: Some(ticks(machine.renew_at())),
            machine,
            checks_now: 0,
            sent: None,
            settling: None,
            report: Report::Nothing,
            dropped: false,
            last_renewal: None,
            confirmed_end: 1 + VISIBILITY,
            doubt: false,
            stopped: false,
            faults: scene.faults,
            calls: scene.calls,
        }
    }

    /// The worlds that one more event leads to, with the event.
    fn next(&self, taken: &mut Taken) -> Vec<(&'static str, Checked)> {
        let mut next = Vec::new();
        let mut event = |name, happens: bool, change: &mut dyn FnMut(&mut Self) -> Verdict| {
            if happens {
                let mut world = self.clone();
                let verdict = change(&mut world).and_then(|()| world.verdict());
                next.push((
                    name,
                    match verdict {
                        Ok(()) => Ok(world),
                        Err(wrong) => Err((wrong, Box::new(world))),
                    },
                ));
            }
        };
        // The backend and the other consumer.
        let free = matches!(self.message, Message::Ours(_) | Message::PutBack);
        let visible = free && self.exists() && self.now >= self.visible_at;
        event("another receives it", visible, &mut |w| {
            w.leaves_us(Message::Theirs)
        });
        let theirs = self.message == Message::Theirs;
        event("another deletes it", theirs, &mut |w| {
            w.leaves_us(Message::Gone)
        });
        for (index, request) in self.late.iter().enumerate() {
            event("a late request arrives", true, &mut |w| {
                w.late.remove(index);
                w.stray |= matches!(request, Request::Renew(_));
                w.carry_out(*request, Receipt::Unknown);
                Ok(())
            });
        }
        if let Some(Sent {
            request,
            answer: None,
            ..
        }) = self.sent
        {
            for answer in self.answers(request) {
                event("the request arrives", true, &mut |w| {
                    if answer == Answer::Done {
                        w.carry_out(request, Receipt::InAnswer);
                    }
                    w.answer(answer)
                });
            }
            let refused = self.faults > 0 && self.valid();
            for answer in [Answer::Temporary, Answer::Permanent] {
                event("the request is refused", refused, &mut |w| {
                    w.faults -= 1;
                    w.answer(answer)
                });
            }
            let twice = self.faults > 0 && self.valid();
            let twice = twice && request != Request::Settle(Kind::PutBack);
            event("the request arrives twice", twice, &mut |w| {
                w.faults -= 1;
                w.stray = true;
                w.carry_out(request, Receipt::Unknown);
                w.answer(Answer::Gone(match request {
                    Request::Renew(_) => Gone::Mismatch,
                    Request::Settle(_) => Gone::NotFound,
                }))
            });
        }
        // This consumer.
        let awake = self.now >= self.stopped_until;
        let turn = self.sent.is_none() && self.settling.is_none();
        let due = |at: Option<u32>| at.is_some_and(|at| at <= self.now);
        let check = awake && turn && due(self.check_at);
        event("the lease is checked", check, &mut |w| w.check(taken));
        if let Some(sent) = self.sent {
            let answered = awake && sent.answer.is_some();
            event("the answer arrives", answered, &mut |w| w.answered(taken));
            let lost = awake && self.faults > 0;
            event("no answer arrives", lost, &mut |w| {
                w.faults -= 1;
                w.unanswered(taken)
            });
        }
        let calls = awake && turn && !self.dropped && self.calls > 0;
        for kind in [Kind::Delete, Kind::PutBack] {
            event("a settlement is requested", calls, &mut |w| {
                w.calls -= 1;
                w.report = Report::Nothing;
                w.try_to_settle(kind, taken)
            });
        }
        if let (Some((kind, tried_at)), None) = (self.settling, self.sent) {
            let again = awake && tried_at < self.now;
            event("the settlement is repeated", again, &mut |w| {
                w.try_to_settle(kind, taken)
            });
            event("the settlement is given up", awake, &mut |w| {
                w.give_up(kind);
                Ok(())
            });
        }
        event(
            "the lease is dropped",
            awake && self.settling.is_none() && !self.dropped,
            &mut |w| {
                w.dropped = true;
                w.machine.abandon();
                taken.insert((self.state(), "the lease is dropped", w.state()));
                Ok(())
            },
        );
        event(
            "the process is stopped",
            awake && self.faults > 0,
            &mut |w| {
                w.faults -= 1;
                w.stopped = true;
                w.stopped_until = w.now + STOP;
                Ok(())
            },
        );
        let overdue = check || awake && due(self.sent.and_then(|sent| sent.until));
        let held = self.machine.is_held() && !self.dropped;
        let goes_on = held || !turn || self.check_at.is_some();
        event(
            "time passes",
            self.now < self.scene.end && !overdue && goes_on,
            &mut |w| {
                w.now += 1;
                w.checks_now = 0;
                Ok(())
            },
        );
        next
    }

    fn exists(&self) -> bool {
        let life = self.scene.life;
        let expired = life.is_some_and(|life| self.now >= self.scene.received_at + life);
        self.message != Message::Gone && !expired
    }

    /// Whether a request with the receipt that we know would be carried out.
    fn valid(&self) -> bool {
        self.message == Message::Ours(Receipt::Known) && self.exists()
    }

    /// When our lease really ends.
    fn true_end(&self) -> u32 {
        let expiry = self.scene.life.map(|life| self.scene.received_at + life);
        self.visible_at.min(expiry.unwrap_or(u32::MAX))
    }

    fn leaves_us(&mut self, message: Message) -> Verdict {
        self.message = message;
        self.late.clear();
        Ok(())
    }

    /// The answers that do not refuse the request.
    fn answers(&self, request: Request) -> Vec<Answer> {
        if self.valid() {
            return vec![Answer::Done];
        }
        let mut answers = vec![Gone::NotFound, Gone::Mismatch];
        if self.scene.distinct {
            answers.retain(|answer| (*answer == Gone::Mismatch) == self.exists());
        } else if matches!(request, Request::Renew(_)) {
            answers.truncate(1);
        }
        answers.into_iter().map(Answer::Gone).collect()
    }

    /// Carries out a request whose receipt is valid.
    fn carry_out(&mut self, request: Request, receipt: Receipt) {
        if !self.valid() {
            return;
        }
        self.late.clear();
        match request {
            Request::Renew(renewal) => {
                self.message = Message::Ours(receipt);
                self.visible_at = self.now + ticks(renewal.visibility);
            }
            Request::Settle(kind) => {
                self.done = true;
                self.visible_at = self.now;
                self.message = match kind {
                    Kind::Delete => Message::Gone,
                    Kind::PutBack => Message::PutBack,
                };
            }
        }
    }

    fn answer(&mut self, answer: Answer) -> Verdict {
        self.sent.as_mut().expect("it is sent").answer = Some(answer);
        Ok(())
    }
}

type Verdict = Result<(), &'static str>;

/// Returns an error unless the condition holds.
fn ensure(holds: bool, wrong: &'static str) -> Verdict {
    if holds { Ok(()) } else { Err(wrong) }
}

fn at(tick: u32) -> Duration {
    TICK.saturating_mul(tick)
}

/// Returns whole ticks, rounded up.
fn ticks(time: Duration) -> u32 {
    u32::try_from(time.as_nanos().div_ceil(TICK.as_nanos())).unwrap_or(u32::MAX)
}

impl Kind {
    fn intent(self) -> Intent {
        let purpose = match self {
            Self::Delete => Purpose::Complete { follow_ups: 0 },
            Self::PutBack => Purpose::Release,
        };
        Intent { purpose, puts: 0 }
    }

    fn request(self) -> LastOp {
        match self {
            Self::Delete => LastOp::Delete,
            Self::PutBack => LastOp::PutBack,
        }
    }
}

/// Goes through every history of a scene. Returns the number of worlds.
///
/// # Errors
/// What is wrong with one of the shortest wrong histories.
fn explore(scene: Scene, taken: &mut Taken) -> Result<usize, String> {
    let mut seen = HashSet::new();
    let mut histories: Vec<(usize, &'static str, u32)> = Vec::new();
    let mut ahead = VecDeque::from([(usize::MAX, World::start(scene))]);
    while let Some((history, world)) = ahead.pop_front() {
        for (event, next) in world.next(taken) {
            match next {
                Ok(next) if seen.contains(&next) => {}
                Ok(next) => {
                    seen.insert(next.clone());
                    histories.push((history, event, world.now));
                    ahead.push_back((histories.len() - 1, next));
                }
                Err((wrong, world)) => {
                    let mut events = vec![format!("{}: {event}", world.now)];
                    let mut history = history;
                    while let Some((before, event, now)) = histories.get(history) {
                        events.push(format!("{now}: {event}"));
                        history = *before;
                    }
                    events.reverse();
                    return Err(format!("{wrong}\n{}\n{world:#?}", events.join("\n")));
                }
            }
        }
    }
    Ok(seen.len())
}
