//! Creating missing queues. Operations that find the same queue missing at the same time share one creation.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use queue_core::backend::{Backend, BackendExt as _};
use queue_core::internal::LockExt as _;
use queue_core::{Error, ErrorKind, QueueName, Result};
use tokio::sync::OnceCell;

/// How many creations are remembered, for operations that began before them and fail after them.
const REMEMBERED: usize = 64;

/// The creations of missing queues of one service.
#[derive(Debug)]
pub(crate) struct Creations {
    backend: Arc<dyn Backend>,
    state: Mutex<State>,
}

/// A moment in the order of creations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Moment(u64);

#[derive(Debug, Default)]
struct State {
    now: Moment,
    /// The last queues that were created, each once, oldest first.
    created: VecDeque<(QueueName, Moment)>,
    running: HashMap<QueueName, Arc<Creation>>,
}

/// The result of a creation. The first caller asks the backend; if it is dropped, the next one does.
type Creation = OnceCell<Result<()>>;

impl Creations {
    pub(crate) fn new(backend: Arc<dyn Backend>) -> Self {
        Self {
            backend,
            state: Mutex::default(),
        }
    }

    /// The present, to be noted before an operation that may find its queue missing.
    pub(crate) fn now(&self) -> Moment {
        self.state.hold().now
    }

    /// Creates the queue that an operation failed on because it does not exist, without metadata, so that the operation
    /// can be repeated. Does nothing if the queue was created after the operation `began`; waits if that is under way.
    ///
    /// # Errors
    /// `error` itself unless it is [`ErrorKind::QueueNotFound`] and names its queue; otherwise that of the creation.
    ///
    /// # Cancel safety
    /// If the future is dropped, the queue may or may not be created. Others that wait go on.
    pub(crate) async fn create_missing(&self, error: Error, began: Moment) -> Result<()> {
        let (ErrorKind::QueueNotFound, Some(queue)) = (error.kind(), error.queue()) else {
            return Err(error);
        };
        let creation = {
            let mut state = self.state.hold();
            if state.created_since(queue, began) {
                return Ok(());
            }
            Arc::clone(state.running.entry(queue.clone()).or_default())
        };
        let create = async || {
            let created = self.backend.ensure_queue(queue).await.map(drop);
            self.state.hold().ended(queue, created.is_ok());
            created
        };
        creation.get_or_init(create).await.clone()
    }
}

impl State {
    fn created_since(&self, queue: &QueueName, moment: Moment) -> bool {
        let mut created = self.created.iter();
        created.any(|(name, at)| name == queue && *at > moment)
    }

    /// Notes the end of a creation that was running.
    fn ended(&mut self, queue: &QueueName, is_created: bool) {
        self.running.remove(queue);
        if is_created {
            self.now.0 += 1;
            self.created.retain(|(name, _)| name != queue);
            self.created.push_back((queue.clone(), self.now));
            if self.created.len() > REMEMBERED {
                self.created.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::future::join_all;
    use queue_core::Operation;

    use super::*;
    use crate::backend::MemoryBackend;
    use crate::testing::{Fault, FaultInjector, TokioClock};

    /// Creations that take a second, and the backend that is asked for them then.
    fn creations() -> (FaultInjector, Creations) {
        let memory = MemoryBackend::new(Arc::new(TokioClock::new()));
        let backend = FaultInjector::new(Arc::new(memory));
        let slow = FaultInjector::new(Arc::new(backend.clone()));
        let second = Fault::Delayed(Duration::from_secs(1));
        slow.fail_every(Operation::CreateQueue, second);
        (backend, Creations::new(Arc::new(slow)))
    }

    fn missing() -> Error {
        let queue = QueueName::from_static("orders-poison");
        Error::new(ErrorKind::QueueNotFound, Operation::Put).with_queue(&queue)
    }

    /// Has twenty operations that begin now find the queue missing.
    async fn twenty(creations: &Creations) -> Vec<Result<()>> {
        let began = creations.now();
        let all = (0..20).map(|_| creations.create_missing(missing(), began));
        join_all(all).await
    }

    #[tokio::test(start_paused = true)]
    async fn one_creation_serves_all_that_began_before_it() {
        let (backend, creations) = creations();
        let began = creations.now();
        assert!(twenty(&creations).await.iter().all(Result::is_ok));
        // The answer to one more put comes late.
        let straggler = creations.create_missing(missing(), began).await;
        straggler.expect("created");
        assert_eq!(backend.calls(Operation::CreateQueue), 1);

        // It was deleted since.
        let again = creations.create_missing(missing(), creations.now());
        again.await.expect("created");
        assert_eq!(backend.calls(Operation::CreateQueue), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_creation_that_fails_is_told_to_all_that_wait_and_repeated_by_the_next() {
        let (backend, creations) = creations();
        let denied = Fault::Refused(ErrorKind::Denied);
        backend.fail_next(1, Operation::CreateQueue, denied);
        for failed in twenty(&creations).await {
            assert_eq!(failed.expect_err("denied").kind(), ErrorKind::Denied);
        }
        assert_eq!(backend.calls(Operation::CreateQueue), 1);
        assert!(twenty(&creations).await.iter().all(Result::is_ok));
        assert_eq!(backend.calls(Operation::CreateQueue), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_creation_that_is_dropped_is_taken_over() {
        let (backend, creations) = creations();
        let half = Duration::from_millis(500);
        let first = tokio::time::timeout(half, twenty(&creations));
        let (dropped, others) = tokio::join!(first, twenty(&creations));
        assert!(dropped.is_err() && others.iter().all(Result::is_ok));
        assert_eq!(backend.calls(Operation::CreateQueue), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn another_error_creates_nothing() {
        let (backend, creations) = creations();
        let denied = Error::new(ErrorKind::Denied, Operation::Put);
        let error = creations.create_missing(denied, creations.now()).await;
        assert_eq!(error.expect_err("denied").operation(), Operation::Put);
        assert_eq!(backend.calls(Operation::CreateQueue), 0);
    }
}
