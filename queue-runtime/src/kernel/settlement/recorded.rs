//! What is recorded in an idempotency store of a message whose work is done: its follow-ups, as they are stored.

use std::time::Duration;

use bytes::Bytes;
use queue_core::QueueName;
use queue_core::backend::{Attachment, NewMessage, TimeToLive};
use queue_core::internal::{json_error, to_base64, unwrap_base64};
use serde::{Deserialize, Serialize};

/// The version of the record.
const VERSION: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
struct Recorded {
    version: u32,
    follow_ups: Vec<FollowUp>,
}

#[derive(Debug, Serialize, Deserialize)]
struct FollowUp {
    queue: String,
    delay_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    time_to_live_ms: Option<u64>,
    #[serde(flatten)]
    body: Body,
    #[serde(skip_serializing_if = "Option::is_none")]
    attachment_base64: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Body {
    Body(String),
    BodyBase64(String),
}

pub(crate) fn encode(puts: &[(QueueName, NewMessage)]) -> Bytes {
    let follow_ups = puts.iter().map(|(queue, message)| FollowUp {
        queue: queue.to_string(),
        delay_ms: millis(message.delay),
        time_to_live_ms: match message.time_to_live {
            TimeToLive::Never => None,
            TimeToLive::After(after) => Some(millis(after)),
        },
        body: match std::str::from_utf8(&message.body) {
            Ok(text) => Body::Body(text.to_owned()),
            Err(_) => {
                let base64 = to_base64(&message.body);
                Body::BodyBase64(base64)
            }
        },
        attachment_base64: match &message.attachment {
            Some(Attachment::New(data)) => Some(to_base64(data)),
            Some(Attachment::Of { .. }) | None => None,
        },
    });
    let recorded = Recorded {
        version: VERSION,
        follow_ups: follow_ups.collect(),
    };
    let json = serde_json::to_vec(&recorded).expect("strings and numbers are JSON");
    json.into()
}

/// Reads a record.
///
/// # Errors
/// A description, if this program cannot read it.
pub(crate) fn decode(result: &[u8]) -> Result<Vec<(QueueName, NewMessage)>, String> {
    let recorded: Recorded =
        serde_json::from_slice(result).map_err(|error| json_error(&error).to_string())?;
    if recorded.version != VERSION {
        let found = recorded.version;
        return Err(format!(
            "its version is {found}, and only {VERSION} is known"
        ));
    }
    let follow_ups = recorded.follow_ups.into_iter().map(|follow_up| {
        let queue = follow_up.queue.parse::<QueueName>();
        let queue = queue.map_err(|error| error.to_string())?;
        let body: Bytes = match follow_up.body {
            Body::Body(text) => text.into(),
            Body::BodyBase64(text) => {
                let bytes = unwrap_base64(text.as_bytes());
                bytes.ok_or("a body is not Base64")?.into()
            }
        };
        let attachment = follow_up.attachment_base64.map(|text| {
            let bytes = unwrap_base64(text.as_bytes());
            bytes.ok_or("an attachment is not Base64")
        });
        let time_to_live = follow_up
            .time_to_live_ms
            .map_or(TimeToLive::Never, |after| {
                TimeToLive::After(Duration::from_millis(after))
            });
        let mut message = NewMessage::new(body)
            .with_delay(Duration::from_millis(follow_up.delay_ms))
            .with_time_to_live(time_to_live);
        message.attachment = attachment
            .transpose()?
            .map(|data| Attachment::New(data.into()));
        Ok((queue, message))
    });
    follow_ups.collect()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follow_ups_are_read_as_they_were_recorded() {
        let queue: QueueName = "orders".parse().expect("a name");
        let minute = Duration::from_secs(60);
        let mut large = NewMessage::new("its data is attached");
        large.attachment = Some(Attachment::New(vec![0, 0xff].into()));
        let puts = vec![
            (queue.clone(), large),
            (queue.clone(), NewMessage::new("{\"a\":\"b\"}")),
            (
                queue,
                NewMessage::new(vec![0xff, 0])
                    .with_delay(minute)
                    .with_time_to_live(TimeToLive::After(2 * minute)),
            ),
        ];
        assert_eq!(decode(&encode(&puts)), Ok(puts));
        assert_eq!(decode(&encode(&[])), Ok(Vec::new()));
    }

    #[test]
    fn a_record_of_another_version_is_refused() {
        let error = decode(br#"{"version":2,"follow_ups":[]}"#).expect_err("newer");
        assert_eq!(error, "its version is 2, and only 1 is known");
        decode(b"7").expect_err("no record");
    }
}
