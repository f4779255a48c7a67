//! Completing a message: its follow-ups and replies, and what is recorded of them in a result store if there is one.

use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{Atomicity, Attachment, ConditionalPuts, NewMessage, TimeToLive};
use queue_core::encoder::Encoded;
use queue_core::idempotency::{ClaimStatus, MAX_RESULT};
use queue_core::internal::{canonical, error_chain, json_error, to_base64, unwrap_base64};
use queue_core::{Error, ErrorKind, Failure, FollowUp, Operation, QueueName};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::LOG;
use super::added::Ended;
use super::carry_out::{FollowUps, Settling};
use super::end::{End, SettleErrorKind, Settled};
use super::riders::Riders;
use super::write::{Unsettled, fingerprint};
use crate::kernel::claim::finish_within;
use crate::kernel::lease::Purpose;
use crate::kernel::receive::Caller;
use crate::kernel::send::{Role, Unreplied, encode_follow_ups};

impl Settling<'_> {
    /// Submits the follow-ups and deletes the message. Rare steps are boxed: their state is large.
    pub(super) async fn complete(
        self,
        follow_ups: FollowUps<'_>,
    ) -> Result<Settled, SettleErrorKind> {
        let (puts, hash, is_claimed) = match follow_ups {
            FollowUps::Recorded { puts, hash } => (puts, hash, false),
            FollowUps::Returned(follow_ups) => {
                let puts = match self.encode(follow_ups) {
                    Ok(puts) => puts,
                    Err(error) => return self.end(End::rejected(error)).await,
                };
                let hash = fingerprint_of(follow_ups);
                (puts, hash, self.incoming.claim.is_some())
            }
        };
        let mut riders = Riders::follow_ups(puts);
        if is_claimed && let Some(settled) = Box::pin(self.record_first(&mut riders)).await {
            return settled;
        }
        let rides = riders.finish().is_some();
        let added = self.take_along(&mut riders, |attempts, took| Ended::Completed {
            attempts,
            took,
        });
        if let Err(error) = added {
            // The work is done all the same.
            if let Some(settled) = Box::pin(self.record_finish(&mut riders)).await {
                return settled;
            }
            return self.rider_failed(error).await;
        }
        let purpose = Purpose::Complete { follow_ups: hash };
        let mut settled = self
            .delete_and_tell(purpose, riders, &Unreplied::Completed)
            .await;
        if rides {
            settled = match Box::pin(self.record_late(settled, purpose)).await {
                Ok(settled) => settled,
                Err(settled) => return settled,
            };
        }
        let Err(unsettled) = settled else {
            return Ok(Settled::Completed);
        };
        if let Some(error) = unsettled.refused_put()
            && self.consumer.caller == Caller::Listener
        {
            return self.end(refused(error)).await;
        }
        self.insert_completed(&unsettled);
        Err(unsettled.kind)
    }

    /// Takes along what the application has travel with the settlement.
    pub(super) fn take_along<'e>(
        self,
        riders: &mut Riders,
        ended: impl FnOnce(usize, Duration) -> Ended<'e>,
    ) -> Result<(), String> {
        let Self {
            context, incoming, ..
        } = self;
        let message = (&self.consumer.queue, &*incoming.envelope);
        riders.take_along(&incoming.shared, context, message, ended)
    }

    /// Settles a message that is not completed without a rider which has failed.
    async fn rider_failed(self, error: String) -> Result<Settled, SettleErrorKind> {
        match self.consumer.caller {
            Caller::Listener => self.end(End::failed(error)).await,
            Caller::Accept => {
                let refused = Error::new(ErrorKind::InvalidInput, Operation::Apply);
                Err(SettleErrorKind::NotDone(refused.with_detail(error)))
            }
        }
    }

    fn encode(self, follow_ups: &[FollowUp]) -> Result<Vec<(QueueName, NewMessage)>, String> {
        if follow_ups.is_empty() {
            return Ok(Vec::new());
        }
        let (envelope, ordinals) = (&self.incoming.envelope, &self.incoming.shared.ordinals);
        let first = ordinals.of_settlement(follow_ups.len());
        let encoded = encode_follow_ups(self.context, envelope, follow_ups, Role::Handler, first);
        encoded.map_err(|error| Failure::from(error).chain())
    }

    /// Has the record travel with the settlement that the work of the message is done, with its follow-ups, if the storage
    /// has the claim, and otherwise [records](Self::record) it first.
    async fn record_first(self, riders: &mut Riders) -> Option<Result<Settled, SettleErrorKind>> {
        let incoming = self.incoming;
        let idempotency = self.consumer.options.idempotency.as_ref()?;
        let result = RecordedFollowUps::encode(riders.puts());
        let capabilities = self.context.backend.capabilities();
        let may_ride = capabilities.atomicity == Atomicity::Atomic
            && capabilities.conditional_puts == ConditionalPuts::Supported
            && result.len() <= capabilities.max_body.min(MAX_RESULT)
            && idempotency.is_of_storage(self.context)
            && !self.context.parts.settles_together(incoming.lease.id());
        if !may_ride {
            return self.record(result).await;
        }
        let claim = incoming.claim.as_ref()?;
        riders.add_finish(claim.finish_by_swap(result, idempotency.retention));
        // Whoever drops the settlement must not release the claim, before which nobody knows whether it was carried out.
        claim.leave();
        None
    }

    /// Records what has not travelled with a settlement: the work is done, whatever became of the message. If the storage has
    /// refused the record, the message is settled without. The error is the result of settling it otherwise.
    async fn record_late(
        self,
        settled: Result<(), Unsettled>,
        purpose: Purpose,
    ) -> Result<Result<(), Unsettled>, Result<Settled, SettleErrorKind>> {
        let Err(mut unsettled) = settled else {
            return Ok(Ok(()));
        };
        if let Some(settled) = self.record_finish(&mut unsettled.riders).await {
            return Err(settled);
        }
        if !unsettled.may_be_of_record() {
            return Ok(Err(unsettled));
        }
        let riders = unsettled.riders;
        Ok(self
            .delete_and_tell(purpose, riders, &Unreplied::Completed)
            .await)
    }

    /// [Records](Self::record) what was to travel with the settlement.
    async fn record_finish(self, riders: &mut Riders) -> Option<Result<Settled, SettleErrorKind>> {
        let finish = riders.take_finish()?;
        self.record(finish.value()?.clone()).await
    }

    /// Records in the result store that the work of the message is done, with its follow-ups. Returns `None` if the message
    /// is to be completed, and the result of settling it otherwise.
    async fn record(self, result: Bytes) -> Option<Result<Settled, SettleErrorKind>> {
        let (consumer, incoming) = (self.consumer, self.incoming);
        let claim = incoming.claim.as_ref()?;
        let retention = consumer.options.idempotency.as_ref()?.retention;
        let patience: Duration = incoming.settings.visibility;
        incoming.keep_leased(self.context, patience);
        match finish_within(claim, result, retention, patience).await {
            Ok(ClaimStatus::Held) => None,
            // The other consumer's record will say what follows.
            Ok(ClaimStatus::Lost) => Some(match self.end(End::Released).await {
                // The caller must not take the message for completed.
                Ok(_) if consumer.caller == Caller::Accept => {
                    let error = Error::new(ErrorKind::ReceiptMismatch, Operation::Results);
                    let detail = "another consumer has taken over the claim of the message's key";
                    Err(SettleErrorKind::LeaseLost(
                        error.with_queue(&consumer.queue).with_detail(detail),
                    ))
                }
                released => released,
            }),
            Err(error) => {
                let (queue, id, key) = (&consumer.queue, &incoming.envelope.id, claim.key());
                let error = error_chain(&error);
                tracing::error!(target: LOG, %queue, %id, %key, error, "failed to record that the work of a message is done; a duplicate of the message may be handled again");
                None
            }
        }
    }

    /// Inserts a message whose handler has succeeded into the completed ids, so that it is deleted without running the
    /// handler if it is delivered again. Does nothing if follow-ups may be missing, which only the handler can submit
    /// again, or if the caller learns of the failure and can undo its work.
    fn insert_completed(self, unsettled: &Unsettled) {
        if unsettled.riders.are_dispensable() && self.consumer.caller == Caller::Listener {
            let id = self.incoming.lease.id();
            self.context.completed.insert(&self.consumer.queue, id);
        }
    }
}

/// Returns how a message ends whose follow-ups the backend refuses for good, although they are within its limits. Left
/// alone, the message would be handled again and again, until it counts as crashed.
fn refused(error: &Error) -> End {
    let text = error_chain(error);
    match error.kind() {
        ErrorKind::TooLarge | ErrorKind::InvalidInput | ErrorKind::Unsupported => {
            End::rejected(text)
        }
        // Somebody can mend other refusals, such as missing rights, so that a retry succeeds.
        _ => End::failed(text),
    }
}

/// Returns a hash of the follow-ups without what differs each time they are encoded.
fn fingerprint_of(follow_ups: &[FollowUp]) -> u64 {
    if follow_ups.is_empty() {
        return 0;
    }
    let parts = follow_ups.iter().map(|follow_up| {
        let encoded = follow_up.encoded().ok();
        let key = encoded.and_then(Encoded::key);
        let key = key.map(|key| canonical(Value::from(key.to_vec())));
        let payload = encoded.map(Encoded::payload);
        let kind = follow_up.message_type().kind();
        let times = (follow_up.delay(), follow_up.time_to_live());
        (kind, follow_up.queue(), times, key, payload)
    });
    fingerprint(parts.collect::<Vec<_>>())
}

/// The version of the record.
const VERSION: u32 = 1;

/// What is recorded in a result store of a message whose work is done: its follow-ups, as they are stored.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RecordedFollowUps {
    version: u32,
    follow_ups: Vec<RecordedPut>,
}

#[derive(Debug, Serialize, Deserialize)]
struct RecordedPut {
    queue: String,
    delay_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    time_to_live_ms: Option<u64>,
    #[serde(flatten)]
    body: RecordedBody,
    #[serde(skip_serializing_if = "Option::is_none")]
    attachment_base64: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RecordedBody {
    Body(String),
    BodyBase64(String),
}

impl RecordedFollowUps {
    pub(crate) fn encode(puts: &[(QueueName, NewMessage)]) -> Bytes {
        let follow_ups = puts.iter().map(|(queue, message)| RecordedPut {
            queue: queue.to_string(),
            delay_ms: millis(message.delay),
            time_to_live_ms: match message.time_to_live {
                TimeToLive::Never => None,
                TimeToLive::After(after) => Some(millis(after)),
            },
            body: match std::str::from_utf8(&message.body) {
                Ok(text) => RecordedBody::Body(text.to_owned()),
                Err(_) => {
                    let base64 = to_base64(&message.body);
                    RecordedBody::BodyBase64(base64)
                }
            },
            attachment_base64: match &message.attachment {
                Some(Attachment::New(data)) => Some(to_base64(data)),
                Some(Attachment::Of { .. }) | None => None,
            },
        });
        let recorded = Self {
            version: VERSION,
            follow_ups: follow_ups.collect(),
        };
        let json = serde_json::to_vec(&recorded).expect("strings and numbers are JSON");
        json.into()
    }

    /// Reads a record.
    ///
    /// # Errors
    /// A description, if this program cannot read the record.
    pub(crate) fn decode(result: &[u8]) -> Result<Vec<(QueueName, NewMessage)>, String> {
        let recorded: Self =
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
                RecordedBody::Body(text) => text.into(),
                RecordedBody::BodyBase64(text) => {
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
        assert_eq!(
            RecordedFollowUps::decode(&RecordedFollowUps::encode(&puts)),
            Ok(puts)
        );
        assert_eq!(
            RecordedFollowUps::decode(&RecordedFollowUps::encode(&[])),
            Ok(Vec::new())
        );
    }

    #[test]
    fn a_record_of_another_version_is_refused() {
        let error =
            RecordedFollowUps::decode(br#"{"version":2,"follow_ups":[]}"#).expect_err("newer");
        assert_eq!(error, "its version is 2, and only 1 is known");
        RecordedFollowUps::decode(b"7").expect_err("no record");
    }
}
