//! Messages whose payloads the framework has stored beside them.

use std::sync::Arc;

use http::Method;
use queue_runtime::{Message, QueueService};
use serde::{Deserialize, Serialize};

use crate::fixture::{Fixture, Request, code_of, element};

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "pictures")]
struct Picture {
    pixels: String,
}

/// Letters that cannot be compressed by much.
fn pixels(length: usize) -> String {
    let mut state = 7_u32;
    let letters = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        char::from(
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
                [(state >> 26) as usize],
        )
    });
    letters.take(length).collect()
}

#[tokio::test]
async fn a_payload_is_in_the_text_if_there_is_room() {
    const TEXT: usize = 64_000;
    let fixture = Fixture::start().await;
    let service = QueueService::with_backend(Arc::new(fixture.queues.clone()))
        .clock(Arc::new(fixture.clock.clone()))
        .connect()
        .await
        .expect("connects");
    let submit = async |length| {
        let picture = Picture {
            pixels: pixels(length),
        };
        service.submit(picture).await.expect("stored");
    };
    submit(TEXT).await;
    let get = Request::new(
        Method::GET,
        "/pictures/messages?numofmessages=32&visibilitytimeout=1",
    );
    let answer = fixture.ask(get.clone(), 200).await;
    let text = element(&answer, "MessageText");
    assert!(
        text.contains(&pixels(TEXT)) && !text.contains("dataref"),
        "{}",
        &text[..500]
    );

    // One that no text has room for does not keep the others from the client.
    submit(200_000).await;
    fixture.clock.advance(std::time::Duration::from_secs(2));
    let answer = fixture.ask(get.clone(), 200).await;
    assert_eq!(
        String::from_utf8_lossy(&answer.body)
            .matches("<QueueMessage>")
            .count(),
        1
    );
    fixture.clock.advance(std::time::Duration::from_secs(2));
    while let Some(picture) = service.accept::<Picture>().await.expect("no error") {
        if picture.pixels.len() == TEXT {
            picture.complete().await.expect("settled");
            break;
        }
    }
    let peek = Request::new(Method::GET, "/pictures/messages?peekonly=true");
    for request in [peek, get] {
        let refused = fixture.ask(request, 400).await;
        assert_eq!(code_of(&refused), "MessageTooLarge");
        let reason = element(&refused, "Reason");
        assert!(
            reason.contains("is beside it, and a text has at most 65536 bytes"),
            "{reason}"
        );
    }
}
