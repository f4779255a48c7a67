//! An empty store, and helpers that most tests use.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::harness::{Harness, Store};
use crate::idempotency::{Claim, ClaimOutcome, ClaimStatus, IdempotencyStore, Owner, WorkKey};

/// Longer than any test takes in the store's time.
pub(super) const LONG: Duration = Duration::from_secs(24 * 60 * 60);

pub(super) struct Fixture {
    pub(super) store: Box<dyn Store>,
    pub(super) client: Client,
    pub(super) lease: Duration,
    pub(super) key: WorkKey,
}

/// One client of the store. Every call has to be answered.
#[derive(Clone)]
pub(super) struct Client(pub(super) Arc<dyn IdempotencyStore>);

impl Fixture {
    pub(super) async fn open(harness: &dyn Harness) -> Self {
        let store = harness.open().await;
        Self {
            client: Client(store.client()),
            lease: store.lease(),
            store,
            key: WorkKey::new("charge", "order-1234"),
        }
    }

    /// Closes all clients and opens the store again.
    pub(super) async fn reopen(self) -> Self {
        let Self {
            mut store,
            client,
            lease,
            key,
        } = self;
        drop(client);
        Self {
            client: Client(store.reopen().await),
            store,
            lease,
            key,
        }
    }

    pub(super) async fn second_client(&self) -> Client {
        Client(self.store.second_client().await)
    }

    /// Begins the work anew.
    pub(super) async fn fresh(&self) -> Claim {
        let begun = self.begin(Owner::random()).await;
        expect_fresh(&begun)
    }

    pub(super) async fn begin(&self, owner: Owner) -> ClaimOutcome {
        self.client.begin(&self.key, owner, self.lease).await
    }

    pub(super) async fn finish(&self, claim: Claim, result: &'static str) -> ClaimStatus {
        let result = Bytes::from_static(result.as_bytes());
        self.client.finish(&self.key, claim, result, LONG).await
    }

    pub(super) async fn renew(&self, claim: Claim) -> ClaimStatus {
        self.client.renew(&self.key, claim, self.lease).await
    }

    pub(super) async fn release(&self, claim: Claim) {
        let released = self.client.0.release(&self.key, claim).await;
        released.expect("release");
    }

    /// Asserts that another has the claim.
    pub(super) async fn assert_in_flight(&self) {
        let begun = self.begin(Owner::random()).await;
        let ClaimOutcome::InFlight { remaining } = begun else {
            panic!("it is in flight, not {begun:?}");
        };
        assert!(!remaining.is_zero(), "it would be asked again at once");
        assert!(remaining <= self.lease, "{remaining:?}");
    }

    /// Takes the work over from an owner that has stopped, as soon as the store says.
    pub(super) async fn take_over(&self) -> Claim {
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

    pub(super) async fn assert_done(&self, result: &'static str) {
        let done = ClaimOutcome::Done(Bytes::from_static(result.as_bytes()));
        assert_eq!(self.begin(Owner::random()).await, done);
    }
}

impl Client {
    pub(super) async fn begin(&self, key: &WorkKey, owner: Owner, lease: Duration) -> ClaimOutcome {
        self.0.begin(key, owner, lease).await.expect("begin")
    }

    pub(super) async fn renew(&self, key: &WorkKey, claim: Claim, lease: Duration) -> ClaimStatus {
        self.0.renew(key, claim, lease).await.expect("renew")
    }

    pub(super) async fn finish(
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
    pub(super) async fn sweep(&self) -> u64 {
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
pub(super) fn expect_fresh(begun: &ClaimOutcome) -> Claim {
    match begun {
        ClaimOutcome::Fresh(claim) => *claim,
        other => panic!("nobody holds it: {other:?}"),
    }
}
