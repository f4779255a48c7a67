//! Values that would not come back are refused where they are written, with the name of the field.

use std::time::Duration;

use queue_runtime::backend::{BackendExt as _, NewMessage};
use queue_runtime::envelope::{ClientId, Envelope, PoisonReason};
use queue_runtime::idempotency::{OnceError, OnceErrorKind};
use queue_runtime::request::RequestErrorKind;
use queue_runtime::send::{SubmitErrorKind, UntypedMessage};
use queue_runtime::service::ExportedMessage;
use queue_runtime::testing;
use queue_runtime::wire::{Body, Payload};
use queue_runtime::{
    AnyQueue, Disposition, ErrorKind, Failure, FollowUp, Message, MessageId, QueueName,
    QueueService, Received, RequestId, RetryPolicy, once,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::support::flaky_results::memory_results;
use crate::support::log::Log;
use crate::support::{count, memory, stop};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "orders")]
struct PricedOrder {
    prices: Vec<Option<f64>>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "readings", wire = "bare")]
struct Reading {
    celsius: f32,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "slices", wire = "lines")]
struct Slice {
    scale: f64,
}

fn order(price: f64) -> PricedOrder {
    PricedOrder {
        prices: vec![Some(1.5), Some(price), None],
    }
}

const PLACE: &str = "`prices[1]` is NaN";

#[track_caller]
fn assert_refused(problem: &SubmitErrorKind, place: &str) {
    let SubmitErrorKind::Encode(error) = problem else {
        panic!("{problem}")
    };
    assert!(format!("{error:?}").contains(place), "{error:?}");
}

#[tokio::test]
async fn a_float_that_is_not_finite_is_refused_by_every_way_of_submitting() {
    let service = memory().await;
    let refused = service.submit(order(f64::NAN)).await.expect_err("refused");
    assert_refused(&refused.kind, PLACE);
    let all = [order(1.0), order(f64::NAN)];
    let refused = service.submit_all(all).await.expect_err("refused");
    assert_refused(&refused.kind, PLACE);
    assert!(refused.submitted.is_empty());
    let request = service.request(order(f64::NAN)).reply::<PricedOrder>();
    let refused = request.await.expect_err("refused");
    let RequestErrorKind::Submit(problem) = &refused.kind else {
        panic!("{refused}")
    };
    assert_refused(problem, PLACE);
    let celsius = f32::INFINITY;
    let refused = service.submit(Reading { celsius }).await;
    assert_refused(&refused.expect_err("refused").kind, "`celsius` is inf");
    let scale = f64::NEG_INFINITY;
    let refused = service.submit(Slice { scale }).await;
    assert_refused(&refused.expect_err("refused").kind, "field `scale`");
    for queue in ["orders", "readings", "slices"] {
        let queue = service.any_queue(queue).expect("a name");
        let missing = queue.properties().await.expect_err("nothing was submitted");
        assert_eq!(missing.kind(), ErrorKind::QueueNotFound);
    }
}

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "jobs")]
struct Job {
    way: String,
}

async fn handle(job: Received<Job>) -> Result<Disposition, Failure> {
    match job.way.as_str() {
        "follow-up" => Ok(Disposition::complete().then(&order(f64::NAN))),
        "reply" => Ok(Disposition::reply(&order(f64::NAN))),
        "submit" => {
            let refused = job.submit(order(f64::NAN)).await;
            refused.map_err(Failure::reject)?;
            Ok(Disposition::complete())
        }
        "checkpoint" => {
            let written = job.checkpoint(&order(f64::NAN)).await;
            written.map_err(Failure::reject)?;
            Ok(Disposition::complete())
        }
        _ => Err(Failure::reject("for `on_poison`")),
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_handler_returns_and_cannot_come_back_rejects_its_message_and_names_the_field() {
    let (log, _guard) = Log::start();
    let service = testing::service().await;
    let jobs = service.listener(handle);
    let jobs = jobs.on_poison(|_| Some(FollowUp::new(&order(f64::NAN))));
    let jobs = jobs.start().expect("starts");
    for way in ["follow-up", "reply", "submit", "checkpoint"] {
        let way = way.to_owned();
        service.submit(Job { way }).await.expect("submitted");
    }
    testing::drain([&jobs]).await.expect("drained");
    stop(jobs).await;
    let poison = service.any_queue("jobs-poison").expect("a name");
    let page = poison.browse(None, 10).await.expect("read");
    let mut errors = 0;
    for message in page.messages {
        let record = message.body.poison().expect("a record");
        assert_eq!(record.reason, PoisonReason::Rejected);
        let error = record.error.as_deref().expect("an error");
        assert!(error.contains(PLACE), "{error}");
        errors += 1;
    }
    assert_eq!(errors, 4);
    assert_eq!(
        log.count("failed to submit the follow-up of `on_poison`"),
        4
    );
    let line = log.line("failed to submit the follow-up of `on_poison`");
    assert!(line.contains(PLACE), "{line}");
}

/// Whether work was not done again, since the result of the first time cannot be read.
fn is_unreadable<T, E>(done: &Result<T, OnceError<T, E>>) -> bool {
    let kind = done.as_ref().err().map(|error| &error.kind);
    matches!(kind, Some(OnceErrorKind::Result(_)))
}

#[tokio::test(start_paused = true)]
async fn a_result_that_would_not_be_read_is_returned_and_its_work_not_done_again() {
    let store = memory_results();
    // Read as none, and not read at all.
    let done = once(&store, "order", async { Ok::<_, String>(order(f64::NAN)) }).await;
    let Err(OnceError {
        kind: OnceErrorKind::NotRecorded { result, source, .. },
        ..
    }) = done
    else {
        panic!("{done:?}")
    };
    assert!(result.prices[1].is_some_and(f64::is_nan));
    let error = format!("{:?}", source.expect("a cause"));
    assert!(error.contains(PLACE), "{error}");
    let done = once(&store, "float", async { Ok::<_, String>(f64::NAN) }).await;
    assert!(
        matches!(
            done,
            Err(OnceError {
                kind: OnceErrorKind::NotRecorded { .. },
                ..
            })
        ),
        "{done:?}"
    );
    for _ in 0..2 {
        let work = async { Err::<PricedOrder, _>("the work is done again".to_owned()) };
        let again = once(&store, "order", work).await;
        assert!(is_unreadable(&again), "{again:?}");
        let work = async { Err::<f64, _>("the work is done again".to_owned()) };
        let again = once(&store, "float", work).await;
        assert!(is_unreadable(&again), "{again:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_result_that_cannot_be_written_is_returned_and_its_work_done_again() {
    #[derive(Deserialize)]
    struct Silent;

    impl Serialize for Silent {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("it has no JSON"))
        }
    }

    let store = memory_results();
    for _ in 0..2 {
        let done = once(&store, "silent", async { Ok::<_, String>(Silent) }).await;
        let Err(OnceError {
            kind: OnceErrorKind::NotRecorded { source, .. },
            ..
        }) = done.map(drop)
        else {
            panic!("it was recorded")
        };
        let error = format!("{:?}", source.expect("a cause"));
        assert!(error.contains("it has no JSON"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_message_of_a_schedule_is_refused_and_the_log_names_the_field() {
    use queue_runtime::recurring::every;
    let (log, _guard) = Log::start();
    let service = testing::service().await;
    let hour = Duration::from_secs(3600);
    let schedule = service.schedule("orders", every(hour), |_| order(f64::NAN));
    let schedule = schedule.start().expect("starts");
    tokio::time::sleep(2 * hour).await;
    schedule.stop().await;
    let line = log.line("failed to submit a tick of a schedule");
    assert!(line.contains(PLACE), "{line}");
}

fn event(data: &str) -> UntypedMessage {
    let client = ClientId::new("shell").expect("an id");
    let envelope = Envelope::new(MessageId::random(), client, RequestId::random(), "order");
    UntypedMessage::event(envelope, Payload::Json(data.to_owned().into()))
}

/// JSON that a program can write and no reader reads, with the place of the error.
fn unreadable() -> [(String, &'static str); 3] {
    [
        (r#"{"a":"\ud800"}"#.to_owned(), "at line 1 column 13"),
        (
            "[1e400]".to_owned(),
            "number out of range at line 1 column 6",
        ),
        (
            "[".repeat(128) + &"]".repeat(128),
            "recursion limit exceeded at line 1 column 128",
        ),
    ]
}

async fn only(queue: &AnyQueue) -> queue_runtime::service::Browsed {
    let mut page = queue.browse(None, 2).await.expect("read");
    assert_eq!(page.messages.len(), 1);
    page.messages.remove(0)
}

#[tokio::test]
async fn given_json_that_no_reader_accepts_is_refused_with_its_place() {
    let service = memory().await;
    let orders = service.any_queue("orders").expect("a name");
    orders.submit(event("[]")).await.expect("submitted");
    let message = only(&orders).await;
    let exported = orders.export(None, 1).await.expect("copied").messages;
    let line = serde_json::to_string(&exported[0]).expect("JSON");
    for (json, place) in unreadable() {
        let refused = orders.submit(event(&json)).await.expect_err("refused");
        assert!(format!("{refused:?}").contains(place), "{refused:?}");
        let payload = Payload::Json(json.clone().into());
        let refused = orders.edit(&message, payload).await.expect_err("refused");
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
        assert!(refused.to_string().contains(place), "{refused}");
        let edited = line.replace(r#""data":[]"#, &format!(r#""data":{json}"#));
        assert_ne!(edited, line);
        let edited: ExportedMessage = serde_json::from_str(&edited).expect("a line");
        let refused = orders.import(&[edited]).await.expect_err("refused");
        assert!(format!("{refused:?}").contains(place), "{refused:?}");
    }
    assert_eq!(count(&service, "orders").await, 1);
}

/// Another program's message is copied as it is, whatever it is worth.
#[tokio::test(start_paused = true)]
async fn json_that_no_reader_accepts_is_exported_and_imported() {
    let service = testing::service().await;
    let orders = service.any_queue("orders").expect("a name");
    orders.create().await.expect("created");
    let name = QueueName::from_static("orders");
    for (json, _) in unreadable() {
        let foreign = format!(
            r#"{{"specversion":"1.0","id":"1","source":"s","type":"order","data":{json}}}"#
        );
        let put = service
            .backend()
            .put(&name, NewMessage::new(foreign.clone()));
        put.await.expect("put");
        let taken = orders.export(None, 1).await.expect("copied").messages;
        let line = serde_json::to_string(&taken[0]).expect("JSON");
        serde_json::from_str::<Value>(&line).expect("any reader reads the line");
        orders.clear().await.expect("cleared");
        let read = serde_json::from_str(&line).expect("a line");
        orders.import(&[read]).await.expect("imported");
        let Body::Event(event) = only(&orders).await.body else {
            panic!("it is an event")
        };
        assert_eq!(event.body, foreign.as_bytes());
        orders.clear().await.expect("cleared");
    }
}

/// The text of an error of megabytes.
fn endless(text: &str) -> Failure {
    Failure::retry(text.repeat(1_000_000))
}

async fn ended(service: &QueueService) -> String {
    let poison = service.any_queue("jobs-poison").expect("a name");
    let record = only(&poison).await.body.poison().cloned();
    record.expect("a record").error.expect("an error")
}

#[tokio::test(start_paused = true)]
async fn an_error_of_megabytes_is_cut_in_logs_and_records_between_its_escapes() {
    for text in ["text ", "Grüße", "\u{1b}", "\u{85}"] {
        let (log, _guard) = Log::start();
        let service = testing::service().await;
        let jobs = service.listener(async move |job: Received<Job>| -> Result<(), Failure> {
            match job.attempt() {
                1 => Err(endless(text)),
                _ => panic!("{}", text.repeat(10_000)),
            }
        });
        let jobs = jobs
            .retry(RetryPolicy::fixed(Duration::ZERO))
            .poison_threshold(2);
        let jobs = jobs.start().expect("starts");
        let way = String::new();
        service.submit(Job { way }).await.expect("submitted");
        testing::drain([&jobs]).await.expect("drained");
        stop(jobs).await;
        let error = ended(&service).await;
        assert!(error.len() <= 8192 && error.len() > 8000, "{}", error.len());
        let kept = error.strip_suffix('…').expect("it tells that it is cut");
        let escaped: String = text.escape_default().collect();
        let last = kept.rfind('\\').map_or("", |at| &kept[at..]);
        assert!(last.is_empty() || last == escaped, "{last}");
        for line in ["an attempt failed", "moved a message"] {
            let line = log.line(line);
            assert!(line.len() < 2048, "{} bytes", line.len());
        }
        for line in log.lines() {
            let (line, _backtrace) = line.split_once(" backtrace=").unwrap_or((&line, ""));
            assert!(
                line.len() < 16 * 1024,
                "{} bytes: {}",
                line.len(),
                &line[..200]
            );
        }
    }
}
