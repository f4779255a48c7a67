//! Each operation by Microsoft's packages, on Azurite and on our own server.

use std::process::Command;

use queue_tests::azurite::KEY;
use serde_json::{Value, json};

use crate::server::{ACCOUNT, SECOND_ACCOUNT, SERVER, runtime};
use crate::{peer, service};

/// Where a server answers otherwise than Azurite.
fn on_our_server(mut told: Value) -> Value {
    // The service says so, too.
    told["stale receipt"] = json!([404, "MessageNotFound"]);
    told
}

/// The requests of the paper, as `docs/seeds.md` has them.
#[test]
fn requests_by_curl_put_get_and_delete_a_message() {
    const QUEUE: &str = "by-curl";
    runtime().block_on(async {
        let queue = service().await.any_queue(QUEUE).expect("a name");
        queue.create().await.expect("created");
    });
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/interop/requests.sh");
    let ended = Command::new("sh")
        .arg(script)
        .env("ENDPOINT", SERVER.queue_endpoint(ACCOUNT))
        .envs([
            ("ACCOUNT", ACCOUNT),
            ("KEY", KEY),
            ("QUEUE", QUEUE),
            ("NO_PROXY", "127.0.0.1"),
        ])
        .output()
        .expect("a shell");
    let told = String::from_utf8_lossy(&ended.stdout);
    let problems = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{told}{problems}");
    let statuses: Vec<_> = told.lines().filter(|line| line.len() == 3).collect();
    assert_eq!(statuses, ["201", "200", "204"], "{told}");
    assert!(
        told.contains("<MessageText>Hello, queue</MessageText>"),
        "{told}"
    );
}

#[test]
fn each_operation_of_python_does_what_it_says() {
    each_operation_does_what_it_says("operations.py", ACCOUNT);
}

#[test]
fn each_operation_of_javascript_does_what_it_says() {
    each_operation_does_what_it_says("operations.mjs", SECOND_ACCOUNT);
}

/// The account is the program's own: the programs use queues of the same name, and set what holds for an account.
fn each_operation_does_what_it_says(program: &str, account: &str) {
    let expected = json!({
        "created twice": 204,
        "created otherwise": [409, "QueueAlreadyExists"],
        "metadata": [{"floor": "3"}, 0],
        "listed": [["every-operation", {"floor": "3"}]],
        "listed by one": [["every-operation"], ["every-operation-2"]],
        "lives for": 600,
        "peeked": [[true, 0]],
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
        "statistics": "live",
        "out of range": 400,
        "too large": 413,
        "gone": [404, "QueueNotFound"],
    });
    let expected = if queue_tests::azurite::is_own_server() {
        on_our_server(expected)
    } else {
        expected
    };
    let told = peer::run(program, &SERVER.connection_string(account), "");
    for (name, expected) in expected.as_object().expect("an object") {
        assert_eq!(told[name], *expected, "{name}: {told:#}");
    }
}
