//! Orders of a shop: about 1 KiB of JSON each, of names, numbers and addresses.

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde::{Deserialize, Serialize};

/// An order. Its fields are what an order of a shop has.
#[expect(missing_docs, reason = "their names say it")]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Order {
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

/// A line of an order.
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

/// Returns so many orders, the same for the same seed. An order has about 1,025 bytes of JSON. How much it has to tell: of
/// a thousand, each takes 178 bytes at Zstandard's highest level, and 241 at its lowest.
pub fn orders(count: u32, seed: u64) -> impl Iterator<Item = Order> {
    let mut random = StdRng::seed_from_u64(seed);
    (0..count).map(move |number| order(number, &mut random))
}

fn order(number: u32, random: &mut StdRng) -> Order {
    let lines: Vec<Line> = (0..7)
        .map(|_| Line {
            article: random.random_range(10_000..99_999),
            description: text(random, 5),
            quantity: random.random_range(1..6),
            cents: random.random_range(99..49_900),
        })
        .collect();
    let [first, last] = [name(random), name(random)];
    Order {
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
