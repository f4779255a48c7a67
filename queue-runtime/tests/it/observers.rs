//! Subscribers of a listener's events, beside its handler.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_runtime::policy::{Idle, IdlePolicy};
use queue_runtime::{
    Disposition, ListenerEvent, ListenerEventKind, Message, MessageId, Received, testing,
};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};

use crate::support::{is_of_polling, stop};

const MESSAGES: usize = 3_000;

/// What a subscriber may fall behind.
const KEPT: u64 = 1_024;

#[derive(Debug, Serialize, Deserialize, Message)]
struct Item {
    number: usize,
}

/// Fails the first attempt at every tenth item, and rejects every hundredth.
async fn handle(item: Received<Item>) -> Disposition {
    match item.number {
        number if number % 100 == 0 => Disposition::reject("every hundredth"),
        number if number % 10 == 0 && item.attempt() == 1 => Disposition::retry("every tenth"),
        _ => Disposition::complete(),
    }
}

/// The outcomes of each message that a subscriber sees until the listener has stopped, and the number of other events.
async fn outcomes(
    mut events: Receiver<ListenerEvent>,
) -> (BTreeMap<MessageId, Vec<ListenerEventKind>>, u64) {
    let (mut outcomes, mut polling) = (BTreeMap::<_, Vec<_>>::new(), 0);
    loop {
        let event = events.recv().await.expect("it keeps up");
        if matches!(event.kind, ListenerEventKind::Stopped) {
            break;
        }
        match event.message().cloned() {
            Some(id) if event.is_outcome() => outcomes.entry(id).or_default().push(event.kind),
            about => {
                assert_eq!(about, None, "{event:?}");
                polling += u64::from(is_of_polling(&event.kind));
            }
        }
    }
    assert!(matches!(events.recv().await, Err(RecvError::Closed)));
    (outcomes, polling)
}

#[tokio::test(start_paused = true)]
async fn observers_see_each_outcome_and_harm_no_message() {
    let service = testing::service().await;
    let items = (0..MESSAGES).map(|number| Item { number });
    let submitted = service.submit_all(items).await.expect("submitted");
    let listener = service.listener(handle).tasks(2);
    let observer = tokio::spawn(outcomes(listener.events()));
    let mut events = listener.events();
    let panics = tokio::spawn(async move {
        let event = events.recv().await;
        panic!("at {event:?}");
    });
    let mut slow = listener.events();
    let listener = listener.start().expect("starts");
    let drained = testing::drain([&listener]).await.expect("drained");
    let poisoned = MESSAGES / 100;
    let retried = MESSAGES / 10 - poisoned;
    let info = &drained.listeners[0];
    let counts = (info.completed, info.retried, info.poisoned, info.unsettled);
    assert_eq!(counts, (MESSAGES - poisoned, retried, poisoned, 0));
    stop(listener).await;

    let (outcomes, polling) = observer.await.expect("it does not panic");
    assert_eq!(outcomes.len(), MESSAGES);
    for (number, submitted) in submitted.iter().enumerate() {
        let found = &outcomes[&submitted.id][..];
        let expected = match number {
            number if number % 100 == 0 => matches!(found, [ListenerEventKind::Poisoned { .. }]),
            number if number % 10 == 0 => matches!(
                found,
                [
                    ListenerEventKind::Retried { .. },
                    ListenerEventKind::Completed { attempt: 2, .. }
                ]
            ),
            _ => matches!(found, [ListenerEventKind::Completed { attempt: 1, .. }]),
        };
        assert!(expected, "{number}: {found:?}");
    }
    assert!(panics.await.expect_err("it panics").is_panic());

    // Whoever has read nothing gets the last ones, and the number of the others.
    let Err(TryRecvError::Lagged(missed)) = slow.try_recv() else {
        panic!("it has fallen behind")
    };
    let rest: Vec<_> = std::iter::from_fn(|| slow.try_recv().ok()).collect();
    assert!(
        rest.last()
            .is_some_and(|last| matches!(last.kind, ListenerEventKind::Stopped)),
        "{rest:?}"
    );
    assert_eq!(rest.len() as u64, KEPT);
    // None is about anything else: one outcome for each receive, those of polling, and the end.
    assert_eq!(missed + KEPT, (MESSAGES + retried) as u64 + polling + 1);
}

#[tokio::test(start_paused = true)]
async fn a_listener_whose_guard_is_dropped_says_that_it_has_stopped() {
    let service = testing::service().await;
    let listener = service.listener(handle).create_queue();
    let mut events = listener.events();
    let listener = listener.start().expect("starts").stop_on_drop();
    tokio::time::sleep(Duration::from_secs(1)).await;
    drop(listener);
    let is_of_polling = |event: &ListenerEvent| is_of_polling(&event.kind);
    let mut event = events.recv().await.expect("one more");
    while is_of_polling(&event) {
        event = events.recv().await.expect("one more");
    }
    assert!(
        matches!(event.kind, ListenerEventKind::Stopped),
        "{event:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_event_says_when_and_on_which_queue() {
    const APART: Duration = Duration::from_secs(90);

    let service = testing::service().await;
    let bulk = service.queue_named::<Item>("items-bulk").expect("a name");
    let listeners = [service.listener(handle), bulk.listener(handle)];
    let [mut urgent, mut late] = listeners.each_ref().map(|listener| listener.events());
    let started = listeners.map(|listener| listener.create_queue().start().expect("starts"));
    let item = |number| Item { number };
    let first = service.submit(item(1)).await.expect("submitted").id;
    let second = bulk.submit(item(2)).delay(APART);
    let second = second.await.expect("submitted").id;
    let mut merged = Vec::new();
    while merged.len() < 2 {
        let event = tokio::select! {
            event = urgent.recv() => event.expect("it keeps up"),
            event = late.recv() => event.expect("it keeps up"),
        };
        if event.is_outcome() {
            merged.push(event);
        }
    }
    let about = merged
        .iter()
        .map(|event| (event.message(), event.queue.as_str()));
    let expected = [(Some(&first), "item"), (Some(&second), "items-bulk")];
    assert_eq!(about.collect::<Vec<_>>(), expected);
    let apart = merged[1].at.duration_since(merged[0].at);
    assert!(
        (APART..2 * APART).contains(&apart.unsigned_abs()),
        "{apart}"
    );
    for listener in started {
        stop(listener).await;
    }
}

#[tokio::test(start_paused = true)]
async fn each_empty_receive_is_an_event_and_the_first_that_finds_work_again() {
    let service = testing::service().await;
    let listener = service.listener(handle).tasks(1).batch(1).create_queue();
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    tokio::time::sleep(Duration::from_secs(10)).await;
    for numbers in [1..4, 4..7] {
        let items = numbers.map(|number| Item { number });
        service.submit_all(items).await.expect("submitted");
        testing::drain([&listener]).await.expect("drained");
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    let empty_receives = listener.info().empty_receives;
    let kinds: Vec<_> = std::iter::from_fn(|| seen.try_recv().ok())
        .map(|event| event.kind)
        .collect();
    let rows = kinds.iter().map_while(|kind| match kind {
        ListenerEventKind::QueueEmpty { in_a_row } => Some(*in_a_row),
        _ => None,
    });
    let rows: Vec<_> = rows.collect();
    assert!(
        rows.len() > 5 && rows.iter().copied().eq(1..=rows.len()),
        "{rows:?}"
    );
    let is_empty = |kind: &&ListenerEventKind| matches!(kind, ListenerEventKind::QueueEmpty { .. });
    let empty = kinds.iter().filter(is_empty).count();
    assert_eq!(empty, empty_receives);
    // Work is detected once each time, by the first of three receives, and before its messages.
    let others: Vec<_> = kinds.iter().filter(|kind| !is_empty(kind)).collect();
    let (first, second) = others.split_at(4);
    for batch in [first, second] {
        let [ListenerEventKind::WorkDetected, rest @ ..] = batch else {
            panic!("{kinds:?}")
        };
        let completed =
            |kind: &&ListenerEventKind| matches!(kind, ListenerEventKind::Completed { .. });
        assert!(rest.len() == 3 && rest.iter().all(completed), "{kinds:?}");
    }
    stop(listener).await;
}

/// Keeps what it is told.
#[derive(Debug, Clone, Default)]
struct Told(Arc<Mutex<Option<Idle>>>);

impl IdlePolicy for Told {
    fn delay(&self, idle: Idle) -> Duration {
        *self.0.lock().expect("not poisoned") = Some(idle);
        Duration::from_secs(1)
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_policy_is_told_the_depth_the_tasks_and_what_is_in_flight() {
    let service = testing::service().await;
    let items = (0..3).map(|number| Item { number });
    service.submit_all(items).await.expect("submitted");
    let told = Told::default();
    let listener = service
        .listener(async |_: Received<Item>| std::future::pending::<()>().await)
        .tasks(2)
        .idle(told.clone());
    let listener = listener.start().expect("starts");
    let look = async || {
        tokio::time::sleep(Duration::from_secs(5)).await;
        let idle = told.0.lock().expect("not poisoned").expect("it was asked");
        (idle.depth, idle.active_tasks, idle.in_flight)
    };
    assert_eq!(look().await, (None, 2, 3), "it was never measured");
    listener.depth().await.expect("in memory");
    assert_eq!(look().await, (Some(3), 2, 3));
    drop(listener.stop_on_drop());
}
