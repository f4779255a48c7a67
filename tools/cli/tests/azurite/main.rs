//! Runs the program `queues` on an account of Azurite.

#[path = "../it/support.rs"]
mod support;

use std::collections::BTreeSet;
use std::fs;

use queue_tests::azurite::{Azurite, KEY};
use serde_json::{Value, json};
use support::Storage;

fn storage(server: &Azurite, account: &str) -> Storage {
    Storage {
        url: server.connection_string(account),
        ..Storage::new()
    }
}

#[tokio::test]
async fn each_command_does_what_azure_can_and_names_what_it_cannot() {
    let server = Azurite::start(&["shop"]).expect("it starts");
    let storage = storage(&server, "shop");
    queues_and_metadata(&storage);
    messages(&storage);
    poison(&storage).await;
    moved(&storage);
    unsupported(&storage);
}

fn queues_and_metadata(storage: &Storage) {
    assert_eq!(storage.json(&["create", "orders"])[0]["created"], "new");
    assert_eq!(storage.json(&["create", "orders"])[0]["created"], "existed");
    storage.out(&["metadata", "orders", "poisonthreshold=1"]);
    storage.out(&["pause", "orders", "--reason", "stocktaking"]);
    let properties = &storage.json(&["properties", "orders"])[0];
    assert_eq!(properties["paused"]["reason"], "stocktaking");
    assert_eq!(
        (&properties["totals"], &properties["oldest"]),
        (&Value::Null, &Value::Null)
    );
    assert!(
        storage
            .out(&["properties", "orders"])
            .contains("put        not known here")
    );
    storage.out(&["resume", "orders"]);
    assert_eq!(storage.out(&["metadata", "orders"]), "poisonthreshold=1\n");
    storage.out(&["create", "spare"]);
    storage
        .run(&["delete", "spare"])
        .failed(5, "Delete queue `spare`");
    storage.out(&["delete", "spare", "--yes"]);
    storage
        .run(&["properties", "spare"])
        .failed(3, "does not exist");
}

fn messages(storage: &Storage) {
    for id in ["one", "two"] {
        storage.out(&[
            "submit",
            "orders",
            r#"{"number":1}"#,
            "--kind",
            "shop.order",
            "--id",
            id,
        ]);
    }
    assert_eq!(storage.json(&["peek", "orders"]).len(), 2);
    let received = &storage.json(&["receive", "orders"])[0];
    assert_eq!(received["body"]["event"]["payload"]["number"], 1);
    storage.out(&["receive", "orders", "--complete", "--yes"]);
    let listed = &storage.json(&["list"])[0];
    assert_eq!(
        (&listed["messages"], &listed["poison"]),
        (&json!(1), &json!(0))
    );
    assert!(listed["oldest"]["inserted_at"].is_string() && listed["oldest"]["age_ms"].is_null());
    let readings = storage.json(&["watch", "--interval", "100ms", "-n", "2"]);
    assert_eq!(readings[1]["put_per_second"], Value::Null, "never 0");
    assert!(
        storage
            .out(&["watch", "-n", "1"])
            .contains("not known here")
    );
    storage.out(&["clear", "orders", "--yes"]);
    assert_eq!(storage.messages("orders"), 0);
}

async fn poison(storage: &Storage) {
    storage.submit(0..3).await;
    for _ in 0..3 {
        storage.reject("closed").await;
    }
    let dry = storage.json(&[
        "redrive",
        "orders-poison",
        "--dry-run",
        "--reason",
        "rejected",
    ]);
    assert_eq!(dry.last().expect("a report")["redriven"], 3, "{dry:?}");
    let moved = storage.json(&["redrive", "orders-poison", "--error", "closed", "--yes"]);
    assert_eq!(moved[0]["redriven"], 3);
    assert_eq!(storage.messages("orders-poison"), 0);
}

fn moved(storage: &Storage) {
    let ran = storage.run(&["export", "orders"]);
    ran.failed(4, "export --move");
    let path = storage.path("orders.jsonl");
    let file = path.to_str().expect("text");
    storage.out(&["export", "orders", file, "--move", "--yes"]);
    let text = fs::read_to_string(&path).expect("read");
    let ids: BTreeSet<_> = text
        .lines()
        .map(|line| {
            let line: Value = serde_json::from_str(line).expect("JSON");
            line["event"]["id"].to_string()
        })
        .collect();
    assert_eq!((ids.len(), storage.messages("orders")), (3, 0));
    // To Azure again, and to a file of SQLite.
    assert_eq!(storage.json(&["import", file])[0]["imported"], 3);
    let local = Storage::new();
    assert_eq!(local.json(&["import", file])[0]["imported"], 3);
    assert_eq!(
        local.json(&["peek", "orders"])[0]["body"]["event"]["payload"],
        json!({ "number": 0 })
    );
}

fn unsupported(storage: &Storage) {
    for arguments in [
        &["browse", "orders"][..],
        &["find", "orders", "one"],
        &["delete-message", "orders", "one"],
        &["edit", "orders", "one", "{}"],
        &["schedules"],
        &["results", "list"],
        &["payloads", "sweep"],
        &["backup", "copy.db"],
        &["check"],
    ] {
        let ran = storage.run(arguments);
        assert!(
            ran.code == 4 && ran.out.is_empty(),
            "{arguments:?}: {ran:?}"
        );
        assert!(!ran.error.contains(KEY), "{ran:?}");
    }
    let mut wrong = storage.command(&["list"]);
    let url = storage.url.replace(KEY, "c2VjcmV0c2VjcmV0");
    let ran = support::Ran::of(wrong.env("QUEUE_URL", url));
    assert!(ran.code == 1 && !ran.error.contains("c2VjcmV0"), "{ran:?}");
}
