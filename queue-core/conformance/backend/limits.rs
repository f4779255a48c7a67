//! Arguments at and just beyond the limits.

use std::time::Duration;

use super::harness::{Fixture, assert_refused, metadata};
use crate::backend::{BackendExt as _, Created, MAX_TIME_TO_LIVE, NewMessage, Op, TimeToLive};
use crate::error::ErrorKind;

const STEP: Duration = Duration::from_millis(1);

pub(super) async fn bodies_at_the_limit(f: Fixture) {
    let limit = f.backend.capabilities().max_body;
    let largest = "x".repeat(limit);
    let too_large = "x".repeat(limit + 1);
    f.put_message(NewMessage::new(largest.clone())).await;
    let refused = f.backend.put(&f.queue, NewMessage::new(too_large.clone()));
    assert_refused(refused.await, ErrorKind::TooLarge);
    let message = f.receive_one().await;
    assert_eq!(message.body.len(), limit);

    let update = |body: &String| {
        let body = Some(body.clone().into());
        f.backend
            .renew(&f.queue, &message.id, &message.receipt, f.lease, body)
    };
    assert_refused(update(&too_large).await, ErrorKind::TooLarge);
    update(&largest)
        .await
        .expect("the refused update left the receipt valid");

    let op = Op::Put {
        queue: f.queue.clone(),
        message: NewMessage::new(too_large),
    };
    let refused = f
        .backend
        .apply(vec![op].into())
        .await
        .expect_err("too large");
    assert_eq!(refused.error.kind(), ErrorKind::TooLarge);
    assert_eq!(f.count().await, 1);
}

pub(super) async fn bodies_of_moved_messages(f: Fixture) {
    let capabilities = f.backend.capabilities();
    let (limit, limit_moved) = (capabilities.max_body, capabilities.max_moved_body);
    assert!(limit_moved >= limit, "{capabilities:?}");
    // The limit may exceed what a test should write.
    let largest = "x".repeat(limit_moved.min(limit * 4));
    f.put_message(NewMessage::moved(largest.clone())).await;
    assert_eq!(f.receive_one().await.body, largest);
    let op = Op::Put {
        queue: f.queue.clone(),
        message: NewMessage::moved(largest.clone()),
    };
    f.backend.apply(vec![op].into()).await.expect("apply");
    assert_eq!(f.receive_one().await.body, largest);

    if limit_moved == largest.len() {
        let too_large = NewMessage::moved("x".repeat(limit_moved + 1));
        let refused = f.backend.put(&f.queue, too_large).await;
        assert_refused(refused, ErrorKind::TooLarge);
    }
    assert_eq!(f.count().await, 2);
}

pub(super) async fn metadata_at_the_limit(f: Fixture) {
    let limit = f.backend.capabilities().max_metadata;
    let of_size =
        |size: usize| metadata(&[("a", &"x".repeat(100)), ("b", &"x".repeat(size - 102))]);
    let (largest, too_large) = (of_size(limit), of_size(limit + 1));
    assert_eq!((largest.size(), too_large.size()), (limit, limit + 1));
    let set = f.backend.set_metadata(&f.queue, &largest).await;
    set.expect("set");
    let refused = f.backend.set_metadata(&f.queue, &too_large).await;
    assert_refused(refused, ErrorKind::InvalidInput);
    let properties = f.backend.properties(&f.queue).await.expect("properties");
    assert_eq!(properties.metadata, largest);

    let other = f.store.queue("others");
    let refused = f.backend.create_queue(&other, &too_large).await;
    assert_refused(refused, ErrorKind::InvalidInput);
    let missing = f.backend.properties(&other).await;
    assert_refused(missing, ErrorKind::QueueNotFound);
    let created = f.backend.create_queue(&other, &largest).await;
    assert_eq!(created.expect("create"), Created::New);
}

pub(super) async fn how_many_a_receive_may_ask_for(f: Fixture) {
    let most = f.backend.capabilities().max_receive;
    f.put("one").await;
    for refused in [0, most + 1, usize::MAX] {
        let received = f.backend.receive(&f.queue, refused, f.lease).await;
        assert_refused(received, ErrorKind::InvalidInput);
        let peeked = f.backend.peek(&f.queue, refused).await;
        assert_refused(peeked, ErrorKind::InvalidInput);
    }
    for allowed in [1, most] {
        let peeked = f.backend.peek(&f.queue, allowed).await.expect("peek");
        assert_eq!(peeked.len(), 1);
    }
    assert_eq!(f.receive(most).await.len(), 1);
}

pub(super) async fn a_full_receive_fills_up(f: Fixture) {
    let most = f.backend.capabilities().max_receive;
    for _ in 0..=most {
        f.put("one").await;
    }
    assert_eq!(f.receive(most).await.len(), most);
    assert_eq!(f.receive(most).await.len(), 1);
}

pub(super) async fn visibility_timeouts_of_a_receive(f: Fixture) {
    let (shortest, longest) = {
        let capabilities = f.backend.capabilities();
        (capabilities.min_visibility, capabilities.max_visibility)
    };
    f.put("one").await;
    for refused in [
        Duration::ZERO,
        shortest - STEP,
        longest + STEP,
        Duration::MAX,
    ] {
        let received = f.backend.receive(&f.queue, 1, refused).await;
        assert_refused(received, ErrorKind::InvalidInput);
    }
    assert_eq!(f.receive_for(1, shortest).await.len(), 1);
    f.advance(shortest * 2).await;
    let message = f.receive_for(1, longest).await.pop().expect("visible");
    assert_eq!(message.dequeue_count, 2);
    f.assert_nothing_visible().await;
}

pub(super) async fn visibility_timeouts_of_an_update(f: Fixture) {
    let capabilities = f.backend.capabilities();
    let longest = capabilities.max_visibility.max(capabilities.max_delay);
    f.put("one").await;
    let mut message = f.receive_one().await;
    for refused in [longest + STEP, Duration::MAX] {
        let updated = f.update(&message, refused, None).await;
        assert_refused(updated, ErrorKind::InvalidInput);
    }
    let lease = f.update(&message, longest, None).await.expect("update");
    message.receipt = lease.receipt;
    f.update(&message, Duration::ZERO, None)
        .await
        .expect("update");
    f.receive_one().await;
}

pub(super) async fn delays_of_a_put(f: Fixture) {
    let longest = f.backend.capabilities().max_delay;
    let put = |delay| {
        let message = NewMessage::new("one").with_delay(delay);
        f.backend.put(&f.queue, message)
    };
    put(longest).await.expect("put");
    for refused in [longest + STEP, Duration::MAX] {
        assert_refused(put(refused).await, ErrorKind::InvalidInput);
    }
    assert_eq!(f.count().await, 1);
    f.assert_nothing_visible().await;
}

pub(super) async fn times_to_live_of_a_put(f: Fixture) {
    let put = |lifetime, delay| {
        let message = NewMessage::new("one")
            .with_time_to_live(TimeToLive::After(lifetime))
            .with_delay(delay);
        f.backend.put(&f.queue, message)
    };
    let second = Duration::from_secs(1);
    for (lifetime, delay) in [
        (Duration::ZERO, Duration::ZERO),
        (f.lease, f.lease),
        (f.lease, f.lease + second),
        (MAX_TIME_TO_LIVE + second, Duration::ZERO),
    ] {
        assert_refused(put(lifetime, delay).await, ErrorKind::InvalidInput);
    }
    assert_eq!(f.count().await, 0);
    put(f.lease + second, f.lease).await.expect("put");
    put(second, Duration::ZERO).await.expect("put");
    // A storage rounds lifetime and delay.
    let (lifetime, delay) = (Duration::from_micros(700), Duration::from_micros(200));
    let barely = put(second + lifetime, second + delay).await.expect("put");
    assert!(barely.expires_at > Some(barely.visible_at));
    let put = put(MAX_TIME_TO_LIVE, Duration::ZERO).await.expect("put");
    assert!(put.expires_at.is_some());
}
