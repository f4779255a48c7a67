use std::sync::LazyLock;
use std::time::Duration;

use opentelemetry::Value;
use opentelemetry::trace::{SpanId, SpanKind, Status, TracerProvider as _};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};
use queue_runtime::backend::{BackendExt as _, NewMessage};
use queue_runtime::envelope::{Envelope, TraceContext};
use queue_runtime::recurring::every;
use queue_runtime::send::UntypedMessage;
use queue_runtime::wire::Payload;
use queue_runtime::{
    Disposition, Failure, Handler, Message, MessageId, QueueService, Received, RequestId, blocking,
    testing,
};
use queue_tests::is_alone;
use queue_tests::orders::ShopOrder;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::watch;
use tracing::Instrument as _;
use tracing_subscriber::layer::SubscriberExt as _;

use crate::observe::fixture::Bill;

const VALID: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Keeps what is exported.
#[derive(Debug)]
struct Exporter;

static EXPORTED: LazyLock<watch::Sender<Vec<SpanData>>> = LazyLock::new(watch::Sender::default);

impl SpanExporter for Exporter {
    async fn export(&self, mut batch: Vec<SpanData>) -> OTelSdkResult {
        EXPORTED.send_modify(|all| all.append(&mut batch));
        Ok(())
    }
}

/// Has all spans of this process recorded.
fn record() {
    let provider = SdkTracerProvider::builder();
    let provider = provider.with_simple_exporter(Exporter).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("tests"));
    let subscriber = tracing_subscriber::registry().with(layer);
    tracing::subscriber::set_global_default(subscriber).expect("the first");
    // Exported spans need their provider.
    std::mem::forget(provider);
}

/// Waits until spans of these names have ended, and returns the trace of the first, whose name occurs once.
async fn trace_of(name: &str, others: &[&str]) -> Vec<SpanData> {
    let mut exported = EXPORTED.subscribe();
    let has = |all: &Vec<SpanData>, name: &str| all.iter().any(|span| span.name == name);
    let all = exported.wait_for(|all| has(all, name) && others.iter().all(|other| has(all, other)));
    let all = all.await.expect("the exporter stays");
    let named: Vec<_> = all.iter().filter(|span| span.name == name).collect();
    let [named] = named[..] else {
        panic!("{} spans are named {name}", named.len());
    };
    let trace = named.span_context.trace_id();
    let of_trace = all
        .iter()
        .filter(|span| span.span_context.trace_id() == trace);
    of_trace.cloned().collect()
}

fn named<'a>(trace: &'a [SpanData], name: &str) -> &'a SpanData {
    let mut all = trace.iter().filter(|span| span.name == name);
    let first = all
        .next()
        .unwrap_or_else(|| panic!("no {name} in {trace:#?}"));
    assert!(all.next().is_none(), "several {name} in {trace:#?}");
    first
}

fn attribute(span: &SpanData, name: &str) -> Option<Value> {
    let mut all = span.attributes.iter();
    let found = all.find(|attribute| attribute.key.as_str() == name);
    found.map(|attribute| attribute.value.clone())
}

/// Runs a listener until that is over and its handlers have ended.
async fn handled<M: Message>(
    service: &QueueService,
    handler: impl Handler<M>,
    until: impl Future<Output = ()>,
) {
    let listener = service
        .listener(handler)
        .create_queue()
        .start()
        .expect("starts");
    until.await;
    listener.shutdown(Duration::from_secs(60)).await;
}

#[tokio::test(start_paused = true)]
async fn sender_consumer_and_follow_up_are_in_one_trace() {
    if !is_alone("observe::traces::sender_consumer_and_follow_up_are_in_one_trace") {
        return;
    }
    record();
    let service = testing::service().await;
    let submit = service.submit(ShopOrder { number: 7 });
    let submitted = async { submit.await }
        .instrument(tracing::info_span!("checkout"))
        .await
        .expect("submitted");

    let (done, mut ended) = unbounded_channel();
    let bill = async move |order: Received<ShopOrder>| {
        tracing::info_span!("pack").in_scope(|| {});
        Disposition::complete().then(&Bill {
            order: order.number,
        })
    };
    let pay = move |_: Received<Bill>| {
        let done = done.clone();
        async move {
            let _ = done.send(());
            Err::<(), _>(Failure::reject("no money"))
        }
    };
    let payer = service
        .listener(pay)
        .create_queue()
        .start()
        .expect("starts");
    handled(&service, bill, async {
        assert_eq!(ended.recv().await, Some(()))
    })
    .await;
    payer.shutdown(Duration::from_secs(60)).await;
    drop(service);

    let names = [
        "checkout",
        "send orders",
        "process orders",
        "pack",
        "process bills",
    ];
    let trace = trace_of("checkout", &names).await;
    let spans = names.map(|name| named(&trace, name));
    assert_eq!(trace.len(), names.len(), "{trace:#?}");
    let [checkout, send, process, pack, pay] = spans;
    let id = |span: &SpanData| span.span_context.span_id();
    assert_eq!(checkout.parent_span_id, SpanId::INVALID);
    let parents = [
        (send, checkout),
        (process, send),
        (pack, process),
        (pay, process),
    ];
    for (child, parent) in parents {
        assert_eq!(
            child.parent_span_id,
            id(parent),
            "{} below {}",
            child.name,
            parent.name
        );
    }
    assert_eq!(
        (&send.span_kind, &process.span_kind),
        (&SpanKind::Producer, &SpanKind::Consumer)
    );
    assert!(process.parent_span_is_remote && pay.parent_span_is_remote);
    for (span, attributes) in [
        (
            send,
            [
                ("messaging.operation.name", "send"),
                ("messaging.destination.name", "orders"),
                ("messaging.message.id", submitted.id.as_str()),
            ],
        ),
        (
            process,
            [
                ("messaging.operation.name", "process"),
                ("messaging.message.id", submitted.id.as_str()),
                ("queue.outcome", "completed"),
            ],
        ),
        (
            pay,
            [
                ("messaging.destination.name", "bills"),
                ("queue.outcome", "poisoned"),
                ("error.type", "poisoned"),
            ],
        ),
    ] {
        for (name, value) in attributes {
            assert_eq!(
                attribute(span, name),
                Some(value.to_owned().into()),
                "{name}"
            );
        }
    }
    assert_eq!(process.status, Status::Unset);
    assert!(
        matches!(pay.status, Status::Error { .. }),
        "{:?}",
        pay.status
    );
}

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "reports", kind = "shop.report")]
struct Report {
    day: u32,
}

#[tokio::test]
async fn blocking_handlers_run_in_the_span_of_their_message() {
    if !is_alone("observe::traces::blocking_handlers_run_in_the_span_of_their_message") {
        return;
    }
    record();
    let service = testing::service().await;
    let submit = service.submit_all([Report { day: 1 }]);
    async { submit.await }
        .instrument(tracing::info_span!("nightly"))
        .await
        .expect("submitted");
    let (done, mut ended) = unbounded_channel();
    let write = blocking(move |_: Received<Report>| {
        tracing::info_span!("write").in_scope(|| {});
        let _ = done.send(());
    });
    handled(&service, write, async {
        assert_eq!(ended.recv().await, Some(()))
    })
    .await;
    drop(service);
    let trace = trace_of("nightly", &["process reports", "write"]).await;
    let process = named(&trace, "process reports");
    let written = named(&trace, "write");
    assert_eq!(written.parent_span_id, process.span_context.span_id());
}

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "parcels", kind = "shop.parcel")]
struct Parcel {
    number: u32,
}

#[tokio::test(start_paused = true)]
async fn a_trace_context_from_elsewhere_is_continued_by_accept() {
    if !is_alone("observe::traces::a_trace_context_from_elsewhere_is_continued_by_accept") {
        return;
    }
    record();
    let service = testing::service().await;
    let trace = TraceContext::new(VALID).expect("valid");
    service
        .submit(Parcel { number: 1 })
        .trace(trace.clone())
        .await
        .expect("submitted");
    let parcel = service
        .accept::<Parcel>()
        .await
        .expect("accepted")
        .expect("a parcel");
    assert_eq!(parcel.envelope().trace.as_ref(), Some(&trace));
    let inside = parcel.span().clone();
    inside.in_scope(|| tracing::info_span!("weigh").in_scope(|| {}));
    drop(inside);
    parcel.complete().await.expect("completed");
    let all = trace_of("weigh", &["process parcels"]).await;
    let process = named(&all, "process parcels");
    let parent = SpanId::from_bytes(trace.span_id().to_be_bytes());
    assert_eq!(process.parent_span_id, parent);
    let id = u128::from_be_bytes(process.span_context.trace_id().to_bytes());
    assert_eq!(id, trace.trace_id());
}

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "letters", kind = "shop.letter")]
struct Letter {
    number: u32,
}

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "ticks", kind = "shop.tick")]
struct Tick {}

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "stored-ticks", kind = "shop.stored-tick")]
struct StoredTick {}

/// Asserts that this message is handled in the trace of its submission.
async fn assert_linked<M: Message>(service: &QueueService, queue: &str) {
    let message = service.accept::<M>().await.expect("accepted");
    let message = message.expect("submitted");
    let id = message.envelope().id.to_string();
    message.complete().await.expect("completed");
    let (send, process) = (format!("send {queue}"), format!("process {queue}"));
    let trace = trace_of(&process, &[]).await;
    let (send, process) = (named(&trace, &send), named(&trace, &process));
    assert_eq!(process.parent_span_id, send.span_context.span_id());
    assert_eq!(attribute(send, "messaging.message.id"), Some(id.into()));
}

#[tokio::test(start_paused = true)]
async fn a_tick_is_handled_in_the_trace_of_its_submission() {
    if !is_alone("observe::traces::a_tick_is_handled_in_the_trace_of_its_submission") {
        return;
    }
    record();
    let service = testing::service().await;
    let store = service.results().expect("in memory");
    let hourly = || every(Duration::from_secs(3600));
    let exact = service.schedule("exact", hourly(), |_| Tick {});
    let stored = service.schedule("stored", hourly(), |_| StoredTick {});
    let exact = exact.start().expect("starts");
    let stored = stored.recorded_in(&store).start().expect("starts");
    tokio::time::sleep(Duration::from_secs(3601)).await;
    exact.stop().await;
    stored.stop().await;
    assert_linked::<Tick>(&service, "ticks").await;
    assert_linked::<StoredTick>(&service, "stored-ticks").await;
}

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "crates", kind = "shop.crate")]
struct Crate {
    number: u32,
}

#[tokio::test(start_paused = true)]
async fn an_untyped_message_is_handled_in_the_trace_of_its_submission() {
    if !is_alone("observe::traces::an_untyped_message_is_handled_in_the_trace_of_its_submission") {
        return;
    }
    record();
    let service = testing::service().await;
    let client = service.client_id().clone();
    let (id, request) = (MessageId::random(), RequestId::random());
    let envelope = Envelope::new(id, client, request, Crate::TYPE.kind());
    let payload = Payload::Json(r#"{"number":7}"#.into());
    let submit = service.queue::<Crate>().any();
    let submit = submit.submit(UntypedMessage::event(envelope, payload));
    submit.await.expect("submitted");
    assert_linked::<Crate>(&service, "crates").await;
}

/// The consumer of a foreign message begins a trace of its own.
#[tokio::test(start_paused = true)]
async fn a_foreign_message_whose_traceparent_is_none_is_delivered() {
    if !is_alone("observe::traces::a_foreign_message_whose_traceparent_is_none_is_delivered") {
        return;
    }
    record();
    let (service, backend) = testing::service_with_faults().await;
    let letters = service.queue::<Letter>().any();
    letters.create().await.expect("created");
    let queue = "letters".parse().expect("a name");
    for (number, parent) in [(1, r#""none""#), (2, "7"), (3, r#""""#)] {
        let body = format!(
            r#"{{"specversion":"1.0","id":"{number}","source":"s","type":"shop.letter",
                "traceparent":{parent},"tracestate":"x","data":{{"number":{number}}}}}"#
        );
        backend
            .put(&queue, NewMessage::new(body))
            .await
            .expect("put");
    }
    for number in 1..=3 {
        let letter = service
            .accept::<Letter>()
            .await
            .expect("accepted")
            .expect("a letter");
        assert_eq!((letter.number, &letter.envelope().trace), (number, &None));
        letter.complete().await.expect("completed");
    }
}
