//! Runs the program `queues` on a PostgreSQL database.

#[path = "../it/support.rs"]
#[expect(dead_code, reason = "the suite on SQLite uses all of it")]
mod support;

use std::fs;

use queue_tests::postgres::PostgresServer;
use serde_json::json;
use support::Storage;

#[test]
fn each_command_does_what_it_does_on_sqlite() {
    let server = PostgresServer::start().unwrap_or_else(|error| panic!("{error}"));
    let storage = Storage {
        url: server.url().to_owned(),
        ..Storage::new()
    };
    queues(&storage);
    messages(&storage);
    moved(&storage);
}

fn queues(storage: &Storage) {
    assert_eq!(storage.json(&["create", "orders"])[0]["created"], "new");
    assert_eq!(storage.json(&["create", "orders"])[0]["created"], "existed");
    storage.out(&["metadata", "orders", "poisonthreshold=1"]);
    storage.out(&["pause", "orders", "--reason", "stocktaking"]);
    let properties = &storage.json(&["properties", "orders"])[0];
    assert_eq!(properties["paused"]["reason"], "stocktaking");
    storage.out(&["resume", "orders"]);
    assert_eq!(storage.out(&["metadata", "orders"]), "poisonthreshold=1\n");
    storage.out(&["create", "spare"]);
    storage.out(&["delete", "spare", "--yes"]);
    storage
        .run(&["properties", "spare"])
        .failed(3, "does not exist");
}

fn messages(storage: &Storage) {
    let submit = ["submit", "orders", "--kind", "shop.order"];
    let mut ids = Vec::new();
    for number in 0..3 {
        let payload = json!({ "number": number }).to_string();
        let submitted = &storage.json(&[&submit[..], &[&payload]].concat())[0];
        ids.push(submitted["id"].as_str().expect("an id").to_owned());
    }
    let browsed = storage.json(&["browse", "orders"]);
    assert_eq!(browsed.len(), 3, "{browsed:?}");
    let found = storage.out(&["find", "orders", &ids[1]]);
    assert!(found.contains("number"), "{found}");
    storage.out(&["edit", "orders", &ids[1], r#"{"number": 17}"#, "--yes"]);
    assert!(storage.out(&["find", "orders", &ids[1]]).contains("17"));
    storage.out(&["delete-message", "orders", &ids[0], "--yes"]);
    let properties = &storage.json(&["properties", "orders"])[0];
    assert_eq!(
        properties["totals"],
        json!({ "put": 3, "deleted": 1 }),
        "{properties}"
    );
    let large = json!({ "text": "x".repeat(3_000_000) }).to_string();
    let file = storage.path("large.json");
    fs::write(&file, large).expect("written");
    let file = file.display().to_string();
    storage.out(&[&submit[..], &["--file", &file]].concat());
}

fn moved(storage: &Storage) {
    let file = storage.path("orders.jsonl").display().to_string();
    storage.out(&["export", "orders", &file, "--move", "--yes"]);
    let left = &storage.json(&["properties", "orders"])[0];
    assert_eq!(left["messages"], 0, "{left}");
    storage.out(&["import", &file, "--yes"]);
    let imported = &storage.json(&["properties", "orders"])[0];
    assert_eq!(imported["messages"], 3, "{imported}");
    storage.out(&["clear", "orders", "--yes"]);
}

#[test]
fn an_administrator_creates_the_schema_for_a_role_that_may_not() {
    let server = PostgresServer::start().unwrap_or_else(|error| panic!("{error}"));
    server.execute("CREATE ROLE shop LOGIN");
    let storage = Storage {
        url: format!(
            "{}?schema=orders",
            server.url().replace("postgres@", "shop@")
        ),
        ..Storage::new()
    };
    storage
        .run(&["create", "orders"])
        .failed(1, "permission denied");
    let script = storage.out(&["schema", "--role", "shop"]);
    server.execute(&script);
    storage.out(&["create", "orders"]);
    storage.out(&["submit", "orders", "--kind", "shop.order", "{}"]);
    assert_eq!(storage.json(&["browse", "orders"]).len(), 1);
}
