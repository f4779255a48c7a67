//! Each command: what it writes, what it changes, and its exit codes.

use std::{fs, io};

use queue_runtime::once;
use serde_json::json;

use crate::support::{Ran, Storage};

#[tokio::test]
async fn queues_are_listed_with_what_is_known() {
    let storage = Storage::new();
    storage.submit(0..3).await;
    storage.reject("closed").await;
    let listed = storage.json(&["list"]);
    let names: Vec<_> = listed.iter().map(|queue| &queue["queue"]).collect();
    assert_eq!(names, ["orders", "orders-poison"]);
    assert_eq!(
        (&listed[0]["messages"], &listed[0]["poison"]),
        (&json!(2), &json!(1))
    );
    assert_eq!(listed[0]["totals"], json!({ "put": 3, "deleted": 1 }));
    let table = storage.out(&["list"]);
    assert!(
        table.starts_with("QUEUE") || table.starts_with(" QUEUE"),
        "{table}"
    );
    assert_eq!(storage.json(&["list", "orders-"]).len(), 1);
    let properties = &storage.json(&["properties", "orders"])[0];
    assert_eq!(properties["messages"], 2);
    assert!(properties["oldest"]["age_ms"].is_u64(), "{properties}");
    assert!(
        storage
            .out(&["properties", "orders"])
            .contains("deleted    1")
    );
    storage
        .run(&["properties", "order"])
        .failed(3, "does not exist");
}

#[test]
fn a_queue_is_created_described_and_deleted() {
    let storage = Storage::new();
    let created = storage.json(&["create", "orders", "--metadata", "PoisonThreshold=3"]);
    assert_eq!(created[0]["created"], "new");
    storage
        .run(&["create", "orders", "--metadata", "a-b=3"])
        .failed(2, "invalid metadata name");
    assert_eq!(storage.json(&["create", "orders"])[0]["created"], "existed");
    for command in [
        ["create", "more", "--metadata", "maxinflight=abc"].as_slice(),
        &["metadata", "orders", "maxInFlight=0"],
    ] {
        let refused = storage.run(command);
        refused.failed(2, "; allowed is 1 to 4294967295");
    }
    let metadata = storage.out(&[
        "metadata",
        "orders",
        "team=shop",
        "--unset",
        "poisonthreshold",
    ]);
    assert_eq!(metadata, "team=shop\n");
    let declined = storage.run(&["delete", "orders"]);
    declined.failed(5, "Delete queue `orders` with about 0 messages?");
    let deleted = &storage.json(&["delete", "orders", "--yes"])[0];
    assert_eq!(deleted["approximate_messages"], 0);
    storage
        .run(&["delete", "orders", "--yes"])
        .failed(3, "does not exist");
    storage.run(&["create", "Orders"]).failed(2, "lower-case");
}

#[test]
fn a_path_with_a_mistake_creates_no_file() {
    let storage = Storage::new();
    storage.run(&["list"]).failed(3, "does not exist");
    assert!(!storage.path("shop.db").exists());
    let mut without = storage.command(&["list"]);
    Ran::of(without.env_remove("QUEUE_URL")).failed(2, "QUEUE_URL");
}

#[tokio::test]
async fn messages_are_submitted_looked_at_and_received() {
    let storage = Storage::new();
    let kind = ["--kind", "shop.order"];
    let one = [
        &["submit", "orders", r#"{"number":1}"#, "--id", "first"],
        &kind[..],
    ]
    .concat();
    assert_eq!(storage.json(&one)[0]["id"], "first");
    let mut piped = storage.command(&[&["submit", "orders"], &kind[..]].concat());
    assert_eq!(Ran::of(piped.write_stdin("{\"number\":2}\n")).code, 0);
    storage
        .run(&[&["submit", "orders", "{"], &kind[..]].concat())
        .failed(1, "not JSON");
    for (json, place) in [
        (r#"{"a":"\ud800"}"#, "at line 1 column 13"),
        (r#"{"a":1e400}"#, "number out of range at line 1 column 10"),
    ] {
        storage
            .run(&[&["submit", "orders", json], &kind[..]].concat())
            .failed(1, place);
    }
    storage.out(&["submit", "orders", "--bare", "plain"]);
    let delayed = ["submit", "orders", "{}", "--delay", "1h", "--ttl", "2h"];
    storage.out(&[&delayed, &kind[..]].concat());

    assert_eq!(storage.json(&["peek", "orders"]).len(), 3);
    let browsed = storage.json(&["browse", "orders"]);
    assert_eq!(browsed.len(), 4);
    assert_eq!(
        storage
            .json(&["browse", "orders", "--state", "delayed"])
            .len(),
        1
    );
    let first = storage.run(&["--json", "browse", "orders", "-n", "3"]);
    let mark = first.error.split('\'').nth(1).expect("a mark").to_owned();
    let rest = storage.json(&["browse", "orders", "--from", &mark]);
    assert_eq!(rest, browsed[3..]);

    let shown = storage.out(&["find", "orders", "first"]);
    assert!(
        shown.contains("shop.order, version 1") && shown.contains("\"number\": 1"),
        "{shown}"
    );
    storage
        .run(&["find", "orders", "second"])
        .failed(3, "no message with the id second");

    let received = storage.json(&["receive", "orders"]);
    assert_eq!(received[0]["body"]["event"]["envelope"]["id"], "first");
    // It was handed back, in its place, and this attempt does not count.
    let all = ["receive", "orders", "-n", "9", "--complete", "--yes"];
    let again = storage.json(&all).swap_remove(0);
    let body = &received[0]["body"]["event"]["payload"];
    assert_eq!(&again["body"]["event"]["payload"], body);
    assert_eq!(
        (&again["attempt"], &again["dequeue_count"]),
        (&json!(1), &json!(2))
    );
    assert_eq!(storage.json(&["browse", "orders"]).len(), 1);
    storage
        .run(&["receive", "nowhere"])
        .failed(3, "queues create");
    storage
        .run(&["receive", "orders", "--complete"])
        .failed(5, "--yes");
}

#[tokio::test]
async fn a_file_of_lines_is_submitted_again_under_the_same_ids() {
    let storage = Storage::new();
    let file = storage.path("orders.jsonl");
    let lines: String = (0..100)
        .map(|number| format!("{{\"number\":{number}}}\n\n"))
        .collect();
    fs::write(&file, lines).expect("written");
    let file = file.to_str().expect("text");
    let submit = [
        "submit",
        "orders",
        "--kind",
        "shop.order",
        "--file",
        file,
        "--batch",
        "today",
    ];
    for _ in 0..2 {
        assert_eq!(storage.json(&submit)[0]["submitted"], 100);
    }
    assert_eq!(
        storage.json(&["find", "orders", "today-199"]).len(),
        2,
        "copies"
    );
    for lines in [&submit[..], &submit[..6]] {
        fs::write(file, "{\"number\":1}\n{broken\n").expect("written");
        let part = storage.run(lines);
        part.failed(6, "1 message was submitted");
        assert!(part.error.contains("line 2"), "{part:?}");
        // Nothing was done.
        fs::write(file, "{broken\n").expect("written");
        let none = storage.run(lines);
        none.failed(1, "line 1");
        assert!(!none.error.contains("before that"), "{none:?}");
    }
}

#[tokio::test]
async fn messages_are_mended_and_deleted_by_their_id() {
    let storage = Storage::new();
    for id in ["a", "b"] {
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
    storage
        .run(&["edit", "orders", "a", "{}"])
        .failed(5, "Replace the payload");
    storage
        .run(&["edit", "orders", "a", "{", "--yes"])
        .failed(1, "JSON");
    storage.out(&["edit", "orders", "a", r#"{"number":2}"#, "--yes"]);
    let edited = &storage.json(&["find", "orders", "a"])[0];
    assert_eq!(edited["body"]["event"]["payload"]["number"], 2);
    storage
        .run(&["delete-message", "orders", "a", "c", "--yes"])
        .failed(3, "id c");
    assert_eq!(
        storage.json(&["delete-message", "orders", "a", "b", "--yes"])[0]["deleted_messages"],
        2
    );
    storage.submit(0..5).await;
    storage
        .run(&["clear", "orders"])
        .failed(5, "about 5 messages");
    storage.out(&["clear", "orders", "--yes"]);
    assert_eq!(storage.messages("orders"), 0);
}

#[tokio::test]
async fn poison_is_redriven_by_its_reason() {
    let storage = Storage::new();
    storage.submit(0..3).await;
    for error in ["the warehouse is closed", "no such item", "no such item"] {
        storage.reject(error).await;
    }
    let dry = storage.json(&["redrive", "orders-poison", "--error", "such", "--dry-run"]);
    assert_eq!((dry.len(), &dry[3]["redriven"]), (4, &json!(2)), "{dry:?}");
    let filter = [
        "redrive",
        "orders-poison",
        "--reason",
        "rejected",
        "--error",
        "such",
    ];
    storage
        .run(&filter)
        .failed(5, "Move 2 messages of `orders-poison`?");
    let moved = storage.json(&[&filter[..], &["--yes", "--rate", "1000"]].concat());
    assert_eq!(
        (&moved[0]["redriven"], &moved[0]["filtered"]),
        (&json!(2), &json!(1))
    );
    let older = storage.json(&["redrive", "orders-poison", "--older-than", "1h", "--yes"]);
    assert_eq!(older[0]["redriven"], 0);
    assert_eq!(
        storage.json(&["redrive", "orders-poison", "--yes"])[0]["redriven"],
        1
    );
    assert_eq!(storage.messages("orders-poison"), 0);
}

#[tokio::test]
async fn poison_of_another_queue_is_left_unless_that_is_allowed() {
    let storage = Storage::new();
    storage.submit(0..2).await;
    storage.reject("closed").await;
    storage.reject("closed").await;
    let file = storage.path("poison.jsonl");
    let file = file.to_str().expect("text");
    storage.out(&["export", "orders-poison", file]);
    storage.out(&["import", file, "--queue", "returns-poison"]);
    let redrive = ["redrive", "returns-poison", "--yes"];
    for _ in 0..2 {
        let left = storage.run(&redrive);
        left.failed(6, "left on the poison queue");
        assert!(left.out.contains("2 messages left"), "{left:?}");
    }
    let moved = storage.json(&[&redrive[..], &["--allow", "orders"]].concat());
    assert_eq!(moved[0]["redriven"], 2);
    assert_eq!(storage.messages("orders"), 2);
}

#[test]
fn a_queue_is_paused_for_everybody_and_resumed() {
    let storage = Storage::new();
    storage.out(&["create", "orders", "--metadata", "team=shop"]);
    let paused = storage.out(&["pause", "orders", "--reason", "stocktaking"]);
    assert!(
        paused.contains("paused since") && paused.contains("stocktaking"),
        "{paused}"
    );
    assert!(storage.out(&["list"]).contains("stocktaking"));
    assert_eq!(
        storage.json(&["properties", "orders"])[0]["paused"]["reason"],
        "stocktaking"
    );
    storage.out(&["resume", "orders"]);
    assert!(
        storage
            .out(&["resume", "orders"])
            .contains("was not paused")
    );
    assert_eq!(storage.out(&["metadata", "orders"]), "team=shop\n");
}

#[tokio::test]
async fn results_are_listed_and_forgotten() {
    let storage = Storage::new();
    let service = storage.service().await;
    let store = service.results().expect("in the file");
    for (key, result) in [("order-7", 7), ("order-8", 8)] {
        let work = once(&store, key, async { Ok::<_, io::Error>(result) });
        assert_eq!(work.await.expect("done"), result);
    }

    let listed = storage.json(&["results", "list", "once"]);
    assert_eq!(
        (&listed[0]["key"], &listed[0]["state"]),
        (&json!("order-7"), &json!("done"))
    );
    let shown = &storage.json(&["results", "find", "once", "order-7"])[0];
    assert_eq!(shown["value"]["text"], "7");
    let hidden = storage.out(&["--hide-payloads", "results", "list"]);
    assert!(!hidden.contains("order-7"), "{hidden}");
    let page = storage.run(&["results", "list", "-n", "1"]);
    let (_, mark) = page.error.split_once("--from '").expect("there are more");
    let (mark, _) = mark.split_once('\'').expect("quoted");
    let rest = storage.json(&["results", "list", "--from", mark]);
    assert_eq!((rest.len(), &rest[0]["key"]), (1, &json!("order-8")));
    let page = storage.run(&["--hide-payloads", "results", "list", "-n", "1"]);
    assert!(page.error.contains("larger --count"), "{page:?}");
    assert!(
        !page.error.contains(mark),
        "a mark contains a key: {page:?}"
    );
    storage.out(&["results", "sweep"]);
    storage.out(&["results", "forget", "once", "order-7", "--yes"]);
    storage
        .run(&["results", "find", "once", "order-7"])
        .failed(3, "nothing is recorded");
}

#[tokio::test]
async fn a_file_is_copied_and_checked() {
    let storage = Storage::new();
    storage.submit(0..10).await;
    let copy = storage.path("copy.db");
    storage.out(&["backup", copy.to_str().expect("text")]);
    storage
        .run(&["backup", copy.to_str().expect("text")])
        .failed(1, "exist");
    let url = format!("sqlite:{}", copy.display());
    assert_eq!(
        storage.json(&["--url", &url, "properties", "orders"])[0]["messages"],
        10
    );
    let sound = &storage.json(&["--url", &url, "check"])[0];
    assert_eq!(
        (&sound["messages"], &sound["problems"]),
        (&json!(10), &json!([]))
    );

    let file = queue_runtime::sqlite::rusqlite::Connection::open(&copy).expect("opens");
    let damage = "UPDATE queue_messages SET body = x'00' WHERE seq = 3";
    assert_eq!(file.execute(damage, []).expect("damaged"), 1);
    drop(file);
    let damaged = storage.run(&["--url", &url, "check"]);
    damaged.failed(6, "damaged");
    assert!(
        damaged.out.contains("checked 1 queue, 10 messages"),
        "{damaged:?}"
    );
    assert_eq!(storage.run(&["--url", &url, "check", "--quick"]).code, 0);
}

#[tokio::test]
async fn readings_tell_what_comes_and_goes() {
    let storage = Storage::new();
    storage.submit(0..3).await;
    let readings = storage.json(&["watch", "--interval", "100ms", "-n", "2"]);
    assert_eq!(readings.len(), 2);
    assert_eq!(
        readings[0]["put_per_second"],
        json!(null),
        "one reading has no rate"
    );
    assert_eq!(readings[1]["put_per_second"], json!(0.0));
    assert_eq!(readings[1]["messages"], 3);
    storage
        .run(&["watch", "--interval", "1ms"])
        .failed(2, "100 ms");
}

#[cfg(feature = "azure")]
#[tokio::test]
async fn readings_go_on_after_an_outage() {
    use std::process::Stdio;
    use std::sync::Arc;

    use queue_runtime::QueueName;
    use queue_runtime::backend::{Backend, BackendExt as _, MemoryBackend, Metadata, NewMessage};
    use queue_runtime::clock::{Clock, SystemClock};
    use queue_server::{Account, DEVELOPMENT_KEY, Server};
    use queue_tests::azurite::lasting_port;
    use tokio::io::{AsyncBufReadExt as _, BufReader};
    use tokio::net::TcpListener;

    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let queues: Arc<dyn Backend> = Arc::new(MemoryBackend::new(Arc::clone(&clock)));
    let name = QueueName::from_static("orders");
    let created = queues.create_queue(&name, &Metadata::new()).await;
    created.expect("created");
    let account = Account::new("shop", DEVELOPMENT_KEY, Arc::clone(&queues), clock);
    let server = Server::new(vec![account.expect("valid")]);
    let port = lasting_port().expect("a port is free");
    let start = async || {
        let listener = TcpListener::bind(("127.0.0.1", port)).await;
        server
            .start(listener.expect("its port is free"))
            .expect("it starts")
    };
    let running = start().await;
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_queues"));
    let endpoint = format!("http://{}/shop", running.address());
    let url = format!("AccountName=shop;AccountKey={DEVELOPMENT_KEY};QueueEndpoint={endpoint}");
    command.env("QUEUE_URL", url);
    command.args("--json watch --interval 100ms".split(' '));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut watch = command.kill_on_drop(true).spawn().expect("it starts");
    let mut readings = BufReader::new(watch.stdout.take().expect("piped")).lines();
    let mut errors = BufReader::new(watch.stderr.take().expect("piped")).lines();
    let first = readings.next_line().await.expect("read").expect("a line");
    assert!(first.contains("orders"), "{first}");
    running.stop().await.expect("it stops");
    // The library tries again for a while, and says so, before the reading fails.
    loop {
        let error = errors.next_line().await.expect("read").expect("it runs");
        if error.contains("failed to") && !error.contains("trying again") {
            break;
        }
    }
    let _running = start().await;
    let order = NewMessage::new("an order");
    queues.put(&name, order).await.expect("put");
    // Those of the time before the outage may still be in the pipe.
    while !readings
        .next_line()
        .await
        .expect("read")
        .expect("it reads on")
        .contains(r#""messages":1"#)
    {}
}

#[test]
fn completions_and_the_help_are_written() {
    let storage = Storage::new();
    for shell in ["bash", "zsh", "fish"] {
        assert!(
            storage.out(&["completions", shell]).contains("redrive"),
            "{shell}"
        );
    }
    let help = storage.out(&["--help"]);
    assert!(
        help.contains("Exit codes") && help.contains("QUEUE_URL"),
        "{help}"
    );
    assert!(
        !help.contains(&storage.url),
        "a URL may hold a secret: {help}"
    );
}

#[test]
fn what_only_some_storage_has_is_unsupported_elsewhere() {
    let storage = Storage::new();
    let memory = ["--url", "memory:"];
    let on_memory = |arguments: &[&str]| storage.run(&[&memory[..], arguments].concat());
    on_memory(&["check"]).failed(4, "only a SQLite file");
    on_memory(&["backup", "x.db"]).failed(4, "only a SQLite file");
    on_memory(&["payloads", "sweep"]).failed(4, "no payload store");
    on_memory(&["list"])
        .code
        .eq(&0)
        .then_some(())
        .expect("it is empty");
    let secret = "https://shop.queue.core.windows.net/?sv=1&sig=c2VjcmV0";
    let ran = storage.run(&["--url", &format!("ftp:{secret}"), "list"]);
    assert!(ran.code == 2 && !ran.error.contains("c2VjcmV0"), "{ran:?}");
}
