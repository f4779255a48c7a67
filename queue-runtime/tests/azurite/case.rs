//! One call of one operation, harmed on its way: what is asserted of each.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use queue_core::QueueName;
use queue_core::backend::{Backend, Metadata, NewMessage, ReceivedMessage};
use queue_runtime::backend::AzureBackend;
use queue_runtime::{Error, ErrorKind, Outcome, Retry, SystemClock};

use crate::fault::{Call, Fault};
use crate::proxy::{GUARD, Proxy};
use crate::server::connection_string;

/// How long messages are leased: every failure comes sooner.
pub(crate) const LEASE: Duration = Duration::from_secs(30);
/// The whole-operation deadline where an answer is expected.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// The whole-operation deadline where none is.
pub(crate) const SHORT: Duration = Duration::from_secs(2);

pub(crate) const CALLS: [Call; 5] = [
    Call::Put,
    Call::Receive,
    Call::Update,
    Call::Delete,
    Call::Properties,
];

pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build();
    let in_time = async {
        tokio::time::timeout(2 * GUARD, test)
            .await
            .expect("in time")
    };
    runtime.expect("a runtime").block_on(in_time)
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
    pub(crate) beside: AzureBackend,
    pub(crate) queue: QueueName,
    /// For updates and deletes: a message that is leased.
    held: Option<ReceivedMessage>,
}

impl Case {
    pub(crate) async fn of(call: Call, deadline: Duration) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("fault-{}", NEXT.fetch_add(1, Relaxed));
        let queue: QueueName = name.parse().expect("a name");
        let proxy = Proxy::closed();
        let beside = connect(&connection_string(), GUARD).await;
        let created = beside.create_queue(&queue, &Metadata::new()).await;
        created.expect("create");
        if call != Call::Put {
            let put = beside.put(&queue, NewMessage::new("as it was"));
            put.await.expect("put");
        }
        let mut held = None;
        if matches!(call, Call::Update | Call::Delete) {
            let received = beside.receive(&queue, 1, LEASE).await.expect("receive");
            held = received.into_iter().next();
        }
        Self {
            call,
            harmed: connect(&proxy.connection_string(), deadline).await,
            proxy,
            beside,
            queue,
            held,
        }
    }

    pub(crate) async fn attempt(&self, backend: &AzureBackend) -> Result<(), Error> {
        let (queue, held) = (&self.queue, self.held.as_ref());
        let second = Duration::from_secs(1);
        match self.call {
            Call::Put => backend
                .put(queue, NewMessage::new("as it was"))
                .await
                .map(drop),
            Call::Receive => backend.receive(queue, 1, second).await.map(drop),
            Call::Update => {
                let held = held.expect("a message");
                let body = Some("changed".into());
                let updated = backend.update(queue, &held.id, &held.receipt, second, body);
                updated.await.map(drop)
            }
            Call::Delete => {
                let held = held.expect("a message");
                backend.delete(queue, &held.id, &held.receipt).await
            }
            Call::Properties => backend.properties(queue).await.map(drop),
            Call::Peek | Call::Other => unreachable!("not one of the calls"),
        }
    }

    /// Repeats the call without a fault, as its caller may, and looks at what the queue then holds.
    pub(crate) async fn repeat_and_look(&self, executed: bool) {
        let call = self.call;
        let again = self.attempt(&self.harmed).await;
        match (call, executed) {
            (Call::Update | Call::Delete, true) => {
                let error = again.expect_err("it was done before");
                assert!(error.is_lease_gone(), "{call:?}: {error}");
                assert_eq!(error.outcome(), Outcome::NotDone, "{call:?}");
            }
            _ => again.unwrap_or_else(|error| panic!("{call:?} again: {error}")),
        }
        let expected = match call {
            Call::Put => vec![("as it was", 1); 1 + usize::from(executed)],
            // Twice or, if the lost lease ended before the second receive, three times.
            Call::Receive => vec![("as it was", 2)],
            Call::Update => vec![("changed", 2)],
            Call::Delete => vec![],
            Call::Properties | Call::Peek | Call::Other => vec![("as it was", 1)],
        };
        let mut found = Vec::new();
        while found.len() < expected.len() {
            let received = self.beside.receive(&self.queue, 32, LEASE);
            let received = received.await.expect("receive");
            found.extend(received.iter().map(|message| {
                let body = String::from_utf8_lossy(&message.body).into_owned();
                (body, message.dequeue_count.min(2))
            }));
        }
        let found: Vec<_> = found.iter().map(|(body, n)| (&**body, *n)).collect();
        assert_eq!(found, expected, "{call:?}");
        let properties = self.beside.properties(&self.queue).await;
        let count = properties.expect("properties").approximate_count;
        assert_eq!(count, expected.len() as u64, "{call:?}");
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
        // On a connection that is open, as most calls are.
        let warmed = case.harmed.peek(&case.queue, 1).await;
        assert!(warmed.is_ok() || deadline == SHORT, "{warmed:?}");
        case.proxy.script(call, [fault.clone()]);
        let started = Instant::now();
        let error = case.attempt(&case.harmed).await.expect_err("it is harmed");
        let took = started.elapsed();
        let found = (error.kind(), error.outcome(), error.retry());
        assert_eq!(found, expected, "{call:?}, {fault:?}: {error}");
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
