//! Golden files: tests that a type's wire format has not changed unnoticed.
//!
//! Messages outlive the program that wrote them. After a field deep inside a message is renamed, the next
//! release cannot read the messages in flight, and the compiler does not notice. A golden file is an event
//! as a release wrote it, committed along with the tests:
//!
//! ```
//! # use queue_core::{DecodeError, EncodeError, Message, MessageType};
//! # #[derive(Debug, PartialEq)]
//! # struct Order { item: String }
//! # impl Message for Order {
//! #     const TYPE: MessageType = MessageType::new("order", "orders");
//! #     fn key(&self) -> Result<Option<Vec<serde_json::Value>>, EncodeError> { Ok(None) }
//! #     fn encode(&self) -> Result<Vec<u8>, EncodeError> {
//! #         Ok(serde_json::json!({"item": self.item}).to_string().into_bytes())
//! #     }
//! #     fn decode(_: u32, payload: &[u8]) -> Result<Self, DecodeError> {
//! #         let value: serde_json::Value = serde_json::from_slice(payload).expect("JSON");
//! #         Ok(Order { item: value["item"].as_str().expect("text").to_owned() })
//! #     }
//! # }
//! use queue_core::golden;
//!
//! // In a `#[test]`:
//! golden::assert("tests/golden/order-v1.json", &Order { item: "tea".to_owned() });
//! ```
//!
//! The first `golden::assert` of a value, with `QUEUE_GOLDEN=write` in the environment, writes the golden file. Once
//! the golden file is committed, `golden::assert` fails if the file no longer decodes to the given value, or the value
//! no longer encodes to the file.
//!
//! An intended change of the wire format requires a new `version` with a golden file of its own. Keep the old version's
//! golden file, and check with [`assert_decodes`] that it decodes to the upgraded value. Fill every field of a golden
//! value: an empty list says nothing about its items.

use std::error::Error as StdError;
use std::fmt::{Debug, Write as _};
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use bytes::Bytes;
use serde::ser::{Serialize, SerializeMap as _, SerializeSeq as _, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::clock::Timestamp;
use crate::encoder::Encoded;
use crate::envelope::{ClientId, MessageId, RequestId};
use crate::message::json::{Difference, differences};
use crate::message::{Message, Wire};
use crate::text::error_chain;
use crate::wire::{Body, Members};

/// The environment variable that makes missing files be written.
const VARIABLE: &str = "QUEUE_GOLDEN";

/// The most differences that are listed.
const MAX_DIFFERENCES: usize = 40;

/// Checks that the event in the file decodes to `value`, and `value` encodes to it.
///
/// A relative path is relative to the package's folder (`CARGO_MANIFEST_DIR`). The check ignores the order of an
/// object's members. A missing file is written if the environment has `QUEUE_GOLDEN=write`; an existing file is never
/// overwritten.
///
/// The file holds the body that `submit` stores, with fixed ids and time and no queue URI; the file of a type with
/// `wire = "lines"` therefore begins with an empty line, and has no line feed at its end.
///
/// # Panics
/// If the type reads another value than it writes, the file is missing, or a check fails. The panic's message lists
/// differences and says what to do.
#[track_caller]
pub fn assert<M: Message + Debug + PartialEq>(path: impl AsRef<Path>, value: &M) {
    let path = in_package(path.as_ref());
    if let Err(problem) = Mode::of_environment().and_then(|mode| check(&path, value, mode)) {
        panic!("{problem}");
    }
}

/// Checks that the event in the file, which may be of an older version, decodes to `expected`. The path
/// is resolved as by [`assert`](fn@assert); nothing is written.
///
/// # Panics
/// If the file cannot be read, or does not decode to `expected`.
#[track_caller]
pub fn assert_decodes<M: Message + Debug + PartialEq>(path: impl AsRef<Path>, expected: &M) {
    let path = in_package(path.as_ref());
    let checked = match fs::read(&path) {
        Ok(committed) => decode_problem(&path, &committed, expected),
        Err(error) => Some(format!("read {}: {error}", path.display())),
    };
    if let Some(problem) = checked {
        panic!("{problem}");
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Check,
    WriteMissing,
}

impl Mode {
    fn of_environment() -> Result<Self, String> {
        match env::var(VARIABLE).as_deref() {
            Err(env::VarError::NotPresent) | Ok("") => Ok(Self::Check),
            Ok("write") => Ok(Self::WriteMissing),
            other => Err(format!("{VARIABLE} is {other:?}; allowed is \"write\"")),
        }
    }
}

fn check<M: Message + Debug + PartialEq>(path: &Path, value: &M, mode: Mode) -> Result<(), String> {
    let shown = path.display();
    let current = event_of(value).map_err(|error| error_chain(&*error))?;
    let committed = match fs::read(path) {
        Ok(committed) => committed,
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(format!("read {shown}: {error}"));
        }
        Err(_) if mode == Mode::Check => {
            return Err(format!(
                "there is no golden file {shown}; run this test once with {VARIABLE}=write, look \
                 at the file, and commit it"
            ));
        }
        Err(_) => {
            write(path, &pretty(&current)).map_err(|error| format!("write {shown}: {error}"))?;
            current.clone()
        }
    };
    let problems = [
        encode_problem::<M>(path, &committed, &current),
        decode_problem(path, &committed, value),
    ];
    let problems: Vec<String> = problems.into_iter().flatten().collect();
    if problems.is_empty() {
        Ok(())
    } else {
        Err(problems.join("\n\n"))
    }
}

fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, content)
}

fn in_package(path: &Path) -> PathBuf {
    match env::var_os("CARGO_MANIFEST_DIR") {
        Some(package) => Path::new(&package).join(path),
        None => path.to_owned(),
    }
}

/// Encodes the value as `submit` does, with fixed ids and time and no queue URI.
fn event_of<M: Message>(value: &M) -> Result<Vec<u8>, Box<dyn StdError>> {
    let encoded = Encoded::of(value)?;
    encoded.read_back()?;
    let mut envelope = encoded.envelope(
        MessageId::new("00000000-0000-7000-8000-000000000000")?,
        ClientId::new("golden")?,
        RequestId::new("golden")?,
    );
    envelope.time = Some(Timestamp::UNIX_EPOCH);
    Ok(encoded.body(&envelope))
}

fn encode_problem<M: Message>(path: &Path, committed: &[u8], current: &[u8]) -> Option<String> {
    let parsed = |body| serde_json::from_slice::<Value>(body);
    let differences = match (parsed(committed), parsed(current)) {
        (Ok(committed), Ok(current)) => differences(&committed, &current),
        _ if committed == current => return None,
        _ if M::TYPE.wire() == Wire::Lines => line_differences(committed, current),
        _ => vec![(
            "the bytes".to_owned(),
            "they differ, and at least one side is not JSON".to_owned(),
        )],
    };
    if differences.is_empty() {
        return None;
    }
    let mut text = format!(
        "the wire format of `{}` version {} is not what {} holds:\n",
        M::TYPE.kind(),
        M::TYPE.version(),
        path.display()
    );
    for (place, difference) in differences.iter().take(MAX_DIFFERENCES) {
        write!(text, "\n  {place}: {difference}").expect("a String takes any text");
    }
    if let Some(more) = differences.len().checked_sub(MAX_DIFFERENCES + 1) {
        write!(text, "\n  … and {} more", more + 1).expect("a String takes any text");
    }
    text.push_str(
        "\n\nMessages in flight look like the file. Keep the format, or raise the type's `version`, \
         keep the old type as `upgrade_from`, check this file with `golden::assert_decodes`, and \
         give the new version a file of its own. If this version was never released, delete the \
         file and write it anew.",
    );
    Some(text)
}

fn decode_problem<M: Message + Debug + PartialEq>(
    path: &Path,
    committed: &[u8],
    expected: &M,
) -> Option<String> {
    let shown = path.display();
    let body = Body::read(&Bytes::copy_from_slice(committed), usize::MAX);
    match body.decode::<M>() {
        Ok(decoded) if decoded == *expected => None,
        Ok(decoded) => Some(format!(
            "{shown} decodes to another value\nexpected: {expected:#?}\n   found: {decoded:#?}"
        )),
        Err(error) => Some(format!("{shown} does not decode: {}", error_chain(&error))),
    }
}

/// Returns the differences between two texts, by line.
fn line_differences(committed: &[u8], current: &[u8]) -> Vec<Difference> {
    let [committed, current] = [committed, current].map(String::from_utf8_lossy);
    let (mut committed, mut current) = (committed.split('\n'), current.split('\n'));
    let shown = |line: Option<&str>| line.map_or("absent".to_owned(), |line| format!("{line:?}"));
    let mut differences = Vec::new();
    for number in 1.. {
        match (committed.next(), current.next()) {
            (None, None) => break,
            (was, now) if was == now => {}
            (was, now) => differences.push((
                format!("line {number}"),
                format!("was {}, is now {}", shown(was), shown(now)),
            )),
        }
    }
    differences
}

/// Formats JSON over several lines without changing numbers or the order of members; returns anything else unchanged.
fn pretty(body: &[u8]) -> Vec<u8> {
    let spread = serde_json::from_slice(body)
        .and_then(|value: &RawValue| serde_json::to_vec_pretty(&Spread(value)));
    match spread {
        Ok(mut lines) => {
            lines.push(b'\n');
            lines
        }
        Err(_) => body.to_owned(),
    }
}

/// Raw JSON whose members and items a formatter can lay out.
struct Spread<'a>(&'a RawValue);

impl Serialize for Spread<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = self.0.get();
        if let Ok(members) = Members::read(text.as_bytes()) {
            let mut map = serializer.serialize_map(None)?;
            for (name, value) in members.iter() {
                map.serialize_entry(name, &Spread(value))?;
            }
            map.end()
        } else if let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(text) {
            let mut seq = serializer.serialize_seq(Some(items.len()))?;
            for item in items {
                seq.serialize_element(&Spread(item))?;
            }
            seq.end()
        } else {
            self.0.serialize(serializer)
        }
    }
}

#[cfg(test)]
mod tests;
