//! Bodies of requests, and texts of messages: no body is more than its reader expects, and each text comes back as it was.
#![no_main]

use libfuzzer_sys::fuzz_target;
use queue_azure_wire::xml::{Element, can_carry, escaped, http_date, message};

fuzz_target!(|bytes: &[u8]| {
    let _ = Element::parse(bytes);
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let _ = http_date(text);
    if !can_carry(text) {
        return;
    }
    let put = message(text);
    let put = Element::parse(&put).expect("a message is XML");
    let read = put.child("MessageText").expect("it has a text");
    assert_eq!(read.text, text);
    let shown = format!("<MessageText>{}</MessageText>", escaped(text));
    let shown = Element::parse(shown.as_bytes()).expect("an answer is XML");
    assert_eq!(shown.text, text);
});
