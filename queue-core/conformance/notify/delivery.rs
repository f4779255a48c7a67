//! What is published and whom it reaches, from when a subscription begins until it ends.

use std::time::Duration;

use super::{Arming, BILLS, Fixture, ORDERS};
use crate::internal::as_u64;
use crate::notify::Notification;

pub(super) async fn a_notification_tells_messages_and_bytes(f: Fixture) {
    let three = f.orders().with_messages(3, 1200);
    // Nobody has subscribed.
    f.client.publish(&three);
    let (recorder, _subscription) = f.subscribe(0);
    assert!(f.publish_until(three, || recorder.is_told()).await);
    for told in recorder.told() {
        assert_eq!((&*told.account, &told.queue), (&*f.account, &ORDERS));
        assert_eq!(told.messages % 3, 0, "{told:?}");
        assert_eq!(told.bytes, as_u64(told.messages) * 400, "{told:?}");
        assert_eq!(told.visible_in, Duration::ZERO);
    }
}

pub(super) async fn another_client_is_reached(f: Fixture) {
    let other = f.medium.second_client().await;
    let (recorder, _subscription) = f.subscribe_at(&*other, 0);
    let three = f.orders().with_messages(3, 1200);
    assert!(f.publish_until(three, || recorder.is_told()).await);
    for told in recorder.told() {
        assert_eq!((&*told.account, &told.queue), (&*f.account, &ORDERS));
        assert_eq!(told.messages % 3, 0, "{told:?}");
        assert_eq!(told.bytes, as_u64(told.messages) * 400, "{told:?}");
    }
}

pub(super) async fn other_queues_and_accounts_are_told_apart(f: Fixture) {
    const WRONG: usize = 1_000_000;

    let (here, _subscription) = f.subscribe(0);
    let (there, _other_subscription) = {
        let other = f.medium.second_client().await;
        let (there, subscription) = f.subscribe_at(&*other, 0);
        (there, (subscription, other))
    };
    let others = format!("{}-other", f.account);
    let publish = || {
        for (account, queue) in [(&f.account, &BILLS), (&others, &ORDERS)] {
            let wrong = Notification::new(account, queue).with_messages(WRONG, 0);
            f.client.publish(&wrong);
        }
        f.client.publish(&f.orders());
    };
    let both = || here.is_told() && there.is_told();
    assert!(f.until(publish, both).await);
    for told in here.told().into_iter().chain(there.told()) {
        assert!(told.messages < WRONG, "{told:?}");
    }
}

pub(super) async fn what_becomes_visible_later_is_announced_with_its_delay(f: Fixture) {
    let (recorder, _subscription) = f.subscribe(0);
    let minute = Duration::from_secs(60);
    let later = f.orders().with_visible_in(minute);
    assert!(f.publish_until(later, || recorder.is_told()).await);
    for told in recorder.told() {
        assert!(!told.visible_in.is_zero(), "{told:?}");
        assert!(told.visible_in <= minute, "{told:?}");
    }
}

pub(super) async fn who_takes_nothing_leaves_the_messages_to_others(f: Fixture) {
    let _subscribed = [0, 0].map(|takes| f.subscribe(takes));
    let (taker, _subscription) = f.subscribe(1);
    // Whichever subscriber is asked first.
    for _ in 0..6 {
        taker.forget();
        assert!(f.publish_until(f.orders(), || taker.is_told()).await);
    }
}

pub(super) async fn messages_for_several_consumers_reach_several(f: Fixture) {
    let subscribed = [1, 1, 1].map(|takes| f.subscribe(takes));
    let told = || {
        let recorders = subscribed.iter();
        recorders.filter(|(recorder, _)| recorder.is_told()).count()
    };
    let three = f.orders().with_messages(3, 0);
    assert!(f.publish_until(three, || told() == 3).await, "{}", told());
    let again = [1, 1].map(|takes| f.subscribe(takes));
    let all = || again.iter().all(|(recorder, _)| recorder.is_told());
    let many = f.orders().with_messages(5, 0);
    assert!(f.publish_until(many, all).await);
}

pub(super) async fn many_notifications_do_no_harm(f: Fixture) {
    let (recorder, _subscription) = f.subscribe(0);
    for number in 0..10_000 {
        let later = Duration::from_millis(number);
        f.client.publish(&f.orders().with_visible_in(later));
    }
    let now = || recorder.told().iter().any(|told| told.messages % 7 == 0);
    let seven = f.orders().with_messages(7, 0);
    assert!(f.publish_until(seven, now).await);
}

pub(super) async fn a_subscription_that_is_dropped_is_over(f: Fixture) {
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

pub(super) async fn subscriptions_are_armed_as_promised(f: Fixture) {
    let other = f.medium.second_client().await;
    let (recorder, subscription) = f.subscribe_at(&*other, 0);
    if f.medium.arming() == Arming::Never {
        assert!(!subscription.is_armed());
        // Still not armed when notifications arrive.
        assert!(f.publish_until(f.orders(), || recorder.is_told()).await);
        assert!(!subscription.is_armed());
        return;
    }
    assert!(f.until(|| {}, || subscription.is_armed()).await);
    f.client.publish(&f.orders());
    assert!(f.until(|| {}, || recorder.is_told()).await);
}
