//! The suite for [`ResultStore`].
//!
//! The harness of a backend with [results](crate::backend::Backend::results) serves this suite, by
//! [`OfBackend`](super::OfBackend).

mod claims;
mod results;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::backend::Survival;
use super::suite::{harness, harness_itself, suite};
use crate::clock::BoxFuture;
use crate::error::{ErrorKind, Outcome};
use crate::idempotency::{Claim, ClaimOutcome, ClaimStatus, Owner, ResultStore, WorkKey};

harness! {
    /// A store's test environment.
    pub trait Harness opens OpenedResults {
        /// Spawns a task on other threads. The returned future completes with the task, and panics if the task did.
        fn spawn(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()>;
    }
}

/// A store under test. Dropping the opened store may remove its records.
#[async_trait]
pub trait OpenedResults: Send + Sync {
    /// The first client.
    fn client(&self) -> Arc<dyn ResultStore>;

    /// Opens another client of the same store, as independent of the first as the store allows.
    async fn second_client(&self) -> Arc<dyn ResultStore>;

    /// Closes all clients of the store and opens it again.
    async fn reopen(&mut self) -> Arc<dyn ResultStore>;

    /// What survives [`reopen`](OpenedResults::reopen).
    fn survival(&self) -> Survival;

    /// Lets time pass for the store and all its clients, by advancing its clock or waiting.
    async fn advance(&self, duration: Duration);

    /// A short lease. Where time cannot be advanced, the suite waits for several leases.
    fn lease(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// When a result is forgotten.
    fn retention(&self) -> Retention {
        Retention::Exact
    }

    /// Whether the store also sweeps by itself.
    fn sweeps_itself(&self) -> bool {
        false
    }

    /// Whether single records can be listed, looked up and forgotten.
    fn listing(&self) -> Listing {
        Listing::Supported
    }
}

/// Whether a store can list, show and forget single records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listing {
    /// The store can list its records.
    Supported,
    /// The store cannot list its records, which is the default.
    Unsupported,
}

/// When a result is forgotten whose retention is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retention {
    /// The result is forgotten at once: its work can begin anew.
    Exact,
    /// The result is forgotten some time after the retention is over.
    AtLeast,
}

/// Longer than any test takes in the store's time.
const LONG: Duration = Duration::from_secs(24 * 60 * 60);

struct Fixture {
    store: Box<dyn OpenedResults>,
    client: Client,
    lease: Duration,
    key: WorkKey,
}

/// One client of the store, whose every call must be answered.
#[derive(Clone)]
struct Client(Arc<dyn ResultStore>);

impl Fixture {
    async fn open(harness: &dyn Harness) -> Self {
        let store = harness.open().await;
        Self {
            client: Client(store.client()),
            lease: store.lease(),
            store,
            key: WorkKey::new("charge", "order-1234"),
        }
    }

    /// Closes all clients and opens the store again.
    async fn reopen(self) -> Self {
        drop(self.client);
        let mut store = self.store;
        Self {
            client: Client(store.reopen().await),
            store,
            ..self
        }
    }

    async fn second_client(&self) -> Client {
        Client(self.store.second_client().await)
    }

    /// Begins the work anew.
    async fn fresh(&self) -> Claim {
        let begun = self.begin(Owner::random()).await;
        expect_fresh(&begun)
    }

    async fn begin(&self, owner: Owner) -> ClaimOutcome {
        self.client.begin(&self.key, owner, self.lease).await
    }

    async fn finish(&self, claim: Claim, result: &'static str) -> ClaimStatus {
        let result = Bytes::from_static(result.as_bytes());
        self.client.finish(&self.key, claim, result, LONG).await
    }

    async fn renew(&self, claim: Claim) -> ClaimStatus {
        self.client.renew(&self.key, claim, self.lease).await
    }

    async fn release(&self, claim: Claim) {
        let released = self.client.0.release(&self.key, claim).await;
        released.expect("release");
    }

    /// Asserts that another owner has the claim.
    async fn assert_in_flight(&self) {
        let begun = self.begin(Owner::random()).await;
        let ClaimOutcome::InFlight { remaining } = begun else {
            panic!("it is in flight, not {begun:?}");
        };
        assert!(!remaining.is_zero(), "it would be asked again at once");
        assert!(remaining <= self.lease, "{remaining:?}");
    }

    /// Takes the work over from an owner that has stopped, as soon as the store says.
    async fn take_over(&self) -> Claim {
        let owner = Owner::random();
        // A store may watch a claim from the first call on.
        for _ in 0..3 {
            match self.begin(owner).await {
                ClaimOutcome::Fresh(claim) => return claim,
                ClaimOutcome::InFlight { remaining } => {
                    assert!(remaining <= self.lease, "{remaining:?}");
                    self.store.advance(remaining).await;
                }
                ClaimOutcome::Done(_) => panic!("nobody has finished it"),
            }
        }
        panic!("the owner has stopped, and nobody can take its work over");
    }

    async fn assert_done(&self, result: &'static str) {
        let done = ClaimOutcome::Done(Bytes::from_static(result.as_bytes()));
        assert_eq!(self.begin(Owner::random()).await, done);
    }
}

impl Client {
    async fn begin(&self, key: &WorkKey, owner: Owner, lease: Duration) -> ClaimOutcome {
        for _ in 0..100 {
            match self.0.begin(key, owner, lease).await {
                // On a slow machine, others hold the key for longer than the engine waits.
                Err(error)
                    if error.kind() == ErrorKind::Timeout
                        && error.outcome() == Outcome::NotDone => {}
                begun => return begun.expect("begin"),
            }
        }
        panic!("others hold the key all the time");
    }

    async fn renew(&self, key: &WorkKey, claim: Claim, lease: Duration) -> ClaimStatus {
        self.0.renew(key, claim, lease).await.expect("renew")
    }

    async fn finish(
        &self,
        key: &WorkKey,
        claim: Claim,
        result: Bytes,
        retention: Duration,
    ) -> ClaimStatus {
        let finished = self.0.finish(key, claim, result, retention).await;
        finished.expect("finish")
    }

    /// Sweeps until there is nothing to remove, and returns how much was removed.
    async fn sweep(&self) -> usize {
        let mut removed = 0;
        for _ in 0..100 {
            let swept = self.0.sweep().await.expect("sweep");
            removed += swept.removed;
            if !swept.more {
                return removed;
            }
        }
        panic!("it goes on sweeping");
    }
}

#[track_caller]
fn expect_fresh(begun: &ClaimOutcome) -> Claim {
    match begun {
        ClaimOutcome::Fresh(claim) => *claim,
        other => panic!("nobody holds it: {other:?}"),
    }
}

suite! { $ result_store_tests idempotency
    claims from Fixture::open {
        a_claim_is_given_to_its_owner_again_and_to_nobody_else
        keys_and_scopes_are_told_apart
        released_work_begins_at_once
        a_released_claim_is_lost
        a_claim_is_kept_until_its_lease_ends
        renewals_keep_a_claim
        a_claim_whose_lease_ended_is_taken_over
        a_claim_that_was_taken_over_changes_nothing
        a_claim_whose_lease_ended_still_finishes_if_nobody_took_it_over
        a_second_client_sees_the_same
        reopening_finds_what_survives
    }
    claims from harness_itself {
        one_of_many_begins_wins
        a_late_finish_and_a_takeover_exclude_each_other
    }
    results from Fixture::open {
        a_result_is_what_all_later_calls_return
        results_of_all_sizes_come_back
        a_finished_claim_is_finished_once
        a_result_is_kept_until_its_retention_is_over
        a_sweep_removes_what_is_over_and_nothing_else
        records_are_listed_by_scope_and_key_page_by_page
        a_record_says_what_it_is_and_when_it_ends
        a_listing_misses_nothing_that_stays
        forgotten_work_begins_anew_and_work_in_flight_is_not_forgotten
    }
}
