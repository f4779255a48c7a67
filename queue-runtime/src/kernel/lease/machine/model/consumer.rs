//! The model's consumer, which does what the machine returns, and nothing else. After each event, what must hold of
//! consumer and machine is checked.

use queue_core::{ErrorKind, Operation, Outcome};

use super::*;

impl World {
    pub(super) fn check(&mut self, taken: &mut Taken) -> Verdict {
        self.checks_now += 1;
        ensure(self.checks_now <= 2, "checks repeat in no time")?;
        self.check_at = None;
        let (now, from) = (at(self.now), self.state());
        let next = match self.machine.check(now) {
            Next::CheckAt(due) if self.has(Bug::RenewsInVain) && self.machine.is_overdue(now) => {
                let renewal = self.machine.renewal(now);
                renewal.map_or(Next::CheckAt(due), Next::Renew)
            }
            Next::Nothing if self.has(Bug::RenewsAfterTheEnd) => {
                let renewal = self.machine.renewal(now);
                renewal.map_or(Next::Nothing, Next::Renew)
            }
            next => next,
        };
        match next {
            Next::Nothing => return Ok(()),
            Next::Renew(renewal) => {
                taken.insert((from, "half a visibility timeout before the known end", from));
                return self.renew(renewal);
            }
            Next::Lost(_) => {
                self.machine.lost();
                taken.insert((from, "the certain end passes", self.state()));
                return Ok(());
            }
            Next::CheckAt(due) => {
                ensure(due > now, "a check is due at once")?;
                self.check_at = Some(ticks(due));
            }
        }
        let machine = &self.machine;
        let event = if now < machine.renew_at() {
            return Ok(());
        } else if now >= machine.renew_until {
            "the handler timeout is over (for a listener, 2 s later)"
        } else if machine.is_doubtful() && machine.is_overdue(now) {
            "the known end passes"
        } else {
            "a renewal would not prolong the lease, because the message expires"
        };
        taken.insert((from, event, from));
        Ok(())
    }

    fn renew(&mut self, renewal: Renewal) -> Verdict {
        let over = self.dropped || self.report == Report::Settled || !self.machine.is_held();
        ensure(!over, "a renewal is sent after the end")?;
        let repeated = self.last_renewal == Some(self.now);
        ensure(!repeated, "renewals repeat in no time")?;
        let expires = self.scene.life.map(|life| self.scene.received_at + life);
        let end = self.now + ticks(renewal.visibility);
        let within = expires.is_none_or(|expires| end < expires);
        ensure(within, "a renewal lasts longer than the message")?;
        self.last_renewal = Some(self.now);
        self.sent = Some(Sent {
            request: Request::Renew(renewal),
            until: Some(ticks(renewal.asked_at + renewal.patience)),
            answer: None,
        });
        Ok(())
    }

    pub(super) fn answered(&mut self, taken: &mut Taken) -> Verdict {
        let sent = self.sent.take().expect("it is sent");
        let answer = sent.answer.expect("it is answered");
        match sent.request {
            Request::Renew(renewal) => self.renewal_answered(renewal, answer, taken),
            Request::Settle(kind) => self.settlement_answered(kind, answer, taken),
        }
    }

    fn renewal_answered(&mut self, renewal: Renewal, answer: Answer, taken: &mut Taken) -> Verdict {
        let (now, from) = (at(self.now), self.state());
        let (kind, event) = match answer {
            Answer::Done => {
                let doubt = self.machine.unanswered.clone();
                self.machine.renewed(renewal, now);
                if self.has(Bug::DoubtStays) {
                    self.machine.unanswered = doubt;
                }
                if self.has(Bug::KnownEndFromTheAnswer) {
                    self.machine.known_end = now + renewal.visibility;
                }
                if self.message == Message::Ours(Receipt::InAnswer) {
                    self.message = Message::Ours(Receipt::Known);
                }
                self.doubt = false;
                self.confirmed_end = ticks(self.machine.certain_end);
                self.check_at = Some(ticks(self.machine.renew_at()));
                taken.insert((from, "a renewal succeeds", self.state()));
                return Ok(());
            }
            Answer::Gone(Gone::NotFound) => {
                (ErrorKind::MessageNotFound, "a renewal answers *gone*")
            }
            Answer::Gone(Gone::Mismatch) => {
                (ErrorKind::ReceiptMismatch, "a renewal answers *gone*")
            }
            Answer::Temporary => (ErrorKind::Unreachable, "a renewal fails temporarily"),
            Answer::Permanent => (ErrorKind::Denied, "a renewal fails permanently"),
        };
        self.renewal_failed(&Error::new(kind, Operation::Update))?;
        taken.insert((from, event, self.state()));
        Ok(())
    }

    fn renewal_failed(&mut self, error: &Error) -> Verdict {
        let now = at(self.now);
        let due = match self.machine.renewal_failed(error, now, 0.5) {
            Some(_) if self.has(Bug::StaleReceiptProvesLoss) && error.is_lease_gone() => None,
            Some(_) if self.has(Bug::RepeatsAtOnce) => Some(now),
            due => due,
        };
        match due {
            Some(due) => {
                let shortest = SHORTEST.min(self.machine.remaining(now));
                ensure(
                    due.saturating_sub(now) >= shortest,
                    "a renewal is repeated at once",
                )?;
                self.check_at = Some(ticks(due));
            }
            None => {
                ensure(!self.doubt, "a stale receipt is taken for a loss")?;
                self.machine.lost();
            }
        }
        Ok(())
    }

    pub(super) fn unanswered(&mut self, taken: &mut Taken) -> Verdict {
        let sent = self.sent.take().expect("it is sent");
        let from = self.state();
        if sent.answer.is_none() && self.valid() {
            self.late.push(sent.request);
        }
        self.doubt = true;
        match sent.request {
            Request::Renew(renewal) => {
                if self.message == Message::Ours(Receipt::InAnswer) {
                    self.message = Message::Ours(Receipt::Unknown);
                }
                let certain_end = self.machine.certain_end;
                self.machine.renewal_unanswered(renewal, at(self.now));
                if self.has(Bug::CertainEndStays) {
                    self.machine.certain_end = certain_end;
                }
                let error = Error::new(ErrorKind::Timeout, Operation::Update);
                self.renewal_failed(&error.with_outcome(Outcome::Unknown))?;
                taken.insert((from, "a renewal is unanswered", self.state()));
            }
            Request::Settle(kind) => {
                self.machine.settlement_unanswered(&kind.intent());
                self.settling = Some((kind, self.now));
                taken.insert((from, "a settlement is unanswered", self.state()));
            }
        }
        Ok(())
    }

    pub(super) fn try_to_settle(&mut self, kind: Kind, taken: &mut Taken) -> Verdict {
        if !self.machine.is_held() {
            let state = self.state();
            taken.insert((state, "a settlement is requested", state));
            if state == "Lost" {
                self.give_up(kind);
            }
            return Ok(());
        }
        self.settling = Some((kind, self.now));
        self.sent = Some(Sent {
            request: Request::Settle(kind),
            until: None,
            answer: None,
        });
        Ok(())
    }

    fn settlement_answered(&mut self, kind: Kind, answer: Answer, taken: &mut Taken) -> Verdict {
        let (now, from) = (at(self.now), self.state());
        match answer {
            Answer::Done => {
                self.machine.settled();
                self.machine.abandon();
                (self.settling, self.report) = (None, Report::Settled);
                taken.insert((from, "a settlement succeeds", self.state()));
            }
            Answer::Gone(answer) => {
                let stale_receipts = if self.scene.distinct {
                    StaleReceipts::Distinct
                } else {
                    StaleReceipts::Ambiguous
                };
                let asked = (kind.request(), answer);
                let proof =
                    self.machine
                        .settlement_gone(asked, stale_receipts, &kind.intent(), now);
                self.settling = None;
                self.report = match proof {
                    _ if self.has(Bug::GoneIsSettled) => Report::Settled,
                    Proof::CarriedOut => Report::Settled,
                    Proof::LeaseLost | Proof::Expired | Proof::NotCarriedOut => Report::NotDone,
                    Proof::Nothing => Report::Unknown,
                };
                taken.insert((from, "a settlement answers *gone*", "see below"));
            }
            Answer::Temporary => self.settling = Some((kind, self.now)),
            Answer::Permanent => self.give_up(kind),
        }
        Ok(())
    }

    pub(super) fn give_up(&mut self, kind: Kind) {
        self.settling = None;
        self.report = match self.machine.before(&kind.intent()) {
            Earlier::Nothing => Report::NotDone,
            Earlier::Same | Earlier::Other => Report::Unknown,
        };
    }

    pub(super) fn state(&self) -> &'static str {
        match self.machine.hold {
            Hold::Held if self.machine.is_doubtful() => "Doubtful",
            Hold::Held => "Held",
            Hold::Settled => "Settled",
            Hold::Lost => "Lost",
        }
    }

    fn has(&self, bug: Bug) -> bool {
        self.scene.bug == Some(bug)
    }

    /// Returns what is wrong with this world.
    pub(super) fn verdict(&self) -> Verdict {
        ensure(
            self.report != Report::Settled || self.done,
            "reported as settled, but not carried out",
        )?;
        let not_done = !self.done || self.stray;
        ensure(
            self.report != Report::NotDone || not_done,
            "reported as not done, but carried out",
        )?;
        let machine = &self.machine;
        let (known_end, certain_end) = (ticks(machine.known_end), ticks(machine.certain_end));
        match machine.hold {
            Hold::Held => {}
            Hold::Settled => return ensure(self.done, "settled, but not carried out"),
            Hold::Lost => {
                let lasts = self.valid() && self.now < self.true_end();
                return ensure(!lasts, "lost, but a request of ours would succeed");
            }
        }
        if self.now < known_end && !self.done {
            let ours = matches!(self.message, Message::Ours(_)) && self.true_end() >= known_end;
            ensure(ours, "the lease ends before its known end")?;
        }
        // A lease by a stray request, whose receipt we do not have, is of no use to us, and not known.
        let on_its_way = self.message == Message::Ours(Receipt::InAnswer);
        if matches!(self.message, Message::Ours(_)) && !on_its_way && !self.stray {
            ensure(
                self.true_end() <= certain_end,
                "the lease lasts longer than its certain end",
            )?;
        }
        ensure(
            machine.is_doubtful() == self.doubt,
            "the doubt is not that of the requests",
        )?;
        if !self.dropped && self.sent.is_none() && self.settling.is_none() {
            let checked = self
                .check_at
                .is_some_and(|at| at <= certain_end.max(self.now));
            ensure(checked, "nobody checks the lease at its certain end")?;
        }
        // A stop of the process prolongs each request.
        let bounded = self.stopped || certain_end <= self.confirmed_end + LONGEST_DOUBT;
        ensure(bounded, "the certain end is put off again and again")
    }
}
