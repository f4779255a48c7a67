//! The reply queue of this instance: which one it has now, its heartbeats, and who waits for replies on it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_core::backend::Metadata;
use queue_core::internal::{LockExt as _, debug_fields};
use queue_core::wire::Body;
use queue_core::{Error, ErrorKind, MessageId, Operation, Outcome, QueueName, Result};
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use super::error::{MAX_WAITING, RequestErrorKind};
use super::server::serve;
use crate::kernel::clock::ready_by;
use crate::kernel::context::Context;
use crate::kernel::repeat::Repeats;

/// The replies to the requests of one service. Dropping `Replies` deletes the reply queue in the background.
pub(crate) struct Replies {
    pub(super) context: Arc<Context>,
    lease: Duration,
    /// The queue that requests are given, until it is closed. Locked while another queue is opened, so that all
    /// requests get the same queue.
    current: Arc<tokio::sync::Mutex<Option<Arc<ReplyQueue>>>>,
    closing: CancellationToken,
}

impl Replies {
    pub(crate) fn new(context: Arc<Context>, lease: Duration) -> Self {
        Self {
            context,
            lease,
            current: Arc::default(),
            closing: CancellationToken::new(),
        }
    }

    /// Returns the reply queue, and a place for the request to wait in. Opens the queue if necessary, and tries again
    /// what fails until `deadline`, on the monotonic clock, at most.
    ///
    /// # Cancel safety
    /// If the future is dropped, a queue that is being opened is kept for the next request.
    pub(super) async fn ready(
        &self,
        id: &MessageId,
        deadline: Duration,
    ) -> Result<(QueueName, ReplyPlace), RequestErrorKind> {
        let mut current = Arc::clone(&self.current).lock_owned().await;
        if let Some(queue) = &*current {
            match place(&self.context, queue, id, deadline).await {
                Err(RequestErrorKind::ReplyQueue(error)) if error.is_queue_gone() => {
                    queue.waiting.close();
                }
                place => return place,
            }
        }
        let (context, lease) = (Arc::clone(&self.context), self.lease);
        let closing = self.closing.child_token();
        let open = async move {
            let queue = Arc::new(ReplyQueue::create(&context, lease, deadline, closing).await?);
            let server = serve(Arc::clone(&context), Arc::clone(&queue));
            context.background.spawn(server);
            *current = Some(Arc::clone(&queue));
            Ok(queue)
        };
        let opened = self.context.background.finish(open).await;
        let closed = || Err(Error::new(ErrorKind::Closed, Operation::CreateQueue));
        let opened = opened.unwrap_or_else(closed);
        let queue = opened.map_err(RequestErrorKind::ReplyQueue)?;
        place(&self.context, &queue, id, deadline).await
    }

    /// Deletes the reply queue of this instance, if it has one. Requests that wait get no reply.
    pub(crate) async fn close(&self) {
        let current = self.current.lock().await.take();
        if let Some(queue) = current {
            queue.closing.cancel();
            queue.ended.cancelled().await;
        }
    }
}

/// Returns a place at this queue, which must still exist: an owner that was stopped for a while cannot know that without
/// asking.
async fn place(
    context: &Context,
    queue: &ReplyQueue,
    id: &MessageId,
    deadline: Duration,
) -> Result<(QueueName, ReplyPlace), RequestErrorKind> {
    let gone = || Error::new(ErrorKind::QueueNotFound, Operation::SetMetadata);
    let place = queue.waiting.add(id).map_err(|refused| match refused {
        NoPlace::Full => RequestErrorKind::TooManyWaiting,
        NoPlace::Closed => RequestErrorKind::ReplyQueue(gone().with_queue(&queue.name)),
    })?;
    let renewed = queue.renew(context, deadline).await;
    renewed.map_err(RequestErrorKind::ReplyQueue)?;
    Ok((queue.name.clone(), place))
}

impl Drop for Replies {
    fn drop(&mut self) {
        self.closing.cancel();
    }
}

debug_fields!(Replies { lease });

/// The reply queue of this instance.
#[derive(Debug)]
pub(super) struct ReplyQueue {
    pub(super) name: QueueName,
    pub(super) lease: Duration,
    pub(super) waiting: Arc<WaitingRequests>,
    /// Asks the queue's task to end.
    pub(super) closing: CancellationToken,
    /// The queue's task has ended.
    pub(super) ended: CancellationToken,
    heartbeats: AtomicU64,
    /// When the last heartbeat that was carried out was sent, on the monotonic clock.
    heartbeat_at: Mutex<Duration>,
}

/// How long an instance may go without a heartbeat before its reply queue is deleted.
pub(crate) const DEFAULT_LEASE: Duration = Duration::from_secs(60);
pub(crate) const SHORTEST_LEASE: Duration = Duration::from_secs(1);
pub(crate) const LONGEST_LEASE: Duration = Duration::from_secs(60 * 60);

/// The number of heartbeats in a lease.
pub(super) const HEARTBEATS: u32 = 4;
/// How long to wait for the storage to answer an operation on the queue. A request waits 30 seconds by default, which is
/// long enough for a few operations.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// The names of a reply queue's metadata: a number that its owner changes in each lease, and the lease in milliseconds.
pub(super) const HEARTBEAT: &str = "replybeat";
pub(super) const LEASE: &str = "replylease";

impl ReplyQueue {
    /// Creates a queue of a new name.
    ///
    /// # Errors
    /// The backend's error, after repeats by the service's policy, until `deadline` at most. A queue that may have been
    /// created is deleted as one whose owner is gone.
    async fn create(
        context: &Context,
        lease: Duration,
        deadline: Duration,
        closing: CancellationToken,
    ) -> Result<Self> {
        let (clock, policy) = (&*context.clock, &context.storage_retry);
        let queue = Self {
            name: QueueName::random_reply_queue(),
            lease,
            waiting: WaitingRequests::new(),
            closing,
            ended: CancellationToken::new(),
            heartbeats: AtomicU64::new(1),
            heartbeat_at: Mutex::new(clock.monotonic()),
        };
        let mut repeats = Repeats::until(deadline, policy, clock);
        let metadata = queue.metadata(0);
        while let Err(error) = context.backend.create_queue(&queue.name, &metadata).await {
            repeats.pause(error).await?;
        }
        Ok(queue)
    }

    /// Writes a new heartbeat, unless the last one is [fresh](Self::is_fresh).
    ///
    /// # Errors
    /// The backend's error, after repeats by the service's policy, until `deadline` at most. If the [queue is
    /// gone](queue_core::Error::is_queue_gone), which is not repeated, others have considered the owner dead.
    pub(super) async fn renew(&self, context: &Context, deadline: Duration) -> Result<()> {
        let (clock, policy) = (&*context.clock, &context.storage_retry);
        let mut repeats = Repeats::until(deadline, policy, clock);
        // During a pause, the queue's task may write a heartbeat too.
        while !self.is_fresh(clock.monotonic()) {
            match self.write_heartbeat(context, PATIENCE).await {
                Ok(()) => break,
                Err(error) if error.is_queue_gone() => return Err(error),
                Err(error) => repeats.pause(error).await?,
            }
        }
        Ok(())
    }

    /// Writes a new heartbeat, once, and waits for the answer for `patience`.
    ///
    /// # Errors
    /// The backend's error, or that of [`in_time`](Self::in_time). If the [queue is
    /// gone](queue_core::Error::is_queue_gone), others have considered the owner dead.
    pub(super) async fn write_heartbeat(
        &self,
        context: &Context,
        patience: Duration,
    ) -> Result<()> {
        let sent_at = context.clock.monotonic();
        let metadata = self.metadata(self.heartbeats.fetch_add(1, Ordering::Relaxed));
        let set = context.backend.set_metadata(&self.name, &metadata);
        self.in_time(context, patience, Operation::SetMetadata, set)
            .await?;
        let mut heartbeat_at = self.heartbeat_at.hold();
        *heartbeat_at = sent_at.max(*heartbeat_at);
        Ok(())
    }

    /// Awaits an operation on the queue for `patience`.
    ///
    /// # Errors
    /// The operation's error, or [`ErrorKind::Timeout`] if it has not been answered by then.
    pub(super) async fn in_time<T>(
        &self,
        context: &Context,
        patience: Duration,
        operation: Operation,
        answer: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let clock = &*context.clock;
        let deadline = clock.monotonic().saturating_add(patience);
        let answered = ready_by(clock, deadline, answer).await;
        answered.unwrap_or_else(|| {
            let timeout = Error::new(ErrorKind::Timeout, operation).with_queue(&self.name);
            Err(timeout.with_outcome(Outcome::Unknown))
        })
    }

    /// Returns whether the last heartbeat is less than half a lease old, so that no other instance can have deleted the
    /// queue.
    fn is_fresh(&self, now: Duration) -> bool {
        let heartbeat_at = *self.heartbeat_at.hold();
        now.saturating_sub(heartbeat_at) < self.lease / 2
    }

    /// Deletes the queue, with the replies that nobody has waited for.
    pub(super) async fn delete(&self, context: &Context) {
        let (clock, policy) = (&*context.clock, &context.storage_retry);
        let mut repeats = Repeats::by(policy, clock);
        while let Err(error) = context.backend.delete_queue(&self.name).await {
            if error.is_queue_gone() {
                return;
            }
            if let Err(error) = repeats.pause(error).await {
                let queue = &self.name;
                tracing::warn!(%queue, %error, "failed to delete a reply queue; another instance will delete the queue");
                return;
            }
        }
    }

    fn metadata(&self, heartbeat: u64) -> Metadata {
        let mut metadata = Metadata::new();
        let values = [
            (HEARTBEAT, heartbeat.to_string()),
            (LEASE, self.lease.as_millis().to_string()),
        ];
        for (name, value) in values {
            let inserted = metadata.insert(name, &value);
            inserted.expect("the names are identifiers, the values digits");
        }
        metadata
    }
}

/// The requests that wait for a reply on one queue.
#[derive(Debug)]
pub(super) struct WaitingRequests {
    /// `None` once the queue is given up.
    requests: Mutex<Option<HashMap<String, oneshot::Sender<Body>>>>,
    added: Notify,
}

/// A request's place among those that wait, which is given up when it is dropped.
#[derive(Debug)]
pub(super) struct ReplyPlace {
    waiting: Arc<WaitingRequests>,
    id: MessageId,
    reply: oneshot::Receiver<Body>,
}

/// Why a request cannot wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NoPlace {
    /// The queue is given up.
    Closed,
    /// [`MAX_WAITING`] requests wait already.
    Full,
}

impl WaitingRequests {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            requests: Mutex::new(Some(HashMap::new())),
            added: Notify::new(),
        })
    }

    fn add(self: &Arc<Self>, id: &MessageId) -> Result<ReplyPlace, NoPlace> {
        let (sender, reply) = oneshot::channel();
        let mut requests = self.requests.hold();
        let requests = requests.as_mut().ok_or(NoPlace::Closed)?;
        if requests.len() >= MAX_WAITING {
            return Err(NoPlace::Full);
        }
        requests.insert(id.to_string(), sender);
        self.added.notify_one();
        Ok(ReplyPlace {
            waiting: Arc::clone(self),
            id: id.clone(),
            reply,
        })
    }

    /// Hands a reply to the request that waits for it, and returns whether one does.
    pub(super) fn answer(&self, id: &str, reply: Body) -> bool {
        let request = self
            .requests
            .hold()
            .as_mut()
            .and_then(|requests| requests.remove(id));
        request.is_some_and(|request| request.send(reply).is_ok())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.hold().as_ref().is_none_or(HashMap::is_empty)
    }

    /// Completes when a request has been added since the last time.
    pub(super) async fn added(&self) {
        self.added.notified().await;
    }

    /// Refuses further requests, unless some wait, and returns whether it does.
    pub(super) fn close_if_empty(&self) -> bool {
        let mut requests = self.requests.hold();
        if requests.as_ref().is_none_or(HashMap::is_empty) {
            *requests = None;
        }
        requests.is_none()
    }

    /// Refuses further requests, and tells those that wait that no reply will come.
    pub(super) fn close(&self) {
        *self.requests.hold() = None;
    }
}

impl ReplyPlace {
    /// Waits for the reply. Returns `None` if the queue is given up.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(super) async fn reply(&mut self) -> Option<Body> {
        (&mut self.reply).await.ok()
    }
}

impl Drop for ReplyPlace {
    fn drop(&mut self) {
        if let Some(requests) = self.waiting.requests.hold().as_mut() {
            requests.remove(self.id.as_str());
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn id(text: &str) -> MessageId {
        MessageId::new(text).expect("an id")
    }

    fn body(text: &'static str) -> Body {
        Body::Bare(Bytes::from_static(text.as_bytes()))
    }

    #[tokio::test]
    async fn each_reply_goes_to_its_request_once() {
        let waiting = WaitingRequests::new();
        let mut first = waiting.add(&id("1")).expect("open");
        let mut second = waiting.add(&id("2")).expect("open");
        assert!(waiting.answer("2", body("two")));
        assert!(!waiting.answer("2", body("a copy")), "answered before");
        assert!(waiting.answer("1", body("one")));
        assert_eq!(first.reply().await, Some(body("one")));
        assert_eq!(second.reply().await, Some(body("two")));
        assert!(waiting.is_empty());
    }

    #[tokio::test]
    async fn a_request_that_is_dropped_waits_no_more() {
        let waiting = WaitingRequests::new();
        let request = waiting.add(&id("1")).expect("open");
        assert!(!waiting.is_empty() && !waiting.close_if_empty());
        drop(request);
        assert!(!waiting.answer("1", body("late")));
        assert!(waiting.close_if_empty());
        assert_eq!(waiting.add(&id("2")).err(), Some(NoPlace::Closed));
    }

    #[tokio::test]
    async fn those_that_wait_learn_that_the_queue_is_given_up() {
        let waiting = WaitingRequests::new();
        let mut request = waiting.add(&id("1")).expect("open");
        waiting.close();
        assert_eq!(request.reply().await, None);
        assert_eq!(waiting.add(&id("2")).err(), Some(NoPlace::Closed));
    }

    #[test]
    fn the_number_that_wait_is_bounded() {
        let waiting = WaitingRequests::new();
        let add = |n: usize| waiting.add(&id(&n.to_string()));
        let mut places: Vec<_> = (0..MAX_WAITING).map(|n| add(n).expect("room")).collect();
        assert_eq!(add(MAX_WAITING).err(), Some(NoPlace::Full));
        places.pop();
        assert!(add(MAX_WAITING).is_ok());
    }
}
