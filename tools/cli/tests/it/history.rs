//! `queues history`, and what `queues status` says of a message that has ended.

use queue_runtime::Message;
use serde::{Deserialize, Serialize};

use crate::support::Storage;

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "invoices", tracked, history = 1000)]
struct Invoice {
    number: u32,
}

#[tokio::test]
async fn what_became_of_messages_is_shown_the_newest_last() {
    let storage = Storage::new();
    let service = storage.service().await;
    let mut ids = Vec::new();
    for number in 0..3 {
        let submitted = service.submit(Invoice { number }).await.expect("submitted");
        ids.push(submitted.id);
    }
    storage
        .run(&["history", "invoices"])
        .failed(3, "invoices-history");
    for _ in 0..3 {
        let invoice = service.accept::<Invoice>().await.expect("accepted");
        let invoice = invoice.expect("one");
        let settled = match invoice.number {
            1 => invoice.reject("no \u{7}address").await.map(drop),
            _ => invoice.complete().await,
        };
        settled.expect("settled");
    }
    let all = storage.json(&["history", "invoices", "--all"]);
    let hows: Vec<&str> = all
        .iter()
        .filter_map(|one| one["entry"]["how"].as_str())
        .collect();
    assert_eq!(hows, ["completed", "poisoned", "completed"]);
    assert_eq!(all[2]["entry"]["id"], ids[2].as_str());
    let last = storage.json(&["history", "invoices", "-n", "1", "--since", "1h"]);
    assert_eq!(last, all[2..]);
    let poisoned = storage.out(&["history", "invoices", "--how", "poisoned"]);
    assert!(
        poisoned.contains(ids[1].as_str()) && poisoned.contains(r"no \u{7}address"),
        "{poisoned}"
    );
    assert!(!poisoned.contains(ids[0].as_str()), "{poisoned}");
    let hidden = storage.out(&["--hide-payloads", "history", "invoices"]);
    assert!(!hidden.contains("address"), "{hidden}");
    storage.out(&["submit", "invoices-history", "--kind", "other", "{}"]);
    let with_another = storage.run(&["history", "invoices"]);
    let note = "1 message of the queue cannot be read as entries, and is left out";
    assert!(with_another.error.contains(note), "{with_another:?}");
    let none = storage.out(&["history", "invoices", "--kind", "order"]);
    assert_eq!(none, "there are no such entries\n");

    let status = storage.out(&["status", ids[0].as_str()]);
    assert!(status.starts_with("completed at "), "{status}");
    storage
        .run(&["cancel", ids[0].as_str()])
        .failed(3, "it was completed before");
    storage.out(&["--yes", "clear", "invoices-poison"]);
    let status = storage.out(&["status", ids[1].as_str()]);
    assert!(status.contains("is gone from there"), "{status}");
}
