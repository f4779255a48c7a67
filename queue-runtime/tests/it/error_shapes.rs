//! All public errors have one shape, and are in the list of the crate's documentation.

use std::collections::BTreeSet;
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use queue_runtime::backend::{ApplyError, Created, Metadata};
use queue_runtime::clock::SystemClock;
use queue_runtime::envelope::{ClientId, Envelope, TraceContext};
use queue_runtime::error::{Operation, Outcome};
use queue_runtime::idempotency::MemoryResults;
use queue_runtime::listener::StartErrorKind;
use queue_runtime::message::{DecodeError, EncodeError};
use queue_runtime::payloads::{ObjectPage, PayloadStore};
use queue_runtime::recurring::every;
use queue_runtime::send::SubmitErrorKind;
use queue_runtime::testing::{self, Fault};
use queue_runtime::wire::{Compressed, Lines, Pack, Payload, encode_payload};
use queue_runtime::{
    Delivery, ErrorKind, Message, MessageId, QueueName, QueueService, Received, RequestId, Result,
    once,
};
use queue_tests::orders::ShopOrder;
use serde::{Deserialize, Serialize};

const LIST: &str = include_str!("../../src/docs/errors.md");

#[derive(Debug, Serialize, Deserialize, Message)]
struct Invoice {
    text: String,
}

async fn ship(_: Received<ShopOrder>) {}

/// The names of the errors that were looked at.
#[derive(Default)]
struct Seen(BTreeSet<String>);

impl Seen {
    /// Checks the text of an error of an operation.
    #[track_caller]
    fn failed<E: Error + Send + Sync + 'static>(&mut self, error: &E) {
        let text = error.to_string();
        assert!(text.starts_with("failed to "), "{text}");
        self.value(error);
    }

    /// Checks the text of an error.
    #[track_caller]
    fn value<E: Error + Send + Sync + 'static>(&mut self, error: &E) {
        let (text, printed) = (error.to_string(), format!("{error:?}"));
        assert!(!text.ends_with(['.', ' ', ':']), "{text}");
        assert!(printed.starts_with(&text), "{printed}");
        let mut before = text;
        let mut cause = error.source();
        while let Some(error) = cause {
            let text = error.to_string();
            assert!(!before.contains(&text), "{before:?} has its cause {text:?}");
            assert!(printed.contains(&text), "{printed:?} is without {text:?}");
            (before, cause) = (text, error.source());
        }
        let name = std::any::type_name::<E>().split('<').next();
        let name = name.and_then(|path| path.rsplit("::").next());
        self.0.insert(name.expect("a name").to_owned());
    }
}

fn denied(operation: Operation) -> queue_runtime::Error {
    queue_runtime::Error::new(ErrorKind::Denied, operation)
        .with_source(io::Error::other("the key is old"))
}

/// A store that refuses everything.
#[derive(Debug)]
struct Closed;

#[async_trait::async_trait]
impl PayloadStore for Closed {
    async fn prepare(&self) -> Result<()> {
        Err(denied(Operation::StoreData))
    }
    async fn create(&self, _: &str, _: Bytes) -> Result<Created> {
        Err(denied(Operation::StoreData))
    }
    async fn read(&self, _: &str, _: u64, _: usize) -> Result<Option<Bytes>> {
        Err(denied(Operation::FetchData))
    }
    async fn delete(&self, _: &str) -> Result<()> {
        Err(denied(Operation::StoreData))
    }
    async fn list(&self, _: &str, _: Option<&str>) -> Result<ObjectPage> {
        Err(denied(Operation::ListData))
    }
}

/// Returns the error of a call that is refused.
#[track_caller]
fn refused<T, E>(result: Result<T, E>) -> E {
    match result {
        Ok(_) => panic!("it is not refused"),
        Err(error) => error,
    }
}

#[tokio::test(start_paused = true)]
async fn each_error_is_a_sentence_without_the_cause_that_it_has() {
    let mut seen = Seen::default();
    let (service, faults) = testing::service_with_faults().await;
    let refuse = |operation| faults.fail_next(1, operation, Fault::Refused(ErrorKind::Denied));
    let order = || ShopOrder { number: 7 };

    refuse(Operation::Put);
    let error = refused(service.submit(order()).await);
    assert_eq!(error.outcome(), Outcome::NotDone);
    seen.failed(&error);
    faults.fail_next(1, Operation::Apply, Fault::AnswerLost);
    let error = refused(service.submit_all([order(), order()]).await);
    assert_eq!(error.outcome(), Outcome::Unknown);
    seen.failed(&error);
    let text = "x".repeat(4096);
    let small = QueueService::builder("memory:").max_payload(4096).connect();
    let invoice = small.await.expect("connected").submit(Invoice { text });
    match &refused(invoice.await).kind {
        SubmitErrorKind::TooLarge(large) => seen.value(large),
        other => panic!("{other:?}"),
    }
    seen.failed(&refused(
        service.accept::<ShopOrder>().poison_threshold(0).await,
    ));
    let error = refused(service.listener(ship).max_in_flight(0).start());
    seen.failed(&error);
    match &error.kind {
        StartErrorKind::Setting(invalid) => seen.value(invalid),
        other => panic!("{other:?}"),
    }
    let often = service.schedule("often", every(Duration::ZERO), |_| ShopOrder { number: 7 });
    seen.failed(&refused(often.start()));
    seen.failed(&refused(QueueService::connect("amqp://localhost").await));

    let submitted = service.submit_all([order(), order()]).await;
    submitted.expect("submitted");
    let mut accepted = service.accept_many::<ShopOrder>(2).await.expect("accepted");
    let one = accepted.pop().expect("one of two");
    seen.failed(&refused(one.checkpoint(&"x".repeat(5000)).await));
    faults.fail_next(1, Operation::Delete, Fault::Refused(ErrorKind::Denied));
    let error = refused(one.complete().await);
    assert_eq!(error.outcome(), Outcome::NotDone);
    seen.failed(&error);
    refuse(Operation::Delete);
    let error = refused(Delivery::complete_all([error.delivery]).await);
    assert_eq!(error.outcome(), Outcome::NotDone);
    seen.failed(&error);
    for delivery in error
        .failed
        .into_iter()
        .map(|failed| failed.delivery)
        .chain(accepted)
    {
        delivery.reject("it is late").await.expect("rejected");
    }

    let request = service.request(order()).reply::<Invoice>();
    let error = refused(request.await);
    assert_eq!(error.outcome(), Outcome::Unknown);
    seen.failed(&error);

    let poison = service.any_queue("orders-poison").expect("a name");
    faults.fail_every(Operation::Apply, Fault::Refused(ErrorKind::Denied));
    let error = refused(poison.redrive().run().await);
    faults.heal();
    assert_eq!(
        (error.error.kind(), error.outcome()),
        (ErrorKind::Denied, Outcome::NotDone)
    );
    seen.failed(&error);
    let taken = poison
        .take(2, Duration::from_secs(60))
        .await
        .expect("taken");
    let elsewhere = service.any_queue("elsewhere").expect("a name");
    let error = refused(elsewhere.import(&taken.messages).await);
    assert_eq!(error.error.kind(), ErrorKind::QueueNotFound);
    seen.failed(&error);
    seen.failed(&error.error);
    faults.fail_every(Operation::Delete, Fault::Refused(ErrorKind::Denied));
    seen.failed(&refused(taken.delete().await));
    seen.failed(&ApplyError::new(1, [], denied(Operation::Put)));

    let service_with_store = QueueService::builder("memory:").payloads(Arc::new(Closed));
    let payloads = service_with_store
        .connect()
        .await
        .expect("connected")
        .payloads();
    seen.failed(&refused(payloads.expect("a store").sweep().run().await));
    let store = MemoryResults::new(Arc::new(SystemClock::new()));
    let work = async { Err::<(), _>(io::Error::other("it is late")) };
    seen.failed(&refused(once(&store, "work", work).await));

    faults.fail_every(Operation::Receive, Fault::Refused(ErrorKind::Denied));
    let listener = service.listener(ship).start().expect("started");
    let mut events = listener.events();
    events.recv().await.expect("it cannot receive");
    seen.failed(&listener.info().failure.expect("it cannot receive").error);

    let other = service.queue_named::<Invoice>("orders").expect("a name");
    match &refused(other.listener(async |_: Received<Invoice>| {}).start()).kind {
        StartErrorKind::KindMismatch(mismatch) => seen.value(mismatch),
        other => panic!("{other:?}"),
    }

    values(&mut seen);
    assert_eq!(seen.0, linked(LIST));
}

/// Looks at the errors of values.
fn values(seen: &mut Seen) {
    seen.value(&EncodeError::payload("order", "it is too deep"));
    seen.value(&EncodeError::key("order", "number", "it holds a float"));
    seen.value(&DecodeError::payload("order", 1, "it is text"));
    let json = DecodeError::payload(
        "order",
        1,
        serde_json::from_str::<u32>("\"7\"").expect_err("it is text"),
    );
    let json = json.source().and_then(|cause| cause.downcast_ref());
    seen.value::<queue_runtime::message::JsonError>(json.expect("an error of JSON"));
    seen.value(&refused(
        Compressed::new(&[7; 100]).expect("small").expand(10),
    ));
    seen.value(&refused(QueueName::new("Orders")));
    seen.value(&refused(ClientId::new("")));
    seen.value(&refused(TraceContext::new("0-0")));
    seen.value(&refused(Metadata::new().insert("7", "")));
    seen.value(&refused(
        every(Duration::ZERO).next_after(queue_runtime::Timestamp::UNIX_EPOCH),
    ));
    seen.value(&refused(Lines::read(b"a line")));
    let (id, client) = (MessageId::random(), ClientId::new("tests").expect("valid"));
    let mut envelope = Envelope::new(id, client, RequestId::random(), "order");
    envelope.version = Pack::VERSION;
    let pack = Pack::new(&[Bytes::from_static(b"{}")]).expect("small");
    let body = encode_payload(&envelope, &Payload::Pack(pack));
    let body = String::from_utf8(body).expect("JSON");
    let body = body.replacen("\"packitems\":1", "\"packitems\":2", 1);
    match Pack::find(&body.into()).expect("a pack").payload {
        Payload::Pack(pack) => seen.value(&refused(pack.open())),
        other => panic!("{other:?}"),
    }
}

/// Returns the names of the list's errors that the crate has: those with a link.
fn linked(list: &str) -> BTreeSet<String> {
    let links = list.split("[`").skip(1);
    let names = links
        .filter_map(|link| link.split_once("`]"))
        .map(|(name, _)| name);
    let errors = names.filter(|name| !name.ends_with("Kind") && *name != "OnError");
    errors.map(str::to_owned).collect()
}
