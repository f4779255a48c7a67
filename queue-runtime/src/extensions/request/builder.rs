use std::future::IntoFuture;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use queue_core::clock::BoxFuture;
use queue_core::envelope::TraceContext;
use queue_core::internal::debug_fields;
use queue_core::wire::Body;
use queue_core::{
    Envelope, InvalidId, InvalidName, Message, MessageId, MessageType, Outcome, QueueName,
    RequestId,
};

use super::error::{RequestError, RequestErrorKind};
use super::queue::Replies;
use super::server::clean;
use crate::kernel::clock::ready_by;
use crate::kernel::send::{Submit, SubmitErrorKind, Unreplied};
use crate::service::QueueService;

/// A pending request: a message whose sender waits for a reply. Name the type of the reply, configure the request, then
/// `.await` it.
///
/// The message is submitted as by [`submit`](crate::QueueService::submit). A consumer answers the message by
/// [`Disposition::reply`](crate::Disposition::reply), in one step with the acknowledgement if the backend is atomic. If
/// the message ends without a reply, the request ends with an error at once. The reply goes to a queue of this service,
/// which is created with the first request and deleted after the last one; see
/// [`QueueService::delete_reply_queue`](crate::QueueService::delete_reply_queue).
///
/// While requests wait, their replies are announced by the [notifiers](crate::notify) and polled for, with pauses of up to
/// a second.
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::{Disposition, Message, Received, testing};
/// use queue_runtime::request::RequestErrorKind;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, Serialize, Deserialize, Message)]
/// struct PriceRequest {
///     item: String,
/// }
///
/// #[derive(Debug, Serialize, Deserialize, Message)]
/// struct Price {
///     pence: u32,
/// }
///
/// async fn price(request: Received<PriceRequest>) -> Disposition {
///     match request.item.as_str() {
///         "tea" => Disposition::reply(&Price { pence: 400 }),
///         _ => Disposition::reject("no such item"),
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = testing::service().await;
/// let listener = service.listener(price).start()?; // here, or in another process
///
/// let request = service.request(PriceRequest { item: "tea".to_owned() });
/// let price = request.reply::<Price>().timeout(Duration::from_secs(10)).await?;
/// assert_eq!(price.pence, 400);
///
/// let request = service.request(PriceRequest { item: "coffee".to_owned() });
/// let error = request.reply::<Price>().await.unwrap_err();
/// assert!(matches!(error.kind, RequestErrorKind::Rejected { .. }));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`RequestError`]: also if the message is rejected, fails for good, or is completed without a reply, and if no reply
/// comes in time. After a timeout the message may be handled all the same.
///
/// # Cancel safety
/// If the future is dropped, the message may or may not have been submitted, and may be handled; its reply is dropped.
#[must_use = "a request does nothing until the type of its reply is named and it is awaited"]
pub struct Request<M, R> {
    replies: Arc<Replies>,
    submit: Submit<M>,
    request_id: Option<Result<RequestId, InvalidId>>,
    timeout: Duration,
    reply: PhantomData<fn() -> R>,
}

/// A placeholder for the type of the reply until it is named. A [`Request`] without a reply type cannot be awaited:
/// call [`Request::reply`] first.
///
/// ```
/// use queue_runtime::{Message, QueueService};
/// use queue_runtime::request::{NoReplyType, Request};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct PriceRequest {
/// #     item: String,
/// # }
///
/// fn price_of(service: &QueueService, item: &str) -> Request<PriceRequest, NoReplyType> {
///     service.request(PriceRequest { item: item.to_owned() })
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoReplyType {}

/// The reply to a request. Derefs to the message.
///
/// ```
/// use queue_runtime::{Message, testing};
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
/// let answer = async {
///     let request = service.accept::<PriceRequest>().wait(std::time::Duration::from_secs(1));
///     let request = request.await?.expect("asked");
///     request.reply(&Price { pence: 400 }).await?;
///     Ok::<_, Box<dyn std::error::Error>>(())
/// };
/// let request = service.request(PriceRequest { item: "tea".to_owned() }).reply::<Price>();
/// let (reply, answered) = tokio::join!(request.into_future(), answer);
/// answered?;
/// let reply = reply?;
/// println!("{} pence, answered by {}", reply.pence, reply.envelope().client_id);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply<R> {
    message: R,
    envelope: Arc<Envelope>,
}

/// How long a request waits by default.
const TIMEOUT: Duration = Duration::from_secs(30);

impl<M: Message> Request<M, NoReplyType> {
    pub(crate) fn new(replies: Arc<Replies>, message: M) -> Self {
        Self {
            submit: Submit::new(Arc::clone(&replies.context), M::TYPE.queue(), message),
            replies,
            request_id: None,
            timeout: TIMEOUT,
            reply: PhantomData,
        }
    }

    /// Names the type of the reply. A reply of another message kind is an error.
    pub fn reply<R: Message>(self) -> Request<M, R> {
        Request {
            replies: self.replies,
            submit: self.submit,
            request_id: self.request_id,
            timeout: self.timeout,
            reply: PhantomData,
        }
    }
}

impl<M, R> Request<M, R> {
    /// Sets how long to wait for the reply, including the submission. The default is 30 seconds. A storage operation
    /// that fails is tried again within the timeout, at most as the service's
    /// [`StorageRetry`](crate::policy::StorageRetry) allows.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the queue of the message, as [`Submit::to`] does.
    ///
    /// # Errors
    /// [`InvalidName`] if `queue` is not a valid queue name.
    pub fn to(
        mut self,
        queue: impl TryInto<QueueName, Error: Into<InvalidName>>,
    ) -> Result<Self, InvalidName> {
        self.submit = self.submit.to(queue)?;
        Ok(self)
    }

    /// Sets the request id. The default is a new UUID of version 7.
    pub fn request_id(mut self, id: impl Into<String>) -> Self {
        self.request_id = Some(RequestId::new(id));
        self
    }

    /// Sets the trace context, which the envelope carries to the handler.
    pub fn trace(mut self, trace: TraceContext) -> Self {
        self.submit = self.submit.trace(trace);
        self
    }

    /// Sets how long until the storage deletes the message if it has not been completed, so that a request that nobody
    /// waits for any more is not handled. The default is the type's time to live, or unlimited.
    pub fn time_to_live(mut self, time_to_live: Duration) -> Self {
        self.submit = self.submit.time_to_live(time_to_live);
        self
    }

    /// Resubmits the message if the outcome of its submission is unknown, as [`Submit::retry_unknown`] does. If the
    /// message is handled twice, the first reply is used.
    pub fn retry_unknown(mut self) -> Self {
        self.submit = self.submit.retry_unknown();
        self
    }
}

impl<M: Message, R: Message> Request<M, R> {
    async fn ask(self) -> Result<Reply<R>, RequestError<M>> {
        let Self {
            replies,
            submit,
            request_id,
            timeout,
            ..
        } = self;
        let (id, queue) = (MessageId::random(), submit.queue.clone());
        let (request_id, invalid) = match request_id {
            None => (Some(RequestId::random()), None),
            Some(Ok(request_id)) => (Some(request_id), None),
            Some(Err(invalid)) => (None, Some(invalid)),
        };
        let failed = |message, kind| RequestError {
            id: id.clone(),
            request_id: request_id.clone(),
            queue: queue.clone(),
            message,
            kind,
        };
        let invalid = invalid.map(|invalid| RequestErrorKind::Submit(SubmitErrorKind::Id(invalid)));
        if let Some(kind) = not_an_event(&[M::TYPE, R::TYPE]).or(invalid) {
            return Err(failed(Some(submit.into_message()), kind));
        }
        let clock = Arc::clone(&replies.context.clock);
        let asked_at = clock.monotonic();
        let deadline = asked_at.saturating_add(timeout);
        let waited = || clock.monotonic().saturating_sub(asked_at);
        let no_reply = || RequestErrorKind::NoReply { waited: waited() };
        let ready = replies.ready(&id, deadline);
        let ready = ready_by(&*clock, deadline, ready).await;
        let late = || Err(RequestErrorKind::NotSubmitted { waited: waited() });
        let (reply_queue, mut place) = match ready.unwrap_or_else(late) {
            Ok(ready) => ready,
            Err(kind) => return Err(failed(Some(submit.into_message()), kind)),
        };
        let submit = submit.id(id.as_str()).replying_to(reply_queue);
        let mut submit = submit.trying_until(deadline);
        if let Some(request_id) = &request_id {
            submit = submit.request_id(request_id.as_str());
        }
        match ready_by(&*clock, deadline, submit.into_future()).await {
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                let is_unsent = error.outcome() == Outcome::NotDone;
                let message = is_unsent.then_some(error.message);
                return Err(failed(message, RequestErrorKind::Submit(error.kind)));
            }
            None => return Err(failed(None, no_reply())),
        }
        match ready_by(&*clock, deadline, place.reply()).await {
            Some(Some(body)) => Reply::read(body).map_err(|kind| failed(None, kind)),
            Some(None) => Err(failed(None, RequestErrorKind::ReplyQueueDeleted)),
            None => Err(failed(None, no_reply())),
        }
    }
}

/// Refuses types whose bodies are not events.
fn not_an_event(types: &[MessageType]) -> Option<RequestErrorKind> {
    let mut types = types.iter();
    let refused = types.find(|message_type| !message_type.wire().is_event())?;
    let (kind, wire) = (refused.kind(), refused.wire());
    Some(RequestErrorKind::NotAnEvent { kind, wire })
}

impl<R> Reply<R> {
    fn read(body: Body) -> Result<Self, RequestErrorKind>
    where
        R: Message,
    {
        if let Some(unreplied) = Unreplied::read(&body).map_err(RequestErrorKind::Undecodable)? {
            return Err(unreplied.into());
        }
        let message = body.decode().map_err(RequestErrorKind::Undecodable)?;
        let Body::Event(event) = body else {
            unreachable!("only an event says which request it answers");
        };
        Ok(Self {
            message,
            envelope: event.envelope,
        })
    }

    /// Returns the message.
    #[must_use]
    pub fn message(&self) -> &R {
        &self.message
    }

    /// Consumes this value and returns the message.
    #[must_use]
    pub fn into_message(self) -> R {
        self.message
    }

    /// Returns the envelope of the reply.
    #[must_use]
    pub fn envelope(&self) -> &Envelope {
        &self.envelope
    }
}

impl<R> Deref for Reply<R> {
    type Target = R;

    fn deref(&self) -> &R {
        &self.message
    }
}

// The compiler shows these lines with a request that is awaited without a type of its reply.
impl<M, R> IntoFuture for Request<M, R>
where
    M: Message,
    R: Message, // name it before `.await`: `service.request(message).reply::<R>().await`
{
    type Output = Result<Reply<R>, RequestError<M>>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.ask())
    }
}

debug_fields!(Request<M, R> { submit, timeout });

impl QueueService {
    /// Deletes this service's queue for replies, if there is one. Requests that wait get no reply.
    ///
    /// Call `delete_reply_queue` before a program ends. A reply queue that is not deleted remains until another
    /// instance that makes requests, or [`sweep_reply_queues`](Self::sweep_reply_queues), finds that its owner is gone.
    /// Further requests create another reply queue. A failure to delete the reply queue is logged.
    ///
    /// # Cancel safety
    /// If the future is dropped, the queue is deleted in the background.
    pub async fn delete_reply_queue(&self) {
        self.replies.close().await;
    }

    /// Deletes reply queues of instances that are gone, such as processes that were killed, and returns how many.
    ///
    /// A call checks up to 32 queues, chosen at random, and takes as long as the longest of their
    /// [leases](crate::service::ServiceBuilder::reply_lease). Each instance cleans up from time to time while it makes requests,
    /// so programs need not call `sweep_reply_queues`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let service = queue_runtime::QueueService::connect("memory:").await?;
    /// let deleted = service.sweep_reply_queues().await?;
    /// assert_eq!(deleted, 0, "nobody was killed");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The backend's error: if the queues cannot be listed, or else the first error of a queue that cannot be read or
    /// deleted. A queue that cannot be swept is logged and left alone, and the others are swept all the same.
    ///
    /// # Cancel safety
    /// If the future is dropped, some of the queues may have been deleted.
    pub async fn sweep_reply_queues(&self) -> queue_core::Result<usize> {
        clean(&self.context, None).await
    }
}
