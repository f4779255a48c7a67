//! One call of one operation, harmed on its way: what is asserted of each.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use queue_core::QueueName;
use queue_core::backend::{Backend, ReceivedMessage};
use queue_runtime::backend::AzureBackend;
use queue_runtime::{Error, ErrorKind, Outcome, Retry, SystemClock};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{OnceCell, Semaphore, SemaphorePermit};

use crate::fault::{Call, Fault};
use crate::operation::{LEASE, check_left};
use crate::proxy::{GUARD, Proxy};
use crate::server::connection_string;

/// The whole-operation deadline where an answer is expected.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// The whole-operation deadline where none is.
pub(crate) const SHORT: Duration = Duration::from_secs(2);

/// One for all, as is the client beside every proxy, whose connections belong to a runtime.
pub(crate) static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let mut builder = Builder::new_multi_thread();
    let runtime = builder.worker_threads(4).enable_all().build();
    runtime.expect("threads start")
});

/// The client beside every proxy.
static BESIDE: OnceCell<AzureBackend> = OnceCell::const_new();

/// Cases at a time: Azurite carries out some hundred operations a second, and other tests have leases
/// to keep.
static TURNS: Semaphore = Semaphore::const_new(8);

pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    let in_time = async {
        tokio::time::timeout(2 * GUARD, test)
            .await
            .expect("in time")
    };
    RUNTIME.block_on(in_time)
}

pub(crate) async fn connect(url: &str, deadline: Duration) -> AzureBackend {
    let builder = AzureBackend::builder(url, Arc::new(SystemClock::new()));
    builder.deadline(deadline).open().await.expect("open")
}

/// One queue, with a client behind the proxy and one beside it.
pub(crate) struct Case {
    pub(crate) call: Call,
    pub(crate) proxy: Proxy,
    pub(crate) harmed: AzureBackend,
    pub(crate) beside: &'static AzureBackend,
    pub(crate) queue: QueueName,
    held: Option<ReceivedMessage>,
    _turn: SemaphorePermit<'static>,
}

impl Case {
    pub(crate) async fn of(call: Call, deadline: Duration) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let turn = TURNS.acquire().await.expect("never closed");
        // With an end, so that no name starts another.
        let name = format!("fault-{}-queue", NEXT.fetch_add(1, Relaxed));
        let queue: QueueName = name.parse().expect("a name");
        let proxy = Proxy::closed();
        let opened = async || connect(&connection_string(), GUARD).await;
        let beside = BESIDE.get_or_init(opened).await;
        let held = call.course().before.arrange(beside, &queue).await;
        Self {
            call,
            harmed: connect(&proxy.connection_string(), deadline).await,
            proxy,
            beside,
            queue,
            held,
            _turn: turn,
        }
    }

    /// Opens a connection with another call, so that this one meets an open one, as most do.
    pub(crate) async fn warm(&self) -> Result<(), Error> {
        match self.call {
            Call::ListQueues => self.harmed.properties(&self.queue).await.map(drop),
            _ => self.harmed.list_queues(self.queue.as_str()).await.map(drop),
        }
    }

    /// Makes the call for the first time.
    pub(crate) async fn attempt(&self, backend: &AzureBackend) -> Result<(), Error> {
        let held = self.held.as_ref();
        self.call.make(backend, &self.queue, held, false).await
    }

    /// Repeats the call without a fault, as its caller may, and looks at what there then is.
    pub(crate) async fn repeat_and_look(&self, executed: bool) {
        let (call, held) = (self.call, self.held.as_ref());
        let again = call.make(&self.harmed, &self.queue, held, executed);
        let again = again.await;
        match executed {
            true => call.course().again.check(call, again),
            false => again.unwrap_or_else(|error| panic!("{call:?} again: {error}")),
        }
        check_left(call, executed, self.beside, &self.queue).await;
    }
}

/// What an operation is expected to fail with.
pub(crate) type Expected = (ErrorKind, Outcome, Retry);

/// Harms each of the calls once.
pub(crate) async fn assert_each(
    calls: &[Call],
    fault: Fault,
    deadline: Duration,
    expected: Expected,
) {
    let cases = calls.iter().map(async |call| {
        let call = *call;
        let mut case = Case::of(call, deadline).await;
        case.proxy.admit().await;
        let warmed = case.warm().await;
        assert!(warmed.is_ok() || deadline == SHORT, "{warmed:?}");
        case.proxy.script(call, [fault.clone()]);
        let started = Instant::now();
        let error = case.attempt(&case.harmed).await.expect_err("it is harmed");
        let took = started.elapsed();
        let found = (error.kind(), error.outcome(), error.retry());
        assert_eq!(found, expected, "{call:?}, {fault:?}: {error}");
        assert_eq!(error.operation(), call.operation(), "{call:?}: {error}");
        assert!(took < LEASE, "{call:?}, {fault:?}: {took:?}");
        assert!(took < deadline + LEASE / 2, "{call:?}, {fault:?}: {took:?}");
        case.proxy.at_rest().await;
        let seen = case.proxy.seen(call);
        assert_eq!(seen.len(), 1, "{call:?}, {fault:?}: one request");
        let executed = seen[0].executed;
        if executed {
            assert_eq!(error.outcome(), Outcome::Unknown, "{call:?}: {error}");
        }
        if deadline == SHORT {
            case.harmed = connect(&case.proxy.connection_string(), PATIENCE).await;
        }
        case.repeat_and_look(executed).await;
        assert_eq!(case.proxy.seen(call).len(), 2, "{call:?}: one request each");
    });
    join_all(cases).await;
}

/// Fails with the same error in every call; the service does nothing, and says so.
pub(crate) async fn assert_refused(case: &Case, client: &AzureBackend, kind: ErrorKind) -> Error {
    let call = case.call;
    let error = case.attempt(client).await.expect_err("refused");
    let found = (error.kind(), error.outcome(), error.retry());
    let expected = (kind, Outcome::NotDone, Retry::Permanent);
    assert_eq!(found, expected, "{call:?}: {error}");
    assert_eq!(case.proxy.seen(call).len(), 1, "{call:?}: one request");
    error
}
