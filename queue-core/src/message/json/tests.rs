use std::cell::Cell;
use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize, Serializer};

use super::*;

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Price {
    euros: f64,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Shape {
    Point,
    Square(f64),
    Box(f64, f64),
    Circle { radius: f32 },
}

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct NestedOrder {
    note: Option<String>,
    items: Vec<(u32, Price)>,
    rates: BTreeMap<String, f64>,
    shapes: Vec<Shape>,
    discount: Option<f64>,
    #[serde(flatten)]
    total: Price,
}

#[derive(Serialize, Deserialize)]
struct Rates {
    #[serde(flatten)]
    rates: BTreeMap<String, f64>,
}

fn problem<T: Serialize + DeserializeOwned>(value: &T) -> String {
    to_json(value).expect_err("refused").to_string()
}

#[test]
fn a_float_that_is_not_finite_is_refused_with_its_path() {
    let price = |euros| Price { euros };
    let order = NestedOrder::default;
    for (order, path) in [
        (
            NestedOrder {
                items: vec![(1, price(1.0)), (2, price(f64::NAN))],
                ..order()
            },
            "`items[1][1].euros` is NaN",
        ),
        (
            NestedOrder {
                discount: Some(f64::INFINITY),
                ..order()
            },
            "`discount` is inf",
        ),
        (
            NestedOrder {
                total: price(f64::NEG_INFINITY),
                ..order()
            },
            "`euros` is -inf",
        ),
        // The names of a map are values.
        (
            NestedOrder {
                rates: [("a".to_owned(), 1.0), ("b".to_owned(), f64::NAN)].into(),
                ..order()
            },
            "`rates[1]` is NaN",
        ),
        (
            NestedOrder {
                shapes: vec![Shape::Point, Shape::Square(f64::NAN)],
                ..order()
            },
            "`shapes[1].Square` is NaN",
        ),
        (
            NestedOrder {
                shapes: vec![Shape::Box(1.0, f64::NAN)],
                ..order()
            },
            "`shapes[0][1]` is NaN",
        ),
        (
            NestedOrder {
                shapes: vec![Shape::Circle { radius: f32::NAN }],
                ..order()
            },
            "`shapes[0].radius` is NaN",
        ),
    ] {
        let problem = problem(&order);
        assert!(problem.starts_with(path), "{problem}");
    }
    assert!(problem(&f64::NAN).starts_with("the payload itself is NaN"));
    let rates = [("4111".to_owned(), f64::NAN)].into();
    assert!(problem(&Rates { rates }).starts_with("`[0]` is NaN"));
}

#[test]
fn what_is_finite_comes_back_as_it_was() {
    let order = NestedOrder {
        shapes: vec![Shape::Point, Shape::Circle { radius: 0.1 }],
        // Read as their neighbours, unless `serde_json` has its feature `float_roundtrip`.
        items: [
            1.308_680_281_960_049_9e-231,
            -4.706_685_124_162_234e-178,
            f64::MIN_POSITIVE / 3.0,
        ]
        .map(|euros| (1, Price { euros }))
        .into(),
        ..NestedOrder::default()
    };
    let json = to_json_and_back(&order).expect("it comes back");
    assert_eq!(
        serde_json::from_slice::<NestedOrder>(&json).expect("read"),
        order
    );
    assert_eq!(json, serde_json::to_vec(&order).expect("JSON"));
}

/// Counts how often the value is serialized.
struct Counted<'a, T>(&'a Cell<u32>, T);

impl<T: Serialize> Serialize for Counted<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        self.0.set(self.0.get() + 1);
        self.1.serialize(serializer)
    }
}

impl<'de, T> Deserialize<'de> for Counted<'_, T> {
    fn deserialize<D: Deserializer<'de>>(_: D) -> std::result::Result<Self, D::Error> {
        unreachable!("it is not read back")
    }
}

#[test]
fn only_a_value_with_nulls_is_looked_at_again() {
    let count = Cell::new(0);
    to_json(&Counted(&count, ("tea", [1.5], true))).expect("finite");
    assert_eq!(count.get(), 1);
    to_json(&Counted(&count, ("tea", None::<u32>))).expect("finite");
    assert_eq!(count.get(), 3);
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Nested {
    inner: Option<Box<Self>>,
}

/// A list that contains itself.
#[derive(Deserialize)]
struct Endless;

impl Serialize for Endless {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_seq([self])
    }
}

#[test]
fn what_is_nested_too_deeply_for_a_reader_is_refused() {
    let nested = |levels: usize| {
        let none = Nested { inner: None };
        (1..levels).fold(none, |inner, _| Nested {
            inner: Some(Box::new(inner)),
        })
    };
    let most = nested(MAX_JSON_DEPTH);
    let json = to_json(&most).expect("accepted");
    assert_eq!(serde_json::from_slice::<Nested>(&json).expect("read"), most);
    check_json(&json).expect("accepted");

    let problem_of_depth = problem(&nested(MAX_JSON_DEPTH + 1));
    assert!(
        problem_of_depth.starts_with("`inner.inner.inner")
            && problem_of_depth.ends_with("…` is nested more than 120 levels deep"),
        "{problem_of_depth}"
    );
    assert!(problem(&Endless).ends_with("120 levels deep"));
}

#[derive(Debug, Serialize, Deserialize)]
struct Wide {
    id: u128,
}

#[derive(Debug, Serialize, Deserialize)]
struct Flat {
    #[serde(flatten)]
    wide: Wide,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Number {
    Integer(i128),
    Float(f64),
}

#[test]
fn integers_of_128_bits_are_refused_only_where_the_type_cannot_read_them() {
    to_json(&Wide { id: u128::MAX }).expect("it is read");
    let flat = problem(&Flat {
        wide: Wide { id: 5 },
    });
    assert!(
        flat.contains("cannot read") && flat.contains("below `flatten`"),
        "{flat}"
    );
    for (silently, place) in [(5, "`[1]`"), (i128::MAX, "the payload itself")] {
        let other = problem(&vec![Number::Float(1.0), Number::Integer(silently)]);
        assert!(
            other.contains(&format!("another value than it writes at {place}")),
            "{other}"
        );
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Renamed {
    tags: HashSet<u32>,
    #[serde(rename(serialize = "sum", deserialize = "total"), default)]
    total: Option<u32>,
}

#[test]
fn what_is_read_back_names_the_field_that_is_lost() {
    let tags: HashSet<u32> = (0..100).collect();
    let total = None;
    to_json_and_back(&Renamed {
        tags: tags.clone(),
        total,
    })
    .expect("nothing is lost");
    let total = Some(7);
    let lost = to_json_and_back(&Renamed { tags, total }).expect_err("refused");
    assert!(
        lost.to_string()
            .ends_with("another value than it writes at `sum`"),
        "{lost}"
    );
    to_json_and_back(&f64::NAN).expect_err("refused");
}

#[test]
fn what_is_not_read_back_is_written_with_its_problem() {
    let (json, problem) = to_json_perhaps_back(&7_u32).expect("JSON");
    assert!(json == b"7" && problem.is_none(), "{problem:?}");
    let (json, problem) = to_json_perhaps_back(&f64::NAN).expect("JSON");
    assert_eq!(json, b"null");
    assert!(problem.is_some_and(|problem| problem.to_string().contains("NaN")));
    let flat = Flat {
        wide: Wide { id: 5 },
    };
    let (json, problem) = to_json_perhaps_back(&flat).expect("JSON");
    assert_eq!(json, br#"{"id":5}"#);
    assert!(problem.is_some());
    let endless = to_json_perhaps_back(&Endless).expect_err("it has no JSON");
    assert!(endless.to_string().ends_with("120 levels deep"));
}

#[test]
fn json_that_some_reader_refuses_is_refused_with_its_place() {
    let deep = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
    for (json, problem) in [
        (
            r#"{"a":"\ud800"}"#,
            "unexpected end of hex escape at line 1 column 13",
        ),
        ("{\"a\":\n1e400}", "number out of range at line 2 column 5"),
        (
            r#"{"\udfff":1}"#,
            "lone leading surrogate in hex escape at line 1 column 8",
        ),
        ("{", "EOF while parsing an object at line 1 column 1"),
        ("1 2", "trailing characters at line 1 column 3"),
        (&deep(128), "recursion limit exceeded at line 1 column 128"),
        (
            &deep(100_000),
            "recursion limit exceeded at line 1 column 128",
        ),
    ] {
        assert_eq!(
            check_json(json.as_bytes()).expect_err(json).to_string(),
            problem
        );
    }
    for json in [
        &deep(127),
        r#"{"a":"\ud83d\ude00","b":[1e308,-0.5,18446744073709551616,null,true]}"#,
    ] {
        check_json(json.as_bytes()).expect(json);
    }
}
