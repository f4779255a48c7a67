//! Messages of several types on one queue.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_runtime::envelope::PoisonReason;
use queue_runtime::listener::{DrainEnd, Lanes, Route, Router, StartErrorKind};
use queue_runtime::receive::{AcceptError, AcceptErrorKind, OnError};
use queue_runtime::testing::{self, TestService};
use queue_runtime::{Disposition, Message, QueueName, Received, RetryPolicy, StartError, blocking};
use queue_tests::SECOND;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::support::{NEVER, count, poison, stop};

const TASKS: QueueName = QueueName::from_static("tasks");

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "tasks", kind = "resize", poison_threshold = 2)]
struct Resize {
    #[message(key)]
    number: u32,
}

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(
    queue = "tasks",
    kind = "mail",
    alias = "letter",
    visibility_timeout = "2m"
)]
struct Mail {
    number: u32,
}

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "tasks", kind = "letter")]
struct Letter {
    number: u32,
}

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "tasks", kind = "hook", wire = "bare")]
struct Hook {
    number: u32,
}

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "tasks", kind = "call", wire = "bare")]
struct Call {
    number: u32,
}

/// What was handled.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn add(&self, line: String) {
        self.0.lock().expect("free").push(line);
    }

    fn sorted(&self) -> Vec<String> {
        let mut lines = self.0.lock().expect("free").clone();
        lines.sort();
        lines
    }
}

async fn resize(log: Log, resize: Received<Resize>) {
    log.add(format!("resize {}", resize.number));
}

async fn mail(log: Log, mail: Received<Mail>) {
    log.add(format!("mail {}", mail.number));
}

async fn hook(log: Log, hook: Received<Hook>) {
    log.add(format!("hook {}", hook.number));
}

fn router(service: &TestService, log: &Log) -> Router {
    let router = service
        .router("tasks")
        .expect("a name")
        .handle_with(log.clone(), resize);
    router.handle_with(log.clone(), mail)
}

async fn submit<M: Message + Send + 'static>(service: &TestService, message: M) {
    let submit = service.submit(message).to(TASKS).expect("a name");
    assert!(submit.await.is_ok(), "it is stored");
}

async fn with_both() -> TestService {
    let service = testing::service().await;
    submit(&service, Resize { number: 1 }).await;
    submit(&service, Mail { number: 1 }).await;
    service
}

#[tokio::test(start_paused = true)]
async fn each_message_goes_to_the_handler_of_its_kind_or_alias() {
    let (service, log) = (with_both().await, Log::default());
    submit(&service, Letter { number: 2 }).await;
    submit(&service, Hook { number: 3 }).await;
    let listener = router(&service, &log).handle_with(log.clone(), hook);
    let listener = listener.start().expect("starts");
    let drained = testing::drain([&listener]).await.expect("drained");
    assert_eq!((drained.completed(), drained.poisoned()), (4, 0));
    assert_eq!(log.sorted(), ["hook 3", "mail 1", "mail 2", "resize 1"]);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_router_creates_the_own_queue_of_a_type_and_no_other() {
    let service = testing::service().await;
    let log = Log::default();
    let own = router(&service, &log).start().expect("starts");
    let other = service
        .router("chores")
        .expect("a name")
        .handle_with(log.clone(), mail);
    let other = other.start().expect("starts");
    tokio::time::sleep(SECOND).await;
    assert_eq!(service.queues().await.expect("listed"), [TASKS]);
    stop(own).await;
    stop(other).await;
}

/// Each fails always. The threshold of the route, the listener, or the type decides, in this order.
#[tokio::test(start_paused = true)]
async fn each_type_has_its_threshold_and_retries_in_its_way() {
    for (of_route, of_listener, resizes, mails) in [
        (None, None, 2, 5),
        (None, Some(3), 3, 3),
        (Some(4), Some(3), 3, 4),
        (Some(1), None, 2, 1),
    ] {
        let service = with_both().await;
        let runs: [Arc<AtomicUsize>; 2] = Default::default();
        let failing = |at: usize| {
            let runs = Arc::clone(&runs[at]);
            move || {
                runs.fetch_add(1, Ordering::Relaxed);
                async { Disposition::retry("it never works") }
            }
        };
        let (resize, mail) = (failing(0), failing(1));
        let mut mail =
            Route::new(move |_: Received<Mail>| mail()).retry(RetryPolicy::fixed(600 * SECOND));
        if let Some(threshold) = of_route {
            mail = mail.poison_threshold(threshold);
        }
        let mut router = service
            .router("tasks")
            .expect("a name")
            .handle(move |_: Received<Resize>| resize())
            .route(mail)
            .retry(RetryPolicy::fixed(SECOND));
        if let Some(threshold) = of_listener {
            router = router.poison_threshold(threshold);
        }
        let listener = router.start().expect("starts");
        let drained = testing::drain([&listener]).await.expect("drained");
        assert_eq!(drained.poisoned(), 2);
        let runs = runs.map(|runs| runs.load(Ordering::Relaxed));
        assert_eq!(runs, [resizes, mails], "{of_route:?}, {of_listener:?}");
        let (waited, least) = (drained.elapsed, (mails as u32 - 1) * 600 * SECOND);
        assert!(waited >= least, "{waited:?} of {least:?}");
        stop(listener).await;
    }
}

#[tokio::test(start_paused = true)]
async fn each_type_has_its_timeout_its_classifier_and_its_store() {
    #[derive(Debug, thiserror::Error)]
    #[error("no such picture")]
    struct NoPicture;

    let service = with_both().await;
    for _ in 0..2 {
        let again = service.submit(Resize { number: 7 }).request_id("r-7");
        again.await.expect("submitted");
    }
    let store = service.results().expect("memory has one");
    let resize = Route::new(async |resize: Received<Resize>| match resize.number {
        7 => Ok(()),
        _ => Err(NoPicture),
    });
    let mail = Route::new(async |_: Received<Mail>| std::future::pending::<()>().await);
    let router = service
        .router("tasks")
        .expect("a name")
        .route(resize.idempotent(store))
        .route(mail.handler_timeout(SECOND).poison_threshold(1))
        .classify(|_: &NoPicture| OnError::Reject)
        .handler_timeout(NEVER);
    let listener = router.start().expect("starts");
    let drained = testing::drain([&listener]).await.expect("drained");
    let info = &drained.listeners[0];
    assert_eq!((info.completed, info.duplicates, info.poisoned), (1, 1, 2));
    let mut reasons: Vec<_> = poison(&service, "tasks-poison").await;
    reasons.sort_by_key(|(record, _)| record.reason.as_str());
    let reasons: Vec<_> = reasons.iter().map(|(record, _)| record.reason).collect();
    assert_eq!(reasons, [PoisonReason::Failed, PoisonReason::Rejected]);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn on_poison_is_called_for_the_messages_of_its_type_only() {
    let (service, seen) = (with_both().await, Log::default());
    let log = seen.clone();
    let reject = async |_: Received<Resize>| Disposition::reject("no");
    let resize = Route::new(reject).on_poison(move |poisoned| {
        let number = poisoned.message.map(|resize| resize.number);
        log.add(format!("resize {number:?}"));
        None
    });
    let router = service.router("tasks").expect("a name").route(resize);
    let router = router.handle(async |_: Received<Mail>| Disposition::reject("no"));
    let listener = router.start().expect("starts");
    let drained = testing::drain([&listener]).await.expect("drained");
    assert_eq!(drained.poisoned(), 2);
    assert_eq!(seen.sorted(), ["resize Some(1)"]);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn messages_are_leased_for_as_long_as_the_longest_type_needs() {
    let (service, log) = (with_both().await, Log::default());
    let listener = router(&service, &log).start().expect("starts");
    testing::drain([&listener]).await.expect("drained");
    let visibility = listener.info().visibility_timeout;
    assert_eq!(visibility, Some(120 * SECOND));
    stop(listener).await;
}

/// In a rolling deployment, a newer program submits and handles a kind that this one does not know.
#[tokio::test(start_paused = true)]
async fn a_kind_that_nobody_handles_waits_for_a_newer_program() {
    let (service, log) = (testing::service().await, Log::default());
    submit(&service, Mail { number: 1 }).await;
    let old = service
        .router("tasks")
        .expect("a name")
        .handle_with(log.clone(), resize);
    let old = old.start().expect("starts");
    tokio::time::sleep(3600 * SECOND).await;
    let info = old.info();
    assert_eq!((info.completed, info.poisoned), (0, 0), "it is put back");
    assert!((5..60).contains(&info.released), "{} times", info.released);
    assert_eq!(count(&service, "tasks").await, 1);

    stop(old).await;
    let newer = router(&service, &log).start().expect("starts");
    testing::drain([&newer]).await.expect("drained");
    assert_eq!(log.sorted(), ["mail 1"]);
    stop(newer).await;
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_nobody_handles_in_time_is_poison_and_can_be_redriven() {
    const PATIENCE: Duration = Duration::from_secs(600);
    let (service, log) = (testing::service().await, Log::default());
    submit(&service, Mail { number: 1 }).await;
    let start = Instant::now();
    let old = service
        .router("tasks")
        .expect("a name")
        .handle_with(log.clone(), resize);
    let old = old.version_patience(PATIENCE).start().expect("starts");
    testing::drain([&old]).await.expect("drained");
    let waited = start.elapsed();
    assert!(waited >= PATIENCE, "it was poison after {waited:?}");
    let poisoned = poison(&service, "tasks-poison").await;
    let (record, _) = &poisoned[0];
    assert_eq!(record.reason, PoisonReason::UnhandledKind);
    let error = record.error.as_deref().unwrap_or_default();
    assert!(error.contains("`mail`"), "{error}");
    stop(old).await;

    let newer = router(&service, &log).start().expect("starts");
    let tasks_poison = service.any_queue("tasks-poison").expect("a name");
    let redriven = tasks_poison.redrive().run().await;
    redriven.expect("redriven");
    testing::drain([&newer]).await.expect("drained");
    assert_eq!(log.sorted(), ["mail 1"]);
    stop(newer).await;
}

/// So a router is rolled out before another type is submitted.
#[tokio::test(start_paused = true)]
async fn a_listener_of_one_type_takes_another_kind_for_poison_and_a_router_does_not() {
    for is_router in [false, true] {
        let (service, log) = (with_both().await, Log::default());
        let listener = if is_router {
            let router = service
                .router("tasks")
                .expect("a name")
                .handle_with(log.clone(), resize);
            router.start()
        } else {
            service.listener_with(log.clone(), resize).start()
        };
        let listener = listener.expect("starts");
        tokio::time::sleep(60 * SECOND).await;
        let info = listener.info();
        assert_eq!(info.poisoned, usize::from(!is_router), "{is_router}");
        assert_eq!(log.sorted(), ["resize 1"]);
        stop(listener).await;
    }
}

#[tokio::test(start_paused = true)]
async fn bodies_that_no_type_takes_are_poison() {
    let (service, log) = (testing::service().await, Log::default());
    submit(&service, Hook { number: 1 }).await;
    let listener = router(&service, &log).start().expect("starts");
    let drained = testing::drain([&listener]).await.expect("drained");
    assert_eq!(drained.poisoned(), 1, "it has no kind to wait for");
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn two_handlers_of_the_same_messages_are_refused() {
    let (service, log) = (testing::service().await, Log::default());
    let twice = router(&service, &log).handle_with(log.clone(), mail);
    let alias = router(&service, &log).handle(async |_: Received<Letter>| ());
    let bare = service
        .router("tasks")
        .expect("a name")
        .handle_with(log.clone(), hook);
    let bare = bare.handle(async |_: Received<Call>| ());
    for (router, expected) in [
        (
            twice,
            "`mail` and `mail` both take messages of kind `letter`",
        ),
        (
            alias,
            "`mail` and `letter` both take messages of kind `letter`",
        ),
        (
            bare,
            "`hook` and `call` both take bodies that are not events",
        ),
    ] {
        let error = router.start().expect_err("refused");
        assert!(
            matches!(error.kind, StartErrorKind::TwoHandlers { .. }),
            "{error}"
        );
        assert!(error.to_string().ends_with(expected), "{error}");
    }
    let error = service
        .router("tasks")
        .expect("a name")
        .start()
        .expect_err("refused");
    assert!(matches!(error.kind, StartErrorKind::NoHandler), "{error}");
    let error = service.router("No Name").map(drop).expect_err("refused");
    assert_eq!(
        error.kind(),
        queue_runtime::name::InvalidNameKind::Character('N', 0)
    );
}

/// The table in the guide to listeners.
#[tokio::test(start_paused = true)]
async fn consumers_of_one_queue_take_the_same_kinds() {
    let (service, log) = (testing::service().await, Log::default());
    let one = || {
        service
            .router("tasks")
            .expect("a name")
            .handle_with(log.clone(), resize)
    };
    let both = || router(&service, &log);
    let listener = || service.listener_with(log.clone(), resize);
    let accept = async || service.accept::<Resize>().await;
    let any = service.any_queue("tasks").expect("a name");

    let running = both().start().expect("starts");
    let same = both().start().expect("of the same kinds");
    assert!(matches!(
        one().start(),
        Err(StartError {
            kind: StartErrorKind::KindMismatch(_),
            ..
        })
    ));
    let error = listener().start().expect_err("of one kind");
    assert_eq!(
        error.to_string(),
        "failed to start a listener: queue `tasks` is for `mail` and `resize` messages while a listener of this \
         service handles them, not for `resize` messages"
    );
    let refused = accept().await;
    assert!(matches!(
        refused,
        Err(AcceptError {
            kind: AcceptErrorKind::KindMismatch(_),
            ..
        })
    ));
    let accepted = any.accept().create_queue().await;
    assert!(accepted.is_ok(), "it takes anything");
    stop(running).await;
    assert!(matches!(
        one().start(),
        Err(StartError {
            kind: StartErrorKind::KindMismatch(_),
            ..
        })
    ));
    stop(same).await;

    let running = one().start().expect("starts");
    let beside = listener().start().expect("of the same kind");
    assert!(accept().await.is_ok());
    assert!(matches!(
        both().start(),
        Err(StartError {
            kind: StartErrorKind::KindMismatch(_),
            ..
        })
    ));
    stop(running).await;
    stop(beside).await;
}

#[tokio::test(start_paused = true)]
async fn lanes_blocking_handlers_and_until_empty_work_with_routers() {
    let (service, log) = (with_both().await, Log::default());
    let blocks = log.clone();
    let urgent = service.router("urgent").expect("a name").handle(blocking({
        let log = log.clone();
        move |mail: Received<Mail>| log.add(format!("urgent mail {}", mail.number))
    }));
    let urgent = urgent.handle_with(log.clone(), resize).create_queue();
    let bulk =
        service
            .router("tasks")
            .expect("a name")
            .handle(blocking(move |mail: Received<Mail>| {
                blocks.add(format!("bulk mail {}", mail.number));
            }));
    let bulk = bulk.handle_with(log.clone(), resize).until_empty();
    let to_urgent = service.submit(Mail { number: 2 });
    let to_urgent = to_urgent
        .to(QueueName::from_static("urgent"))
        .expect("a name");
    to_urgent.await.expect("submitted");
    let lanes = Lanes::new(4).lane(3, urgent.until_empty()).lane(1, bulk);
    let lanes = lanes.start().expect("starts");
    for lane in lanes.listeners() {
        let end = lane.drained().await.end;
        assert_eq!(end, DrainEnd::Empty);
    }
    assert_eq!(log.sorted(), ["bulk mail 1", "resize 1", "urgent mail 2"]);
}
