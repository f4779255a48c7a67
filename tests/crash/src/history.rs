//! The check of all ledgers after the queues were drained.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;

use crate::ledger::{Entry, Event, Lease};
use crate::messages::{Class, Receipt};
use crate::packs::Causes;

/// What the ledgers of a run say about each message.
#[derive(Debug, Default)]
pub struct History {
    records: BTreeMap<String, Record>,
    disputed: Vec<RangeInclusive<u64>>,
}

/// What the ledgers say about one message.
#[derive(Debug, Default)]
struct Record {
    attempted: bool,
    /// When the submission was acknowledged.
    acknowledged: Option<u64>,
    /// The submission has failed, and nothing was done.
    refused: bool,
    /// Receives, with the time of each.
    started: BTreeMap<Lease, u64>,
    /// Receives whose work was done, with the time at which the completion began.
    finishing: BTreeMap<Lease, u64>,
    /// Receives whose completion was acknowledged.
    completed: Vec<Lease>,
    poisoned: usize,
    /// What the message's handlers have noticed.
    noticed: Vec<Violation>,
}

/// The figures of a run, in messages.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Submissions that began.
    pub attempted: usize,
    /// Submissions that were acknowledged.
    pub acknowledged: usize,
    /// Messages that were stored although their submissions were not acknowledged.
    pub unanswered: usize,
    /// Acknowledged messages whose work was done.
    pub completed: usize,
    /// Acknowledged messages with a time to live, whose work was not done.
    pub expired: usize,
    /// Messages whose work was done more than once.
    pub duplicated: usize,
    /// Messages received more than once, and completed.
    pub recovered: usize,
    /// Moves to a poison queue.
    pub poisoned: usize,
    /// Why messages of packs ran twice, if there were packs.
    pub causes: Option<Causes>,
    /// Submissions that were acknowledged after the last strike on the database, if there was one.
    pub late: Option<usize>,
}

/// What the storage promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    /// A submission stores one copy of a message, and a completion that is acknowledged is the only one.
    OneCopy,
    /// Copies are allowed, as if a submission is repeated because its outcome is unknown.
    AtLeastOnce,
}

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    /// The message was acknowledged, and its work was never done.
    Lost(String),
    /// The order is complete, and its follow-up was never handled.
    FollowUpLost(String),
    /// The message was received, but nobody submitted it, or the submission has failed and said that nothing was done.
    Unexpected(String),
    /// More than one completion of the message was acknowledged.
    CompletedTwice(String),
    /// A completion was acknowledged that began after another receive of the message.
    StaleSettlement(String),
    /// Two messages of one key were handled at the same time, of which this was the second.
    Overlapping(String),
    /// The message was handled after one of its key that was received later.
    OutOfTurn(String),
    /// Anything else that a suite has checked.
    Other(String),
}

impl Violation {
    /// The name of the message that the violation is about.
    pub(crate) fn message(&self) -> Option<&String> {
        match self {
            Self::Lost(name)
            | Self::FollowUpLost(name)
            | Self::Unexpected(name)
            | Self::CompletedTwice(name)
            | Self::StaleSettlement(name)
            | Self::Overlapping(name)
            | Self::OutOfTurn(name) => Some(name),
            Self::Other(_) => None,
        }
    }
}

impl History {
    /// Adds the entries of a ledger.
    pub fn add(&mut self, entries: Vec<Entry>) {
        for Entry {
            at,
            event,
            name,
            lease,
        } in entries
        {
            let record = self.records.entry(name.clone()).or_default();
            match event {
                Event::Submitting => record.attempted = true,
                Event::Submitted => record.acknowledged = Some(at),
                Event::Refused => record.refused = true,
                Event::Started => drop(record.started.insert(lease, at)),
                Event::Finishing => drop(record.finishing.insert(lease, at)),
                Event::Completed => record.completed.push(lease),
                Event::Poisoned => record.poisoned += 1,
                Event::Overlapping => record.noticed.push(Violation::Overlapping(name)),
                Event::OutOfTurn => record.noticed.push(Violation::OutOfTurn(name)),
                _ => {}
            }
        }
    }

    /// Sets the times in which a process may take a lease for lasting that another takes for ended. Whoever completes a
    /// message without a follow-up then, and finds that it is gone, believes to have completed it.
    pub fn dispute(&mut self, times: Vec<RangeInclusive<u64>>) {
        self.disputed = times;
    }

    /// Checks a history whose queues are empty, including the poison queues.
    ///
    /// # Errors
    /// All violations.
    pub fn check(&self, promise: Promise) -> Result<Figures, Vec<Violation>> {
        let mut figures = Figures::default();
        let mut violations = Vec::new();
        for (name, record) in &self.records {
            figures.add(name, record);
            violations.extend(record.violation(name, promise, &self.disputed));
            violations.extend(record.noticed.iter().cloned());
            if !record.finishing.is_empty() && has_follow_up(name) {
                violations.extend(self.lost_follow_up(name));
            }
            if !record.started.is_empty() && !self.is_expected(name) {
                violations.push(Violation::Unexpected(name.clone()));
            }
        }
        if violations.is_empty() {
            Ok(figures)
        } else {
            Err(violations)
        }
    }

    /// Returns how many submissions were acknowledged after that time.
    pub(crate) fn acknowledged_after(&self, time: u64) -> usize {
        let records = self.records.values();
        records
            .filter(|record| record.acknowledged.is_some_and(|at| at > time))
            .count()
    }

    fn is_expected(&self, name: &str) -> bool {
        let order = name.strip_prefix(Receipt::PREFIX);
        let finishing = |name| {
            self.records
                .get(name)
                .is_some_and(|r| !r.finishing.is_empty())
        };
        match order {
            Some(order) => finishing(order),
            None => self.records[name].attempted && !self.records[name].refused,
        }
    }

    fn lost_follow_up(&self, order: &str) -> Option<Violation> {
        let receipt = self.records.get(&format!("{}{order}", Receipt::PREFIX));
        let handled = receipt.is_some_and(|receipt| !receipt.finishing.is_empty());
        (!handled).then(|| Violation::FollowUpLost(order.to_owned()))
    }
}

/// Whether a message has a follow-up, which its completion submits.
fn has_follow_up(name: &str) -> bool {
    Class::of(name) == Class::Receipted && !name.starts_with(Receipt::PREFIX)
}

impl Record {
    fn violation(
        &self,
        name: &str,
        promise: Promise,
        disputed: &[RangeInclusive<u64>],
    ) -> Option<Violation> {
        let name = name.to_owned();
        if self.acknowledged.is_some()
            && self.finishing.is_empty()
            && Class::of(&name) != Class::Expiring
        {
            return Some(Violation::Lost(name));
        }
        if promise == Promise::AtLeastOnce {
            return None;
        }
        let begun = |lease: &Lease| self.finishing.get(lease).copied().unwrap_or(u64::MAX);
        let is_disputed = |lease: &Lease| {
            let begun = begun(lease);
            !has_follow_up(&name) && disputed.iter().any(|times| times.contains(&begun))
        };
        let mut completed: Vec<_> = self.completed.iter().collect();
        completed.retain(|lease| !is_disputed(lease));
        if completed.len() > 1 {
            return Some(Violation::CompletedTwice(name));
        }
        let stale = completed.iter().any(|lease| {
            let begun = begun(lease);
            let later = self
                .started
                .range(**lease..)
                .filter(|(other, _)| other != lease);
            begun != u64::MAX && later.into_iter().any(|(_, at)| *at < begun)
        });
        stale.then_some(Violation::StaleSettlement(name))
    }
}

impl Figures {
    fn add(&mut self, name: &str, record: &Record) {
        let done = !record.finishing.is_empty();
        self.attempted += usize::from(record.attempted);
        let acknowledged = record.acknowledged.is_some();
        self.acknowledged += usize::from(acknowledged);
        let stored = record.attempted && !record.started.is_empty();
        self.unanswered += usize::from(stored && !acknowledged);
        self.completed += usize::from(acknowledged && done);
        let expiring = Class::of(name) == Class::Expiring;
        self.expired += usize::from(acknowledged && !done && expiring);
        self.duplicated += usize::from(record.finishing.len() > 1);
        self.recovered += usize::from(record.started.len() > 1 && done);
        self.poisoned += record.poisoned;
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            attempted,
            acknowledged,
            unanswered,
            completed,
            expired,
            duplicated,
            recovered,
            poisoned,
            causes,
            late,
        } = self;
        write!(
            f,
            "{attempted} attempted, {acknowledged} acknowledged = {completed} completed + {expired} expired; \
             0 lost, 0 unexpected, {unanswered} unanswered, {duplicated} duplicated, {recovered} recovered, {poisoned} poisoned"
        )?;
        causes
            .iter()
            .try_for_each(|causes| write!(f, "; {causes}"))?;
        late.iter().try_for_each(|late| {
            write!(
                f,
                "; {late} acknowledged after the last strike on the database"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(&(at, event, name, dequeued): &(u64, Event, &str, usize)) -> Entry {
        Entry {
            at,
            event,
            name: name.to_owned(),
            lease: Lease {
                inserted: 1,
                dequeued,
            },
        }
    }

    fn history(lines: &[(u64, Event, &str, usize)]) -> Result<Figures, Vec<Violation>> {
        let mut history = History::default();
        history.add(lines.iter().map(entry).collect());
        history.check(Promise::OneCopy)
    }

    use Event::{
        Completed, Finishing, OutOfTurn, Overlapping, Refused, Started, Submitted, Submitting,
    };

    #[test]
    fn a_message_that_is_repeated_after_a_kill_is_recovered() {
        let figures = history(&[
            (1, Submitting, "a-p", 0),
            (2, Submitted, "a-p", 0),
            (3, Started, "a-p", 1),
            (4, Finishing, "a-p", 1),
            (5, Started, "a-p", 2),
            (6, Finishing, "a-p", 2),
            (7, Completed, "a-p", 2),
            (8, Submitting, "b-p", 0),
            (9, Submitting, "c-e", 0),
            (9, Submitted, "c-e", 0),
        ]);
        let figures = figures.expect("nothing is broken");
        let expected = Figures {
            attempted: 3,
            acknowledged: 2,
            unanswered: 0,
            completed: 1,
            expired: 1,
            duplicated: 1,
            recovered: 1,
            poisoned: 0,
            causes: None,
            late: None,
        };
        assert_eq!(figures, expected);
    }

    #[test]
    fn each_violation_is_found() {
        let name = |name: &str| name.to_owned();
        let lost = history(&[(1, Submitting, "a-p", 0), (2, Submitted, "a-p", 0)]);
        assert_eq!(lost, Err(vec![Violation::Lost(name("a-p"))]));

        let unexpected = history(&[(3, Started, "a-p", 1)]);
        assert_eq!(unexpected, Err(vec![Violation::Unexpected(name("a-p"))]));

        let refused = history(&[
            (1, Submitting, "a-p", 0),
            (2, Refused, "a-p", 0),
            (3, Started, "a-p", 1),
        ]);
        assert_eq!(refused, Err(vec![Violation::Unexpected(name("a-p"))]));

        let order = [
            (1, Submitting, "a-r", 0),
            (3, Started, "a-r", 1),
            (4, Finishing, "a-r", 1),
        ];
        assert_eq!(
            history(&order),
            Err(vec![Violation::FollowUpLost(name("a-r"))])
        );

        let mut lines = vec![(1, Submitting, "a-p", 0)];
        for lease in 1..=2 {
            let at = 10 * lease as u64;
            lines.extend([(at, Started, "a-p", lease), (at, Finishing, "a-p", lease)]);
            lines.push((at, Completed, "a-p", lease));
        }
        assert_eq!(
            history(&lines),
            Err(vec![Violation::CompletedTwice(name("a-p"))])
        );

        let mut disputed = History::default();
        let entries = lines.iter().map(entry).collect();
        disputed.add(entries);
        disputed.dispute(vec![15..=25]);
        disputed
            .check(Promise::OneCopy)
            .expect("the second completion is believed");
        disputed.dispute(vec![21..=25]);
        let twice = Err(vec![Violation::CompletedTwice(name("a-p"))]);
        assert_eq!(disputed.check(Promise::OneCopy), twice);

        let of_keys = [
            (1, Submitting, "a-p", 0),
            (2, Overlapping, "a-p", 1),
            (2, OutOfTurn, "a-p", 1),
        ];
        let both = vec![
            Violation::Overlapping(name("a-p")),
            Violation::OutOfTurn(name("a-p")),
        ];
        assert_eq!(history(&of_keys), Err(both));

        let stale = [
            (1, Submitting, "a-p", 0),
            (3, Started, "a-p", 1),
            (4, Started, "a-p", 2),
            (5, Finishing, "a-p", 1),
            (6, Completed, "a-p", 1),
        ];
        assert_eq!(
            history(&stale),
            Err(vec![Violation::StaleSettlement(name("a-p"))])
        );
        let mut in_time = stale;
        in_time[2].0 = 6;
        history(&in_time).expect("received after the completion began");
    }
}
