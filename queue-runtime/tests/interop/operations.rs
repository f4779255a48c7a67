//! Each operation by Microsoft's package, on Azurite and on our own server.

use serde_json::{Value, json};

use crate::peer;

/// Where a server answers otherwise than Azurite.
fn on_our_server(mut told: Value) -> Value {
    // The service says so, too.
    told["stale receipt"] = json!([404, "MessageNotFound"]);
    told
}

#[test]
fn each_operation_does_what_it_says() {
    let expected = json!({
        "created twice": [204, "QueueAlreadyExists"],
        "created otherwise": [409, "QueueAlreadyExists"],
        "metadata": [{"floor": "3"}, 0],
        "listed": [["every-operation", {"floor": "3"}]],
        "lives for": 600.0,
        "peeked": [["a < b & c \"d\" \r\n \u{1f980}", 0]],
        "got": [true, 1],
        "hidden": 0,
        "stale receipt": [400, "PopReceiptMismatch"],
        "changed": ["changed", 2],
        "deleted twice": [404, "MessageNotFound"],
        "left": 0,
        "pages": 40,
        "cleared": 0,
        "policies": ["readers"],
        "by policy": 0,
        "beyond policy": 403,
        "by signature": "yes",
        "beyond signature": 403,
        "by account": ["every-operation"],
        "by another key": 403,
        "cors": ["http://page.example"],
        "out of range": 400,
        "too large": 413,
        "gone": [404, "QueueNotFound"],
    });
    let expected = if queue_tests::azurite::is_own_server() {
        on_our_server(expected)
    } else {
        expected
    };
    let told = peer::run("operations.py", "");
    for (name, expected) in expected.as_object().expect("an object") {
        assert_eq!(told[name], *expected, "{name}: {told:#}");
    }
}
