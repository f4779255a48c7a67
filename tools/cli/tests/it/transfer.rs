//! Exports and imports.

use std::collections::BTreeSet;
use std::fs;

use queue_tests::orders::ShopOrder;
use serde_json::Value;

use crate::support::Storage;

fn lines(text: &str) -> Vec<Value> {
    let line = |line| serde_json::from_str(line).expect("JSON");
    text.lines().map(line).collect()
}

#[tokio::test]
async fn copies_change_nothing_and_are_imported_elsewhere() {
    let (storage, other) = (Storage::new(), Storage::new());
    storage.submit(0..600).await;
    storage.reject("closed").await;
    let copied = storage.out(&["export", "orders"]);
    assert_eq!(lines(&copied).len(), 599);
    let file = storage.path("poison.jsonl");
    let file = file.to_str().expect("text");
    storage.out(&["export", "orders-poison", file]);
    storage
        .run(&["export", "orders-poison", file])
        .failed(1, "exists");
    assert_eq!(storage.messages("orders"), 599);

    let mut import = other.command(&["--json", "import", "-"]);
    let imported = import
        .write_stdin(copied.clone())
        .output()
        .expect("it runs");
    assert_eq!(
        lines(&String::from_utf8(imported.stdout).expect("text"))[0]["imported"],
        599
    );
    other.out(&["import", file]);
    assert_eq!(
        other.json(&["redrive", "orders-poison", "--yes"])[0]["redriven"],
        1
    );
    let events = |lines: Vec<Value>| -> Vec<Value> {
        lines
            .into_iter()
            .map(|line| line["event"].clone())
            .collect()
    };
    let again = other.out(&["export", "orders"]);
    assert_eq!(events(lines(&again))[..599], events(lines(&copied)));
    other.out(&["import", file, "--queue", "elsewhere"]);
    assert_eq!(other.messages("elsewhere"), 1);
}

#[tokio::test]
async fn a_move_leaves_the_queue_empty_and_can_be_continued() {
    let storage = Storage::new();
    storage.submit(0..700).await;
    storage
        .run(&["export", "orders", "--move", "--yes"])
        .failed(2, "needs a file");
    let path = storage.path("orders.jsonl");
    let file = path.to_str().expect("text");
    storage
        .run(&["export", "orders", file, "--move"])
        .failed(5, "Move about 700 messages");
    assert!(!path.exists(), "nothing was confirmed");
    storage.out(&["export", "orders", file, "--move", "--yes"]);
    assert_eq!(storage.messages("orders"), 0);
    storage.submit(700..800).await;
    // As a killed process leaves it.
    let whole = fs::read_to_string(&path).expect("read");
    fs::write(&path, whole.clone() + "{\"queue\":\"orders\",\"stor").expect("written");
    let ran = storage.run(&["export", "orders", file, "--move", "--append", "--yes"]);
    assert!(
        ran.code == 0 && ran.error.contains("cut off a torn last line"),
        "{ran:?}"
    );
    let text = fs::read_to_string(&path).expect("read");
    assert!(text.starts_with(&whole));
    let ids = lines(&text);
    let ids: BTreeSet<_> = ids
        .iter()
        .map(|line| line["event"]["id"].to_string())
        .collect();
    assert_eq!(ids.len(), 800);
    fs::write(&path, "somebody's diary\nwithout an end").expect("written");
    let ran = storage.run(&["export", "orders", file, "--append"]);
    ran.failed(2, "is not a file of an export");
    assert_eq!(
        fs::read_to_string(&path).expect("read"),
        "somebody's diary\nwithout an end"
    );
}

#[tokio::test]
async fn a_torn_last_line_is_left_out_and_a_broken_one_is_named() {
    let (storage, other) = (Storage::new(), Storage::new());
    storage.submit(0..3).await;
    let copied = storage.out(&["export", "orders"]);
    let path = storage.path("orders.jsonl");
    let file = path.to_str().expect("text");
    fs::write(&path, &copied[..copied.len() - 20]).expect("written");
    let ran = other.run(&["--json", "import", file]);
    assert!(
        ran.code == 0 && ran.error.contains("line 3, which is torn"),
        "{ran:?}"
    );
    assert_eq!(lines(&ran.out)[0]["imported"], 2);
    // An editor may have left out the last line end.
    fs::write(&path, copied.trim_end()).expect("written");
    assert_eq!(other.json(&["import", file])[0]["imported"], 3);
    let broken = copied.replacen("\"dequeue_count\"", "\"dequeue\"", 1);
    fs::write(&path, broken).expect("written");
    let ran = other.run(&["import", file]);
    ran.failed(1, "line 1: not a message");
    assert_eq!(
        other.json(&["import", file, "--from-line", "2"])[0]["imported"],
        2
    );
    // The lines before it are put, and the help names it.
    let third = Storage::new();
    fs::write(&path, format!("{copied}no message\n")).expect("written");
    let ran = third.run(&["import", file]);
    ran.failed(6, "line 4: not a message");
    assert!(ran.error.contains("--from-line 4, or 5"), "{ran:?}");
    assert_eq!(third.messages("orders"), 3);
}

/// What is young, or held, stays; so does the rest of the queue's order.
#[tokio::test]
async fn what_is_older_is_moved_alone() {
    let storage = Storage::new();
    storage.submit(0..40).await;
    let service = storage.service().await;
    let held = service.accept::<ShopOrder>().await.expect("no error");
    let path = storage.path("old.jsonl");
    let file = path.to_str().expect("text");
    let older = |age: &'static str| {
        [
            "export",
            "orders",
            file,
            "--move",
            "--append",
            "--yes",
            "--older-than",
            age,
        ]
    };
    assert!(storage.out(&older("1h")).starts_with("moved 0 messages"));
    assert_eq!(storage.messages("orders"), 40);
    assert_eq!(storage.out(&["export", "orders", "--older-than", "1h"]), "");
    let copied = storage.out(&["export", "orders", "--older-than", "0s"]);
    assert_eq!(lines(&copied).len(), 40);

    storage
        .run(&[
            "export",
            "orders",
            file,
            "--move",
            "--append",
            "--older-than",
            "0s",
        ])
        .failed(5, "Move the older messages of queue `orders`");
    storage.out(&older("0s"));
    assert_eq!(storage.messages("orders"), 1);
    let moved = fs::read_to_string(&path).expect("read");
    assert_eq!(lines(&moved).len(), 39);
    let held = held.expect("it was visible");
    held.complete().await.expect("it was not touched");
}
