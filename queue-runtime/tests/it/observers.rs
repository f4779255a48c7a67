//! Subscribers of a listener's events, beside its handler.

use std::collections::BTreeMap;
use std::time::Duration;

use queue_runtime::{Disposition, ListenerEvent, Message, MessageId, Received, testing};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};

use crate::support::stop;

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

/// The outcomes of each message that a subscriber sees, until the listener has stopped.
async fn outcomes(mut events: Receiver<ListenerEvent>) -> BTreeMap<MessageId, Vec<ListenerEvent>> {
    let mut outcomes = BTreeMap::<_, Vec<_>>::new();
    loop {
        match events.recv().await.expect("it keeps up") {
            ListenerEvent::Stopped => break,
            event if event.is_outcome() => {
                let id = event.message().expect("each outcome has one").clone();
                outcomes.entry(id).or_default().push(event);
            }
            other => assert_eq!(other.message(), None, "{other:?}"),
        }
    }
    assert!(matches!(events.recv().await, Err(RecvError::Closed)));
    outcomes
}

#[tokio::test(start_paused = true)]
async fn observers_see_each_outcome_and_harm_no_message() {
    let service = testing::service().await;
    let items = (0..MESSAGES).map(|number| Item { number });
    let submitted = service.submit_all(items).await.expect("submitted");
    let listener = service.listener(handle);
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
    assert_eq!(
        counts,
        (
            (MESSAGES - poisoned) as u64,
            retried as u64,
            poisoned as u64,
            0
        )
    );
    stop(listener).await;

    let outcomes = observer.await.expect("it does not panic");
    assert_eq!(outcomes.len(), MESSAGES);
    for (number, submitted) in submitted.iter().enumerate() {
        let found = &outcomes[&submitted.id][..];
        let expected = match number {
            number if number % 100 == 0 => matches!(found, [ListenerEvent::Poisoned { .. }]),
            number if number % 10 == 0 => matches!(
                found,
                [
                    ListenerEvent::Retried { .. },
                    ListenerEvent::Completed { attempt: 2, .. }
                ]
            ),
            _ => matches!(found, [ListenerEvent::Completed { attempt: 1, .. }]),
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
        matches!(rest.last(), Some(ListenerEvent::Stopped)),
        "{rest:?}"
    );
    assert_eq!(rest.len() as u64, KEPT);
    // None is about anything else: one outcome for each receive, and the end.
    assert_eq!(missed + KEPT, (MESSAGES + retried) as u64 + 1);
}

#[tokio::test(start_paused = true)]
async fn a_listener_whose_guard_is_dropped_says_that_it_has_stopped() {
    let service = testing::service().await;
    let listener = service.listener(handle).create_queue();
    let mut events = listener.events();
    let listener = listener.start().expect("starts").stop_on_drop();
    tokio::time::sleep(Duration::from_secs(1)).await;
    drop(listener);
    let event = events.recv().await.expect("one more");
    assert!(matches!(event, ListenerEvent::Stopped), "{event:?}");
}
