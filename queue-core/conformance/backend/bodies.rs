//! Bodies come back byte for byte.

use bytes::Bytes;

use super::fixture::Fixture;
use super::harness::Harness;
use crate::backend::{BodyForm, NewMessage};

pub(super) async fn text_comes_back_as_it_was(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    let bodies = [
        "",
        " ",
        "a",
        "Grüße aus 東京, 🦀\u{200d}!",
        "<a href=\"x\">&amp;</a> ]]> %2F + 'quoted'",
        "{\"specversion\":\"1.0\"}",
        "line\nline\ttab ",
    ];
    for body in bodies {
        assert_survives(&f, Bytes::from(body)).await;
    }
}

pub(super) async fn any_bytes_come_back_where_they_are_allowed(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    if f.backend.capabilities().body != BodyForm::Bytes {
        return;
    }
    assert_survives(&f, (0..=255).collect()).await;
    assert_survives(&f, Bytes::from_static(b"\0")).await;
    assert_survives(&f, Bytes::from_static(b"text\0\r\n\x01\xff\xfe")).await;
}

async fn assert_survives(f: &Fixture, body: Bytes) {
    f.put_message(NewMessage::new(body.clone())).await;
    let peeked = f.backend.peek(&f.queue, 1).await.expect("peek");
    assert_eq!(peeked[0].body, body);
    let message = f.receive_one().await;
    assert_eq!(message.body, body);
    let swapped = f.backend.update(
        &f.queue,
        &message.id,
        &message.receipt,
        std::time::Duration::ZERO,
        Some(body.clone()),
    );
    swapped.await.expect("update");
    let message = f.receive_one().await;
    assert_eq!(message.body, body);
    f.delete(&message).await.expect("delete");
}
