//! Creating, reading and deleting.

use bytes::Bytes;
use futures_util::future::join_all;

use super::harness::Harness;
use crate::backend::Created;
use crate::payload_store::PayloadStore;

const MIB: usize = 1024 * 1024;
const NAME: &str = "data/orders/order-1_a.never.0123456789abcdef0123456789abcdef";

pub(super) async fn create(store: &dyn PayloadStore, name: &str, data: impl Into<Bytes>) {
    let created = store.create(name, data.into()).await.expect("create");
    assert_eq!(created, Created::New, "{name}");
}

async fn read(store: &dyn PayloadStore, name: &str) -> Option<Bytes> {
    let read = store.read(name, 0, 8 * MIB).await;
    read.expect("read")
}

fn data(length: usize) -> Bytes {
    (0..length)
        .map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8)
        .collect()
}

pub(super) async fn an_object_comes_back_in_parts(harness: &dyn Harness) {
    let store = harness.open().await;
    let client = store.client();
    for length in [0, 1, 5 * MIB + 1] {
        let (name, data) = (format!("data/{length}"), data(length));
        create(&*client, &name, data.clone()).await;
        // Not `assert_eq`, which would print it.
        assert!(read(&*client, &name).await == Some(data.clone()), "{name}");
        for from in [
            0,
            1,
            length / 2,
            length.saturating_sub(1),
            length,
            length + 1,
        ] {
            for max in [1, MIB, 2 * MIB] {
                let part = client.read(&name, from as u64, max).await.expect("read");
                let (start, end) = (from.min(length), length.min(from.saturating_add(max)));
                let expected = &data[start..end.max(start)];
                let is_that = part.expect("it is there") == expected;
                assert!(is_that, "{name}: {max} bytes from byte {from}");
            }
        }
        let behind = client.read(&name, u64::MAX / 4, MIB).await.expect("read");
        assert_eq!(behind, Some(Bytes::new()), "{name}");
    }
}

pub(super) async fn what_was_never_created_is_missing(harness: &dyn Harness) {
    let store = harness.open().await;
    let client = store.client();
    // So that the place for objects exists.
    create(&*client, "data/other", "other").await;
    for name in [NAME, "data/othe", "data/other2", "other"] {
        assert_eq!(read(&*client, name).await, None, "{name}");
        client.delete(name).await.expect("nothing to delete");
    }
    assert_eq!(read(&*client, "data/other").await, Some("other".into()));
}

pub(super) async fn an_object_is_created_once(harness: &dyn Harness) {
    let store = harness.open().await;
    let client = store.client();
    create(&*client, NAME, "first").await;
    for other in ["second", "", "first"] {
        let again = client.create(NAME, other.into()).await.expect("create");
        assert_eq!(again, Created::Existed);
    }
    assert_eq!(read(&*client, NAME).await, Some("first".into()));
}

pub(super) async fn one_of_many_creators_wins(harness: &dyn Harness) {
    let store = harness.open().await;
    let (first, second) = (store.client(), store.second_client().await);
    let creators = (0..8_u8).map(|creator| {
        let client = if creator % 2 == 0 { &first } else { &second };
        async move {
            let data = Bytes::from(vec![creator; 100_000]);
            (creator, client.create(NAME, data).await.expect("create"))
        }
    });
    let created = join_all(creators).await;
    let mut winners = created.iter().filter(|(_, one)| *one == Created::New);
    let (winner, _) = winners.next().expect("one of them");
    assert_eq!(winners.next(), None, "{winner} is not the only one");
    let found = read(&*first, NAME).await.expect("it is there");
    assert!(found == vec![*winner; 100_000], "not that of {winner}");
}

pub(super) async fn a_deleted_object_is_missing_and_can_be_created_again(harness: &dyn Harness) {
    let store = harness.open().await;
    let client = store.client();
    create(&*client, NAME, "first").await;
    for _ in 0..2 {
        client.delete(NAME).await.expect("delete");
        assert_eq!(read(&*client, NAME).await, None);
    }
    create(&*client, NAME, "second").await;
    assert_eq!(read(&*client, NAME).await, Some("second".into()));
}

pub(super) async fn a_second_client_sees_the_same(harness: &dyn Harness) {
    let store = harness.open().await;
    let (first, second) = (store.client(), store.second_client().await);
    create(&*first, NAME, "first").await;
    assert_eq!(read(&*second, NAME).await, Some("first".into()));
    let again = second.create(NAME, "second".into()).await;
    assert_eq!(again.expect("create"), Created::Existed);
    let listed = second.list("data/", None).await.expect("list").objects;
    assert_eq!(listed[0].name, NAME);
    second.delete(NAME).await.expect("delete");
    assert_eq!(read(&*first, NAME).await, None);
}
