//! Pop receipts: what they allow, and when they become stale.

use std::time::Duration;

use super::harness::{Fixture, ReceiptScope, assert_lease_gone, assert_refused, text};
use crate::backend::{BackendExt as _, Op, PopReceipt, ReceivedMessage, StaleReceipts, StorageId};
use crate::error::ErrorKind;

pub(super) async fn a_deleted_message_is_gone(f: Fixture) {
    f.put("one").await;
    let message = f.receive_one().await;
    f.delete(&message).await.expect("delete");
    assert_eq!(f.count().await, 0);
    assert_lease_gone(f.delete(&message).await);
    assert_lease_gone(f.update(&message, Duration::ZERO, None).await);
    f.advance(f.lease * 2).await;
    f.assert_nothing_visible().await;
}

pub(super) async fn the_receipt_of_a_put_allows_to_delete(f: Fixture) {
    let put = f.put("one").await;
    let deleted = f.backend.delete(&f.queue, &put.id, &put.receipt).await;
    deleted.expect("delete");
    f.assert_nothing_visible().await;
}

pub(super) async fn the_receipt_of_a_put_allows_to_update(f: Fixture) {
    let put = f.put("one").await;
    let b = &f.backend;
    let hidden = b.renew(&f.queue, &put.id, &put.receipt, f.lease, None);
    let lease = hidden.await.expect("update");
    f.assert_nothing_visible().await;
    assert_lease_gone(b.delete(&f.queue, &put.id, &put.receipt).await);
    let deleted = b.delete(&f.queue, &put.id, &lease.receipt).await;
    deleted.expect("delete with the new receipt");
}

pub(super) async fn the_receipt_of_a_put_is_stale_after_a_receive(f: Fixture) {
    let put = f.put("one").await;
    let message = f.receive_one().await;
    assert_lease_gone(f.backend.delete(&f.queue, &put.id, &put.receipt).await);
    f.delete(&message).await.expect("delete");
}

pub(super) async fn a_receipt_is_stale_after_another_receive(f: Fixture) {
    f.put("one").await;
    let first = f.receive_one().await;
    f.advance(f.lease * 2).await;
    let second = f.receive_one().await;
    assert_eq!(second.id, first.id);
    assert_lease_gone(f.delete(&first).await);
    assert_lease_gone(f.update(&first, Duration::ZERO, Some("stolen")).await);
    f.assert_nothing_visible().await;
    f.delete(&second).await.expect("the new owner is unharmed");
    assert_eq!(f.count().await, 0);
}

pub(super) async fn a_receipt_is_stale_after_an_update(f: Fixture) {
    f.put("one").await;
    let mut message = f.receive_one().await;
    let lease = f.update(&message, f.lease, None).await.expect("update");
    assert_ne!(lease.receipt, message.receipt);
    assert_lease_gone(f.delete(&message).await);
    assert_lease_gone(f.update(&message, f.lease, None).await);
    message.receipt = lease.receipt;
    f.delete(&message).await.expect("delete");
}

pub(super) async fn a_stale_receipt_is_told_from_a_missing_message(f: Fixture) {
    let assert_kind = async |message: &ReceivedMessage, kind: ErrorKind| {
        let op = Op::Delete {
            queue: f.queue.clone(),
            id: message.id.clone(),
            receipt: message.receipt.clone(),
            moved: false,
        };
        let applied = f.backend.apply(vec![op].into()).await;
        let results = [
            f.delete(message).await,
            f.update(message, f.lease, None).await.map(drop),
            applied.map(drop).map_err(|failed| failed.error),
        ];
        for result in results {
            match f.backend.capabilities().stale_receipts {
                StaleReceipts::Distinct => assert_refused(result, kind),
                StaleReceipts::Ambiguous => assert_lease_gone(result),
            }
        }
    };
    f.put("one").await;
    let stale = f.receive_one().await;
    let mut current = stale.clone();
    let updated = f.update(&stale, f.lease, None).await.expect("update");
    current.receipt = updated.receipt;
    assert_kind(&stale, ErrorKind::ReceiptMismatch).await;
    f.delete(&current).await.expect("delete");
    assert_kind(&stale, ErrorKind::MessageNotFound).await;
    assert_kind(&current, ErrorKind::MessageNotFound).await;
}

pub(super) async fn a_lease_that_ran_out_still_settles(f: Fixture) {
    f.put("one").await;
    let mut message = f.receive_one().await;
    f.advance(f.lease * 2).await;
    let renewed = f.update(&message, f.lease, None).await;
    message.receipt = renewed.expect("nobody else received it").receipt;
    f.assert_nothing_visible().await;
    f.advance(f.lease * 2).await;
    f.delete(&message).await.expect("nobody else received it");
    f.assert_nothing_visible().await;
}

pub(super) async fn an_update_replaces_or_keeps_the_body(f: Fixture) {
    f.put("old").await;
    let message = f.receive_one().await;
    let replaced = f.update(&message, Duration::ZERO, Some("new")).await;
    replaced.expect("update");
    let message = f.receive_one().await;
    assert_eq!(text(&message.body), "new");
    f.update(&message, Duration::ZERO, None)
        .await
        .expect("update");
    let message = f.receive_one().await;
    assert_eq!(text(&message.body), "new");
    let emptied = f.update(&message, Duration::ZERO, Some("")).await;
    emptied.expect("update");
    assert_eq!(f.receive_one().await.body, "");
}

pub(super) async fn an_update_changes_one_message_only(f: Fixture) {
    for body in ["a", "b", "c"] {
        f.put(body).await;
    }
    let received = f.receive(3).await;
    assert_eq!(received.len(), 3);
    let changed = f
        .update(&received[1], Duration::ZERO, Some("changed"))
        .await;
    changed.expect("update");
    assert_eq!(f.drain().await, ["changed"]);
    f.delete(&received[0]).await.expect("delete");
    f.delete(&received[2]).await.expect("delete");
    assert_eq!(f.count().await, 1);
}

pub(super) async fn what_is_no_receipt_changes_nothing(f: Fixture) {
    f.put("a").await;
    f.put("b").await;
    let received = f.receive(2).await;
    assert_eq!(received.len(), 2);
    let mut forged = vec![
        with_receipt(&received[0], "bm90IGEgcmVjZWlwdA=="),
        with_receipt(&received[0], "0"),
        ReceivedMessage {
            id: StorageId::new("00000000-0000-0000-0000-000000000000"),
            ..received[0].clone()
        },
    ];
    if f.store.receipts() == ReceiptScope::Message {
        forged.push(with_receipt(&received[0], received[1].receipt.reveal()));
    }
    for forged in &forged {
        assert_lease_gone(f.delete(forged).await);
        assert_lease_gone(f.update(forged, Duration::ZERO, Some("forged")).await);
    }
    f.assert_nothing_visible().await;
    for message in &received {
        f.delete(message).await.expect("delete");
    }
}

fn with_receipt(message: &ReceivedMessage, receipt: &str) -> ReceivedMessage {
    ReceivedMessage {
        receipt: PopReceipt::new(receipt),
        ..message.clone()
    }
}

pub(super) async fn ids_are_never_given_twice(f: Fixture) {
    let mut ids = Vec::new();
    for _ in 0..20 {
        let put = f.put("one").await;
        let deleted = f.backend.delete(&f.queue, &put.id, &put.receipt).await;
        deleted.expect("delete");
        ids.push(put.id);
    }
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 20);
}
