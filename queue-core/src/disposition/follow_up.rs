use std::fmt;
use std::time::Duration;

use crate::encoder::Encoded;
use crate::message::{DecodeError, EncodeError, Message, MessageType};
use crate::name::QueueName;

/// A message to submit together with the completion of the one that caused it.
///
/// It inherits client id, request id and trace context. Its id is derived from the parent's id, its kind,
/// its key (or its position) and its queue, so that a repeated attempt submits the same ids.
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
    pub(super) encoded: Result<Encoded, EncodeError>,
}

impl fmt::Debug for FollowUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FollowUp")
            .field("kind", &self.message_type.kind())
            .field("queue", &self.queue)
            .field("delay", &self.delay)
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
            encoded: Encoded::of(message),
        }
    }

    /// Creates a reply to the message, for the instance that waits for one: see [`Disposition::reply`](super::Disposition::reply).
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
    /// put the same message on several.
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
    /// let resize = FollowUp::new(&Resize).with_queue(BULK);
    /// assert_eq!(resize.queue(), Some(&BULK));
    /// let disposition = Disposition::complete().then_follow_up(resize);
    /// # drop(disposition);
    /// ```
    #[must_use]
    pub fn with_queue(mut self, queue: QueueName) -> Self {
        self.queue = Some(queue);
        self
    }

    /// Sets how long the follow-up stays invisible.
    #[must_use]
    pub fn with_delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// The follow-up's type.
    #[must_use]
    pub fn message_type(&self) -> &MessageType {
        &self.message_type
    }

    /// The queue that the follow-up is put on. `None` for a [reply](Self::reply).
    #[must_use]
    pub fn queue(&self) -> Option<&QueueName> {
        self.queue.as_ref()
    }

    /// How long the follow-up stays invisible.
    #[must_use]
    pub fn delay(&self) -> Duration {
        self.delay
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
            return Err(DecodeError::UnexpectedKind {
                found: kind.to_owned(),
                expected: M::TYPE.kind(),
            });
        }
        match &self.encoded {
            Ok(encoded) => M::decode(version, encoded.payload()),
            Err(error) => Err(DecodeError::payload(kind, version, error.clone())),
        }
    }
}
