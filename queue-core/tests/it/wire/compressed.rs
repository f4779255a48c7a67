use queue_core::backend::Capabilities;
use queue_core::encoder::{Encoded, Encoder, MessageEncoding, TooLarge};
use queue_core::wire::{Compressed, Payload};
use queue_core::{ClientId, Envelope, MessageId, RequestId};
use serde_json::Value;
use uuid::Uuid;

use super::*;

macro_rules! text_message {
    ($name:ident, $type:expr) => {
        #[derive(Debug, PartialEq)]
        struct $name(String);

        impl Message for $name {
            const TYPE: MessageType = $type;

            fn key(&self) -> Result<Option<Vec<Value>>, EncodeError> {
                Ok(None)
            }

            fn encode(&self) -> Result<Vec<u8>, EncodeError> {
                Ok(Value::from(&*self.0).to_string().into_bytes())
            }

            fn decode(version: u32, payload: &[u8]) -> Result<Self, DecodeError> {
                let decoded = serde_json::from_slice(payload).map(Self);
                decoded.map_err(|source| DecodeError::payload("text", version, source))
            }
        }
    };
}

text_message!(Text, MessageType::new("text", "texts"));
text_message!(Verbose, Text::TYPE.with_compression());

fn encode<M: Message>(message: &M, encoder: Encoder) -> Result<Vec<u8>, TooLarge> {
    let encoded = Encoded::of(message).expect("it can be encoded");
    let client = ClientId::new("test").expect("valid");
    let envelope = encoded.envelope(MessageId::random(), client, RequestId::random());
    encoder
        .encode(&encoded, &envelope)
        .map(|new| new.body.to_vec())
}

fn encoder() -> Encoder {
    Encoder::new(&Capabilities::local(), MessageEncoding::default())
}

fn envelope_of(body: &[u8]) -> Envelope {
    read_event(body).envelope.as_ref().clone()
}

/// Text of this length in which nothing repeats, of 64 characters: Base64 of its compressed form is no shorter.
fn incompressible(length: usize) -> String {
    let blocks = (0_u32..).map(|n| Uuid::new_v5(&Uuid::NAMESPACE_OID, &n.to_le_bytes()));
    let bytes = blocks.flat_map(Uuid::into_bytes);
    let characters = bytes.map(|byte| char::from(b'0' + byte % 64));
    characters
        .filter(|c| !r#""\"#.contains(*c))
        .take(length)
        .collect()
}

#[test]
fn what_does_not_fit_is_compressed() {
    let large = Text("a long story ".repeat(100_000));
    let body = encode(&large, encoder()).expect("it fits when it is compressed");
    assert!(body.len() < 2000, "{} bytes", body.len());
    let json = Value::from(&*large.0).to_string();
    let size = json.len();
    let mut event = read_event(body.clone());
    match &event.payload {
        Payload::Compressed(compressed) => assert_eq!(compressed.size() as usize, size),
        other => panic!("{other:?}"),
    }
    assert_eq!(read(body).decode::<Text>().expect("it is whole"), large);
    event.expand(size - 1).expect_err("one byte over the limit");
    event.expand(size).expect("within it");
    assert_eq!(event.payload, Payload::Json(json.into()));
}

#[test]
fn what_fits_stays_as_it_is_unless_its_type_wants_otherwise() {
    let of_length = |length: usize| "x".repeat(length - 2);
    let is_compressed = |body: Result<Vec<u8>, TooLarge>| {
        let payload = read_event(body.expect("it fits")).payload;
        matches!(payload, Payload::Compressed(_))
    };
    assert!(!is_compressed(encode(&Text(of_length(40_000)), encoder())));
    assert!(is_compressed(encode(
        &Verbose(of_length(40_000)),
        encoder()
    )));
    assert!(is_compressed(encode(&Verbose(of_length(4096)), encoder())));
    assert!(!is_compressed(encode(&Verbose(of_length(4095)), encoder())));
    let random = Verbose(incompressible(30_000));
    assert!(!is_compressed(encode(&random, encoder())), "it would grow");
}

#[test]
fn what_is_too_large_says_so() {
    let refused = |error: Result<Vec<u8>, TooLarge>| error.expect_err("too large").to_string();
    let random = refused(encode(&Text(incompressible(100_000)), encoder()));
    assert!(
        random.starts_with("the `text` message takes on the wire, compressed, "),
        "{random}"
    );
    assert!(
        random.contains(" bytes, and 47104 are allowed; larger payloads go to a payload store"),
        "{random}"
    );

    let bare = BareJson("x".repeat(100_000).into());
    let bare = refused(encode(&bare, encoder()));
    assert!(
        bare.contains("`wire = \"bare\"`: it has 100002 bytes, and 49152 are"),
        "{bare}"
    );

    let payload = Text("x".repeat(8));
    let limited = refused(encode(&payload, encoder().with_max_payload(9)));
    assert_eq!(
        limited,
        "the `text` message has a payload of 10 bytes, and 9 are allowed"
    );
    encode(&payload, encoder().with_max_payload(10)).expect("within the limit");
}

#[test]
fn what_expands_to_something_else_is_not_decoded() {
    let data = Compressed::new(b"\"0123456789\"").expect("small");
    let payload = Payload::Compressed(data);
    let whole = encode(&Text("x".repeat(50_000)), encoder()).expect("compressed");
    let body = queue_core::wire::encode_payload(&envelope_of(&whole), &payload);
    let body = String::from_utf8(body).expect("JSON");
    read(body.clone())
        .decode::<Text>()
        .expect("as it was written");
    for size in ["11", "13", "0", "2147483647"] {
        let lie = body.replace(r#""datasize":12"#, &format!(r#""datasize":{size}"#));
        assert_ne!(lie, body);
        let error = read(lie).decode::<Text>().expect_err("another size");
        assert!(error.to_string().contains(size), "{error}");
    }
    for (changed, expected) in [
        (body.replace("zstd", "br"), "\"br\""),
        (body.replace("datasize", "sizeofdata"), "no `datasize`"),
    ] {
        let problem = malformed(changed);
        assert!(problem.contains(expected), "{problem}");
    }
}
