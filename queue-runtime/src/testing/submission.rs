use std::ops::Deref;
use std::time::Duration;

use queue_core::backend::{Attachment, NewMessage, TimeToLive};
use queue_core::wire::Body;
use queue_core::{Envelope, IdempotencyKey, Message, QueueName};

/// A message that was submitted to a [`TestService`](super::TestService). Derefs to the message, and can be compared with
/// one.
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::{Message, testing};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
/// #[message(queue = "reminders")]
/// struct Reminder {
///     #[message(key)]
///     order: u32,
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = testing::service().await;
/// service.submit(Reminder { order: 7 }).request("r-1").delay(Duration::from_secs(60)).await?;
///
/// let [reminder] = &service.submitted::<Reminder>()[..] else { panic!("one is expected") };
/// assert_eq!(*reminder, Reminder { order: 7 });
/// assert_eq!(reminder.queue().as_str(), "reminders");
/// assert_eq!(reminder.delay(), Duration::from_secs(60));
/// assert_eq!(reminder.key().unwrap().as_str(), r#"["reminder","r-1",7]"#);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Submission<M> {
    message: M,
    queue: QueueName,
    envelope: Option<Envelope>,
    delay: Duration,
    time_to_live: TimeToLive,
}

impl<M: Message> Submission<M> {
    /// Returns what was put as a submission, if it is of this type. A bare body is of the type that has `queue`.
    ///
    /// # Panics
    /// If it is of this type, and does not decode.
    pub(super) fn read(queue: &QueueName, new: &NewMessage, limit: usize) -> Option<Self> {
        let mut body = Body::read(&new.body, limit);
        if let (Body::Event(event), Some(Attachment::New(data))) = (&mut body, &new.attachment) {
            let attached = event.attach(data.clone(), usize::MAX);
            attached.expect("it was attached by this library");
        }
        let envelope = match &body {
            Body::Event(event) if M::TYPE.accepts(&event.envelope.kind) => {
                Some((*event.envelope).clone())
            }
            Body::Bare(_) if !M::TYPE.wire().is_event() && *queue == M::TYPE.queue() => None,
            _ => return None,
        };
        let message = body.decode().unwrap_or_else(|error| {
            let kind = M::TYPE.kind();
            panic!(
                "a `{kind}` message that was submitted to queue `{queue}` does not decode: {error}"
            )
        });
        Some(Self {
            message,
            queue: queue.clone(),
            envelope,
            delay: new.delay,
            time_to_live: new.time_to_live,
        })
    }
}

impl<M> Submission<M> {
    /// Returns the message.
    #[must_use]
    pub fn message(&self) -> &M {
        &self.message
    }

    /// Consumes this value and returns the message.
    #[must_use]
    pub fn into_message(self) -> M {
        self.message
    }

    /// Returns the queue that the message was submitted to.
    #[must_use]
    pub fn queue(&self) -> &QueueName {
        &self.queue
    }

    /// Returns the envelope: message id, client id, request id and other metadata. `None` for a body that is not an
    /// event.
    #[must_use]
    pub fn envelope(&self) -> Option<&Envelope> {
        self.envelope.as_ref()
    }

    /// Returns the idempotency key. `None` for a type without key fields, and for a body that is not an event.
    #[must_use]
    pub fn key(&self) -> Option<IdempotencyKey> {
        let subject = self.envelope.as_ref()?.subject.as_deref()?;
        Some(IdempotencyKey::from_subject(subject))
    }

    /// Returns how long the message stays invisible after it was submitted.
    #[must_use]
    pub fn delay(&self) -> Duration {
        self.delay
    }

    /// Returns how long until the storage deletes the message after it was submitted.
    #[must_use]
    pub fn time_to_live(&self) -> TimeToLive {
        self.time_to_live
    }
}

impl<M> Deref for Submission<M> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.message
    }
}

impl<M: PartialEq> PartialEq<M> for Submission<M> {
    fn eq(&self, message: &M) -> bool {
        self.message == *message
    }
}
