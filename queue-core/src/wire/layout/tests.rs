use proptest::prelude::*;

use super::*;
use crate::wire::Members;

/// Pieces of events, of which many texts are almost in the layout, and some are.
fn piece() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec![
        "specversion",
        "id",
        "source",
        "type",
        "time",
        "subject",
        "dataversion",
        "requestid",
        "data",
        "failures",
        "x",
    ]);
    let value = prop::sample::select(vec![
        r#""1.0""#,
        r#""a""#,
        r#""""#,
        r#""a\"b\\""#,
        r#""a\u0041""#,
        r#""a\n""#,
        "\"a\u{1}\"",
        "\"ä\u{7f}東京\"",
        r#""more than eight bytes, and \" more""#,
        r#""open"#,
        "1",
        "01",
        "0",
        "1.5",
        "-1",
        "12",
        "",
        "null",
        "true",
        "{}",
        r#"{"a":1}"#,
        r#"{"a":1"#,
        " 1",
        "1 ",
        "[1,2]",
        "[1,]",
        "[",
    ]);
    (name, value).prop_map(|(name, value)| format!(r#""{name}":{value}"#))
}

/// Returns whether the layout was recognised.
fn is_read_as_by_the_parser(event: &str) -> bool {
    let Some(read) = read(event) else {
        return false;
    };
    let members = Members::read(event.as_bytes());
    let members = members.unwrap_or_else(|error| panic!("{event}: {error}"));
    let parsed = Attributes::of(&members);
    assert_eq!(read, parsed, "{event}");
    true
}

proptest! {
    #[test]
    fn what_is_read_in_the_layout_is_what_the_parser_reads(
        pieces in prop::collection::vec(piece(), 0..8),
        end in prop::sample::select(vec!["}", "", " }", "}}", "}\n", ",}"]),
    ) {
        let required = r#","id":"1","source":"s","type":"t","dataversion":1,"requestid":"r""#;
        let rest = pieces.join(",");
        is_read_as_by_the_parser(&format!("{START},{rest}{end}"));
        is_read_as_by_the_parser(&format!("{START}{required},{rest}{end}"));
    }

    #[test]
    fn a_changed_byte_makes_no_difference(at in any::<prop::sample::Index>(), byte in 0..0x80_u8) {
        let mut event = EVENT.to_owned().into_bytes();
        let at = at.index(event.len());
        event[at] = byte;
        is_read_as_by_the_parser(&String::from_utf8(event).expect("ASCII"));
    }

    #[test]
    fn a_number_is_read_as_by_the_parser(number in r"-?[0-9]{0,3}(\.[0-9])?(e1)?") {
        let event = EVENT.replacen(":12,", &format!(":{number},"), 1);
        is_read_as_by_the_parser(&event);
    }

    #[test]
    fn a_string_is_read_as_by_the_parser(text in r#"([a-zä"\\/\n ]|\\["\\/bu]|0{4}|plain text){0,20}"#) {
        let event = EVENT.replacen("order-7", &text, 1);
        is_read_as_by_the_parser(&event);
    }

    #[test]
    fn a_payload_is_read_as_by_the_parser(data in r#"([\[\]{}":,1 a\\]|true|"a":){0,12}"#) {
        let event = EVENT.replacen(r#"{"a":[1,2]}"#, &data, 1);
        is_read_as_by_the_parser(&event);
    }
}

const EVENT: &str = r#"{"specversion":"1.0","id":"1","source":"s","type":"t","time":"2026-03-14T09:26:53Z","subject":"[\"t\",\"\\\",3]","messagegroup":"g","messagetracked":true,"datacontenttype":"application/json","dataversion":12,"queueuri":"memory:#t","requestid":"order-7","replyto":"queue-replies-1","correlationid":"7","traceparent":"00-4b-00-01","tracestate":"x=y","uniquekey":"{\"key\":1}","data":{"a":[1,2]}}"#;

#[test]
fn the_layout_is_recognised_with_and_without_what_is_optional() {
    assert!(is_read_as_by_the_parser(EVENT));
    let members = Members::read(EVENT.as_bytes()).expect("an object");
    for (name, value) in members.iter().skip(1) {
        let without = EVENT.replacen(&format!(",\"{name}\":{value}"), "", 1);
        let optional = [
            "time",
            "subject",
            "messagegroup",
            "messagetracked",
            "datacontenttype",
            "queueuri",
            "replyto",
            "correlationid",
            "traceparent",
            "tracestate",
            "uniquekey",
        ];
        assert_eq!(
            is_read_as_by_the_parser(&without),
            optional.contains(&name),
            "{name}"
        );
    }
    for (part, other) in [
        (r#""a":[1,2]"#, ""),
        ("12", "0"),
        ("12", "99999999999999999999"),
        (r#""s""#, r#""""#),
        ("order-7", "東京 \u{7f}"),
    ] {
        assert!(
            is_read_as_by_the_parser(&EVENT.replacen(part, other, 1)),
            "{part}: {other}"
        );
    }
    for (part, other) in [("12", "01"), ("12", "-1"), ("12", "")] {
        let event = EVENT.replacen(part, other, 1);
        assert!(!is_read_as_by_the_parser(&event), "{part}: {other}");
    }
}
