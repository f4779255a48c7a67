//! What a listener costs while messages come one by one, in storage transactions.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use queue_runtime::backend::{Backend as _, BackendExt as _, MemoryBackend, NewMessage};
use queue_runtime::error::Operation;
use queue_runtime::meter::{TransactionCounts, TransactionKind};
use queue_runtime::notify::{LocalNotifier, Notification, Notifier as _, Writers};
use queue_runtime::policy::{ExponentialIdle, TaskRange};
use queue_runtime::testing::{self, Fault, FaultInjector, TokioClock};
use queue_runtime::{ListenerEventKind, ListenerHandle, Message as _, QueueService, Received};
use queue_tests::{MINUTE, SECOND};
use tokio::time::{Instant, sleep};

use crate::support::jobs::{Job, Mood, completed, submit_jobs};
use crate::support::{events, stop};

/// Starts a listener that polls an idle queue as on Azure: every 30 seconds in the end.
fn listen(service: &QueueService, tasks: impl Into<TaskRange>) -> ListenerHandle {
    let listener = service.listener(async |_: Received<Job>| ());
    let listener = listener.idle(ExponentialIdle::up_to(30 * SECOND));
    listener.tasks(tasks).start().expect("starts")
}

/// Submits so many messages, one after each pause, and returns what the queue has cost meanwhile.
async fn trickle(service: &QueueService, messages: usize, pause: Duration) -> TransactionCounts {
    let before = service.meter();
    for _ in 0..messages {
        service.submit(Job { mood: Mood::Good }).await.expect("ok");
        sleep(pause).await;
    }
    let used = service.meter().since(&before);
    used.queue("jobs").expect("a name")
}

#[tokio::test(start_paused = true)]
async fn a_message_that_was_announced_is_received_without_a_further_look() {
    const MESSAGES: usize = 3200;

    let service = testing::service().await;
    submit_jobs(&service, 0).await;
    let listener = listen(&service, 2);
    sleep(SECOND).await;
    // 32 in a second, for 100 seconds.
    let used = trickle(&service, MESSAGES, SECOND / 32).await;
    assert_eq!(listener.info().completed, MESSAGES);
    for kind in [
        TransactionKind::Put,
        TransactionKind::Receive,
        TransactionKind::Delete,
    ] {
        assert_eq!(used.of(kind), MESSAGES, "{used}");
    }
    // Each task polls about every 30 seconds, and the metadata is read once in five seconds while messages come.
    let empty = used.of(TransactionKind::EmptyReceive);
    assert!(empty <= 20, "{used}");
    let read = used.of(TransactionKind::Properties);
    assert!(read <= 21, "{used}");
    assert_eq!(used.total(), 3 * MESSAGES + empty + read, "{used}");
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_no_task_polls_for_costs_a_receive_for_each_message_and_no_look_at_the_depth()
 {
    let service = testing::service().await;
    costs_a_receive_for_each_message(&service).await;
}

/// Both notifiers announce each message.
#[tokio::test(start_paused = true)]
async fn a_message_that_two_notifiers_announce_is_one_message() {
    let clock = Arc::new(TokioClock::new());
    let memory = Arc::new(MemoryBackend::new(clock.clone()));
    let second = Arc::new(LocalNotifier::new(Writers::OtherProcesses));
    let service = QueueService::with_backend(memory)
        .clock(clock)
        .notifier(second);
    let service = service.on_current_runtime().connect().await.expect("ok");
    costs_a_receive_for_each_message(&service).await;
}

async fn costs_a_receive_for_each_message(service: &QueueService) {
    const MESSAGES: usize = 400;

    submit_jobs(service, 0).await;
    let listener = listen(service, 0..=2);
    sleep(MINUTE).await;
    assert_eq!(listener.info().tasks, 0, "none polls");
    let used = trickle(service, MESSAGES, 9 * SECOND).await;
    assert_eq!(listener.info().completed, MESSAGES);
    assert_eq!(used.of(TransactionKind::Receive), MESSAGES, "{used}");
    assert_eq!(used.of(TransactionKind::EmptyReceive), 0, "{used}");
    // The metadata, once for each, because in memory it is not believed for nine seconds.
    let read = used.of(TransactionKind::Properties);
    assert!(read <= MESSAGES, "{used}");
    assert_eq!(used.total(), 3 * MESSAGES + read, "{used}");
    stop(listener).await;
}

/// Batches of what was announced are received without short polls after them, also if other consumers get some of it.
#[tokio::test(start_paused = true)]
async fn what_was_announced_together_is_received_without_short_polls() {
    let clock = Arc::new(TokioClock::new());
    let memory: Arc<MemoryBackend> = Arc::new(MemoryBackend::new(clock.clone()));
    let service = QueueService::with_backend(memory.clone()).clock(clock);
    let service = service.on_current_runtime().connect().await.expect("ok");
    submit_jobs(&service, 0).await;
    let listener = service.listener(async |_: Received<Job>| ()).batch(32);
    let listener = listener.idle(ExponentialIdle::up_to(30 * SECOND));
    let listener = listener.tasks(1).start().expect("starts");
    sleep(MINUTE).await;
    for taken_by_others in [0, 5] {
        let before = service.meter();
        for _ in 0..20 {
            submit_jobs(&service, 100).await;
            let queue = Job::TYPE.queue();
            let taken = memory.receive(&queue, taken_by_others.max(1), MINUTE);
            for message in taken.await.expect("received") {
                let deleted = memory.delete(&queue, &message.id, &message.receipt);
                deleted.await.expect("deleted");
            }
            sleep(5 * MINUTE).await;
        }
        let used = service
            .meter()
            .since(&before)
            .queue("jobs")
            .expect("a name");
        let receives = used.of(TransactionKind::Receive);
        assert!(receives <= 20 * 4, "{used}");
        let empty = used.of(TransactionKind::EmptyReceive);
        // One poll in 24 to 36 seconds, and one when the leases of others would have ended.
        assert!(empty <= 20 * (5 * 60 / 24 + 2), "{used}");
    }
    stop(listener).await;
}

/// The room for one message is used up by each, so that there may be more.
#[tokio::test(start_paused = true)]
async fn a_receive_without_room_for_more_is_followed_by_one_look() {
    const MESSAGES: usize = 400;

    let service = testing::service().await;
    submit_jobs(&service, 0).await;
    let listener = service.listener(async |_: Received<Job>| ()).batch(1);
    let listener = listener.idle(ExponentialIdle::up_to(30 * SECOND));
    let listener = listener.tasks(2).start().expect("starts");
    sleep(MINUTE).await;
    let used = trickle(&service, MESSAGES, 9 * SECOND).await;
    assert_eq!(used.of(TransactionKind::Receive), MESSAGES, "{used}");
    let empty = used.of(TransactionKind::EmptyReceive);
    // One for each, and the polls of the tasks.
    assert!(empty <= MESSAGES + 2 * MESSAGES * 9 / 24, "{used}");
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_message_whose_announcement_was_lost_comes_with_the_next_that_is_announced() {
    let clock = Arc::new(TokioClock::new());
    let memory = Arc::new(MemoryBackend::new(clock.clone()));
    let service = QueueService::with_backend(memory.clone()).clock(clock);
    let service = service.on_current_runtime().connect().await.expect("ok");
    submit_jobs(&service, 0).await;
    let listener = service.listener(async |_: Received<Job>| ()).batch(2);
    let listener = listener.idle(ExponentialIdle::up_to(3600 * SECOND));
    let mut seen = listener.events();
    let listener = listener.tasks(1).start().expect("starts");
    sleep(10 * 3600 * SECOND).await;
    put_unannounced(&memory, 0..5).await;
    let started = Instant::now();
    service.submit(Job { mood: Mood::Good }).await.expect("ok");
    events(&mut seen, 6, completed).await;
    assert_eq!(started.elapsed(), Duration::ZERO);
    stop(listener).await;
}

/// As if another consumer had the rest, and crashed.
#[tokio::test(start_paused = true)]
async fn a_queue_with_fewer_messages_than_were_announced_is_polled_often_again() {
    let clock = Arc::new(TokioClock::new());
    let memory = Arc::new(MemoryBackend::new(clock.clone()));
    let announcing = Arc::new(LocalNotifier::new(Writers::OtherProcesses));
    let service = QueueService::with_backend(memory.clone()).clock(clock);
    let service = service.notifier(announcing.clone()).on_current_runtime();
    let service = service.connect().await.expect("ok");
    submit_jobs(&service, 0).await;
    let listener = service.listener(async |_: Received<Job>| ());
    let listener = listener.idle(ExponentialIdle::up_to(3600 * SECOND));
    let mut seen = listener.events();
    let listener = listener.tasks(1).start().expect("starts");
    sleep(10 * 3600 * SECOND).await;
    put_unannounced(&memory, 0..1).await;
    let queue = Job::TYPE.queue();
    announcing.publish(&Notification::new("memory:", &queue).with_messages(2, 0));
    events(&mut seen, 1, completed).await;
    sleep(SECOND).await;
    put_unannounced(&memory, 1..2).await;
    let started = Instant::now();
    events(&mut seen, 1, completed).await;
    // The first pause is a hundredth of the longest.
    assert!(started.elapsed() < MINUTE, "{:?}", started.elapsed());
    stop(listener).await;
}

/// Puts messages with these ids past the notifiers of the service.
async fn put_unannounced(memory: &MemoryBackend, ids: Range<u32>) {
    let queue = Job::TYPE.queue();
    for number in ids {
        let job = format!(
            r#"{{"specversion":"1.0","id":"{number}","source":"elsewhere","type":"job","data":{{"mood":"Good"}}}}"#
        );
        let put = memory.put(&queue, NewMessage::new(job));
        put.await.expect("put");
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_that_was_not_settled_comes_again_although_no_task_polled() {
    let (service, faults) = testing::service_with_faults().await;
    submit_jobs(&service, 0).await;
    let listener = service.listener(async |_: Received<Job>| sleep(SECOND).await);
    let mut seen = listener.events();
    let listener = listener.tasks(0..=2).start().expect("starts");
    sleep(MINUTE).await;
    assert_eq!(listener.info().tasks, 0, "none polls");
    faults.fail_next(1, Operation::Delete, Fault::Panics);
    service.submit(Job { mood: Mood::Good }).await.expect("ok");
    let left =
        |event: &ListenerEventKind| matches!(event, ListenerEventKind::MessageTaskPanicked { .. });
    events(&mut seen, 1, left).await;
    assert_eq!(listener.info().tasks, 0, "none polls");
    let started = Instant::now();
    events(&mut seen, 1, completed).await;
    // The lease of 30 seconds, and not the 4 minutes of the safety poll.
    assert!(started.elapsed() <= 32 * SECOND, "{:?}", started.elapsed());
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn one_task_opens_the_queue_for_all() {
    let start = async |service: QueueService, faults: FaultInjector| {
        // So that each task would begin before another has ended.
        for operation in [Operation::Properties, Operation::CreateQueue] {
            faults.fail_every(operation, Fault::Delayed(SECOND));
        }
        let listener = listen(&service, 8);
        sleep(30 * SECOND).await;
        let calls = [Operation::CreateQueue, Operation::Properties].map(|one| faults.calls(one));
        stop(listener).await;
        calls
    };
    let (service, faults) = testing::service_with_faults().await;
    assert_eq!(start(service.into(), faults).await, [1, 2], "it is missing");
    let (service, faults) = testing::service_with_faults().await;
    submit_jobs(&service, 0).await;
    let [_, read] = start(service.into(), faults).await;
    assert_eq!(read, 1);
}
