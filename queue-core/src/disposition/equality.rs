//! Comparing what handlers return, for their tests.

use std::mem::discriminant;

use serde_json::Value;

use super::{Disposition, Failure, FollowUp};
use crate::encoder::Encoded;
use crate::message::EncodeError;

/// Compares the outcome, its delay, the [text](Failure::chain) of its error, and its follow-ups.
///
/// ```
/// use std::time::Duration;
/// use queue_core::Disposition;
///
/// assert_eq!(Disposition::reject("status 404"), Disposition::reject("status 404"));
/// assert_ne!(Disposition::reject("status 404"), Disposition::retry("status 404"));
///
/// let second = Duration::from_secs(1);
/// assert_ne!(Disposition::postpone(second), Disposition::postpone(2 * second));
/// ```
impl PartialEq for Disposition {
    fn eq(&self, other: &Self) -> bool {
        let parts = |disposition: &Self| match disposition {
            Self::Complete(_) => (None, None),
            Self::Retry { after, error } => (*after, Some(error.chain())),
            Self::Reject(error) => (None, Some(error.chain())),
            Self::Postpone { after, reason } => (Some(*after), reason.as_ref().map(Failure::chain)),
        };
        match (self, other) {
            (Self::Complete(follow_ups), Self::Complete(others)) => follow_ups == others,
            _ => discriminant(self) == discriminant(other) && parts(self) == parts(other),
        }
    }
}

/// Compares what to do with the message and the [text](Failure::chain) of the error. The type of the error does not
/// count.
///
/// ```
/// use queue_core::Failure;
///
/// let failure = Failure::from("seven".parse::<u32>().unwrap_err());
/// assert_eq!(failure, Failure::retry("invalid digit found in string"));
/// assert_ne!(failure, Failure::reject("invalid digit found in string"));
/// ```
impl PartialEq for Failure {
    fn eq(&self, other: &Self) -> bool {
        self.advice == other.advice && self.chain() == other.chain()
    }
}

impl Eq for Failure {}

/// Compares types, queues, delays, keys and payloads. Payloads that are JSON are equal if their values are, whatever the order
/// of their members. Two follow-ups that cannot be encoded are equal if the errors have the same text.
impl PartialEq for FollowUp {
    fn eq(&self, other: &Self) -> bool {
        let Self {
            message_type,
            queue,
            delay,
            encoded,
        } = self;
        *message_type == other.message_type
            && *queue == other.queue
            && *delay == other.delay
            && same_content(encoded, &other.encoded)
    }
}

fn same_content(one: &Result<Encoded, EncodeError>, other: &Result<Encoded, EncodeError>) -> bool {
    match (one, other) {
        (Ok(one), Ok(other)) => {
            one.key() == other.key() && same_payload(one.payload(), other.payload())
        }
        (Err(one), Err(other)) => one.to_string() == other.to_string(),
        _ => false,
    }
}

fn same_payload(one: &[u8], other: &[u8]) -> bool {
    let json = serde_json::from_slice::<Value>;
    one == other || matches!((json(one), json(other)), (Ok(one), Ok(other)) if one == other)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::message::{DecodeError, Message, MessageType};

    /// Its payload is the text, and so is its key.
    #[derive(Debug, PartialEq)]
    struct Note(&'static str);

    impl Message for Note {
        const TYPE: MessageType = MessageType::new("note", "notes");

        fn key(&self) -> Result<Option<Vec<Value>>, EncodeError> {
            Ok(self.0.starts_with("key").then(|| vec![self.0.into()]))
        }

        fn encode(&self) -> Result<Vec<u8>, EncodeError> {
            match self.0 {
                "" => Err(EncodeError::payload("note", "it is empty")),
                text => Ok(text.into()),
            }
        }

        fn decode(version: u32, payload: &[u8]) -> Result<Self, DecodeError> {
            let known = ["tea", "milk"]
                .into_iter()
                .find(|text| text.as_bytes() == payload);
            known
                .map(Self)
                .ok_or_else(|| DecodeError::payload("note", version, "not known"))
        }
    }

    struct Other;

    impl Message for Other {
        const TYPE: MessageType = MessageType::new("other", "notes");

        fn key(&self) -> Result<Option<Vec<Value>>, EncodeError> {
            Ok(None)
        }

        fn encode(&self) -> Result<Vec<u8>, EncodeError> {
            Ok(b"tea".to_vec())
        }

        fn decode(_: u32, _: &[u8]) -> Result<Self, DecodeError> {
            Ok(Self)
        }
    }

    #[test]
    fn dispositions_with_one_difference_differ() {
        let wait = Duration::from_secs;
        let complete = Disposition::complete;
        let distinct = [
            complete(),
            complete().then(&Note("tea")),
            complete().then(&Note("milk")),
            complete().then(&Other),
            complete().then(&Note("tea")).then(&Note("milk")),
            complete().then(&Note("key tea")),
            complete().then(&Note("")),
            complete().then_follow_up(FollowUp::new(&Note("tea")).with_delay(wait(1))),
            Disposition::retry("late"),
            Disposition::retry("early"),
            Disposition::retry_after(wait(1), "late"),
            Disposition::reject("late"),
            Disposition::reject("early"),
            Disposition::postpone(wait(1)),
            Disposition::postpone(wait(2)),
            Failure::postpone(wait(1), "late").into(),
            Failure::postpone(wait(1), "early").into(),
        ];
        for (index, one) in distinct.iter().enumerate() {
            for (other_index, other) in distinct.iter().enumerate() {
                assert_eq!(one == other, index == other_index, "{one:?} {other:?}");
            }
        }
    }

    #[test]
    fn an_outcome_is_the_same_however_it_was_made() {
        let advice = Failure::retry_after(Duration::from_secs(1), "late");
        assert_eq!(Disposition::Reject(advice), Disposition::reject("late"));
        let again = || Disposition::complete().then(&Note(""));
        assert_eq!(again(), again(), "it cannot be encoded");
    }

    #[test]
    fn the_order_of_members_does_not_count() {
        assert!(same_payload(br#"{"a": 1, "b": 2}"#, br#"{"b":2,"a":1}"#));
        assert!(!same_payload(br#"{"a": 1}"#, br#"{"a": 2}"#));
        assert!(!same_payload(b"tea", b"milk"));
    }

    #[test]
    fn follow_ups_are_read_by_type() {
        let disposition = Disposition::complete()
            .then(&Note("tea"))
            .then(&Other)
            .then(&Note("milk"));
        let notes = disposition.follow_ups::<Note>().expect("they decode");
        assert_eq!(notes, [Note("tea"), Note("milk")]);
        assert!(
            Disposition::retry("late")
                .follow_ups::<Note>()
                .expect("none")
                .is_empty()
        );

        let error = Disposition::complete().then(&Note("")).follow_ups::<Note>();
        let error = Failure::from(error.expect_err("it cannot be encoded"));
        assert!(
            error
                .chain()
                .ends_with("the payload of `note` cannot be encoded: it is empty")
        );
    }
}
