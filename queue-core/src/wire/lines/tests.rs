use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::*;
use crate::envelope::MessageId;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Slice {
    image_uri: String,
    number: u32,
    scale: f64,
    is_last: bool,
    grade: char,
    colour: Colour,
    note: Option<String>,
    size: Size,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Colour {
    Red,
    Mixed(u8),
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Size(i128);

fn slice() -> Slice {
    Slice {
        image_uri: "http://pictures.example/sun set.png?a=ü".to_owned(),
        number: 7,
        scale: 0.25,
        is_last: true,
        grade: 'ß',
        colour: Colour::Red,
        note: None,
        size: Size(-16),
    }
}

const LINES: &str = "http://pictures.example/sun set.png?a=ü\n7\n0.25\ntrue\nß\nred\n\n-16";

fn lines<T: Serialize>(message: &T) -> Result<String, String> {
    let lines = to_lines(message).map_err(|error| error.to_string())?;
    Ok(String::from_utf8(lines).expect("text"))
}

fn message<T: DeserializeOwned>(lines: &str) -> Result<T, String> {
    from_lines(lines.as_bytes()).map_err(|error| error.to_string())
}

/// The payload of [`slice`] with another line.
fn with_line(number: usize, line: &str) -> String {
    let mut lines: Vec<&str> = LINES.split('\n').collect();
    lines[number] = line;
    lines.join("\n")
}

#[test]
fn each_field_is_a_line() {
    assert_eq!(lines(&slice()), Ok(LINES.to_owned()));
    assert_eq!(message(LINES), Ok(slice()));
    // .NET writes `True`.
    assert_eq!(message(&with_line(3, "True")), Ok(slice()));
}

#[test]
fn tuple_structs_and_newtypes_have_their_lines() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Pair(String, u8);
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Only(Option<u8>);
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Around(Pair);

    let pair = || Pair("a".to_owned(), 2);
    let text = "a\n2";
    assert_eq!(lines(&pair()), Ok(text.to_owned()));
    assert_eq!(message(text), Ok(pair()));
    assert_eq!(lines(&Around(pair())), Ok(text.to_owned()));
    assert_eq!(message(text), Ok(Around(pair())));
    for (only, text) in [(Only(Some(3)), "3"), (Only(None), "")] {
        assert_eq!(lines(&only), Ok(text.to_owned()));
        assert_eq!(message(text), Ok(only));
    }
    let error = message::<Pair>("a\nb").expect_err("not a number");
    assert_eq!(
        error,
        "field `1` on line 5: expected u8, found text of length 1"
    );
    let error = message::<Only>("-5").expect_err("negative");
    assert_eq!(
        error,
        "field `0` on line 4: expected u8, found an integer of length 2"
    );
}

#[test]
fn what_separates_lines_is_refused_in_values() {
    for (text, problem) in [
        ("secret\n", "7 bytes has a line feed at byte 6"),
        ("\rsecret", "7 bytes has a carriage return at byte 0"),
    ] {
        let mut slice = slice();
        slice.image_uri = text.to_owned();
        let error = lines(&slice).expect_err("a separator");
        assert_eq!(
            error,
            format!(
                "field `ImageUri`: a value cannot contain what separates lines, and this one of {problem}"
            )
        );
    }
    let mut slice = slice();
    slice.grade = '\n';
    assert!(lines(&slice).expect_err("one").contains("field `Grade`"));

    let windows = LINES.replace('\n', "\r\n");
    let error = message::<Slice>(&windows).expect_err("a carriage return");
    assert!(
        error
            .starts_with("field `ImageUri` on line 4: a value cannot contain what separates lines"),
        "{error}"
    );
}

#[test]
fn an_empty_some_is_refused() {
    let mut slice = slice();
    slice.note = Some(String::new());
    assert_eq!(
        lines(&slice).expect_err("looks like `None`"),
        "field `Note`: a `Some` whose line is empty would be read as `None`"
    );
    slice.note = Some("-".to_owned());
    assert_eq!(message(&lines(&slice).expect("a line")), Ok(slice));
}

#[test]
fn a_wrong_value_is_told_by_field_line_type_and_shape() {
    for (number, line, problem) in [
        (
            1,
            "secret",
            "`Number` on line 5: expected u32, found text of length 6",
        ),
        (
            1,
            "",
            "`Number` on line 5: expected u32, found an empty line",
        ),
        (
            1,
            "99999999999",
            "`Number` on line 5: expected u32, found an integer of length 11",
        ),
        (
            1,
            "1.5",
            "`Number` on line 5: expected u32, found a decimal number",
        ),
        (
            2,
            "NaN",
            "`Scale` on line 6: expected a finite number, found text of length 3",
        ),
        (
            3,
            "yes",
            "`IsLast` on line 7: expected `true` or `false`, found text of length 3",
        ),
        (
            4,
            "ab",
            "`Grade` on line 8: expected char, found text of length 2",
        ),
        (
            5,
            "secret",
            "`Colour` on line 9: unknown variant, expected `red` or `mixed`, found text of length 6",
        ),
        (
            5,
            "mixed",
            "`Colour` on line 9: invalid type, expected newtype variant, found text of length 5",
        ),
    ] {
        let error = message::<Slice>(&with_line(number, line)).expect_err(problem);
        assert_eq!(error, format!("field {problem}"));
    }
}

#[test]
fn an_error_of_the_types_own_is_not_quoted() {
    #[derive(Debug, Deserialize)]
    struct Card {
        #[serde(rename = "Number", deserialize_with = "blocked")]
        _number: String,
    }
    fn blocked<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
        let number = String::deserialize(deserializer)?;
        Err(de::Error::custom(format!("{number} is blocked")))
    }

    assert_eq!(
        message::<Card>("4111").expect_err("blocked"),
        "field `Number` on line 4: invalid data, found an integer of length 4"
    );
}

#[test]
fn the_number_of_lines_is_exact() {
    let short = LINES.rsplit_once('\n').expect("lines").0;
    assert_eq!(
        message::<Slice>(short).expect_err("one is missing"),
        "field `Size` is missing: 11 lines are wanted, which are the queue URI, the client id, the request id and the \
         fields, and 10 were found"
    );
    assert_eq!(
        message::<Slice>(&format!("{LINES}\n")).expect_err("one too many"),
        "there are too many lines: 11 lines are wanted, which are the queue URI, the client id, the request id and the \
         fields, and 12 were found"
    );
}

#[test]
fn what_is_not_flat_is_refused_on_both_sides() {
    #[derive(Debug, Serialize, Deserialize)]
    struct Of<T> {
        value: T,
    }
    #[derive(Debug, Serialize, Deserialize)]
    struct Pair(u8, u8);

    fn assert_refused<T: Serialize + DeserializeOwned + std::fmt::Debug>(value: T, what: &str) {
        let rest = format!("{what} does not fit on a line; allowed are {ALLOWED}");
        let error = lines(&Of { value }).expect_err(what);
        assert_eq!(error, format!("field `value`: {rest}"));
        let error = message::<Of<T>>("1").expect_err(what);
        assert_eq!(
            error,
            format!("field `value` on line 4: {rest}, found an integer of length 1")
        );
    }

    assert_refused(vec![1], "a sequence");
    assert_refused((1, 2), "a tuple");
    assert_refused((), "a unit");
    assert_refused(BTreeMap::from([("a".to_owned(), 1)]), "a map");
    assert_refused(Of { value: 1 }, "a struct");
    assert_refused(Pair(1, 2), "a tuple struct");

    let mixed = Of {
        value: Colour::Mixed(1),
    };
    let error = lines(&mixed).expect_err("it has data");
    assert!(
        error.starts_with("field `value`: an enum variant with data does not fit"),
        "{error}"
    );
    let error = lines(&Of { value: f32::NAN }).expect_err("not finite");
    assert_eq!(
        error,
        "field `value`: NaN has no line; allowed are finite numbers"
    );
}

#[test]
fn a_message_without_fields_is_refused() {
    #[derive(Debug, Serialize, Deserialize)]
    struct Unit;
    #[derive(Debug, Serialize)]
    struct Empty {}
    #[derive(Debug, Serialize, Deserialize)]
    struct Map {
        #[serde(flatten)]
        rest: BTreeMap<String, String>,
    }
    #[derive(Debug, Serialize)]
    struct Gap {
        #[serde(skip_serializing_if = "Option::is_none")]
        value: Option<u8>,
    }

    let rest = BTreeMap::new();
    for (error, problem) in [
        (lines(&Unit).err(), "the message is a unit struct; it"),
        (
            message::<Unit>("").err(),
            "the message is a unit struct; it",
        ),
        (lines(&Empty {}).err(), "the message is without fields; it"),
        (lines(&Map { rest }).err(), "the message is a map; it"),
        (message::<Map>("a").err(), "the message is a map; it"),
        (
            lines(&Gap { value: None }).err(),
            "field `value`: it is skipped",
        ),
    ] {
        let error = error.expect(problem);
        assert!(error.starts_with(problem), "{error}");
    }
}

fn envelope() -> Envelope {
    let client = ClientId::new("client-7").expect("valid");
    let request = RequestId::new("order-7").expect("valid");
    let mut envelope = Envelope::new(MessageId::random(), client, request, "slice");
    envelope.queue_uri = Some("http://old.example/slices".to_owned());
    envelope
}

#[test]
fn the_ids_come_before_the_fields() {
    let body = encode(&envelope(), b"a\n2");
    assert_eq!(body, b"http://old.example/slices\nclient-7\norder-7\na\n2");

    let mut read = Envelope::new(
        MessageId::random(),
        ClientId::new("own").expect("valid"),
        RequestId::random(),
        "slice",
    );
    let of_base64 = crate::wire::encoding::to_base64(&body);
    for body in [&body[..], of_base64.as_bytes()] {
        let lines = Lines::read(body).expect("in lines");
        assert_eq!(lines.payload, "a\n2");
        lines.identify(&mut read);
        assert_eq!(
            (read.queue_uri.as_deref(), read.client_id.as_str()),
            (Some("http://old.example/slices"), "client-7")
        );
        assert_eq!(read.request_id.as_str(), "order-7");
    }
}

#[test]
fn an_empty_id_is_not_given_and_a_uri_cannot_end_its_line() {
    let mut read = envelope();
    Lines::read(b"\n\n\na").expect("fields").identify(&mut read);
    assert_eq!(read.client_id, envelope().client_id);
    assert_eq!(read.request_id, envelope().request_id);
    assert_eq!(read.queue_uri, envelope().queue_uri);

    read.queue_uri = Some("sqlite:a\nb.db#slices".to_owned());
    let body = encode(&read, b"a");
    assert_eq!(body, b"sqlite:a\\nb.db#slices\nclient-7\norder-7\na");
}

#[test]
fn a_head_that_is_not_one_is_told_without_its_values() {
    let long = format!("u\n{}\nr\na", "c".repeat(1025));
    for (body, problem) in [
        (&b"secret"[..], "the client id is missing: at least 4 lines"),
        (b"u\nc", "the request id is missing: at least 4 lines"),
        (b"u\nc\nr", "the first field is missing: at least 4 lines"),
        (
            long.as_bytes(),
            "the client id on line 2: expected 1 to 1024 bytes without control characters, found text of length 1025",
        ),
        (
            b"u\nc\nsecret\x07\na",
            "the request id on line 3: expected 1 to 1024 bytes without control characters, found text of length 7",
        ),
        (
            b"u\r\nc\r\nr\r\na",
            "the queue URI on line 1: a value cannot contain what separates lines",
        ),
        (b"u\nc\nr\n\xff", "it is not text in UTF-8"),
    ] {
        let error = Lines::read(body).expect_err(problem).to_string();
        assert!(error.starts_with(problem), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }
}
