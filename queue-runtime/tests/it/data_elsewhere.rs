//! Events of other producers that refer to their data by `dataref` instead of having it.

use std::future::IntoFuture as _;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use queue_runtime::envelope::{ClientId, Envelope, PoisonReason};
use queue_runtime::receive::{DataResolver, ResolveError};
use queue_runtime::send::UntypedMessage;
use queue_runtime::wire::{Body, Payload};
use queue_runtime::{
    AcceptError, ListenerEventKind, Message, MessageId, Operation, QueueService, Received,
    RequestId, testing,
};
use serde::{Deserialize, Serialize};

use crate::support::{events, stop};

#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "pictures", poison_threshold = 1)]
struct Picture {
    width: u32,
}

/// A type without fields decodes from no data at all.
#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "bells")]
struct Bell;

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Works,
    Down,
    Missing,
    Panics,
    Hangs,
}

/// A store of one picture.
#[derive(Clone)]
struct Store {
    state: Arc<Mutex<State>>,
    calls: Arc<AtomicU32>,
}

const REFERENCE: &str = "https://pictures.example/7?sig=secret";

impl Store {
    fn new(state: State) -> Self {
        Self {
            state: Arc::new(Mutex::new(state)),
            calls: Arc::default(),
        }
    }

    fn set(&self, state: State) {
        *self.state.lock().expect("no panic while held") = state;
    }

    fn calls(&self) -> u32 {
        self.calls.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl DataResolver for Store {
    async fn resolve(&self, reference: &str, envelope: &Envelope) -> Result<Bytes, ResolveError> {
        assert_eq!(reference, REFERENCE);
        assert_eq!(envelope.kind, Picture::TYPE.kind());
        self.calls.fetch_add(1, Ordering::Relaxed);
        let state = *self.state.lock().expect("no panic while held");
        match state {
            State::Works => Ok(br#"{"width":640}"#.as_slice().into()),
            State::Down => Err(ResolveError::unavailable("the store is down")),
            State::Missing => Err(ResolveError::unusable("there is no picture 7")),
            State::Panics => panic!("a bug of the resolver"),
            State::Hangs => std::future::pending().await,
        }
    }
}

async fn submit(service: &QueueService, kind: &str, version: u32, queue: &str) {
    let client = ClientId::new("camera").expect("valid");
    let mut envelope = Envelope::new(MessageId::random(), client, RequestId::random(), kind);
    envelope.version = version;
    let event = UntypedMessage::event(envelope, Payload::Elsewhere(REFERENCE.to_owned()));
    let queue = service.any_queue(queue).expect("valid");
    queue.submit(event).await.expect("submitted");
}

async fn submit_picture(service: &QueueService) {
    service
        .queue::<Picture>()
        .any()
        .create()
        .await
        .expect("created");
    submit(service, Picture::TYPE.kind(), 1, "pictures").await;
}

async fn handle(picture: Received<Picture>) {
    assert_eq!(picture.width, 640);
}

/// Returns the error of the only message on the poison queue, which still refers to its data.
async fn poisoned(service: &QueueService) -> (PoisonReason, String) {
    let poison = service.queue::<Picture>().poison().expect("valid");
    let poisoned = poison.accept().await.expect("accepted");
    let poisoned = poisoned.expect("it was moved there");
    let Body::Event(event) = poisoned.message() else {
        panic!("{poisoned:?}")
    };
    assert_eq!(event.payload, Payload::Elsewhere(REFERENCE.to_owned()));
    let record = event.envelope.poison.clone().expect("it was moved there");
    poisoned.release().await.expect("released");
    (record.reason, record.error.expect("it says why"))
}

#[tokio::test(start_paused = true)]
async fn data_is_fetched_before_the_handler_runs() {
    let service = testing::service().await;
    submit_picture(&service).await;
    let store = Store::new(State::Works);
    let listener = service.listener(handle).data_resolver(store.clone());
    let report = listener
        .until_empty()
        .start()
        .expect("valid")
        .drained()
        .await;
    assert_eq!((report.info.completed, store.calls()), (1, 1));

    submit_picture(&service).await;
    let accept = service.accept::<Picture>().data_resolver(store.clone());
    let picture = accept.await.expect("accepted").expect("just submitted");
    assert_eq!(picture.width, 640);
    picture.complete().await.expect("completed");

    submit_picture(&service).await;
    let accept = service.queue::<Picture>().any().accept();
    let event = accept.data_resolver(store).await.expect("accepted");
    let event = event.expect("just submitted");
    assert_eq!(event.decode::<Picture>().expect("fetched").width, 640);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_down_stops_the_handling_and_costs_no_attempts() {
    let service = testing::service().await;
    for _ in 0..50 {
        submit_picture(&service).await;
    }
    let store = Store::new(State::Down);
    let listener = service.listener(handle).data_resolver(store.clone());
    let mut seen = listener.events();
    let listener = listener.start().expect("valid settings");
    let is_down =
        |event: &ListenerEventKind| matches!(event, ListenerEventKind::DataUnavailable { .. });
    let failures = events(&mut seen, 10, is_down).await;
    let ListenerEventKind::DataUnavailable { after, error } = &failures[9] else {
        panic!("{failures:?}")
    };
    assert!(*after >= Duration::from_secs(10), "it backs off: {after:?}");
    assert_eq!(error.operation(), Operation::FetchData);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(listener.info().completed, 0);
    let calls = store.calls();
    assert!((10..20_000).contains(&calls), "{calls} requests in an hour");

    store.set(State::Works);
    let completed =
        |event: &ListenerEventKind| matches!(event, ListenerEventKind::Completed { .. });
    let completed = events(&mut seen.resubscribe(), 50, completed).await;
    for event in completed {
        assert!(
            matches!(event, ListenerEventKind::Completed { attempt: 1, .. }),
            "{event:?}"
        );
    }
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn accept_reports_a_store_that_is_down_and_hands_the_message_back() {
    let service = testing::service().await;
    submit_picture(&service).await;
    let store = Store::new(State::Down);
    for _ in 0..3 {
        let accept = service.accept::<Picture>().data_resolver(store.clone());
        let error = accept.await.expect_err("it cannot be handled now");
        assert!(
            matches!(&error, AcceptError::Data(error) if error.operation() == Operation::FetchData),
            "{error}"
        );
        assert!(!error.to_string().contains("secret"), "{error}");
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    store.set(State::Works);
    let accept = service.accept::<Picture>().data_resolver(store);
    let picture = accept.await.expect("accepted").expect("handed back");
    assert_eq!(picture.attempt(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_resolver_that_does_not_answer_is_unavailable() {
    let service = testing::service().await;
    submit_picture(&service).await;
    let store = Store::new(State::Hangs);
    let listener = service.listener(handle).data_resolver(store.clone());
    let mut seen = listener.events();
    let listener = listener.start().expect("valid settings");
    events(&mut seen, 1, |event| {
        matches!(event, ListenerEventKind::DataUnavailable { .. })
    })
    .await;
    store.set(State::Works);
    let completed = events(&mut seen, 1, |event| {
        matches!(event, ListenerEventKind::Completed { attempt: 1, .. })
    });
    completed.await;
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_stops_does_not_wait_for_the_data() {
    let service = testing::service().await;
    submit_picture(&service).await;
    let store = Store::new(State::Hangs);
    let listener = service.listener(handle).data_resolver(store.clone());
    let listener = listener.start().expect("valid settings");
    while store.calls() == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stop(listener).await;
    store.set(State::Works);
    let accept = service.accept::<Picture>().data_resolver(store);
    let picture = accept
        .await
        .expect("accepted")
        .expect("handed back at once");
    assert_eq!(picture.attempt(), 1);
}

#[tokio::test(start_paused = true)]
async fn unusable_data_is_poison_and_can_be_redriven() {
    let service = testing::service().await;
    submit_picture(&service).await;
    let store = Store::new(State::Missing);
    let resolving = || service.listener(handle).data_resolver(store.clone());
    let listener = resolving().until_empty().start().expect("valid settings");
    assert_eq!(listener.drained().await.info.poisoned, 1);
    let (reason, error) = poisoned(&service).await;
    assert_eq!(reason, PoisonReason::Undecodable);
    assert!(error.contains("there is no picture 7"), "{error}");

    store.set(State::Works);
    let poison = service.queue::<Picture>().poison().expect("valid");
    let redriven = poison.redrive().run().await.expect("redriven");
    assert_eq!(redriven.redriven, 1);
    let listener = resolving().until_empty().start().expect("valid settings");
    assert_eq!(listener.drained().await.info.completed, 1);
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_resolver_is_a_failed_attempt() {
    let service = testing::service().await;
    submit_picture(&service).await;
    let listener = service.listener(handle);
    let listener = listener.data_resolver(Store::new(State::Panics));
    let listener = listener.until_empty().start().expect("valid settings");
    assert_eq!(listener.drained().await.info.poisoned, 1);
    let (reason, error) = poisoned(&service).await;
    assert_eq!(reason, PoisonReason::Failed);
    assert!(error.contains("a bug of the resolver"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn without_a_resolver_no_data_is_made_up() {
    let service = testing::service().await;
    submit_picture(&service).await;
    let listener = service.listener(handle).until_empty();
    let report = listener.start().expect("valid settings").drained().await;
    assert_eq!(report.info.poisoned, 1);
    let (reason, error) = poisoned(&service).await;
    assert_eq!(reason, PoisonReason::Undecodable);
    assert!(error.contains("`dataref` has 37 bytes"), "{error}");
    assert!(!error.contains("secret"), "{error}");

    let bells = service.queue::<Bell>();
    bells.any().create().await.expect("created");
    submit(&service, Bell::TYPE.kind(), 1, "bells").await;
    assert!(bells.accept().await.expect("accepted").is_none());
    let poisoned = bells.poison().expect("valid").accept().await;
    assert!(poisoned.expect("accepted").is_some());
}

#[tokio::test(start_paused = true)]
async fn only_what_may_decode_is_fetched() {
    let service = testing::service().await;
    let store = Store::new(State::Works);
    service
        .queue::<Picture>()
        .any()
        .create()
        .await
        .expect("created");
    submit(&service, Picture::TYPE.kind(), 2, "pictures").await;
    submit(&service, "film", 1, "pictures").await;
    let accept = service.accept::<Picture>().data_resolver(store.clone());
    assert!(accept.await.expect("accepted").is_none());
    assert_eq!(store.calls(), 0);
}

/// Fetching may be what ends the process, so it is a part of the attempt.
#[tokio::test(start_paused = true)]
async fn a_message_on_its_last_chance_is_marked_before_its_data_is_fetched() {
    let service = testing::service().await;
    submit_picture(&service).await;
    let queue = "pictures".parse().expect("valid");
    let lease = Duration::from_secs(30);
    let received = service.backend().receive(&queue, 1, lease).await;
    assert_eq!(received.expect("received").len(), 1);
    tokio::time::sleep(lease).await;

    let store = Store::new(State::Hangs);
    let accept = service.accept::<Picture>().data_resolver(store.clone());
    let accepting = tokio::spawn(accept.into_future());
    while store.calls() == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let pictures = service.queue::<Picture>().any();
    let page = pictures.browse(None, 10).await.expect("browsed");
    let Body::Event(event) = &page.messages[0].body else {
        panic!("{page:?}")
    };
    assert!(event.envelope.attempts.last_chance);
    accepting.abort();
}

#[tokio::test(start_paused = true)]
async fn a_retry_and_the_poison_queue_keep_the_reference() {
    let service = testing::service().await;
    submit_picture(&service).await;
    let store = Store::new(State::Works);
    let failing = async |_: Received<Picture>| Err::<(), _>("no canvas");
    let listener = service.listener(failing).poison_threshold(2);
    let listener = listener.data_resolver(store.clone()).until_empty();
    let report = listener.start().expect("valid settings").drained().await;
    assert_eq!((report.info.retried, report.info.poisoned), (1, 1));
    assert_eq!(store.calls(), 2, "once for each attempt");
    let (reason, error) = poisoned(&service).await;
    assert_eq!(
        (reason, error.as_str()),
        (PoisonReason::Failed, "no canvas")
    );
}

#[tokio::test(start_paused = true)]
async fn an_empty_reference_is_refused() {
    let service = testing::service().await;
    let client = ClientId::new("camera").expect("valid");
    let envelope = Envelope::new(MessageId::random(), client, RequestId::random(), "picture");
    let pictures = service.any_queue("pictures").expect("valid");
    for reference in ["", "a\nb"] {
        let payload = Payload::Elsewhere(reference.to_owned());
        let event = UntypedMessage::event(envelope.clone(), payload);
        let refused = pictures
            .submit(event)
            .await
            .expect_err("no consumer could follow it");
        assert!(refused.to_string().contains("`dataref`"), "{refused}");
    }
}
