//! What most tests send: orders of a shop, and text.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use queue_derive::Message;
use rand::rngs::StdRng;
use rand::{Rng as _, RngExt as _, SeedableRng as _};
use serde::{Deserialize, Serialize};

/// An order with a key.
#[expect(missing_docs, reason = "their names say it")]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "orders", kind = "order", crate = queue_core)]
pub struct Order {
    #[message(key)]
    pub number: u32,
    pub note: String,
}

/// Returns an order without a note.
#[must_use]
pub fn order(number: u32) -> Order {
    Order {
        number,
        note: String::new(),
    }
}

/// What a newer program sends as an [`Order`].
#[expect(missing_docs, reason = "their names say it")]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "orders", kind = "order", version = 2, crate = queue_core)]
pub struct NewerOrder {
    pub number: u64,
}

/// An order without a key.
#[expect(missing_docs, reason = "their names say it")]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "orders", kind = "shop.order", crate = queue_core)]
pub struct ShopOrder {
    pub number: u32,
}

/// An order whose message is its JSON, without an envelope.
#[expect(missing_docs, reason = "their names say it")]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "orders", kind = "order", wire = "bare", crate = queue_core)]
pub struct BareOrder {
    pub number: u32,
}

/// An order with what a shop wants to know: about 1 KiB of JSON, of names, numbers and addresses.
#[expect(missing_docs, reason = "their names say it")]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DetailedOrder {
    pub number: u32,
    pub customer: u32,
    pub email: String,
    pub name: String,
    pub street: String,
    pub postcode: u32,
    pub city: String,
    pub lines: Vec<Line>,
    pub total_cents: u32,
    pub note: String,
}

/// A line of a [`DetailedOrder`].
#[expect(missing_docs, reason = "their names say it")]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    pub article: u32,
    pub description: String,
    pub quantity: u8,
    pub cents: u32,
}

const NAMES: &[&str] = &[
    "Anna", "Ben", "Chen", "Dora", "Emil", "Fatima", "Georg", "Hana", "Igor", "Jana", "Kofi",
    "Lena", "Mehmet", "Nora", "Omar", "Paula", "Quentin", "Rosa", "Samir", "Tereza", "Uwe", "Vera",
    "Wanda", "Xaver", "Yara", "Zoe", "Schmidt", "Nowak", "Rossi", "Novak", "Dubois", "Jensen",
    "Kowalski", "Fischer", "Moreau", "Larsen", "Horvat", "Silva", "Costa", "Weber", "Okafor",
    "Tanaka",
];

const WORDS: &[&str] = &[
    "cotton",
    "shirt",
    "blue",
    "green",
    "large",
    "small",
    "lamp",
    "desk",
    "oak",
    "steel",
    "bottle",
    "glass",
    "wool",
    "blanket",
    "coffee",
    "beans",
    "dark",
    "roast",
    "organic",
    "tea",
    "kettle",
    "garden",
    "hose",
    "seeds",
    "tomato",
    "bicycle",
    "light",
    "front",
    "rear",
    "pump",
    "helmet",
    "book",
    "paper",
    "notebook",
    "pencil",
    "set",
    "of",
    "twelve",
    "box",
    "gift",
    "card",
    "winter",
    "jacket",
    "gloves",
    "leather",
    "wallet",
    "phone",
    "cable",
    "charger",
    "fast",
    "please",
    "leave",
    "with",
    "the",
    "neighbour",
    "ring",
    "twice",
    "second",
    "floor",
    "after",
    "noon",
    "fragile",
];

/// Returns so many orders, the same for the same seed. An order has about 1,025 bytes of JSON. Compressed by the
/// thousand, an order takes 178 bytes at Zstandard's highest level, and 241 at its lowest.
pub fn detailed_orders(count: u32, seed: u64) -> impl Iterator<Item = DetailedOrder> {
    let mut random = StdRng::seed_from_u64(seed);
    (0..count).map(move |number| detailed_order(number, &mut random))
}

fn detailed_order(number: u32, random: &mut StdRng) -> DetailedOrder {
    let lines: Vec<Line> = (0..7)
        .map(|_| Line {
            article: random.random_range(10_000..99_999),
            description: text(random, 5),
            quantity: random.random_range(1..6),
            cents: random.random_range(99..49_900),
        })
        .collect();
    let [first, last] = [name(random), name(random)];
    DetailedOrder {
        number,
        customer: random.random_range(100_000..999_999),
        email: format!(
            "{}.{}@example.com",
            first.to_lowercase(),
            last.to_lowercase()
        ),
        name: format!("{first} {last}"),
        street: format!("{} Street {}", name(random), random.random_range(1..250)),
        postcode: random.random_range(10_000..99_999),
        city: format!("{}ville", name(random)),
        total_cents: lines
            .iter()
            .map(|line| line.cents * u32::from(line.quantity))
            .sum(),
        lines,
        note: text(random, 32),
    }
}

fn name(random: &mut StdRng) -> &'static str {
    NAMES[random.random_range(0..NAMES.len())]
}

fn text(random: &mut StdRng, words: usize) -> String {
    let words = (0..words).map(|_| WORDS[random.random_range(0..WORDS.len())]);
    words.collect::<Vec<_>>().join(" ")
}

/// Returns random text of this length, which compression makes shorter by no more than a quarter.
#[must_use]
pub fn incompressible(length: usize) -> String {
    let mut bytes = vec![0; length.div_ceil(4) * 3];
    rand::rng().fill_bytes(&mut bytes);
    let mut text = URL_SAFE_NO_PAD.encode(bytes);
    text.truncate(length);
    text
}
