//! `queues rate`.

use queue_runtime::backend::Metadata;
use queue_runtime::settings::RECEIVE_RATE;

use crate::support::Storage;

#[tokio::test]
async fn a_rate_is_shown_set_and_removed() {
    let storage = Storage::new();
    storage.out(&["create", "orders", "--metadata", "team=shop"]);
    assert_eq!(storage.out(&["rate", "orders"]), "rate: none\n");
    assert_eq!(
        storage.out(&["rate", "orders", "100/1m burst 20"]),
        "rate: 100/1m burst 20 (was: none)\n"
    );
    assert_eq!(
        storage.out(&["metadata", "orders"]),
        "receiverate=100/1m burst 20\nteam=shop\n"
    );
    let set = storage.json(&["rate", "orders", "5/1s"]);
    assert_eq!(
        (&set[0]["rate"], &set[0]["before"]),
        (&"5/1s".into(), &"100/1m burst 20".into())
    );
    assert_eq!(storage.out(&["rate", "orders"]), "rate: 5/1s\n");
    assert_eq!(
        storage.out(&["rate", "orders", "none"]),
        "rate: none (was: 5/1s)\n"
    );
    assert_eq!(storage.out(&["metadata", "orders"]), "team=shop\n");

    let invalid = storage.run(&["rate", "orders", "fast"]);
    invalid.failed(2, "allowed are a count from 1 to");
    let invalid = storage.run(&["metadata", "orders", "receiverate=fast"]);
    invalid.failed(2, "allowed is a rate such as `100/1m`");
    // Another program sets it.
    let orders = storage.service().await.any_queue("orders");
    let mut metadata = Metadata::new();
    metadata.insert(RECEIVE_RATE, "fast").expect("valid");
    let set = orders.expect("a name").set_metadata(&metadata).await;
    set.expect("set");
    let corrupt = storage.run(&["rate", "orders"]);
    corrupt.failed(1, "the rate is \"fast\"");
}
