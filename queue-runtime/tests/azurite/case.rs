//! One call with a fault, and the assertions on it.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use queue_core::QueueName;
use queue_core::backend::{Backend, ReceivedMessage};
use queue_runtime::backend::AzureBackend;
use queue_runtime::clock::SystemClock;
use queue_runtime::error::{Outcome, RetryAdvice};
use queue_runtime::service::ServiceBuilder;
use queue_runtime::{Error, ErrorKind, QueueService};
use queue_tests::azurite::Azurite;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{OnceCell, Semaphore, SemaphorePermit};

use crate::fault::{Call, Fault};
use crate::operation::{LEASE, check_state};
use crate::proxy::{GUARD, Proxy};
use crate::server::{self, ACCOUNT};

/// The deadline of operations that are expected to be answered.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// The deadline of operations that are not.
pub(crate) const SHORT: Duration = Duration::from_secs(2);

/// Shared by all tests, because the connections of the shared direct client belong to one runtime.
pub(crate) static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let mut builder = Builder::new_multi_thread();
    let runtime = builder.worker_threads(4).enable_all().build();
    runtime.expect("threads start")
});

/// For tests of single calls, which come as fast as they are answered. Tests of services have a server of their own: their
/// leases end unless renewals are answered within seconds.
pub(crate) static BUSY: LazyLock<Azurite> = LazyLock::new(server::start);

/// A client without a proxy, shared by all cases.
static DIRECT: OnceCell<AzureBackend> = OnceCell::const_new();

/// Limits the concurrent cases: Azurite executes a few hundred operations per second, and other tests
/// must be able to renew their leases.
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

/// A service whose single requests may take as long as they do on a busy machine.
pub(crate) async fn patient(url: &str) -> ServiceBuilder {
    QueueService::with_backend(Arc::new(connect(url, PATIENCE).await))
}

/// One queue, with a client that uses a proxy and one that does not.
pub(crate) struct Case {
    pub(crate) call: Call,
    pub(crate) proxy: Proxy,
    pub(crate) proxied: AzureBackend,
    pub(crate) direct: &'static AzureBackend,
    pub(crate) queue: QueueName,
    held: Option<ReceivedMessage>,
    _turn: SemaphorePermit<'static>,
}

impl Case {
    pub(crate) async fn of(call: Call, deadline: Duration) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let turn = TURNS.acquire().await.expect("never closed");
        // With a suffix, so that no name is a prefix of another.
        let name = format!("fault-{}-queue", NEXT.fetch_add(1, Relaxed));
        let queue: QueueName = name.parse().expect("a name");
        let proxy = Proxy::closed(&BUSY);
        let opened = async || connect(&BUSY.connection_string(ACCOUNT), GUARD).await;
        let direct = DIRECT.get_or_init(opened).await;
        let held = call.expectations().setup.arrange(direct, &queue).await;
        Self {
            call,
            proxied: connect(&proxy.connection_string(), deadline).await,
            proxy,
            direct,
            queue,
            held,
            _turn: turn,
        }
    }

    /// Opens a connection with another call, so that the call under test reuses it, as most calls do.
    pub(crate) async fn warm(&self) -> Result<(), Error> {
        match self.call {
            Call::ListQueues => self.proxied.properties(&self.queue).await.map(drop),
            _ => self
                .proxied
                .list_queues(self.queue.as_str())
                .await
                .map(drop),
        }
    }

    /// Makes the call for the first time.
    pub(crate) async fn attempt(&self, backend: &AzureBackend) -> Result<(), Error> {
        let held = self.held.as_ref();
        self.call.make(backend, &self.queue, held, false).await
    }

    /// Repeats the call without a fault, and checks the result and the state of the queue.
    pub(crate) async fn repeat_and_check(&self, executed: bool) {
        let (call, held) = (self.call, self.held.as_ref());
        let again = call.make(&self.proxied, &self.queue, held, executed);
        let again = again.await;
        if executed {
            call.expectations().repeat.check(call, again)
        } else {
            again.unwrap_or_else(|error| panic!("{call:?} again: {error}"))
        }
        check_state(call, executed, self.direct, &self.queue).await;
    }
}

/// The expected error of an operation.
pub(crate) type Expected = (ErrorKind, Outcome, RetryAdvice);

/// Makes each of the calls once with this fault.
pub(crate) async fn assert_each(
    calls: &[Call],
    fault: Fault,
    deadline: Duration,
    expected: Expected,
) {
    let cases = calls.iter().map(async |call| {
        let call = *call;
        let mut case = Case::of(call, deadline).await;
        case.proxy.accept_connections().await;
        let warmed = case.warm().await;
        assert!(warmed.is_ok() || deadline == SHORT, "{warmed:?}");
        case.proxy.script(call, [fault.clone()]);
        let started = Instant::now();
        let error = case
            .attempt(&case.proxied)
            .await
            .expect_err("it has a fault");
        let took = started.elapsed();
        let found = (error.kind(), error.outcome(), error.retry());
        assert_eq!(found, expected, "{call:?}, {fault:?}: {error}");
        assert_eq!(error.operation(), call.operation(), "{call:?}: {error}");
        assert!(took < LEASE, "{call:?}, {fault:?}: {took:?}");
        assert!(took < deadline + LEASE / 2, "{call:?}, {fault:?}: {took:?}");
        case.proxy.idle().await;
        let seen = case.proxy.seen(call);
        assert_eq!(seen.len(), 1, "{call:?}, {fault:?}: one request");
        let executed = seen[0].executed;
        if executed {
            assert_eq!(error.outcome(), Outcome::Unknown, "{call:?}: {error}");
        }
        if deadline == SHORT {
            case.proxied = connect(&case.proxy.connection_string(), PATIENCE).await;
        }
        case.repeat_and_check(executed).await;
        assert_eq!(case.proxy.seen(call).len(), 2, "{call:?}: one request each");
    });
    join_all(cases).await;
}

/// Asserts that the service refuses the call with this kind of error, and returns the error.
pub(crate) async fn assert_refused(case: &Case, client: &AzureBackend, kind: ErrorKind) -> Error {
    let call = case.call;
    let error = case.attempt(client).await.expect_err("refused");
    let found = (error.kind(), error.outcome(), error.retry());
    let expected = (kind, Outcome::NotDone, RetryAdvice::Permanent);
    assert_eq!(found, expected, "{call:?}: {error}");
    assert_eq!(case.proxy.seen(call).len(), 1, "{call:?}: one request");
    error
}
