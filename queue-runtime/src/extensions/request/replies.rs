use std::sync::Arc;
use std::time::Duration;

use queue_core::internal::debug_fields;
use queue_core::{Error, ErrorKind, MessageId, Operation, QueueName};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::error::RequestProblem;
use super::queue::ReplyQueue;
use super::server::serve;
use super::waiting::{Place, Refused};
use crate::kernel::context::Context;

/// The replies to the requests of one service. Dropping it deletes the reply queue in the background.
pub(crate) struct Replies {
    context: Arc<Context>,
    lease: Duration,
    /// The queue that requests are given, until it is closed. Locked while another is opened, so that all requests get the
    /// same one.
    current: Arc<Mutex<Option<Arc<ReplyQueue>>>>,
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

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Returns the reply queue, and a place for the request to wait in. Opens the queue if necessary. What fails is tried
    /// again until `deadline`, on the monotonic clock, at most.
    ///
    /// # Cancel safety
    /// If the future is dropped, a queue that is being opened is kept for the next request.
    pub(super) async fn ready(
        &self,
        id: &MessageId,
        deadline: Duration,
    ) -> Result<(QueueName, Place), RequestProblem> {
        let mut current = Arc::clone(&self.current).lock_owned().await;
        if let Some(queue) = &*current {
            match place(&self.context, queue, id, deadline).await {
                Err(RequestProblem::ReplyQueue(error)) if error.is_queue_gone() => {
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
        let queue = opened.map_err(RequestProblem::ReplyQueue)?;
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
) -> Result<(QueueName, Place), RequestProblem> {
    let gone = || Error::new(ErrorKind::QueueNotFound, Operation::SetMetadata);
    let place = queue.waiting.add(id).map_err(|refused| match refused {
        Refused::Full => RequestProblem::TooManyWaiting,
        Refused::Closed => RequestProblem::ReplyQueue(gone().with_queue(&queue.name)),
    })?;
    let renewed = queue.renew(context, deadline).await;
    renewed.map_err(RequestProblem::ReplyQueue)?;
    Ok((queue.name.clone(), place))
}

impl Drop for Replies {
    fn drop(&mut self) {
        self.closing.cancel();
    }
}

debug_fields!(Replies { lease });
