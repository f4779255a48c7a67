//! Time to live.

use std::time::Duration;

use super::fixture::{Fixture, LONG, assert_lease_gone, assert_refused};
use super::harness::Harness;
use crate::error::ErrorKind;
use crate::timestamp::between;

pub(super) async fn an_expired_message_is_never_seen(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    let put = f.put_living("brief", f.lease).await;
    let expires_at = put.expires_at.expect("it expires");
    assert!(between(put.inserted_at, expires_at) >= f.lease);
    f.put("lasting").await;
    f.advance(f.lease * 2).await;
    let peeked = f.backend.peek(&f.queue, 10).await.expect("peek");
    assert_eq!(peeked.len(), 1);
    assert_eq!(f.drain().await, ["lasting"]);
    assert_lease_gone(f.backend.delete(&f.queue, &put.id, &put.receipt).await);
}

pub(super) async fn a_message_lives_until_it_expires(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    let put = f.put_living("brief", f.lease * 4).await;
    f.advance(f.lease).await;
    let message = f.receive_one().await;
    assert_eq!(message.expires_at, put.expires_at);
    f.delete(&message).await.expect("delete");
}

pub(super) async fn a_leased_message_expires(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    f.put_living("brief", f.lease).await;
    let message = f.receive_for(1, LONG).await.pop().expect("visible");
    f.advance(f.lease * 2).await;
    assert_lease_gone(f.update(&message, Duration::ZERO, None).await);
    assert_lease_gone(f.delete(&message).await);
    f.assert_nothing_visible().await;
}

pub(super) async fn an_update_does_not_prolong_life(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    f.put_living("brief", f.lease * 2).await;
    let message = f.receive_one().await;
    let updated = f.update(&message, f.lease / 2, Some("changed")).await;
    updated.expect("update");
    f.advance(f.lease).await;
    let again = f.receive_one().await;
    assert_eq!(again.expires_at, message.expires_at);
    f.advance(f.lease * 2).await;
    f.assert_nothing_visible().await;
    assert_lease_gone(f.delete(&again).await);
}

pub(super) async fn an_update_beyond_the_expiry_is_refused_or_ends_there(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    f.put_living("brief", f.lease * 2).await;
    let mut message = f.receive_one().await;
    match f.update(&message, f.lease * 4, None).await {
        Ok(lease) => message.receipt = lease.receipt,
        Err(error) => assert_refused::<()>(Err(error), ErrorKind::InvalidInput),
    }
    // The receipt is valid in either case.
    let updated = f.update(&message, f.lease / 2, None).await;
    message.receipt = updated.expect("update").receipt;
    f.advance(f.lease * 3).await;
    assert_lease_gone(f.delete(&message).await);
    f.assert_nothing_visible().await;
}

pub(super) async fn many_expired_hide_nothing_behind_them(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    for _ in 0..300 {
        f.put_living("brief", f.lease).await;
    }
    f.put("lasting").await;
    f.advance(f.lease * 2).await;
    assert_eq!(f.drain().await, ["lasting"]);
}
