use serde::Deserialize;

use super::*;
use crate::message::{DecodeError, EncodeError, MessageType};

#[derive(Debug, PartialEq, serde::Serialize, Deserialize)]
struct PricedOrder {
    item: String,
    #[serde(default)]
    prices: Vec<u128>,
}

impl Message for PricedOrder {
    const TYPE: MessageType = MessageType::new("order", "orders");

    fn key(&self) -> Result<Option<Vec<Value>>, EncodeError> {
        Ok(Some(vec![Value::from(self.item.as_str())]))
    }

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        Ok(serde_json::to_vec(self).expect("serialises"))
    }

    fn decode(version: u32, payload: &[u8]) -> Result<Self, DecodeError> {
        serde_json::from_slice(payload)
            .map_err(|source| DecodeError::payload("order", version, source))
    }
}

fn order() -> PricedOrder {
    PricedOrder {
        item: "tea".to_owned(),
        prices: vec![7, 1],
    }
}

/// A folder, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("queue-golden-{}-{name}", std::process::id());
        Self(env::temp_dir().join(name))
    }

    fn file(&self) -> PathBuf {
        self.0.join("deeper/order-v1.json")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const WRITTEN: &str = r#"{
  "specversion": "1.0",
  "id": "00000000-0000-7000-8000-000000000000",
  "source": "golden",
  "type": "order",
  "time": "1970-01-01T00:00:00Z",
  "subject": "[\"order\",\"golden\",\"tea\"]",
  "datacontenttype": "application/json",
  "dataversion": 1,
  "requestid": "golden",
  "data": {
    "item": "tea",
    "prices": [
      7,
      1
    ]
  }
}
"#;

#[test]
fn a_missing_file_is_written_only_when_asked() {
    let folder = Folder::new("missing");
    let file = folder.file();
    let problem = check(&file, &order(), Mode::Check).expect_err("missing");
    assert!(problem.contains("QUEUE_GOLDEN=write"), "{problem}");
    assert!(!file.exists());

    assert_eq!(check(&file, &order(), Mode::WriteMissing), Ok(()));
    assert_eq!(fs::read_to_string(&file).expect("written"), WRITTEN);
    assert_eq!(check(&file, &order(), Mode::Check), Ok(()));
}

#[test]
fn a_file_that_is_there_is_never_overwritten() {
    let folder = Folder::new("there");
    let file = folder.file();
    let old = WRITTEN.replace("\"prices\"", "\"amounts\"");
    write(&file, old.as_bytes()).expect("writable");
    let problem = check(&file, &order(), Mode::WriteMissing).expect_err("differs");
    assert_eq!(fs::read_to_string(&file).expect("there"), old);
    for line in [
        "the wire format of `order` version 1 is not what",
        "  data.amounts: was [7,1], is now absent\n",
        "  data.prices: was absent, is now [7,1]\n",
        "decodes to another value",
    ] {
        assert!(problem.contains(line), "{line:?} in {problem}");
    }
}

#[test]
fn a_change_that_still_decodes_is_a_change() {
    let folder = Folder::new("decodes");
    let file = folder.file();
    let with_more = WRITTEN.replace("\"item\": \"tea\",", "\"item\": \"tea\", \"colour\": [1],");
    write(&file, with_more.as_bytes()).expect("writable");
    let problem = check(&file, &order(), Mode::Check).expect_err("differs");
    assert!(problem.contains("data.colour: was [1], is now absent"));
    assert!(!problem.contains("decode to"), "{problem}");
}

#[test]
fn a_changed_key_is_a_change() {
    let folder = Folder::new("key");
    let file = folder.file();
    let other_key = WRITTEN.replace(r#",\"tea\"]"#, "]");
    write(&file, other_key.as_bytes()).expect("writable");
    let problem = check(&file, &order(), Mode::Check).expect_err("differs");
    assert!(problem.contains("  subject: was "), "{problem}");
}

#[test]
fn the_order_of_members_and_white_space_are_no_change() {
    let folder = Folder::new("order");
    let file = folder.file();
    let value: Value = serde_json::from_str(WRITTEN).expect("JSON");
    let one_line = value
        .to_string()
        .replace("3.402823669209385e38", &u128::MAX.to_string());
    write(&file, one_line.as_bytes()).expect("writable");
    assert_eq!(check(&file, &order(), Mode::Check), Ok(()));
}

/// Writes `item`, and reads `name`.
#[derive(Debug, PartialEq)]
struct Renamed(Option<u32>);

impl Message for Renamed {
    const TYPE: MessageType = MessageType::new("renamed", "renamed");

    fn key(&self) -> Result<Option<Vec<Value>>, EncodeError> {
        Ok(None)
    }

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        Ok(serde_json::json!({ "item": self.0 }).to_string().into())
    }

    fn decode(version: u32, payload: &[u8]) -> Result<Self, DecodeError> {
        let value = serde_json::from_slice::<Value>(payload);
        let value = value.map_err(|error| DecodeError::payload("renamed", version, error))?;
        let name = value.get("name").and_then(Value::as_u64);
        Ok(Self(name.map(|name| name as u32)))
    }
}

#[test]
fn a_value_that_does_not_come_back_is_named_and_no_file_is_written() {
    let folder = Folder::new("renamed");
    let file = folder.file();
    let problem = check(&file, &Renamed(Some(7)), Mode::WriteMissing).expect_err("refused");
    assert!(
        problem.ends_with("another value than it writes at `item`"),
        "{problem}"
    );
    assert!(!file.exists());
}

#[test]
fn long_lists_of_differences_are_cut() {
    let list = |from: u32| Value::from_iter(from..from + 50);
    assert_eq!(differences(&list(0), &list(1)).len(), 50);
    let problem = encode_problem::<PricedOrder>(
        Path::new("x"),
        list(0).to_string().as_bytes(),
        list(1).to_string().as_bytes(),
    )
    .expect("differs");
    assert!(
        problem.contains("  [39]: was 39, is now 40\n  … and 10 more\n"),
        "{problem}"
    );
}

#[test]
fn a_written_file_loses_nothing() {
    let json = r#"{"b":340282366920938463463374607431768211455,"a":[1.50,1e400,"\u00e9",{},[]]}"#;
    let lines = pretty(json.as_bytes());
    assert_eq!(lines.iter().filter(|&&byte| byte == b'\n').count(), 10);
    let without_space: String = String::from_utf8(lines)
        .expect("text")
        .split_ascii_whitespace()
        .collect();
    assert_eq!(without_space, json);
}
