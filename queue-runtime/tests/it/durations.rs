//! A duration has one form: in the derive's attributes, in a queue's metadata, and on the command line.

use std::time::Duration;

use queue_runtime::backend::Metadata;
use queue_runtime::internal::parse_duration;
use queue_runtime::send::UntypedMessage;
use queue_runtime::settings::DEFAULT_TIMEOUT;
use queue_runtime::{Message, testing};
use serde::{Deserialize, Serialize};

macro_rules! durations {
    ($($text:literal = $millis:literal,)*) => {
        [$({
            #[derive(Debug, Serialize, Deserialize, Message)]
            #[message(visibility_timeout = $text)]
            struct Work {
                number: u32,
            }
            let work = Work { number: $millis };
            assert_eq!(work.number, $millis);
            ($text, Duration::from_millis($millis), Work::TYPE.visibility_timeout())
        },)*]
    };
}

#[tokio::test(start_paused = true)]
async fn a_duration_is_read_alike_in_attributes_metadata_and_commands() {
    let table = durations! {
        "1500ms" = 1_500,
        "30s" = 30_000,
        "5m" = 300_000,
        "2h" = 7_200_000,
        "6d" = 518_400_000,
        "1h30m" = 5_400_000,
        "1h 30m" = 5_400_000,
    };
    for (text, expected, attribute) in table {
        assert_eq!(attribute, Some(expected), "attribute {text}");
        assert_eq!(parse_duration(text), Ok(expected), "command {text}");
        assert_eq!(lease_by_metadata(text).await, expected, "metadata {text}");
    }
    assert_eq!(lease_by_metadata("90").await, Duration::from_secs(90));
    for text in ["", "30", "soon", "-1s", "3 fortnights"] {
        let error = parse_duration(text).expect_err("no duration");
        assert!(error.contains(&format!("{text:?}")), "{error}");
        assert!(error.contains("allowed are `500ms`"), "{error}");
    }
}

/// The time for which a message is leased whose queue has this text in its metadata.
async fn lease_by_metadata(text: &str) -> Duration {
    let service = testing::service().await;
    let queue = service.any_queue("leased").expect("a valid name");
    let mut metadata = Metadata::new();
    metadata.insert(DEFAULT_TIMEOUT, text).expect("valid");
    queue.create_with(&metadata).await.expect("created");
    let message = UntypedMessage::bare("x");
    queue.submit(message).await.expect("submitted");
    let delivery = queue.accept().await.expect("received");
    let page = queue.browse(None, 1).await.expect("browsed");
    let lease = page.messages[0].visible_at.duration_since(page.now);
    drop(delivery);
    lease.try_into().expect("it is leased")
}
