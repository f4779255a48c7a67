use std::fmt;
use std::time::Duration;

use serde_json::Value;

use crate::encoder::Encoded;
use crate::envelope::MessageId;
use crate::message::{DecodeError, DecodeErrorKind, EncodeError, Message, MessageType};
use crate::name::{InvalidName, QueueName};

/// A message to submit together with the completion of the message that caused it.
///
/// A follow-up inherits its parent's client id, request id and trace context. The id of a follow-up is derived from its
/// parent's id and its own kind, key (or position) and queue, so that a repeated attempt submits the same ids.
///
/// ```
/// # use queue_core::{DecodeError, EncodeError, Message, MessageType};
/// # struct Reminder;
/// # impl Message for Reminder {
/// #     const TYPE: MessageType = MessageType::new("reminder", "reminders");
/// #     fn key(&self) -> Result<Option<Vec<serde_json::Value>>, EncodeError> { Ok(None) }
/// #     fn encode(&self) -> Result<Vec<u8>, EncodeError> { Ok(b"null".to_vec()) }
/// #     fn decode(_: u32, _: &[u8]) -> Result<Self, DecodeError> { Ok(Self) }
/// # }
/// use std::time::Duration;
/// use queue_core::{Disposition, FollowUp};
///
/// let tomorrow = FollowUp::new(&Reminder).with_delay(Duration::from_secs(24 * 60 * 60));
/// let disposition = Disposition::complete().then_follow_up(tomorrow);
/// # assert!(matches!(disposition, Disposition::Complete(follow_ups) if follow_ups.len() == 1));
/// ```
#[derive(Clone)]
pub struct FollowUp {
    pub(super) message_type: MessageType,
    /// `None` for a reply, which goes to the reply queue of the message's sender.
    pub(super) queue: Option<QueueName>,
    pub(super) delay: Duration,
    pub(super) time_to_live: Option<Duration>,
    /// The message by whose id the storage finds the follow-up, instead of its own.
    pub(super) located_by: Option<MessageId>,
    pub(super) encoded: Result<Encoded, EncodeError>,
}

impl fmt::Debug for FollowUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FollowUp")
            .field("kind", &self.message_type.kind())
            .field("queue", &self.queue)
            .field("delay", &self.delay)
            .field("time_to_live", &self.time_to_live)
            .finish_non_exhaustive()
    }
}

impl FollowUp {
    /// Creates a follow-up that is visible at once, on its type's queue.
    #[must_use]
    pub fn new<M: Message>(message: &M) -> Self {
        Self {
            message_type: M::TYPE,
            queue: Some(M::TYPE.queue()),
            delay: Duration::ZERO,
            time_to_live: M::TYPE.time_to_live(),
            located_by: None,
            encoded: Encoded::of(message),
        }
    }

    /// Creates the reply `message`, for the instance that waits for one: see
    /// [`Disposition::reply`](super::Disposition::reply).
    #[must_use]
    pub fn reply<M: Message>(message: &M) -> Self {
        Self {
            queue: None,
            ..Self::new(message)
        }
    }

    /// Sets the queue that the follow-up is put on.
    ///
    /// The id of a follow-up on another queue than its type's also depends on the queue's name, so that one handler can
    /// put the same message on several queues.
    ///
    /// ```
    /// # use queue_core::{DecodeError, EncodeError, Message, MessageType};
    /// # struct Resize;
    /// # impl Message for Resize {
    /// #     const TYPE: MessageType = MessageType::new("resize", "resize");
    /// #     fn key(&self) -> Result<Option<Vec<serde_json::Value>>, EncodeError> { Ok(None) }
    /// #     fn encode(&self) -> Result<Vec<u8>, EncodeError> { Ok(b"null".to_vec()) }
    /// #     fn decode(_: u32, _: &[u8]) -> Result<Self, DecodeError> { Ok(Self) }
    /// # }
    /// use queue_core::{Disposition, FollowUp, QueueName};
    ///
    /// const BULK: QueueName = QueueName::from_static("resize-bulk");
    ///
    /// let resize = FollowUp::new(&Resize).with_queue(BULK)?;
    /// assert_eq!(resize.queue(), Some(&BULK));
    /// let disposition = Disposition::complete().then_follow_up(resize);
    /// # drop(disposition);
    /// # Ok::<(), queue_core::InvalidName>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidName`] if `queue` is not a valid queue name.
    pub fn with_queue(
        mut self,
        queue: impl TryInto<QueueName, Error: Into<InvalidName>>,
    ) -> Result<Self, InvalidName> {
        self.queue = Some(queue.try_into().map_err(Into::into)?);
        Ok(self)
    }

    /// Sets how long the follow-up stays invisible.
    #[must_use]
    pub fn with_delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Sets how long until the storage deletes the follow-up if it has not been completed. The default is that of its type.
    #[must_use]
    pub fn with_time_to_live(mut self, time_to_live: Duration) -> Self {
        self.time_to_live = Some(time_to_live);
        self
    }

    /// Has the storage find the follow-up by the id of another message, where it finds messages.
    #[doc(hidden)]
    #[must_use]
    pub fn located_by(mut self, id: MessageId) -> Self {
        self.located_by = Some(id);
        self
    }

    #[doc(hidden)]
    #[must_use]
    pub fn locator(&self) -> Option<&MessageId> {
        self.located_by.as_ref()
    }

    /// The follow-up's type.
    #[must_use]
    pub fn message_type(&self) -> &MessageType {
        &self.message_type
    }

    /// The queue that the follow-up is put on; `None` for a [reply](Self::reply).
    #[must_use]
    pub fn queue(&self) -> Option<&QueueName> {
        self.queue.as_ref()
    }

    /// How long the follow-up stays invisible.
    #[must_use]
    pub fn delay(&self) -> Duration {
        self.delay
    }

    /// How long until the storage deletes the follow-up, or `None` if it never does.
    #[must_use]
    pub fn time_to_live(&self) -> Option<Duration> {
        self.time_to_live
    }

    /// The encoded message.
    ///
    /// # Errors
    /// [`EncodeError`] if the message could not be encoded.
    pub fn encoded(&self) -> Result<&Encoded, &EncodeError> {
        self.encoded.as_ref()
    }

    /// Decodes the message.
    ///
    /// # Errors
    /// [`DecodeError`] if the follow-up is of another kind, does not decode, or could not be encoded.
    pub fn decode<M: Message>(&self) -> Result<M, DecodeError> {
        let (kind, version) = (self.message_type.kind(), self.message_type.version());
        if !M::TYPE.accepts(kind) {
            let found = DecodeErrorKind::UnexpectedKind(kind.to_owned());
            return Err(DecodeError::new(M::TYPE.kind(), found));
        }
        match &self.encoded {
            Ok(encoded) => M::decode(version, encoded.payload()),
            Err(error) => Err(DecodeError::payload(kind, version, error.clone())),
        }
    }
}

/// Compares types, queues, delays, times to live, keys and payloads. Payloads that are JSON are equal if their values are, whatever the order
/// of their members. Two follow-ups that cannot be encoded are equal if the errors have the same text.
impl PartialEq for FollowUp {
    fn eq(&self, other: &Self) -> bool {
        let Self {
            message_type,
            queue,
            delay,
            time_to_live,
            located_by,
            encoded,
        } = self;
        *message_type == other.message_type
            && *queue == other.queue
            && *delay == other.delay
            && *time_to_live == other.time_to_live
            && *located_by == other.located_by
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
    use super::*;
    use crate::disposition::{Disposition, Failure};

    /// A message whose payload and key are its text.
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
