//! Listing.

use std::collections::BTreeMap;
use std::time::Duration;

use super::harness::Harness;
use super::objects::create;
use crate::payload_store::{PayloadStore, StoredObject};

/// A store may tell whole seconds.
const RESOLUTION: Duration = Duration::from_secs(1);

/// Adds the objects of a page. Returns where the next one begins.
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

pub(super) async fn objects_are_listed_by_their_folder(harness: &dyn Harness) {
    let store = harness.open().await;
    let client = store.client();
    let all = [
        "data/a/1",
        "data/a/2",
        "data/a.b/3",
        "data/ab/4",
        "done/a/1",
        "identity",
    ];
    for (size, name) in all.iter().enumerate() {
        create(&*client, name, vec![0; size]).await;
    }
    assert_eq!(names(&*client, "").await, {
        let mut sorted = all;
        sorted.sort_unstable();
        sorted
    });
    assert_eq!(names(&*client, "data/a/").await, ["data/a/1", "data/a/2"]);
    assert_eq!(names(&*client, "done/").await, ["done/a/1"]);
    assert!(names(&*client, "nothing/").await.is_empty());
    for object in list(&*client, "").await {
        let size = all.iter().position(|name| *name == object.name);
        assert_eq!(size, usize::try_from(object.size).ok(), "{}", object.name);
    }
}

pub(super) async fn what_was_created_later_is_no_older(harness: &dyn Harness) {
    let store = harness.open().await;
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

pub(super) async fn an_object_that_stays_is_listed_once(harness: &dyn Harness) {
    const STAY: usize = 1200;
    let store = harness.open().await;
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
