//! Golden files as in a user's project: committed events of derived types.

use std::sync::Arc;

use queue_core::backend::Backend as _;
use queue_core::{Clock as _, ManualClock, Message, QueueName, Timestamp, golden};
use queue_derive::Message;
use queue_runtime::QueueService;
use queue_runtime::backend::MemoryBackend;
use serde::{Deserialize, Serialize};

#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
#[message(kind = "shop.order", queue = "orders", crate = queue_core)]
struct OrderV1 {
    #[message(key)]
    number: u64,
    item: String,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
#[message(kind = "shop.order", queue = "orders", version = 2, upgrade_from = OrderV1)]
#[message(crate = queue_core)]
struct OrderV2 {
    #[message(key)]
    number: u64,
    lines: Vec<Line>,
    paid: Option<Payment>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Line {
    item: String,
    count: u32,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Payment {
    Card { last_digits: String },
}

impl From<OrderV1> for OrderV2 {
    fn from(old: OrderV1) -> Self {
        Self {
            number: old.number,
            lines: vec![Line {
                item: old.item,
                count: 1,
            }],
            paid: None,
        }
    }
}

#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
#[message(wire = "bare", crate = queue_core)]
struct Thumbnail {
    picture: String,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
#[message(wire = "lines", crate = queue_core)]
struct Slice {
    image: String,
    number: u32,
}

fn slice() -> Slice {
    Slice {
        image: "cat.jpg".to_owned(),
        number: 7,
    }
}

fn thumbnail() -> Thumbnail {
    Thumbnail {
        picture: "cat.jpg".to_owned(),
    }
}

fn order() -> OrderV2 {
    OrderV2 {
        number: 7,
        lines: vec![Line {
            item: "tea".to_owned(),
            count: 2,
        }],
        paid: Some(Payment::Card {
            last_digits: "4242".to_owned(),
        }),
    }
}

#[test]
fn the_current_version_keeps_its_form() {
    golden::assert("golden/order-v2.json", &order());
}

#[test]
fn the_version_before_still_decodes() {
    golden::assert_decodes(
        "golden/order-v1.json",
        &OrderV2 {
            number: 7,
            lines: vec![Line {
                item: "tea".to_owned(),
                count: 1,
            }],
            paid: None,
        },
    );
}

#[test]
fn a_bare_type_has_its_payload_alone_in_the_file() {
    golden::assert("golden/thumbnail.json", &thumbnail());
}

#[test]
fn a_type_in_lines_has_them_in_the_file() {
    golden::assert("golden/slice.txt", &slice());
}

#[test]
#[should_panic(expected = "line 5: was \"7\", is now \"8\"")]
fn a_line_that_differs_fails() {
    let number = 8;
    golden::assert("golden/slice.txt", &Slice { number, ..slice() });
}

#[tokio::test(flavor = "current_thread")]
async fn submit_stores_what_a_golden_file_holds() {
    let file = include_str!("../../golden/order-v2.json");
    assert_eq!(stored(order(), "orders").await, without_space(file));
    let file = include_str!("../../golden/thumbnail.json");
    assert_eq!(stored(thumbnail(), "thumbnail").await, without_space(file));
    let file = include_str!("../../golden/slice.txt");
    assert_eq!(stored(slice(), "slice").await, file);
}

/// The body that `submit` stores, with the ids and the time of a golden file, and without the queue's
/// URI.
async fn stored<M: Message>(message: M, queue: &str) -> String {
    let clock = ManualClock::new();
    clock.step_wall_clock(Timestamp::UNIX_EPOCH.duration_since(clock.now()));
    let backend = Arc::new(MemoryBackend::new(Arc::new(clock.clone())));
    let builder = QueueService::with_backend(Arc::clone(&backend) as _).clock(Arc::new(clock));
    let service = builder.connect().await.expect("nothing to connect to");
    let submit = service
        .submit(message)
        .request_id("golden")
        .client_id("golden");
    let submit = submit.id("00000000-0000-7000-8000-000000000000");
    submit.await.expect("memory takes it");

    let queue = QueueName::new(queue).expect("a name");
    let peeked = backend.peek(&queue, 1).await.expect("submitted");
    let body = String::from_utf8(peeked[0].body.to_vec()).expect("JSON");
    let uri = backend.queue_uri(&queue);
    let member = format!("\"queueuri\":\"{uri}\",");
    body.replace(&member, "").replace(&uri, "")
}

/// Removes white space, which no value in the files contains.
fn without_space(json: &str) -> String {
    json.split_ascii_whitespace().collect()
}

#[test]
#[should_panic(expected = "data.lines[0].amount: was absent, is now 2")]
fn a_field_renamed_in_a_nested_type_fails() {
    #[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
    #[message(kind = "shop.order", queue = "orders", version = 2, crate = queue_core)]
    struct Renamed {
        #[message(key)]
        number: u64,
        lines: Vec<RenamedLine>,
        paid: Option<Payment>,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct RenamedLine {
        item: String,
        #[serde(alias = "count")]
        amount: u32,
    }

    let OrderV2 { number, paid, .. } = order();
    let lines = vec![RenamedLine {
        item: "tea".to_owned(),
        amount: 2,
    }];
    golden::assert(
        "golden/order-v2.json",
        &Renamed {
            number,
            lines,
            paid,
        },
    );
}

#[test]
#[should_panic(expected = "dataversion: was 2, is now 3")]
fn a_new_version_needs_a_file_of_its_own() {
    #[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
    #[message(kind = "shop.order", version = 3, upgrade_from = OrderV2, crate = queue_core)]
    struct Newer {
        number: u64,
    }

    impl From<OrderV2> for Newer {
        fn from(old: OrderV2) -> Self {
            Self { number: old.number }
        }
    }

    golden::assert("golden/order-v2.json", &Newer { number: 7 });
}

#[test]
#[should_panic(expected = "decodes to another value")]
fn an_upgrade_that_makes_another_value_fails() {
    golden::assert_decodes("golden/order-v1.json", &order());
}

#[test]
#[should_panic(expected = "no upgrade from it to 2")]
fn a_version_that_lost_its_upgrade_fails() {
    #[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
    #[message(kind = "shop.order", version = 2, crate = queue_core)]
    struct Stranded {
        number: u64,
    }

    golden::assert_decodes("golden/order-v1.json", &Stranded { number: 7 });
}

#[test]
#[should_panic(expected = "absent.json")]
fn a_missing_file_fails() {
    golden::assert_decodes("golden/absent.json", &order());
}
