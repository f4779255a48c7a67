//! The errors of submitting one message, and several.

use super::submit::Submitted;
use queue_core::encoder::TooLarge;
use queue_core::{EncodeError, InvalidId, MessageId, Outcome};

/// An error of submitting a message. The error returns the message.
///
/// If the outcome [is unknown](Self::outcome), the message may have been submitted. Submitting the message again with
/// the same id is safe for consumers that deduplicate by id or key.
///
/// ```
/// # use queue_runtime::{Message, testing::{self, Fault}};
/// # use queue_runtime::error::Operation;
/// use queue_runtime::SubmitError;
/// use queue_runtime::error::RetryAdvice;
/// use queue_runtime::send::SubmitErrorKind;
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (service, faults) = testing::service_with_faults().await;
/// # faults.fail_next(1, Operation::Put, Fault::AnswerLost);
/// let submitted = match service.submit(Order { number: 7 }).await {
///     Err(SubmitError { id: Some(id), message, kind: SubmitErrorKind::Storage(error), .. })
///         if error.retry() != RetryAdvice::Permanent =>
///     {
///         service.submit(message).id(id.as_str()).await?
///     }
///     other => other?,
/// };
/// # assert_eq!(faults.injected(Operation::Put), 1);
/// # Ok(())
/// # }
/// ```
#[non_exhaustive]
pub struct SubmitError<M> {
    /// The message id. `None` if the message was not sent to the storage.
    pub id: Option<MessageId>,
    /// The message.
    pub message: M,
    /// What is wrong.
    pub kind: SubmitErrorKind,
}

/// Why messages were not submitted. The kind of a [`SubmitError`] or [`SubmitAllError`](crate::send::SubmitAllError).
///
/// ```
/// use queue_runtime::{Message, QueueService};
/// use queue_runtime::send::SubmitErrorKind;
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Note {
/// #     text: String,
/// # }
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = QueueService::builder("memory:").max_payload(10_000).connect().await?;
/// let note = Note { text: "x".repeat(10_000) };
/// let error = service.submit(note).await.unwrap_err();
/// match &error.kind {
///     SubmitErrorKind::TooLarge(large) => eprintln!("shorten it: {} of {}", large.size(), large.limit()),
///     SubmitErrorKind::Storage(error) => eprintln!("{error}"),
///     other => eprintln!("invalid message: {other}"),
/// }
/// # assert!(matches!(error.kind, SubmitErrorKind::TooLarge(_)));
/// # Ok(())
/// # }
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum SubmitErrorKind {
    /// The message id, client id or request id is invalid.
    #[error(transparent)]
    Id(InvalidId),
    /// The message could not be encoded.
    #[error(transparent)]
    Encode(EncodeError),
    /// The message has no key fields, for example as a variant of an enum without them, so it cannot be submitted
    /// uniquely.
    #[error(
        "a `{kind}` message without key fields cannot be submitted uniquely: mark some with `#[message(key)]`"
    )]
    NoKey {
        /// The kind of the message.
        kind: &'static str,
    },
    /// The encoded message exceeds the limit of the storage.
    #[error(transparent)]
    TooLarge(TooLarge),
    /// The backend failed.
    #[error(transparent)]
    Storage(queue_core::Error),
}

queue_core::debug_as_text!(SubmitErrorKind);

impl<M> SubmitError<M> {
    /// The error of a message that was not sent to the storage.
    pub(crate) fn unsent(message: M, kind: SubmitErrorKind) -> Self {
        Self {
            id: None,
            message,
            kind,
        }
    }
}

impl SubmitErrorKind {
    pub(crate) fn outcome(&self) -> Outcome {
        match self {
            Self::Storage(error) => error.outcome(),
            _ => Outcome::NotDone,
        }
    }
}

queue_core::error_around!(kind in SubmitError<M>, M; |error, f| match (&error.id, &error.kind) {
    (Some(id), kind) => write!(f, "failed to submit message {id}: {kind}"),
    (None, kind) => write!(f, "failed to submit a message: {kind}"),
};
    /// Whether the message may have been submitted.
    outcome: error.kind.outcome()
);

/// An error of submitting several messages. The error returns the messages that were not submitted.
///
/// If the outcome [is unknown](Self::outcome), any of [`rest`](Self::rest) may have been submitted; submitting them
/// again with the same ids is safe for consumers that deduplicate by id or key.
///
/// ```
/// # use queue_runtime::{Message, testing::{self, Fault}};
/// # use queue_runtime::error::Operation;
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (service, faults) = testing::service_with_faults().await;
/// # faults.fail_next(1, Operation::Apply, Fault::AnswerLost);
/// if let Err(error) = service.submit_all([Order { number: 7 }, Order { number: 8 }]).await {
///     eprintln!("{error}; submitting the rest one by one");
///     for (id, order) in error.rest {
///         let submit = service.submit(order);
///         match id {
///             Some(id) => submit.id(id.as_str()).await?,
///             None => submit.await?,
///         };
///     }
/// }
/// # assert_eq!(faults.injected(Operation::Apply), 1);
/// # Ok(())
/// # }
/// ```
#[non_exhaustive]
pub struct SubmitAllError<M> {
    /// The messages certainly submitted, in the order given to `submit_all`.
    pub submitted: Vec<Submitted>,
    /// The messages not certainly submitted, in the order given to `submit_all`. The ids are `None` if no message was
    /// sent to the storage.
    pub rest: Vec<(Option<MessageId>, M)>,
    /// What is wrong.
    pub kind: SubmitErrorKind,
}

queue_core::error_around!(kind in SubmitAllError<M>, M; |error, f| {
    let (rest, kind) = (error.rest.len(), &error.kind);
    let all = error.submitted.len() + rest;
    write!(f, "failed to submit {rest} of {all} messages: {kind}")
};
    /// Whether messages in [`rest`](Self::rest) may have been submitted.
    outcome: error.kind.outcome()
);
