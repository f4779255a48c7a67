//! The code that `#[derive(Message)]` generates.

use std::time::Duration;

use queue_core::{
    DecodeErrorKind, EncodeErrorKind, IdempotencyKey, KeyScope, Message, MessageType, RequestId,
    Wire,
};
use queue_derive::Message;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
#[message(crate = queue_core)]
struct HTTPRequest {
    path: String,
}

#[test]
fn a_bare_derive_takes_every_default() {
    assert_eq!(
        HTTPRequest::TYPE,
        MessageType::new("http-request", "http-request")
    );
    let request = HTTPRequest {
        path: "/".to_owned(),
    };
    assert_eq!(request.key().expect("no key"), None);
    round_trip(&request, r#"{"path":"/"}"#);
}

#[derive(Serialize, Deserialize, Message)]
#[message(kind = "mosaic.slice", alias = ["slice", "old-slice"], version = 3, queue = "slices")]
#[message(
    visibility_timeout = "2m",
    time_to_live = "1h 30m",
    poison_threshold = 7
)]
#[message(poison_queue = "broken-slices", key_scope = "global", compress, packed)]
#[message(history = 100_000, history_age = "30d")]
#[message(crate = queue_core)]
struct Slice {
    #[message(key)]
    number: u32,
}

#[test]
fn every_attribute_arrives_in_the_type() {
    let expected = MessageType::new("mosaic.slice", "slices")
        .with_aliases(&["slice", "old-slice"])
        .with_version(3)
        .with_visibility_timeout(Duration::from_secs(120))
        .with_time_to_live(Duration::from_secs(90 * 60))
        .with_poison_threshold(7)
        .with_poison_queue("broken-slices")
        .with_key_scope(KeyScope::Global)
        .with_compression()
        .with_packing()
        .with_history(100_000)
        .with_history_age(Duration::from_secs(30 * 24 * 60 * 60));
    assert_eq!(Slice::TYPE, expected);
}

#[test]
fn a_body_can_be_bare() {
    #[derive(Serialize, Deserialize, Message)]
    #[message(queue = "readings", wire = "bare", crate = queue_core)]
    struct Reading;

    assert_eq!(Reading::TYPE.wire(), Wire::Bare);
}

#[test]
fn a_body_can_be_in_lines() {
    #[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
    #[message(wire = "lines", crate = queue_core)]
    struct Slice<T> {
        image: String,
        number: T,
        #[serde(skip)]
        cached: u32,
    }

    let slice = Slice::<u8> {
        image: "cat.jpg".to_owned(),
        number: 7,
        cached: 0,
    };
    assert_eq!(Slice::<u8>::TYPE.wire(), Wire::Lines);
    assert_eq!(slice.encode().expect("flat"), b"cat.jpg\n7");
    assert_eq!(Slice::decode(1, b"cat.jpg\n7").expect("its lines"), slice);
}

#[test]
fn a_single_alias_needs_no_list() {
    #[derive(Serialize, Deserialize, Message)]
    #[message(alias = "parcel-posted", crate = queue_core)]
    struct Parcel;

    assert_eq!(Parcel::TYPE.aliases(), ["parcel-posted"]);
    assert!(Parcel::TYPE.accepts("parcel") && Parcel::TYPE.accepts("parcel-posted"));
    assert!(!Parcel::TYPE.accepts("other"));
}

#[test]
fn limits_are_allowed_at_both_ends() {
    #[derive(Serialize, Deserialize, Message)]
    #[message(visibility_timeout = "1s", time_to_live = "1s", poison_threshold = 1)]
    #[message(queue = "abc", version = 2147483647, crate = queue_core)]
    struct Least;

    #[derive(Serialize, Deserialize, Message)]
    #[message(visibility_timeout = "7days", time_to_live = "2147483647s")]
    #[message(poison_threshold = 4294967295, crate = queue_core)]
    #[message(queue = "a23456789-b23456789-c23456789-d23456789-e23456789-f23456")]
    struct Most;

    #[derive(Serialize, Deserialize, Message)]
    #[message(queue = "a23456789-b23456789-c23456789-d23456789-e23456789-f23456789-123")]
    #[message(poison_queue = "elsewhere", crate = queue_core)]
    struct Longest;

    assert_eq!(Least::TYPE.version(), 2_147_483_647);
    assert_eq!(Most::TYPE.queue().as_str().len(), 56);
    assert_eq!(Longest::TYPE.queue().as_str().len(), 63);
}

#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
#[message(crate = queue_core)]
struct Keyed {
    #[message(key)]
    r#type: String,
    note: String,
    #[message(key)]
    at: (u8, Option<i64>),
}

#[test]
fn key_fields_keep_their_order_and_stay_within_the_request() {
    let keyed = Keyed {
        r#type: "a\"b".to_owned(),
        note: "not in the key".to_owned(),
        at: (1, None),
    };
    assert_eq!(key_of(&keyed), [json!("a\"b"), json!([1, null])]);
    let in_request = |id| {
        IdempotencyKey::declared(&keyed, &RequestId::new(id).expect("valid"))
            .expect("encodable")
            .expect("declared")
    };
    assert_eq!(
        in_request("r1").as_str(),
        r#"["keyed","r1","a\"b",[1,null]]"#
    );
    assert_ne!(in_request("r1"), in_request("r2"));
    round_trip(
        &keyed,
        r#"{"type":"a\"b","note":"not in the key","at":[1,null]}"#,
    );
}

#[test]
fn a_global_key_leaves_the_request_out() {
    let key = IdempotencyKey::declared(&Slice { number: 4 }, &RequestId::random())
        .expect("encodable")
        .expect("declared");
    assert_eq!(key.as_str(), r#"["mosaic.slice",4]"#);
}

#[test]
fn a_float_that_only_shows_at_run_time_is_refused() {
    #[derive(Serialize, Deserialize)]
    struct Celsius(f32);

    #[derive(Serialize, Deserialize, Message)]
    #[message(crate = queue_core)]
    struct Reading {
        #[message(key)]
        r#static: Celsius,
    }

    let error = Reading {
        r#static: Celsius(1.5),
    }
    .key()
    .expect_err("refused");
    assert!(
        matches!(
            error.kind,
            EncodeErrorKind::Key {
                field: "static",
                ..
            }
        ),
        "{error}"
    );
}

#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
#[message(kind = "order", queue = "orders", crate = queue_core)]
struct OrderV1 {
    item: String,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
#[message(kind = "order", queue = "orders", version = 2, upgrade_from = OrderV1)]
#[message(crate = queue_core)]
struct OrderV2 {
    item: String,
    count: u32,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
#[message(kind = "order", queue = "orders", version = 4, upgrade_from = OrderV2)]
#[message(crate = queue_core)]
struct OrderV4 {
    items: Vec<(String, u32)>,
}

impl From<OrderV1> for OrderV2 {
    fn from(old: OrderV1) -> Self {
        Self {
            item: old.item,
            count: 1,
        }
    }
}

impl From<OrderV2> for OrderV4 {
    fn from(old: OrderV2) -> Self {
        Self {
            items: vec![(old.item, old.count)],
        }
    }
}

#[test]
fn old_versions_are_upgraded_along_the_chain() {
    for (version, payload, count) in [
        (1, r#"{"item":"tea"}"#, 1),
        (2, r#"{"item":"tea","count":3}"#, 3),
        (4, r#"{"items":[["tea",5]]}"#, 5),
    ] {
        assert_eq!(
            OrderV4::decode(version, payload.as_bytes()).expect("decodes"),
            OrderV4 {
                items: vec![("tea".to_owned(), count)]
            }
        );
    }
}

#[test]
fn versions_outside_the_chain_say_which_way_they_are_off() {
    let error = |version| OrderV4::decode(version, b"{}").expect_err("refused");
    assert!(matches!(
        error(5).kind,
        DecodeErrorKind::NewerVersion {
            found: 5,
            supported: 4,
        }
    ));
    assert!(matches!(
        error(0).kind,
        DecodeErrorKind::NoUpgrade { found: 0, .. }
    ));
    let gap = error(3);
    assert_eq!(gap.message_kind, "order");
    assert!(
        matches!(
            gap.kind,
            DecodeErrorKind::NoUpgrade {
                found: 3,
                supported: 4,
                ..
            }
        ),
        "no reader will ever know version 3, so it must not wait for one: {gap}"
    );
}

#[test]
fn a_bad_payload_names_the_version_that_it_is_of() {
    let error = |version| OrderV4::decode(version, b"{}").expect_err("refused");
    for version in [1, 2, 4] {
        assert!(matches!(
            error(version).kind,
            DecodeErrorKind::Payload { version: found, .. } if found == version
        ));
    }
}

#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
#[message(crate = queue_core)]
enum ImageJob {
    Resize {
        width: u32,
        #[message(key)]
        image: u64,
    },
    Delete(#[message(key)] u64, String),
    r#Compact,
}

#[test]
fn an_enum_is_a_queue_of_several_kinds_of_work() {
    let resize = ImageJob::Resize {
        width: 80,
        image: 7,
    };
    let delete = ImageJob::Delete(7, "gone".to_owned());
    assert_eq!(key_of(&resize), [json!("Resize"), json!(7)]);
    assert_eq!(key_of(&delete), [json!("Delete"), json!(7)]);
    assert_eq!(ImageJob::Compact.key().expect("no key"), None);
    round_trip(&resize, r#"{"Resize":{"width":80,"image":7}}"#);
    round_trip(&delete, r#"{"Delete":[7,"gone"]}"#);
    round_trip(&ImageJob::Compact, r#""Compact""#);
}

/// Expects the key of each variant to begin with the name that serde writes for it.
macro_rules! named_as_serde_does {
    ($($rule:tt)*) => {{
        #[derive(Serialize, Deserialize, Message)]
        #[message(queue = "variants", crate = queue_core)]
        #[serde($($rule)*)]
        #[expect(non_camel_case_types, reason = "names of all shapes")]
        enum Job {
            Resize(#[message(key)] u8),
            ResizeAll { #[message(key)] size: u8 },
            HTTPGet2(#[message(key)] u8),
            Snake_Case(#[message(key)] u8),
            r#Type(#[message(key)] u8),
            #[serde(rename = "gone")]
            Deleted(#[message(key)] u8),
            #[serde(alias = "x", rename(deserialize = "in", serialize = "out"))]
            Both(#[message(key)] u8),
        }
        let jobs = [
            Job::Resize(1),
            Job::ResizeAll { size: 1 },
            Job::HTTPGet2(1),
            Job::Snake_Case(1),
            Job::Type(1),
            Job::Deleted(1),
            Job::Both(1),
        ];
        for job in jobs {
            let written = serde_json::to_value(&job).expect("encodable");
            let (name, _) = written.as_object().and_then(|o| o.iter().next()).expect("a name");
            assert_eq!(key_of(&job)[0], json!(name), "{}", stringify!($($rule)*));
        }
    }};
}

#[test]
fn a_variant_has_the_same_name_in_the_key_as_in_the_payload() {
    named_as_serde_does!();
    named_as_serde_does!(rename_all = "lowercase");
    named_as_serde_does!(rename_all = "UPPERCASE");
    named_as_serde_does!(rename_all = "PascalCase");
    named_as_serde_does!(rename_all = "camelCase");
    named_as_serde_does!(rename_all = "snake_case");
    named_as_serde_does!(rename_all = "SCREAMING_SNAKE_CASE");
    named_as_serde_does!(rename_all = "kebab-case");
    named_as_serde_does!(rename_all = "SCREAMING-KEBAB-CASE");
    named_as_serde_does!(rename_all(
        deserialize = "lowercase",
        serialize = "UPPERCASE"
    ));
    named_as_serde_does!(rename_all(deserialize = "lowercase"));
}

#[test]
fn tuple_unit_and_new_type_structs_are_messages() {
    #[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
    #[message(crate = queue_core)]
    struct Pair(#[message(key)] u8, String);

    #[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
    #[message(crate = queue_core)]
    struct Tick;

    #[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
    #[message(crate = queue_core)]
    struct Wrapped(String);

    round_trip(&Pair(1, "x".to_owned()), r#"[1,"x"]"#);
    assert_eq!(key_of(&Pair(1, "x".to_owned())), [json!(1)]);
    round_trip(&Tick, "null");
    round_trip(&Wrapped("x".to_owned()), r#""x""#);
}

#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
#[message(kind = "stamped", crate = queue_core)]
struct StampedV1<T> {
    value: T,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
#[message(kind = "stamped", version = 2, upgrade_from = StampedV1<T>, crate = queue_core)]
struct Stamped<T, const N: usize = 2>
where
    T: PartialEq,
{
    #[message(key)]
    value: T,
    stamps: Vec<[u8; 2]>,
}

impl<T: PartialEq, const N: usize> From<StampedV1<T>> for Stamped<T, N> {
    fn from(old: StampedV1<T>) -> Self {
        Self {
            value: old.value,
            stamps: vec![[0; 2]; N],
        }
    }
}

#[test]
fn a_generic_type_is_a_message_where_its_parts_allow() {
    let stamped = Stamped::<_, 1> {
        value: "x".to_owned(),
        stamps: vec![[1, 2]],
    };
    assert_eq!(key_of(&stamped), [json!("x")]);
    round_trip(&stamped, r#"{"value":"x","stamps":[[1,2]]}"#);
    let upgraded = Stamped::<u8, 2>::decode(1, br#"{"value":5}"#).expect("upgrades");
    assert_eq!(upgraded.stamps, [[0, 0], [0, 0]]);
}

#[test]
fn a_generic_type_asks_of_its_parameters_what_serde_asks() {
    trait Unit: 'static {
        type Value: Send;
    }
    struct Metre;
    impl Unit for Metre {
        type Value = u32;
    }

    #[derive(Serialize, Deserialize, Message)]
    #[serde(bound = "U::Value: Serialize + DeserializeOwned")]
    #[message(crate = queue_core)]
    struct Length<U: Unit> {
        value: U::Value,
    }

    fn is_message<M: Message>(message: &M) -> Vec<u8> {
        message.encode().expect("encodes")
    }
    assert_eq!(is_message(&Length::<Metre> { value: 3 }), br#"{"value":3}"#);
}

fn key_of<M: Message>(message: &M) -> Vec<Value> {
    message.key().expect("encodable").expect("declared")
}

fn round_trip<M: Message + std::fmt::Debug + PartialEq>(message: &M, payload: &str) {
    assert_eq!(message.encode().expect("encodes"), payload.as_bytes());
    let decoded = M::decode(M::TYPE.version(), payload.as_bytes()).expect("decodes");
    assert_eq!(&decoded, message);
}
