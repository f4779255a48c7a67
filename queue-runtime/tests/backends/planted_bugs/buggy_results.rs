//! A result store with a planted bug.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use queue_core::backend::PageMark;
use queue_core::clock::BoxFuture;
use queue_core::conformance::Survival;
use queue_core::conformance::idempotency::{Harness, OpenedResults};
use queue_core::idempotency::{
    Claim, ClaimOutcome, ClaimStatus, Forgotten, Owner, RecordState, Recorded, RecordedPage,
    ResultStore, Swept, WorkKey,
};
use queue_core::{Clock, Error, ErrorKind, ManualClock, Operation, Result, Timestamp};
use queue_runtime::idempotency::MemoryResults;

use crate::threads;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Bug {
    None,
    GrantsToAll,
    RefusesTheOwner,
    TellsNoTime,
    IgnoresTheScope,
    JoinsScopeAndKey,
    FoldsCase,
    ReleasesNothing,
    ReleasesForAnyone,
    FinishesForAnyone,
    RenewsForAnyone,
    ForgetsRenewals,
    EndsEarly,
    NeverEnds,
    EndsClaimsWithTheirLease,
    LosesResults,
    LosesEmptyResults,
    CutsResultsOff,
    ReplacesResults,
    ReleasesResults,
    KeepsResultsForALease,
    KeepsResultsForever,
    SweepsResults,
    SweepsNothing,
    SweepsWithoutEnd,
    SecondClientIsApart,
    LosesAllWhenClosed,
    ListsNothing,
    ListsByKey,
    ListsAllScopes,
    ListsTheStartTwice,
    SkipsTheStart,
    ListsWithoutEnd,
    ListsMoreThanWanted,
    AcceptsAnyMark,
    ListsWhatIsOver,
    ListsValues,
    ListsNoSize,
    LooksUpWithoutValue,
    LooksUpWhatIsOver,
    TellsTheEndAsNow,
    HidesStoppedWork,
    ForgetsNothing,
    ForgetsWorkInFlight,
    KeepsStoppedWork,
    ForgetsAllScopes,
    IsUnsupported,
}

pub(super) struct BuggyHarness(pub(super) Bug);

struct BuggyStore {
    bug: Bug,
    clock: ManualClock,
    results: Buggy,
}

/// A store with one planted bug. Clones share the results.
#[derive(Debug, Clone)]
struct Buggy {
    bug: Bug,
    inner: MemoryResults,
    seen: Arc<Mutex<HashMap<WorkKey, Seen>>>,
}

/// What the store knows of a key beside its results.
#[derive(Debug)]
struct Seen {
    claim: Claim,
    ends_at: Duration,
    /// The last result, whether or not it was recorded.
    result: Option<Bytes>,
    /// It is as if the key had never been seen.
    erased: bool,
}

impl Buggy {
    fn new(bug: Bug, clock: &ManualClock) -> Self {
        Self {
            bug,
            inner: MemoryResults::new(Arc::new(clock.clone())),
            seen: Arc::default(),
        }
    }

    fn seen(&self) -> MutexGuard<'_, HashMap<WorkKey, Seen>> {
        self.seen.lock().expect("no panic")
    }

    /// The claim that holds the key, if any, instead of the one that is given.
    fn current(&self, key: &WorkKey, given: Claim) -> Claim {
        self.seen().get(key).map_or(given, |seen| seen.claim)
    }

    fn has_ended(&self, key: &WorkKey) -> bool {
        let now = self.inner.clock().monotonic();
        self.seen().get(key).is_some_and(|seen| seen.ends_at <= now)
    }

    fn key(&self, key: &WorkKey) -> WorkKey {
        match self.bug {
            Bug::IgnoresTheScope => WorkKey::new("", key.key()),
            Bug::JoinsScopeAndKey => WorkKey::new("", format!("{}/{}", key.scope(), key.key())),
            Bug::FoldsCase => WorkKey::new(key.scope().to_lowercase(), key.key()),
            _ => key.clone(),
        }
    }
}

#[async_trait]
impl ResultStore for Buggy {
    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock()
    }

    async fn begin(&self, key: &WorkKey, owner: Owner, lease: Duration) -> Result<ClaimOutcome> {
        let key = &self.key(key);
        let lease = match self.bug {
            Bug::EndsEarly => lease / 4,
            Bug::NeverEnds => lease * 1000,
            _ => lease,
        };
        let begun = self.inner.begin(key, owner, lease).await?;
        if let ClaimOutcome::Fresh(claim) = begun {
            let ends_at = self.inner.clock().monotonic() + lease;
            let seen = Seen {
                claim,
                ends_at,
                result: None,
                erased: false,
            };
            let before = self.seen().insert(key.clone(), seen);
            let repeated = before.is_some_and(|before| before.claim == claim);
            if repeated && self.bug == Bug::RefusesTheOwner {
                return Ok(ClaimOutcome::InFlight { remaining: lease });
            }
        }
        let seen = self.seen();
        let seen = seen.get(key);
        Ok(match (self.bug, begun) {
            (Bug::GrantsToAll, ClaimOutcome::InFlight { .. }) => {
                ClaimOutcome::Fresh(Claim::new(owner, 0))
            }
            (Bug::TellsNoTime, ClaimOutcome::InFlight { .. }) => ClaimOutcome::InFlight {
                remaining: Duration::ZERO,
            },
            (Bug::ReplacesResults, ClaimOutcome::Done(result)) => {
                let last = seen.and_then(|seen| seen.result.clone());
                ClaimOutcome::Done(last.unwrap_or(result))
            }
            (_, ClaimOutcome::Done(_)) if seen.is_some_and(|seen| seen.erased) => {
                ClaimOutcome::Fresh(Claim::new(owner, 0))
            }
            (_, begun) => begun,
        })
    }

    async fn renew(&self, key: &WorkKey, claim: Claim, lease: Duration) -> Result<ClaimStatus> {
        let key = &self.key(key);
        match self.bug {
            Bug::ForgetsRenewals => return Ok(ClaimStatus::Held),
            Bug::RenewsForAnyone => {
                let claim = self.current(key, claim);
                let _ = self.inner.renew(key, claim, lease).await?;
                return Ok(ClaimStatus::Held);
            }
            Bug::EndsClaimsWithTheirLease if self.has_ended(key) => return Ok(ClaimStatus::Lost),
            _ => {}
        }
        if let Some(seen) = self.seen().get_mut(key) {
            seen.ends_at = self.inner.clock().monotonic() + lease;
        }
        self.inner.renew(key, claim, lease).await
    }

    async fn finish(
        &self,
        key: &WorkKey,
        mut claim: Claim,
        mut result: Bytes,
        mut retention: Duration,
    ) -> Result<ClaimStatus> {
        let key = &self.key(key);
        match self.bug {
            Bug::EndsClaimsWithTheirLease if self.has_ended(key) => return Ok(ClaimStatus::Lost),
            Bug::FinishesForAnyone => claim = self.current(key, claim),
            Bug::LosesEmptyResults if result.is_empty() => {
                self.inner.release(key, claim).await?;
                return Ok(ClaimStatus::Held);
            }
            Bug::CutsResultsOff => result.truncate(1 << 20),
            Bug::KeepsResultsForALease => retention = Duration::from_secs(30),
            Bug::KeepsResultsForever => retention *= 1000,
            _ => {}
        }
        if let Some(seen) = self.seen().get_mut(key) {
            seen.result = Some(result.clone());
            seen.erased = self.bug == Bug::LosesResults;
        }
        let standing = self.inner.finish(key, claim, result, retention).await?;
        match self.bug {
            Bug::FinishesForAnyone => Ok(ClaimStatus::Held),
            _ => Ok(standing),
        }
    }

    async fn release(&self, key: &WorkKey, mut claim: Claim) -> Result<()> {
        let key = &self.key(key);
        match self.bug {
            Bug::ReleasesNothing => return Ok(()),
            Bug::ReleasesForAnyone => claim = self.current(key, claim),
            Bug::ReleasesResults => {
                if let Some(seen) = self.seen().get_mut(key) {
                    seen.erased = true;
                }
            }
            _ => {}
        }
        self.inner.release(key, claim).await
    }

    async fn sweep(&self) -> Result<Swept> {
        match self.bug {
            Bug::SweepsNothing => return Ok(Swept::default()),
            Bug::SweepsResults => {
                for seen in self.seen().values_mut() {
                    seen.erased = true;
                }
            }
            _ => {}
        }
        let mut swept = self.inner.sweep().await?;
        swept.more |= self.bug == Bug::SweepsWithoutEnd;
        Ok(swept)
    }

    async fn list(
        &self,
        scope: Option<&str>,
        from: Option<&PageMark>,
        max: usize,
    ) -> Result<RecordedPage> {
        let (scope, max) = match self.bug {
            Bug::IsUnsupported => return Err(unsupported()),
            Bug::ListsAllScopes => (None, max),
            Bug::ListsMoreThanWanted => (scope, max.saturating_add(1)),
            _ => (scope, max),
        };
        let from = from.filter(|mark| match self.bug {
            Bug::AcceptsAnyMark => scope.is_none() && mark.as_str() != "no mark",
            _ => true,
        });
        let now = self.inner.clock().monotonic();
        let mut page = self.inner.list(scope, from, max).await?;
        let records = &mut page.records;
        match self.bug {
            Bug::ListsNothing => *records = Vec::new(),
            Bug::ListsByKey => records.sort_by(|a, b| a.key.key().cmp(b.key.key())),
            // The position of a mark, as if its record were part of both pages or of neither.
            Bug::ListsTheStartTwice if from.is_some() && !records.is_empty() => {
                records.insert(0, records[0].clone());
            }
            Bug::SkipsTheStart if from.is_some() && !records.is_empty() => {
                records.remove(0);
            }
            Bug::ListsWithoutEnd => page.next = page.next.or(Some(PageMark::new("/"))),
            Bug::ListsWhatIsOver => {
                for (key, seen) in &*self.seen() {
                    let listed = records.iter().any(|recorded| recorded.key == *key);
                    if !listed && seen.result.is_some() && seen.ends_at <= now {
                        records.push(Recorded::new(
                            key.clone(),
                            RecordState::Done { size: 6 },
                            page.now,
                        ));
                    }
                }
            }
            Bug::ListsValues => {
                let with = |recorded: Recorded| recorded.with_value("result");
                *records = records.drain(..).map(with).collect();
            }
            Bug::ListsNoSize => {
                for recorded in records {
                    if let RecordState::Done { size } = &mut recorded.state {
                        *size = 0;
                    }
                }
            }
            Bug::TellsTheEndAsNow => {
                for recorded in records {
                    recorded.ends_at = page.now;
                }
            }
            Bug::HidesStoppedWork => records.retain(|recorded| recorded.ends_at > page.now),
            _ => {}
        }
        Ok(page)
    }

    async fn find(&self, key: &WorkKey) -> Result<Option<Recorded>> {
        let mut found = self.inner.find(key).await?;
        match (self.bug, &mut found) {
            (Bug::IsUnsupported, _) => return Err(unsupported()),
            (Bug::LooksUpWithoutValue, Some(recorded)) => recorded.value = None,
            (Bug::LooksUpWhatIsOver, None) if self.has_ended(key) => {
                let done = RecordState::Done { size: 6 };
                found = Some(Recorded::new(key.clone(), done, Timestamp::UNIX_EPOCH));
            }
            _ => {}
        }
        Ok(found)
    }

    async fn forget(&self, key: &WorkKey) -> Result<Forgotten> {
        match self.bug {
            Bug::IsUnsupported => return Err(unsupported()),
            Bug::ForgetsNothing => return Ok(Forgotten::Removed),
            Bug::ForgetsWorkInFlight => {
                let claim = self.seen().get(key).map(|seen| seen.claim);
                if let Some(claim) = claim {
                    self.inner.release(key, claim).await?;
                }
            }
            Bug::KeepsStoppedWork if self.has_ended(key) => {
                let remaining = Duration::from_secs(1);
                return Ok(Forgotten::InFlight { remaining });
            }
            Bug::ForgetsAllScopes => {
                let keys: Vec<_> = self.seen().keys().cloned().collect();
                for other in keys.iter().filter(|other| other.key() == key.key()) {
                    self.inner.forget(other).await?;
                }
                return Ok(Forgotten::Removed);
            }
            _ => {}
        }
        self.inner.forget(key).await
    }
}

fn unsupported() -> Error {
    Error::new(ErrorKind::Unsupported, Operation::Results)
}

#[async_trait]
impl Harness for BuggyHarness {
    async fn open(&self) -> Box<dyn OpenedResults> {
        let clock = ManualClock::new();
        Box::new(BuggyStore {
            bug: self.0,
            results: Buggy::new(self.0, &clock),
            clock,
        })
    }

    fn block_on(&self, test: BoxFuture<'_, ()>) {
        threads::block_on(test);
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        threads::spawn(task)
    }
}

#[async_trait]
impl OpenedResults for BuggyStore {
    fn client(&self) -> Arc<dyn ResultStore> {
        Arc::new(self.results.clone())
    }

    async fn second_client(&self) -> Arc<dyn ResultStore> {
        match self.bug {
            Bug::SecondClientIsApart => Arc::new(Buggy::new(self.bug, &self.clock)),
            _ => self.client(),
        }
    }

    async fn reopen(&mut self) -> Arc<dyn ResultStore> {
        if self.bug == Bug::LosesAllWhenClosed {
            self.results = Buggy::new(self.bug, &self.clock);
        }
        self.client()
    }

    fn survival(&self) -> Survival {
        Survival::Kept
    }

    async fn advance(&self, duration: Duration) {
        self.clock.advance(duration);
    }
}
