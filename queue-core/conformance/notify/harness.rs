use std::sync::Arc;

use async_trait::async_trait;

use crate::clock::BoxFuture;
use crate::notify::Notifier;

/// A notifier's test environment.
#[async_trait]
pub trait Harness: Send + Sync {
    /// Opens what no other test publishes to.
    async fn open(&self) -> Box<dyn Medium>;

    /// Runs a test to completion.
    fn block_on(&self, test: BoxFuture<'_, ()>);

    /// Whether the storage or the machine stalled during the test, for so long that a failure proves nothing. The suite
    /// then runs the test again in a new store, twice at most.
    fn stalled(&self) -> bool {
        false
    }
}

/// What notifications are sent through. Dropping it may remove it.
#[async_trait]
pub trait Medium: Send + Sync {
    /// The account of a storage that the notifiers serve.
    fn account(&self) -> String {
        "test:account".to_owned()
    }

    /// The notifier of a first program.
    fn client(&self) -> Arc<dyn Notifier>;

    /// Returns the notifier of another program, as independent of the first as the medium allows.
    async fn second_client(&self) -> Arc<dyn Notifier>;

    /// How soon a notification arrives.
    fn delivery(&self) -> Delivery {
        Delivery::AtOnce
    }

    /// Whether subscriptions are [armed](crate::notify::Subscription::is_armed).
    fn arming(&self) -> Arming {
        Arming::Never
    }

    /// Waits for a moment. Called while something is on its way.
    async fn pause(&self) {}
}

/// How soon a notification arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// Before `publish` returns.
    AtOnce,
    /// Some time later.
    Later,
}

/// Whether subscriptions are [armed](crate::notify::Subscription::is_armed).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arming {
    /// Never: others may put messages that nobody announces.
    Never,
    /// As soon as the subscription is in force.
    Always,
}
