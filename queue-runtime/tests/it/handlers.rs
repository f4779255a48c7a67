//! Where handlers run, and what becomes of their messages when that place does not.

use std::future::{Future, IntoFuture};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use queue_runtime::backend::MemoryBackend;
use queue_runtime::clock::ManualClock;
use queue_runtime::error::Operation;
use queue_runtime::receive::SettleErrorKind;
use queue_runtime::testing::{self, Fault, FaultInjector};
use queue_runtime::{
    ErrorKind, ListenerBuilder, ListenerEvent, ListenerEventKind, ListenerHandle, QueueService,
    Received, blocking,
};
use queue_tests::SECOND;
use queue_tests::is_alone;
use tokio::runtime::Runtime;
use tokio::sync::broadcast::Receiver;
use tokio::time::sleep;

use crate::support::jobs::{Job, Mood, completed, submit_jobs};
use crate::support::{
    GUARD, NEVER, assert_few_threads, count, events, gate, guarded, poison, stop,
};

/// A handler timeout that idle dequeue tasks do not reach, well within the lease.
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A service whose time stands still, a runtime for the test, and one for the listener.
struct Apart {
    test: Runtime,
    listener: Runtime,
    clock: ManualClock,
    service: QueueService,
}

impl Apart {
    fn new() -> Self {
        let runtime = || {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(1).enable_all().build().expect("up")
        };
        let (test, clock) = (runtime(), ManualClock::new());
        let service = QueueService::builder("memory:").clock(Arc::new(clock.clone()));
        Self {
            service: test.block_on(service.connect()).expect("up"),
            listener: runtime(),
            test,
            clock,
        }
    }

    fn with_faults() -> (Self, FaultInjector) {
        let apart = Self::new();
        let clock = || Arc::new(apart.clock.clone());
        let faults = FaultInjector::new(Arc::new(MemoryBackend::new(clock())));
        let service = QueueService::with_backend(Arc::new(faults.clone())).clock(clock());
        let service = apart.test.block_on(service.connect()).expect("up");
        (Self { service, ..apart }, faults)
    }

    fn submit(&self, mood: Mood) {
        let submitted = self.service.submit(Job { mood }).into_future();
        self.test.block_on(submitted).expect("submitted");
    }

    /// Starts a listener on its own runtime.
    fn start(&self, listener: ListenerBuilder<Job>) -> (ListenerHandle, Receiver<ListenerEvent>) {
        let events = listener.events();
        let _inside = self.listener.enter();
        (listener.start().expect("starts"), events)
    }

    fn within_guard<T>(&self, future: impl Future<Output = T>) -> T {
        let output = self.test.block_on(guarded(future));
        output.expect("it happens")
    }

    /// Lets a moment pass, so short that all who sleep wake long before a lease ends.
    fn pass_time(&self) {
        self.clock.advance(SECOND / 100);
    }

    /// Lets time pass until `count` events have come that `wanted` picks.
    fn events_as_time_passes(
        &self,
        seen: &mut Receiver<ListenerEvent>,
        count: usize,
        wanted: impl Fn(&ListenerEventKind) -> bool,
    ) -> Vec<ListenerEventKind> {
        let passing = async {
            loop {
                self.pass_time();
                tokio::task::yield_now().await;
            }
        };
        self.test.block_on(async {
            tokio::select! {
                found = events(seen, count, wanted) => found,
                () = passing => unreachable!("time never ends"),
            }
        })
    }
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_handlers_wait_at_once_and_share_few_threads() {
    const NAME: &str = "handlers::ten_thousand_handlers_wait_at_once_and_share_few_threads";
    const HANDLERS: usize = 10_000;

    if !is_alone(NAME) {
        return;
    }
    let service = testing::service().await;
    submit_jobs(&service, HANDLERS).await;
    let listener = service
        .listener(async |_: Received<Job>| sleep(SECOND).await)
        .max_in_flight(HANDLERS)
        .start()
        .expect("starts");
    sleep(SECOND / 2).await;
    assert_eq!(listener.info().in_flight, HANDLERS);
    assert_few_threads();
    sleep(SECOND).await;
    let info = listener.info();
    assert_eq!((info.in_flight, info.completed), (0, HANDLERS as u64));
    stop(listener).await;
}

#[test]
fn a_runtime_that_is_gone_stops_the_listener_and_costs_no_attempt() {
    let apart = Apart::new();
    for _ in 0..3 {
        apart.submit(Mood::Hangs);
    }
    let (started, mut starts) = tokio::sync::mpsc::unbounded_channel();
    let listener = apart.service.listener(move |_: Received<Job>| {
        started.send(()).expect("the test listens");
        std::future::pending::<()>()
    });
    let (listener, mut seen) = apart.start(listener);
    for _ in 0..3 {
        apart.within_guard(starts.recv()).expect("a handler runs");
    }
    let Apart {
        test,
        listener: gone,
        service,
        ..
    } = apart;
    gone.shutdown_background();
    test.block_on(async {
        let found = events(&mut seen, 4, |_| true).await;
        let count =
            |wanted: fn(&ListenerEventKind) -> bool| found.iter().filter(|e| wanted(e)).count();
        assert_eq!(
            count(|event| matches!(event, ListenerEventKind::RuntimeGone)),
            1
        );
        let released = count(|event| matches!(event, ListenerEventKind::Released { .. }));
        assert_eq!(released, 3, "{found:?}");
        assert_eq!(listener.info().in_flight, 0);
        // The runtime drops them when it comes to them.
        let dropped = async {
            while listener.info().tasks > 0 {
                sleep(Duration::from_millis(1)).await;
            }
        };
        guarded(dropped).await.expect("the dequeue tasks are gone");
        let report = listener.shutdown(GUARD).await;
        assert!(!report.graceful, "{report:?}");
        for _ in 0..3 {
            let delivery = service.accept::<Job>().await.expect("no error");
            let delivery = delivery.expect("handed back at once");
            assert_eq!(delivery.attempt(), 1);
            assert_eq!(delivery.envelope().attempts.forgiven, 1);
        }
    });
}

/// The runtime is dropped while its thread unwinds. No task has panicked.
#[test]
fn a_runtime_whose_main_future_panics_hands_its_messages_back() {
    let apart = Apart::new();
    apart.submit(Mood::Hangs);
    let listener = apart
        .service
        .listener(move |_: Received<Job>| std::future::pending::<()>());
    let mut seen = listener.events();
    let unwound = std::thread::spawn(move || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build().expect("up");
        runtime.block_on(async move {
            let listener = listener.start().expect("starts");
            while listener.info().in_flight == 0 {
                tokio::task::yield_now().await;
            }
            panic!("the main future panics");
        });
    });
    unwound.join().expect_err("it panics");
    apart.test.block_on(async {
        let found = events(&mut seen, 1, |event| {
            !matches!(event, ListenerEventKind::RuntimeGone)
        })
        .await;
        let released = matches!(found[0], ListenerEventKind::Released { .. });
        assert!(released, "{found:?}");
        let delivery = apart.service.accept::<Job>().await.expect("no error");
        let delivery = delivery.expect("handed back at once");
        assert_eq!(delivery.attempt(), 1);
    });
}

#[test]
fn a_settlement_goes_on_when_its_runtime_is_gone() {
    let (apart, faults) = Apart::with_faults();
    apart.submit(Mood::Good);
    faults.fail_next(1, Operation::Delete, Fault::Stalled);
    let listener = apart.service.listener(async |_: Received<Job>| ());
    let (listener, mut seen) = apart.start(listener);
    apart.within_guard(faults.until_injected(1, Operation::Delete));
    let Apart {
        test,
        listener: gone,
        service,
        ..
    } = apart;
    gone.shutdown_background();
    test.block_on(async {
        events(&mut seen, 1, completed).await;
        assert_eq!(count(&service, "jobs").await, 0);
        assert_eq!(listener.shutdown(GUARD).await.released, 0);
    });
}

#[test]
fn a_blocking_handler_whose_runtime_is_gone_settles_its_message() {
    let apart = Apart::new();
    apart.submit(Mood::Blocks);
    let (blocks, blocked) = mpsc::channel();
    let (release, released) = gate();
    let listener = apart.service.listener(blocking(move |_: Received<Job>| {
        blocks.send(()).expect("the test listens");
        released.wait();
    }));
    let (listener, mut seen) = apart.start(listener);
    blocked.recv_timeout(GUARD).expect("the handler runs");
    let Apart {
        test,
        listener: gone,
        service,
        ..
    } = apart;
    gone.shutdown_background();
    test.block_on(async {
        events(&mut seen, 1, |event| {
            matches!(event, ListenerEventKind::RuntimeGone)
        })
        .await;
        drop(release);
        events(&mut seen, 1, completed).await;
        assert_eq!(count(&service, "jobs").await, 0);
        stop(listener).await;
    });
}

#[test]
fn no_handler_starts_on_a_lease_that_has_ended() {
    let (apart, faults) = Apart::with_faults();
    apart.submit(Mood::Blocks);
    apart.submit(Mood::Blocks);
    let (started, starts) = mpsc::channel();
    let (release, released) = gate();
    let listener = apart
        .service
        .listener(move |_: Received<Job>| {
            let (started, released) = (started.clone(), released.clone());
            async move {
                started.send(()).expect("the test listens");
                // The listener's only worker, so that the other message waits for it.
                released.wait();
            }
        })
        .tasks(1)
        .max_in_flight(2);
    let (listener, mut seen) = apart.start(listener);
    starts
        .recv_timeout(GUARD)
        .expect("one of the handlers runs");
    listener.pause();
    faults.fail_every(Operation::Update, Fault::Refused(ErrorKind::Denied));
    let lost = |event: &ListenerEventKind| {
        matches!(
            event,
            ListenerEventKind::NotSettled {
                error: SettleErrorKind::LeaseLost(_),
                ..
            }
        )
    };
    apart.events_as_time_passes(&mut seen, 1, lost);
    drop(release);
    apart.events_as_time_passes(&mut seen, 1, lost);
    assert!(starts.try_recv().is_err(), "the other handler ran, too");
    faults.heal();
    apart.within_guard(stop(listener));
}

#[test]
fn the_watchdog_tells_an_unpolled_handler_from_a_stuck_one() {
    let apart = Apart::new();
    let (started, mut starts) = tokio::sync::mpsc::unbounded_channel();
    let (release, released) = gate();
    let listener = apart
        .service
        .listener(move |job: Received<Job>| {
            let (started, released) = (started.clone(), released.clone());
            async move {
                started.send(()).expect("the test listens");
                match job.mood {
                    // The listener's only worker.
                    Mood::Blocks => released.wait(),
                    _ => std::future::pending().await,
                }
            }
        })
        .poison_threshold(1)
        .visibility_timeout(NEVER)
        .handler_timeout(DAY);
    apart.submit(Mood::Hangs);
    let (listener, mut seen) = apart.start(listener);
    apart.within_guard(starts.recv()).expect("a handler runs");
    apart.submit(Mood::Blocks);
    let blocking = async {
        while starts.try_recv().is_err() {
            apart.pass_time();
            tokio::task::yield_now().await;
        }
    };
    apart.within_guard(blocking);

    apart.clock.advance(DAY);
    let found = apart.events_as_time_passes(&mut seen, 3, |_| true);
    let count = |wanted: fn(&ListenerEventKind) -> bool| found.iter().filter(|e| wanted(e)).count();
    let stuck = count(|event| matches!(event, ListenerEventKind::HandlerStuck { .. }));
    let poisoned = count(|event| matches!(event, ListenerEventKind::Poisoned { .. }));
    let released = count(|event| matches!(event, ListenerEventKind::Released { .. }));
    assert_eq!((stuck, poisoned, released), (1, 1, 1), "{found:?}");
    let poison = apart.within_guard(poison(&apart.service, "jobs-poison"));
    let errors = poison.into_iter().filter_map(|(record, _)| record.error);
    let errors: Vec<_> = errors.collect();
    let [error] = errors.as_slice() else {
        panic!("{errors:?}")
    };
    assert!(error.contains("timed out after"), "{error}");
    assert!(error.contains("blocks its thread"), "{error}");
    assert_eq!((listener.info().in_flight, listener.info().stuck), (0, 1));

    drop(release);
    let returned = async {
        while listener.info().stuck > 0 {
            tokio::task::yield_now().await;
        }
    };
    apart.within_guard(returned);
    // The other message is back, and hangs again.
    let report = apart.within_guard(listener.shutdown(Duration::ZERO));
    assert_eq!((report.stuck, report.info.in_flight), (0, 0), "{report:?}");
}

#[test]
fn stuck_handlers_hold_up_no_other_until_all_room_is_theirs() {
    let apart = Apart::new();
    let (blocks, blocked) = mpsc::channel();
    let (release, released) = gate();
    let listener = apart
        .service
        .listener(blocking(move |job: Received<Job>| {
            if job.mood == Mood::Blocks {
                blocks.send(()).expect("the test listens");
                released.wait();
            }
        }))
        .poison_threshold(1)
        .visibility_timeout(NEVER)
        .handler_timeout(DAY)
        .max_in_flight(2);
    let stuck = |event: &ListenerEventKind| matches!(event, ListenerEventKind::HandlerStuck { .. });
    apart.submit(Mood::Blocks);
    let (listener, mut seen) = apart.start(listener);
    blocked.recv_timeout(GUARD).expect("the handler runs");
    apart.clock.advance(DAY);
    apart.events_as_time_passes(&mut seen, 1, stuck);
    apart.submit(Mood::Good);
    apart.events_as_time_passes(&mut seen, 1, completed);

    apart.submit(Mood::Blocks);
    let running = async {
        while blocked.try_recv().is_err() {
            apart.pass_time();
            tokio::task::yield_now().await;
        }
    };
    apart.within_guard(running);
    apart.clock.advance(DAY);
    let all_stuck =
        |event: &ListenerEventKind| matches!(event, ListenerEventKind::AllHandlersStuck { .. });
    let found = apart.events_as_time_passes(&mut seen, 1, all_stuck);
    assert!(
        matches!(found[0], ListenerEventKind::AllHandlersStuck { stuck: 2 }),
        "{found:?}"
    );
    let all_settled = async {
        while listener.info().in_flight > 0 {
            tokio::task::yield_now().await;
        }
    };
    apart.within_guard(all_settled);
    apart.submit(Mood::Good);
    for _ in 0..100 {
        apart.pass_time();
        apart.within_guard(tokio::task::yield_now());
    }
    assert_eq!(apart.within_guard(count(&apart.service, "jobs")), 1);
    assert_eq!((listener.info().in_flight, listener.info().stuck), (0, 2));
    assert_eq!(listener.info().completed, 1);

    drop(release);
    apart.events_as_time_passes(&mut seen, 1, completed);
    apart.within_guard(stop(listener));
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_is_told_to_stop_may_still_answer() {
    let service = testing::service().await;
    submit_jobs(&service, 1).await;
    let listener = service
        .listener(async |job: Received<Job>| job.cancelled().await)
        .handler_timeout(5 * SECOND);
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    let found = events(&mut seen, 1, |_| true).await;
    assert!(completed(&found[0]), "{found:?}");
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_says_what_and_where() {
    queue_runtime::panic::capture_locations();
    let service = testing::service().await;
    service
        .submit(Job { mood: Mood::Panics })
        .await
        .expect("submitted");
    let listener = service.listener(async |_: Received<Job>| -> () { panic!("out of cheese") });
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    let found = events(&mut seen, 1, |_| true).await;
    let [ListenerEventKind::HandlerPanicked { panic, .. }] = &found[..] else {
        panic!("{found:?}")
    };
    assert_eq!(panic.message(), "out of cheese");
    let location = panic.location().expect("known");
    assert!(location.starts_with(file!()), "{location}");
    stop(listener).await;
}

#[derive(Debug)]
struct Unspeakable;

impl std::fmt::Display for Unspeakable {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("no words")
    }
}

impl std::error::Error for Unspeakable {}

#[tokio::test(start_paused = true)]
async fn an_error_that_panics_as_it_is_written_is_a_failed_attempt() {
    let service = testing::service().await;
    let submitted = service.submit(Job { mood: Mood::Fails }).await;
    submitted.expect("submitted");
    let listener = service
        .listener(async |_: Received<Job>| Err::<(), _>(Unspeakable))
        .poison_threshold(1);
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    events(&mut seen, 1, |event| {
        matches!(event, ListenerEventKind::Poisoned { .. })
    })
    .await;
    let (record, _) = poison(&service, "jobs-poison").await.remove(0);
    let error = record.error.expect("it says why");
    assert!(
        error.starts_with("the text of the error panicked: no words"),
        "{error}"
    );
    stop(listener).await;
}
