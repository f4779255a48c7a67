//! Golden files as a user has them: committed events of derived types.

use queue_core::golden;
use queue_derive::Message;
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
struct Order {
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

impl From<OrderV1> for Order {
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

fn order() -> Order {
    Order {
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
        &Order {
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
    #[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
    #[message(wire = "bare", crate = queue_core)]
    struct Thumbnail {
        picture: String,
    }

    golden::assert(
        "golden/thumbnail.json",
        &Thumbnail {
            picture: "cat.jpg".to_owned(),
        },
    );
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

    let Order { number, paid, .. } = order();
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
    #[message(kind = "shop.order", version = 3, upgrade_from = Order, crate = queue_core)]
    struct Newer {
        number: u64,
    }

    impl From<Order> for Newer {
        fn from(old: Order) -> Self {
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
