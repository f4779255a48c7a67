//! Exports and imports that are killed.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use queue_runtime::AnyQueue;
use queue_tests::orders::ShopOrder;

use crate::support::Storage;

const ORDERS: u32 = 4_000;
const KILLS: usize = 8;
/// How many there are at most, until one of them is in the middle.
const MOST_KILLS: usize = 20 * KILLS;

/// Returns how often each order is in the file and on the queue.
fn everywhere(storage: &Storage, file: &str) -> (BTreeMap<u64, u32>, BTreeMap<u64, u32>) {
    let numbers = |text: &str| {
        let mut found = BTreeMap::new();
        for line in text.lines() {
            // The last one may be torn.
            if let Ok(line) = serde_json::from_str::<serde_json::Value>(line) {
                let number = line["event"]["data"]["number"].as_u64().expect("an order");
                *found.entry(number).or_default() += 1;
            }
        }
        found
    };
    let written = fs::read(file).unwrap_or_default();
    let written = numbers(&String::from_utf8_lossy(&written));
    (written, numbers(&storage.out(&["export", "orders"])))
}

fn start(storage: &Storage, arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_queues"));
    command.env("QUEUE_URL", &storage.url).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(Stdio::null()).spawn().expect("it starts")
}

/// Kills the process as soon as this is so, unless it ends before.
fn kill_once(process: &mut Child, is_so: impl Fn() -> bool) {
    while process.try_wait().expect("asked").is_none() && !is_so() {
        std::thread::sleep(Duration::from_millis(1));
    }
    process.kill().expect("killed");
    process.wait().expect("it ended");
}

async fn depth(queue: &AnyQueue) -> usize {
    queue.properties().await.expect("read").approximate_count
}

#[tokio::test]
async fn moves_that_are_killed_lose_nothing() {
    let storage = Storage::new();
    storage.submit(0..ORDERS).await;
    let path = storage.path("orders.jsonl");
    let file = path.to_str().expect("text");
    let arguments = ["export", "orders", file, "--move", "--append", "--yes"];
    let length = || fs::metadata(&path).map_or(0, |file| file.len());
    let (mut kills, mut in_the_middle, mut submitted) = (0, 0, ORDERS);
    while kills < KILLS || in_the_middle == 0 {
        assert!(kills < MOST_KILLS, "none was killed in the middle");
        kills += 1;
        let enough = length() + rand::random_range(1..100_000);
        let mut export = start(&storage, &arguments);
        kill_once(&mut export, || length() >= enough);
        let (written, waiting) = everywhere(&storage, file);
        for number in 0..u64::from(submitted) {
            let copies = written.get(&number).unwrap_or(&0) + waiting.get(&number).unwrap_or(&0);
            assert!(copies > 0, "order {number} is lost");
        }
        in_the_middle += u32::from(!written.is_empty() && !waiting.is_empty());
        if waiting.is_empty() {
            // It was faster than this process, which did not run meanwhile.
            storage.submit(submitted..submitted + ORDERS).await;
            submitted += ORDERS;
        }
    }
    println!("{kills} kills, {in_the_middle} of them in the middle");
}

#[tokio::test]
async fn imports_that_are_killed_and_repeated_lose_nothing_and_make_copies_of_one_id() {
    let (storage, other) = (Storage::new(), Storage::new());
    storage.submit(0..ORDERS).await;
    let path = storage.path("orders.jsonl");
    let file = path.to_str().expect("text");
    storage.out(&["export", "orders", file]);
    let service = other.service().await;
    let queue = service.queue::<ShopOrder>().any();
    queue.create().await.expect("created");
    for _ in 0..3 {
        let mut import = start(&other, &["import", file]);
        let before = depth(&queue).await;
        while import.try_wait().expect("asked").is_none() && depth(&queue).await == before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        import.kill().expect("killed");
        import.wait().expect("it ended");
    }
    other.out(&["import", file]);
    let (mut ids, mut from) = (BTreeMap::new(), None);
    loop {
        let page = queue.browse(from.as_ref(), 256).await.expect("browsed");
        for message in &page.messages {
            let order: ShopOrder = message.body.decode().expect("an order");
            let id = message.body.envelope().expect("an event").id.clone();
            let number = *ids.entry(id).or_insert(order.number);
            assert_eq!(number, order.number, "copies have one id");
        }
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    assert_eq!(ids.len(), ORDERS as usize);
}
