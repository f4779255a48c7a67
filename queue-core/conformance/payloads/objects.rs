//! Objects: creating, reading, listing and deleting them.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;

use super::OpenedPayloads;
use crate::backend::Created;
use crate::payload_store::{PayloadStore, StoredObject};

const MIB: usize = 1024 * 1024;
const NAME: &str = "data/orders/order-1_a.never.0123456789abcdef0123456789abcdef";

async fn create(store: &dyn PayloadStore, name: &str, data: impl Into<Bytes>) {
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

pub(super) async fn an_object_comes_back_in_parts(store: Box<dyn OpenedPayloads>) {
    let client = store.client();
    for length in [0, 1, 5 * MIB + 1] {
        let (name, data) = (format!("data/{length}"), data(length));
        create(&*client, &name, data.clone()).await;
        // Not `assert_eq`, which would print megabytes.
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

pub(super) async fn what_was_never_created_is_missing(store: Box<dyn OpenedPayloads>) {
    let client = store.client();
    // Creates the place for objects.
    create(&*client, "data/other", "other").await;
    for name in [NAME, "data/othe", "data/other2", "other"] {
        assert_eq!(read(&*client, name).await, None, "{name}");
        client.delete(name).await.expect("nothing to delete");
    }
    assert_eq!(read(&*client, "data/other").await, Some("other".into()));
}

pub(super) async fn an_object_is_created_once(store: Box<dyn OpenedPayloads>) {
    let client = store.client();
    create(&*client, NAME, "first").await;
    for other in ["second", "", "first"] {
        let again = client.create(NAME, other.into()).await.expect("create");
        assert_eq!(again, Created::Existed);
    }
    assert_eq!(read(&*client, NAME).await, Some("first".into()));
}

pub(super) async fn one_of_many_creators_wins(store: Box<dyn OpenedPayloads>) {
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

pub(super) async fn a_deleted_object_is_missing_and_can_be_created_again(
    store: Box<dyn OpenedPayloads>,
) {
    let client = store.client();
    create(&*client, NAME, "first").await;
    for _ in 0..2 {
        client.delete(NAME).await.expect("delete");
        assert_eq!(read(&*client, NAME).await, None);
    }
    create(&*client, NAME, "second").await;
    assert_eq!(read(&*client, NAME).await, Some("second".into()));
}

pub(super) async fn a_second_client_sees_the_same(store: Box<dyn OpenedPayloads>) {
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

/// A store may tell times in whole seconds.
const RESOLUTION: Duration = Duration::from_secs(1);

/// Adds a page's objects, and returns where the next page begins.
async fn add_page(
    store: &dyn PayloadStore,
    prefix: &str,
    from: Option<String>,
    objects: &mut Vec<StoredObject>,
) -> Option<String> {
    let page = store.list(prefix, from.as_deref()).await.expect("list");
    objects.extend(page.objects);
    page.next
}

async fn list(store: &dyn PayloadStore, prefix: &str) -> Vec<StoredObject> {
    let (mut objects, mut from) = (Vec::new(), None);
    for _ in 0..1000 {
        from = add_page(store, prefix, from, &mut objects).await;
        if from.is_none() {
            return objects;
        }
    }
    panic!("it goes on listing");
}

async fn names(store: &dyn PayloadStore, prefix: &str) -> Vec<String> {
    let listed = list(store, prefix).await;
    let mut names: Vec<_> = listed.into_iter().map(|object| object.name).collect();
    names.sort();
    names
}

pub(super) async fn objects_are_listed_by_their_folder(store: Box<dyn OpenedPayloads>) {
    let client = store.client();
    // A folder that was made a store holds the identity of the store.
    let own = names(&*client, "").await;
    let all = [
        "data/a/1",
        "data/a/2",
        "data/a.b/3",
        "data/ab/4",
        "done/a/1",
        "other",
    ];
    for (size, name) in all.iter().enumerate() {
        create(&*client, name, vec![0; size]).await;
    }
    let mut listed = names(&*client, "").await;
    listed.retain(|name| !own.contains(name));
    assert_eq!(listed, {
        let mut sorted = all;
        sorted.sort_unstable();
        sorted
    });
    assert_eq!(names(&*client, "data/a/").await, ["data/a/1", "data/a/2"]);
    assert_eq!(names(&*client, "done/").await, ["done/a/1"]);
    assert!(names(&*client, "nothing/").await.is_empty());
    let listed = list(&*client, "").await.into_iter();
    for object in listed.filter(|object| !own.contains(&object.name)) {
        let size = all.iter().position(|name| *name == object.name);
        assert_eq!(size, usize::try_from(object.size).ok(), "{}", object.name);
    }
}

pub(super) async fn what_was_created_later_is_no_older(store: Box<dyn OpenedPayloads>) {
    let client = store.client();
    for number in 0..10 {
        create(&*client, &format!("data/{number}"), "data").await;
    }
    let mut listed = list(&*client, "data/").await;
    listed.sort_by(|a, b| a.name.cmp(&b.name));
    for pair in listed.windows(2) {
        let latest = pair[0].created.saturating_sub(RESOLUTION);
        let latest = latest.expect("in range");
        assert!(pair[1].created >= latest, "{pair:?}");
    }
}

pub(super) async fn an_object_that_stays_is_listed_once(store: Box<dyn OpenedPayloads>) {
    const STAY: usize = 1200;
    let client = store.client();
    let goes = |number: usize| format!("data/{number:05}-goes");
    for number in 0..STAY {
        create(&*client, &format!("data/{number:05}-stays"), "").await;
        if number % 100 == 0 {
            create(&*client, &goes(number), "").await;
        }
    }
    let (mut listed, mut from) = (Vec::new(), None);
    for page in 0..STAY {
        client.delete(&goes(page * 100)).await.expect("delete");
        let new = format!("data/{:05}-comes", (page * 317) % STAY);
        create(&*client, &new, "").await;
        from = add_page(&*client, "data/", from, &mut listed).await;
        if from.is_none() {
            break;
        }
    }
    let mut times = BTreeMap::new();
    for object in listed {
        *times.entry(object.name).or_insert(0) += 1;
    }
    let stay = times.iter().filter(|(name, _)| name.ends_with("-stays"));
    assert_eq!(stay.count(), STAY);
    for (name, times) in times {
        assert_eq!(times, 1, "{name}");
    }
}
