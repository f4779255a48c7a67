//! What a sender wrote does not reach the terminal as it is.

use queue_runtime::envelope::{ClientId, Envelope, MessageId, RequestId};
use queue_runtime::send::UntypedMessage;
use queue_runtime::wire::Payload;

use crate::support::Storage;

/// Sets the title, clears the screen, turns the direction of text, and ends a line.
const HOSTILE: &str = "\u{1b}]0;owned\u{7}\u{9b}2J\u{202e}x\r\nDeleted";

fn assert_harmless(shown: &str) {
    let dangerous = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
    assert!(!shown.contains(dangerous), "{shown:?}");
    assert!(!shown.contains("\nDeleted"), "{shown:?}");
}

#[tokio::test]
async fn payloads_kinds_ids_and_errors_are_escaped() {
    let storage = Storage::new();
    let service = storage.service().await;
    let queue = service.any_queue("orders").expect("a name");
    let client = ClientId::new("shell\u{202e}").expect("valid");
    let id = MessageId::new("id-\u{202e}-7").expect("no control character");
    let kind = "shop.\u{202e}order";
    let envelope = Envelope::new(id.clone(), client, RequestId::random(), kind);
    let payload = serde_json::to_string(HOSTILE).expect("JSON");
    let event = UntypedMessage::event(envelope, Payload::Json(payload.into()));
    queue.submit(event).await.expect("submitted");
    let order = queue.accept().await.expect("no error").expect("submitted");
    order.reject(HOSTILE.to_owned()).await.expect("rejected");
    queue
        .submit(UntypedMessage::bare(HOSTILE))
        .await
        .expect("submitted");

    for command in [
        &["peek", "orders"][..],
        &["browse", "orders"],
        &["browse", "orders-poison"],
        &["--json", "browse", "orders"],
        &["--json", "browse", "orders-poison"],
        &["find", "orders-poison", id.as_str()],
        &["--json", "receive", "orders"],
        &["export", "orders"],
        &["export", "orders-poison"],
        &["redrive", "orders-poison", "--dry-run"],
        &["--json", "redrive", "orders-poison", "--dry-run"],
    ] {
        let out = storage.out(command);
        assert!(!out.is_empty());
        assert_harmless(&out);
    }
    let unknown = storage.run(&["find", "orders", "no\u{202e}where"]);
    assert_harmless(&unknown.error);
}

#[tokio::test]
async fn payloads_and_error_texts_are_left_out_when_they_are_to_be_hidden() {
    let storage = Storage::new();
    let secret = [
        "submit",
        "orders",
        r#"{"card":"4111"}"#,
        "--kind",
        "shop.order",
        "--id",
        "7",
    ];
    storage.out(&secret);
    let service = storage.service().await;
    let queue = service.any_queue("orders").expect("a name");
    let order = queue.accept().await.expect("no error").expect("submitted");
    order
        .reject("no card 4111".to_owned())
        .await
        .expect("rejected");
    storage.out(&secret);
    storage.out(&["submit", "orders", "--bare", "4111"]);
    for command in [
        &["peek", "orders"][..],
        &["browse", "orders"],
        &["browse", "orders-poison"],
        &["find", "orders", "7"],
        &["find", "orders-poison", "7"],
        &["receive", "orders", "-n", "5"],
        &["redrive", "orders-poison", "--dry-run"],
    ] {
        for json in [&[][..], &["--json"]] {
            let all = [&["--hide-payloads"], json, command].concat();
            let out = storage.out(&all);
            assert!(!out.contains("4111"), "{all:?}: {out}");
            let shown = storage.out(&[json, command].concat());
            assert!(shown.contains("4111"), "{command:?}: {shown}");
        }
    }
}

#[tokio::test]
async fn nothing_is_deleted_of_which_only_a_part_is_written() {
    let storage = Storage::new();
    // More digits than a float has, members that are not sorted, and line feeds between tokens.
    let payload = "{\"n\": 340282366920938463463374607431768211455,\n \"a\": 1.00}";
    storage.out(&["submit", "orders", payload, "--kind", "shop.order"]);
    for command in [
        &["receive", "orders", "--complete", "--yes"][..],
        &["export", "orders"],
    ] {
        let ran = storage.run(&[&["--hide-payloads"], command].concat());
        ran.failed(2, "--hide-payloads");
    }
    let kept = r#""payload":{"n": 340282366920938463463374607431768211455,  "a": 1.00}"#;
    for command in [
        &["peek", "orders"][..],
        &["browse", "orders"],
        &["receive", "orders", "--complete", "--yes"],
    ] {
        let written = storage.out(&[&["--json"], command].concat());
        assert!(written.contains(kept), "{command:?}: {written}");
        assert_eq!(written.lines().count(), 1);
    }
    assert_eq!(storage.messages("orders"), 0);
}

#[tokio::test]
async fn a_reader_that_goes_is_no_error_and_costs_no_message() {
    let storage = Storage::new();
    storage.submit(0..200).await;
    for command in [
        "browse orders --all",
        "receive orders -n 200 --complete --yes",
    ] {
        let line = format!("{} {command} | head -n 1", env!("CARGO_BIN_EXE_queues"));
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &line]).env("QUEUE_URL", &storage.url);
        let output = shell.output().expect("it runs");
        assert_eq!(output.stderr, b"", "{command}");
        assert_eq!(
            output.stdout.iter().filter(|byte| **byte == b'\n').count(),
            1
        );
    }
    let rest = storage.json(&["properties", "orders"])[0]["messages"].as_u64();
    assert!(
        rest > Some(0),
        "what nobody has read is still there: {rest:?}"
    );
}
