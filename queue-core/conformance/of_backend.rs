//! The harness of a backend, for the suites of what the backend has beside its queues.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use async_trait::async_trait;

use super::backend::{Harness, OpenedBackend, Survival};
use super::idempotency::Listing;
use super::notify::{Arming, Delivery};
use super::{idempotency, notify};
use crate::backend::{Backend, BackendExt as _, NewMessage};
use crate::clock::BoxFuture;
use crate::idempotency::ResultStore;
use crate::notify::Notifier;

/// Tests the [results](Backend::results) and the [notifier](Backend::notifier) of the backend of a [`Harness`], where
/// nothing has to be said that the harness does not say:
///
/// ```ignore
/// queue_core::conformance_tests!(MyHarness);
/// mod results {
///     queue_core::result_store_tests!(OfBackend::new(super::MyHarness));
/// }
/// ```
pub struct OfBackend<H> {
    harness: H,
    arming: Arming,
    listing: Listing,
}

struct Open {
    arming: Arming,
    listing: Listing,
    store: Box<dyn OpenedBackend>,
    /// Backends kept open: what a backend has may end with it.
    others: Mutex<Vec<Arc<dyn Backend>>>,
}

impl<H: Harness> OfBackend<H> {
    /// Wraps the harness of a backend whose subscriptions are never armed, as far as it has a notifier.
    #[must_use]
    pub fn new(harness: H) -> Self {
        Self {
            harness,
            arming: Arming::Never,
            listing: Listing::Supported,
        }
    }

    /// Sets whether single results can be listed, looked up and forgotten, which is the default.
    #[must_use]
    pub fn listing(mut self, listing: Listing) -> Self {
        self.listing = listing;
        self
    }

    /// Sets whether the notifier's subscriptions are armed.
    #[must_use]
    pub fn arming(mut self, arming: Arming) -> Self {
        self.arming = arming;
        self
    }

    async fn open(&self) -> Open {
        Open {
            arming: self.arming,
            listing: self.listing,
            store: self.harness.open().await,
            others: Mutex::default(),
        }
    }
}

impl Open {
    async fn second_client(&self) -> Arc<dyn Backend> {
        let backend = self.store.second_client().await;
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        others.push(Arc::clone(&backend));
        backend
    }
}

#[async_trait]
impl<H: Harness> idempotency::Harness for OfBackend<H> {
    async fn open(&self) -> Box<dyn idempotency::OpenedResults> {
        Box::new(self.open().await)
    }

    fn block_on(&self, test: BoxFuture<'_, ()>) {
        self.harness.block_on(test);
    }

    fn stalled(&self) -> bool {
        self.harness.stalled()
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        self.harness.spawn(task)
    }
}

#[async_trait]
impl idempotency::OpenedResults for Open {
    fn client(&self) -> Arc<dyn ResultStore> {
        results(&*self.store.client())
    }

    fn sweeps_itself(&self) -> bool {
        true
    }

    async fn second_client(&self) -> Arc<dyn ResultStore> {
        results(&*self.second_client().await)
    }

    async fn reopen(&mut self) -> Arc<dyn ResultStore> {
        self.others
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
        results(&*self.store.reopen().await)
    }

    fn survival(&self) -> Survival {
        self.store.survival()
    }

    async fn advance(&self, duration: Duration) {
        self.store.advance(duration).await;
    }

    fn lease(&self) -> Duration {
        self.store.lease()
    }

    fn listing(&self) -> Listing {
        self.listing
    }
}

#[async_trait]
impl<H: Harness> notify::Harness for OfBackend<H> {
    async fn open(&self) -> Box<dyn notify::Medium> {
        Box::new(self.open().await)
    }

    fn block_on(&self, test: BoxFuture<'_, ()>) {
        self.harness.block_on(test);
    }

    fn stalled(&self) -> bool {
        self.harness.stalled()
    }
}

#[async_trait]
impl notify::Medium for Open {
    fn account(&self) -> String {
        self.store.client().account()
    }

    fn client(&self) -> Arc<dyn Notifier> {
        notifier(&*self.store.client())
    }

    async fn second_client(&self) -> Arc<dyn Notifier> {
        notifier(&*self.second_client().await)
    }

    fn delivery(&self) -> Delivery {
        Delivery::Later
    }

    fn arming(&self) -> Arming {
        self.arming
    }

    /// Puts a message, as before each notification: by a put, a client may learn who has subscribed.
    async fn pause(&self) {
        let (client, queue) = (self.store.client(), self.store.queue("announced"));
        client.ensure_queue(&queue).await.expect("create");
        let put = client.put(&queue, NewMessage::new("announced")).await;
        put.expect("put");
        // No runtime is known here.
        thread::sleep(Duration::from_millis(1));
    }
}

fn results(backend: &dyn Backend) -> Arc<dyn ResultStore> {
    let results = backend.results();
    results.unwrap_or_else(|| panic!("{backend:?} has no results"))
}

fn notifier(backend: &dyn Backend) -> Arc<dyn Notifier> {
    let notifier = backend.notifier();
    notifier.unwrap_or_else(|| panic!("{backend:?} has no notifier"))
}

impl<H> fmt::Debug for OfBackend<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OfBackend").finish_non_exhaustive()
    }
}
