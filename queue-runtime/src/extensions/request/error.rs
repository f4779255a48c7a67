use std::time::Duration;

use queue_core::envelope::PoisonReason;
use queue_core::{DecodeError, MessageId, Outcome, QueueName, RequestId, Wire};

use crate::kernel::send::{SubmitErrorKind, Unreplied};

/// The most requests of one service that wait at a time.
pub(super) const MAX_WAITING: usize = 10_000;

/// Returned by a request that ends without a usable reply. Contains the message unless it was, or may have been,
/// submitted.
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::{Message, testing};
/// use queue_runtime::request::RequestErrorKind;
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct PriceRequest {
/// #     item: String,
/// # }
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Price {
/// #     pence: u32,
/// # }
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = testing::service().await;
/// let request = service.request(PriceRequest { item: "tea".to_owned() }).request_id("order-7");
/// let error = request.reply::<Price>().timeout(Duration::from_secs(5)).await.unwrap_err();
///
/// assert!(matches!(error.kind, RequestErrorKind::NoReply { .. }), "nobody handles it");
/// assert!(error.to_string().ends_with("of request order-7 on queue `price-request`: no reply within 5s"));
/// # Ok(())
/// # }
/// ```
#[non_exhaustive]
pub struct RequestError<M> {
    /// The message id, to which a reply would have referred.
    pub id: MessageId,
    /// The request id. `None` if the request id that was given is invalid.
    pub request_id: Option<RequestId>,
    /// The queue that the message was for.
    pub queue: QueueName,
    /// The message. `None` if the message was, or may have been, submitted.
    pub message: Option<M>,
    /// What is wrong.
    pub kind: RequestErrorKind,
}

/// Why there is no usable reply. The kind of a [`RequestError`].
///
/// ```
/// use queue_runtime::{Message, QueueService};
/// use queue_runtime::request::RequestErrorKind;
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct PriceRequest {
/// #     item: String,
/// # }
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Price {
/// #     pence: u32,
/// # }
/// #
/// async fn price(service: &QueueService, item: &str) -> Option<u32> {
///     let request = service.request(PriceRequest { item: item.to_owned() }).reply::<Price>();
///     match request.await {
///         Ok(price) => Some(price.pence),
///         Err(error) => {
///             match &error.kind {
///                 RequestErrorKind::Rejected { .. } => eprintln!("there is no such item"),
///                 RequestErrorKind::NoReply { waited } => eprintln!("nobody answered within {waited:?}"),
///                 RequestErrorKind::Undecodable(other) => eprintln!("not a price: {other}"),
///                 _ => eprintln!("{error}"),
///             }
///             None
///         }
///     }
/// }
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// # let service = queue_runtime::testing::service().await;
/// # assert_eq!(price(&service, "tea").await, None);
/// # }
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum RequestErrorKind {
    /// The bodies of the message's type, or of the reply's, are not events: nothing was submitted.
    #[error(
        "`{kind}` messages declare `wire = \"{wire}\"`, so they cannot carry the ids that match a reply to its request; \
         use a type without it"
    )]
    NotAnEvent {
        /// The message kind that declares `wire`.
        kind: &'static str,
        /// The declared form of message bodies.
        wire: Wire,
    },
    /// 10,000 requests of the service wait for replies, which is the maximum: nothing was submitted.
    #[error("{MAX_WAITING} requests of this service wait for replies, which is the maximum")]
    TooManyWaiting,
    /// The reply queue could not be created or renewed within the timeout, retries included: nothing was submitted.
    #[error(transparent)]
    ReplyQueue(queue_core::Error),
    /// The timeout passed before the reply queue was ready: nothing was submitted.
    #[error(
        "nothing was submitted: the reply queue was not ready within {:?}",
        rounded(waited)
    )]
    NotSubmitted {
        /// How long the request has waited.
        waited: Duration,
    },
    /// The message could not be submitted within the timeout, retries included, or the outcome of its submission is
    /// unknown.
    #[error(transparent)]
    Submit(SubmitErrorKind),
    /// No reply came in time. The message may still be handled, or have been handled. If the storage did not answer the
    /// submission before the timeout, the message may also not have been submitted.
    #[error("no reply within {:?}", rounded(waited))]
    NoReply {
        /// How long the request has waited, including the submission.
        waited: Duration,
    },
    /// The handler rejected the message, which was moved to the poison queue.
    #[error("the handler rejected the message{}", after_colon(error))]
    Rejected {
        /// The handler's error and its causes, outermost first, if its listener [sends
        /// errors](crate::ListenerBuilder::reply_errors).
        error: Option<String>,
    },
    /// The message failed for good, and was moved to the poison queue.
    #[error(
        "the message was moved to the poison queue ({reason}, attempt {attempts}){}",
        after_colon(error)
    )]
    Failed {
        /// The poison reason, which is not [`Rejected`](PoisonReason::Rejected).
        reason: PoisonReason,
        /// The message's number of attempts.
        attempts: usize,
        /// The message's last error and its causes, outermost first, if the listener [sends
        /// errors](crate::ListenerBuilder::reply_errors).
        error: Option<String>,
    },
    /// The message was completed without a reply.
    #[error("the message was completed without a reply")]
    NotReplied,
    /// The message was [cancelled](crate::QueueService::cancel).
    #[error("the message was cancelled")]
    Cancelled,
    /// The reply queue was deleted while the request waited: by another instance, because this instance had not renewed
    /// its lease, or by [`delete_reply_queue`](crate::QueueService::delete_reply_queue).
    #[error("the reply queue of this instance was deleted")]
    ReplyQueueDeleted,
    /// The reply has the wrong kind, or does not decode. The message was handled.
    #[error(transparent)]
    Undecodable(DecodeError),
}

queue_core::debug_as_text!(RequestErrorKind);

impl From<Unreplied> for RequestErrorKind {
    fn from(unreplied: Unreplied) -> Self {
        match unreplied {
            Unreplied::Completed => Self::NotReplied,
            Unreplied::Cancelled => Self::Cancelled,
            Unreplied::Poisoned {
                reason,
                attempts,
                error,
            } => match PoisonReason::parse(&reason) {
                PoisonReason::Rejected => Self::Rejected { error },
                reason => Self::Failed {
                    reason,
                    attempts,
                    error,
                },
            },
        }
    }
}

queue_core::error_around!(kind in RequestError<M>, M; |error, f| {
    write!(f, "failed to get the reply to message {}", error.id)?;
    if let Some(request) = &error.request_id {
        write!(f, " of request {request}")?;
    }
    write!(f, " on queue `{}`: ", error.queue)?;
    if let RequestErrorKind::Undecodable(_) = error.kind {
        f.write_str("the reply cannot be read: ")?;
    }
    error.kind.fmt(f)
};
    /// Whether the message may have been submitted; if not, it is [returned](Self::message).
    outcome: match &error.kind {
        RequestErrorKind::Submit(kind) => kind.outcome(),
        RequestErrorKind::NotAnEvent { .. } => Outcome::NotDone,
        _ => Outcome::Unknown,
    }
);

/// Rounds to milliseconds, or to a tenth of a second from one second on.
fn rounded(waited: &Duration) -> Duration {
    let unit = if waited.as_secs() > 0 { 100 } else { 1 };
    let millis = (waited.as_millis() + unit / 2) / unit * unit;
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
}

fn after_colon(error: &Option<String>) -> String {
    let text = error.as_ref().map(|error| format!(": {error}"));
    text.unwrap_or_default()
}
