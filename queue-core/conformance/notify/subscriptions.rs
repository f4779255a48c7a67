//! When subscriptions begin and end.

use super::fixture::Fixture;
use super::harness::{Arming, Harness};

pub(super) async fn a_subscription_that_is_dropped_is_over(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    let (over, subscription) = f.subscribe(0);
    let (stays, _subscription) = f.subscribe(0);
    let other = f.medium.second_client().await;
    let (there, elsewhere) = f.subscribe_at(&*other, 0);
    drop(subscription);
    assert!(f.publish_until(f.orders(), || stays.is_told()).await);
    assert_eq!(over.told(), []);
    assert!(f.publish_until(f.orders(), || there.is_told()).await);
    drop(elsewhere);
    let (next, _subscription) = f.subscribe_at(&*other, 0);
    assert!(f.publish_until(f.orders(), || next.is_told()).await);
    assert_eq!(over.told(), []);
}

pub(super) async fn subscriptions_are_armed_as_promised(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    let other = f.medium.second_client().await;
    let (recorder, subscription) = f.subscribe_at(&*other, 0);
    if f.medium.arming() == Arming::Never {
        assert!(!subscription.is_armed());
        // Nor when notifications arrive.
        assert!(f.publish_until(f.orders(), || recorder.is_told()).await);
        assert!(!subscription.is_armed());
        return;
    }
    assert!(f.until(|| {}, || subscription.is_armed()).await);
    f.client.publish(&f.orders());
    assert!(f.until(|| {}, || recorder.is_told()).await);
}
