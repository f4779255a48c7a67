//! Bodies come back byte for byte, and so does the data that is stored with messages.

use bytes::Bytes;

use super::harness::{Fixture, Harness, LONG, Survival, assert_refused};
use crate::backend::{
    Attachment, AttachmentPart, Attachments, BackendExt as _, BodyForm, NewMessage, Op,
    PutBackPlace, ReceivedMessage, StorageId,
};
use crate::error::{ErrorKind, Result};
use crate::name::QueueName;

pub(super) async fn text_comes_back_as_it_was(f: Fixture) {
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

pub(super) async fn any_bytes_come_back_where_they_are_allowed(f: Fixture) {
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
    let swapped = f.backend.put_back(
        &f.queue,
        &message.id,
        &message.receipt,
        PutBackPlace::After(std::time::Duration::ZERO),
        Some(body.clone()),
    );
    swapped.await.expect("update");
    let message = f.receive_one().await;
    assert_eq!(message.body, body);
    f.delete(&message).await.expect("delete");
}

const MIB: usize = 1024 * 1024;

/// Opens a store; returns `None` if its backend has no attachments, after checking that they are refused.
pub(super) async fn attachable(harness: &dyn Harness) -> Option<Fixture> {
    let f = Fixture::open(harness).await;
    match f.backend.capabilities().attachments {
        Attachments::Supported => return Some(f),
        Attachments::InStore => return None,
        Attachments::Unsupported => {}
    }
    let put = f.backend.put(&f.queue, with(data(3))).await;
    assert_refused(put, ErrorKind::Unsupported);
    let one = f.put("one").await;
    let read = f.backend.attachment(&f.queue, &one.id, None, 0).await;
    assert_refused(read, ErrorKind::Unsupported);
    None
}

fn data(length: usize) -> Bytes {
    (0..length)
        .map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8)
        .collect()
}

fn with(data: Bytes) -> NewMessage {
    let mut message = NewMessage::new("its data is attached");
    message.attachment = Some(Attachment::New(data));
    message
}

async fn read(f: &Fixture, queue: &QueueName, id: &StorageId) -> Result<Option<Bytes>> {
    let mut data = Vec::new();
    loop {
        let from = data.len() as u64;
        let part = match f.backend.attachment(queue, id, None, from).await? {
            AttachmentPart::Data(part) => part,
            other => {
                assert_eq!(other, AttachmentPart::Missing);
                assert!(data.is_empty(), "it has none any more");
                return Ok(None);
            }
        };
        assert!(part.len() <= MIB, "{} bytes at once", part.len());
        if part.is_empty() {
            return Ok(Some(data.into()));
        }
        data.extend_from_slice(&part);
    }
}

async fn assert_attached(f: &Fixture, queue: &QueueName, id: &StorageId, expected: &Bytes) {
    let attached = read(f, queue, id).await.expect("read");
    // Not `assert_eq`, which would print megabytes.
    assert!(attached.as_ref() == Some(expected), "another attachment");
}

fn moving(f: &Fixture, message: &ReceivedMessage, to: &QueueName) -> Vec<Op> {
    let mut moved = NewMessage::moved("moved");
    moved.attachment = Some(Attachment::Of {
        queue: f.queue.clone(),
        id: message.id.clone(),
    });
    vec![
        Op::Put {
            queue: to.clone(),
            message: moved,
        },
        Op::Delete {
            queue: f.queue.clone(),
            id: message.id.clone(),
            receipt: message.receipt.clone(),
            moved: true,
        },
    ]
}

pub(super) async fn an_attachment_is_read_in_parts(f: Fixture) {
    for length in [1, MIB - 1, MIB, MIB + 1, 5 * MIB / 2] {
        let data = data(length);
        let put = f.put_message(with(data.clone())).await;
        assert_attached(&f, &f.queue, &put.id, &data).await;
        for from in [0, length / 2, length - 1] {
            let part = f
                .backend
                .attachment(&f.queue, &put.id, None, from as u64)
                .await;
            let AttachmentPart::Data(part) = part.expect("read") else {
                panic!("it has one");
            };
            assert!(!part.is_empty());
            assert!(data[from..].starts_with(&part), "at byte {from}");
        }
        for from in [length as u64, u64::MAX] {
            let end = f.backend.attachment(&f.queue, &put.id, None, from).await;
            assert_eq!(end.expect("read"), AttachmentPart::Data(Bytes::new()));
        }
    }
}

pub(super) async fn a_message_without_an_attachment_has_none(f: Fixture) {
    let put = f.put("one").await;
    assert_eq!(read(&f, &f.queue, &put.id).await.expect("read"), None);
    let missing = read(&f, &f.queue, &StorageId::new("no id")).await;
    assert_refused(missing, ErrorKind::MessageNotFound);
}

pub(super) async fn an_attachment_stays_as_long_as_its_message(mut f: Fixture) {
    let data = data(MIB + 1);
    f.put_message(with(data.clone())).await;
    let message = f.receive_one().await;
    f.update(&message, f.lease, Some("changed"))
        .await
        .expect("update");
    assert_attached(&f, &f.queue, &message.id, &data).await;
    if f.store.survival() == Survival::Kept {
        f = f.reopen().await;
        assert_attached(&f, &f.queue, &message.id, &data).await;
    }
    f.advance(f.lease).await;
    let message = f.receive_one().await;
    f.delete(&message).await.expect("delete");
    let gone = read(&f, &f.queue, &message.id).await;
    assert_refused(gone, ErrorKind::MessageNotFound);
}

pub(super) async fn a_moved_message_takes_its_attachment_along(f: Fixture) {
    let poison = f.store.queue("orders-poison");
    f.create(&poison).await;
    let data = data(2 * MIB);
    f.put_message(with(data.clone())).await;
    f.put("without").await;
    for message in f.receive(2).await {
        let moved = f.backend.apply(moving(&f, &message, &poison).into()).await;
        moved.expect("moved");
    }
    let moved = f.backend.receive(&poison, 2, LONG).await.expect("receive");
    let mut attached = Vec::new();
    for message in &moved {
        attached.extend(read(&f, &poison, &message.id).await.expect("read"));
    }
    assert_eq!(moved.len(), 2);
    // Not `assert_eq`, which would print megabytes.
    assert!(attached == [data], "the first alone has one");
}

pub(super) async fn a_refused_move_leaves_the_attachment_where_it_was(f: Fixture) {
    let missing = f.store.queue("missing");
    let data = data(MIB);
    f.put_message(with(data.clone())).await;
    let message = f.receive_one().await;
    let moved = f.backend.apply(moving(&f, &message, &missing).into()).await;
    let error = moved.expect_err("there is no such queue").error;
    assert_eq!(error.kind(), ErrorKind::QueueNotFound, "{error}");
    assert_attached(&f, &f.queue, &message.id, &data).await;
    let put = f.backend.put(&missing, with(data)).await;
    assert_refused(put, ErrorKind::QueueNotFound);
}
