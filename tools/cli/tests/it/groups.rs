//! `queues groups`.

use queue_runtime::Delivery;
use queue_tests::orders::ShopOrder;

use crate::support::Storage;

async fn submit(storage: &Storage, group: &str, numbers: std::ops::Range<u32>) {
    let service = storage.service().await;
    for number in numbers {
        let submission = service.submit(ShopOrder { number }).group(group);
        submission.await.expect("submitted");
    }
}

#[tokio::test]
async fn groups_are_shown_with_what_they_wait_for() {
    let storage = Storage::new();
    storage.out(&["create", "orders"]);
    assert!(
        storage
            .out(&["groups", "orders"])
            .contains("no message has a group")
    );
    submit(&storage, "Zoë", 0..2).await;
    submit(&storage, "large", 0..3).await;
    let service = storage.service().await;
    let held: Delivery<ShopOrder> = service.accept().await.expect("no error").expect("one");
    let groups = storage.json(&["groups", "orders"]);
    assert_eq!(groups.len(), 2, "{groups:?}");
    assert_eq!(
        (&groups[0]["group"], &groups[0]["messages"]),
        (&"large".into(), &3.into())
    );
    let first = &groups[1]["first"];
    assert_eq!(
        (&first["state"], &first["received"]),
        (&"hidden".into(), &1.into()),
        "{groups:?}"
    );
    assert_eq!(first["id"], held.envelope().id.as_str());
    let table = storage.out(&["groups", "orders", "--count", "1"]);
    assert!(
        table.contains("limit of each group: order") && table.contains("large"),
        "{table}"
    );
    assert!(!table.contains("Zoë"), "{table}");
}

#[tokio::test]
async fn the_limit_of_groups_is_set_and_refused_with_a_reason() {
    let storage = Storage::new();
    storage.out(&["create", "orders", "--metadata", "team=shop"]);
    let set = storage.out(&["groups", "orders", "--limit", "2"]);
    assert_eq!(set, "limit of each group: 2 (was: order)\n");
    assert_eq!(
        storage.out(&["metadata", "orders"]),
        "grouplimit=2\nteam=shop\n"
    );
    submit(&storage, "large", 0..4).await;
    let service = storage.service().await;
    let held = service.accept_many::<ShopOrder>(8).await.expect("accepted");
    assert_eq!(held.len(), 2);

    let refused = storage.run(&["groups", "orders", "--limit", "order"]);
    refused.failed(1, "only change while there are none");
    let invalid = storage.run(&["groups", "orders", "--limit", "0"]);
    invalid.failed(2, "allowed are `order`, a number from 1");
    let invalid = storage.run(&["metadata", "orders", "grouplimit=many"]);
    invalid.failed(1, "allowed are `order`, a number from 1");

    let set = storage.json(&["groups", "orders", "--limit", "unlimited"]);
    assert_eq!(
        (&set[0]["limit"], &set[0]["before"]),
        (&"unlimited".into(), &"2".into())
    );
    let rest = service.accept_many::<ShopOrder>(8).await.expect("accepted");
    assert_eq!(rest.len(), 2);
}
