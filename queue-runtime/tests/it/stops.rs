//! Processes that are stopped between the receive of a message and its handler: by SIGSTOP, a debugger, or a
//! machine that is suspended. No handler starts on a lease that has ended.

use std::cell::RefCell;
use std::future::IntoFuture;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use futures_util::FutureExt as _;
use queue_core::clock::BoxFuture;
use queue_runtime::backend::{Backend, MemoryBackend};
use queue_runtime::clock::{Clock, ManualClock};
use queue_runtime::error::Operation;
use queue_runtime::message::{DecodeError, EncodeError, MessageType};
use queue_runtime::receive::SettleErrorKind;
use queue_runtime::testing::{Fault, FaultInjector};
use queue_runtime::{
    ErrorKind, ListenerEventKind, Message, QueueService, Received, Timestamp, blocking,
};

use crate::support::{GUARD, events, guarded, stop};

/// One more second than a lease lasts.
const STOP: Duration = Duration::from_secs(31);

/// A clock that jumps when the process continues. Nobody who sleeps is woken by that: Tokio's timers do not
/// count it.
#[derive(Debug, Clone, Default)]
struct Stopped {
    clock: ManualClock,
    for_so_long: Arc<Mutex<Duration>>,
    /// Whether the process is stopped when a handler's thread looks at the clock.
    on_thread: Arc<AtomicBool>,
}

impl Stopped {
    fn stop(&self) {
        *self.for_so_long.lock().expect("no panic") += STOP;
    }
}

impl Clock for Stopped {
    fn now(&self) -> Timestamp {
        let stopped = *self.for_so_long.lock().expect("no panic");
        self.clock.now() + stopped
    }

    fn monotonic(&self) -> Duration {
        let on_thread = std::thread::current().name() == Some("queue-handler");
        if on_thread && self.on_thread.swap(false, Ordering::SeqCst) {
            self.stop();
        }
        self.clock.monotonic() + *self.for_so_long.lock().expect("no panic")
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.clock.sleep(duration)
    }
}

thread_local! {
    /// What happens while the next job is decoded: between its receive and its handler.
    static MEANWHILE: RefCell<Option<Box<dyn FnOnce()>>> = RefCell::default();
}

#[derive(Debug)]
struct Job;

impl Message for Job {
    const TYPE: MessageType = MessageType::new("job", "jobs");

    fn key(&self) -> Result<Option<Vec<serde_json::Value>>, EncodeError> {
        Ok(None)
    }

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        Ok(b"{}".to_vec())
    }

    fn decode(_: u32, _: &[u8]) -> Result<Self, DecodeError> {
        if let Some(meanwhile) = MEANWHILE.take() {
            meanwhile();
        }
        Ok(Self)
    }
}

/// A service with one job, on a clock that can jump.
async fn with_job() -> (QueueService, FaultInjector, Stopped) {
    let clock = Stopped::default();
    let backend = MemoryBackend::new(Arc::new(clock.clone()));
    let faults = FaultInjector::new(Arc::new(backend));
    let service =
        QueueService::with_backend(Arc::new(faults.clone())).clock(Arc::new(clock.clone()));
    // There, no renewal notices the jump before the message's own task does.
    let service = service.on_current_runtime().connect().await;
    let service = service.expect("connects");
    service.submit(Job).await.expect("submitted");
    (service, faults, clock)
}

/// Has the process stopped while the next job is decoded, and another consumer receive it then.
fn stop_and_lose(faults: &FaultInjector, clock: &Stopped) {
    let (faults, clock) = (faults.clone(), clock.clone());
    MEANWHILE.set(Some(Box::new(move || {
        clock.stop();
        let queue = "jobs".parse().expect("a name");
        let received = faults.receive(&queue, 1, STOP).now_or_never();
        let received = received.expect("memory answers at once").expect("received");
        assert_eq!(received.len(), 1, "the lease has ended");
    })));
}

#[tokio::test]
async fn accept_renews_a_lease_that_has_ended() {
    let (service, faults, clock) = with_job().await;
    MEANWHILE.set(Some(Box::new(move || clock.stop())));
    let job = service.accept::<Job>().await.expect("no error");
    let job = job.expect("nobody else has received it");
    assert_eq!(faults.calls(Operation::Update), 1, "it is leased again");
    job.complete().await.expect("completed");
}

#[tokio::test]
async fn accept_returns_no_message_that_another_consumer_has() {
    let (service, faults, clock) = with_job().await;
    stop_and_lose(&faults, &clock);
    assert!(service.accept::<Job>().await.expect("no error").is_none());
}

#[tokio::test]
async fn a_lease_that_cannot_be_renewed_is_an_error_of_accept() {
    let (service, faults, clock) = with_job().await;
    MEANWHILE.set(Some(Box::new(move || clock.stop())));
    faults.fail_next(1, Operation::Update, Fault::Refused(ErrorKind::Denied));
    service.accept::<Job>().await.expect_err("it was refused");
    assert_eq!(faults.injected(Operation::Update), 1);
}

/// The answer comes after the lease, so no attempt is made, and none is counted.
#[tokio::test]
async fn a_receive_that_is_answered_late_hands_its_message_back() {
    let (service, faults, clock) = with_job().await;
    faults.fail_next(1, Operation::Receive, Fault::AnswerStalled);
    let accept = tokio::spawn(service.accept::<Job>().into_future());
    faults.until_injected(1, Operation::Receive).await;
    clock.stop();
    faults.release();
    let late = accept.await.expect("no panic");
    late.expect_err("the lease has ended");
    let handed_back = guarded(faults.until_called(1, Operation::Update)).await;
    assert!(handed_back.is_some(), "the message is dropped");
    let job = service.accept::<Job>().await.expect("no error");
    let job = job.expect("visible at once");
    assert_eq!((job.attempt(), job.dequeue_count()), (1, 2));
}

#[tokio::test]
async fn a_listener_renews_a_lease_that_has_ended() {
    let (service, faults, clock) = with_job().await;
    MEANWHILE.set(Some(Box::new(move || clock.stop())));
    let renewals = faults.clone();
    let (started, starts) = mpsc::channel();
    let listener = service.listener(move |job: Received<Job>| {
        let renewed = renewals.calls(Operation::Update);
        let sent = started.send((job.dequeue_count(), renewed));
        async move { sent.expect("the test listens") }
    });
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    let completed =
        |event: &ListenerEventKind| matches!(event, ListenerEventKind::Completed { .. });
    events(&mut seen, 1, completed).await;
    assert_eq!(starts.try_iter().collect::<Vec<_>>(), [(1, 1)]);
    stop(listener).await;
}

#[tokio::test]
async fn a_listener_starts_no_handler_on_a_message_that_another_consumer_has() {
    let (service, faults, clock) = with_job().await;
    stop_and_lose(&faults, &clock);
    let (started, starts) = mpsc::channel();
    let listener = service.listener(move |_: Received<Job>| {
        let sent = started.send(());
        async move { sent.expect("the test listens") }
    });
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    let found = events(&mut seen, 1, |_| true).await;
    assert!(
        matches!(
            &found[..],
            [ListenerEventKind::NotSettled {
                error: SettleErrorKind::LeaseLost(_),
                ..
            }]
        ),
        "{found:?}"
    );
    assert!(starts.try_recv().is_err(), "the handler ran");
    stop(listener).await;
}

#[tokio::test]
async fn a_blocking_handler_whose_lease_ends_before_its_thread_wakes_does_not_start() {
    let (service, _, clock) = with_job().await;
    clock.on_thread.store(true, Ordering::SeqCst);
    let (started, starts) = mpsc::channel();
    let handler = blocking(move |job: Received<Job>| {
        let forgiven = job.envelope().attempts.forgiven;
        let sent = started.send((job.dequeue_count(), job.attempt(), forgiven));
        sent.expect("the test listens");
    });
    // With room for one, it receives again when the message is handed back, and never sleeps.
    let listener = service.listener(handler).tasks(1).max_in_flight(1);
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    let completed =
        |event: &ListenerEventKind| matches!(event, ListenerEventKind::Completed { .. });
    events(&mut seen, 1, completed).await;
    let first = starts.recv_timeout(GUARD).expect("it ran at last");
    assert_eq!(first, (2, 1, 1), "handed back without counting the attempt");
    assert!(starts.try_recv().is_err(), "it ran once");
    stop(listener).await;
}

#[tokio::test]
async fn a_message_that_expires_while_the_process_is_stopped_is_not_handled() {
    let (service, faults, clock) = with_job().await;
    let first = service.accept::<Job>().await.expect("no error");
    first.expect("a message").complete().await.expect("done");
    let submit = service.submit(Job).time_to_live(STOP).into_future();
    submit.await.expect("submitted");
    MEANWHILE.set(Some(Box::new(move || clock.stop())));
    assert!(service.accept::<Job>().await.expect("no error").is_none());
    assert_eq!(faults.calls(Operation::Update), 0, "it cannot be leased");
}
