//! Requests whose message ends without a reply: their senders are told, in the same step.

use std::sync::Arc;
use std::time::Duration;

use queue_runtime::backend::Backend;
use queue_runtime::envelope::PoisonReason;
use queue_runtime::error::Operation;
use queue_runtime::receive::Poisoned;
use queue_runtime::request::{RequestError, RequestErrorKind};
use queue_runtime::testing::{self, Fault};
use queue_runtime::{
    Disposition, ErrorKind, Failure, FollowUp, Message, MessageId, QueueName, QueueService,
    Received,
    wire::{Body, Event},
};
use queue_tests::MINUTE;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::requests::fixture::{
    Answer, Question, Refusal, ask, instance, question_for, reply_queues, shared,
};
use crate::support::storage::Storage;
use crate::support::{count, stop};

/// A message with a key, whose work is done once.
#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "payments", key_scope = "global")]
struct Payment {
    #[message(key)]
    number: u32,
}

/// Asks, and has the question settled by `settle`. Returns the error of the request.
async fn ask_and_settle(
    service: &QueueService,
    other: &QueueService,
    disposition: Disposition,
) -> RequestErrorKind {
    let asked = service.clone();
    let request = tokio::spawn(async move { ask(&asked, 1).await });
    let accept = other
        .accept::<Question>()
        .create_queue()
        .poison_threshold(1);
    let question = accept.wait(MINUTE).await.expect("no error").expect("asked");
    question.settle(disposition).await.expect("settled");
    let ended = request.await.expect("no panic");
    ended.expect_err("no reply").kind
}

#[tokio::test(start_paused = true)]
async fn the_sender_of_a_request_is_told_at_once_that_it_gets_no_reply() {
    for storage in [Storage::new(), Storage::new().in_order()] {
        let storage: Arc<dyn Backend> = Arc::new(storage);
        let (service, other) = (instance(&storage).await, instance(&storage).await);
        let began = Instant::now();
        let completed = Disposition::complete().then(&Refusal { why: String::new() });
        for disposition in [Disposition::complete(), completed] {
            let problem = ask_and_settle(&service, &other, disposition).await;
            assert!(matches!(problem, RequestErrorKind::NotReplied), "{problem}");
        }
        let rejected = ask_and_settle(&service, &other, Disposition::reject("no tea")).await;
        assert!(
            matches!(rejected, RequestErrorKind::Rejected { error: None }),
            "the text stays where it is: {rejected}"
        );
        let failed = ask_and_settle(&service, &other, Disposition::retry("no tea")).await;
        let RequestErrorKind::Failed {
            reason: PoisonReason::Failed,
            attempts: 1,
            error: None,
        } = failed
        else {
            panic!("{failed}")
        };
        assert!(began.elapsed() < MINUTE / 4, "{:?}", began.elapsed());
        assert_eq!(count(&other, "questions-poison").await, 2);
    }
}

#[tokio::test(start_paused = true)]
async fn the_errors_of_requests_read_as_sentences() {
    let service = testing::service().await;
    let handler = async |question: Received<Question>| match question.number {
        0 => Ok(()),
        1 => Err(Failure::reject("there is no tea")),
        _ => Err(Failure::retry("the kettle\nis cold")),
    };
    let listener = service.listener(handler).create_queue().poison_threshold(1);
    let listener = listener.reply_errors().start().expect("starts");
    for (number, expected) in [
        (0, "the message was completed without a reply"),
        (1, "the handler rejected the message: there is no tea"),
        (
            2,
            "the message was moved to the poison queue (failed, attempt 1): the kettle\\nis cold",
        ),
    ] {
        let began = Instant::now();
        let error = ask(&service, number).await.expect_err("no reply");
        assert_eq!(began.elapsed(), Duration::ZERO, "announced");
        assert!(error.message.is_none(), "it was submitted");
        let text = error.to_string();
        assert!(
            text.ends_with(&format!(" on queue `questions`: {expected}")),
            "{text}"
        );
    }
    stop(listener).await;
}

/// What a sender learns of the other ways in which its message can end on the poison queue.
#[tokio::test(start_paused = true)]
async fn a_request_whose_message_is_not_handled_fails_with_the_reason() {
    #[derive(Debug, Serialize, Deserialize, Message)]
    #[message(kind = "question", queue = "questions")]
    struct Other {
        text: String,
    }
    let service = testing::service().await;
    let asked = service.clone();
    let request = tokio::spawn(async move { ask(&asked, 1).await });
    let accept = service
        .accept::<Other>()
        .create_queue()
        .wait(Duration::from_secs(5));
    assert!(accept.await.expect("no error").is_none());
    let error = request.await.expect("no panic").expect_err("undecodable");
    assert!(
        matches!(
            error.kind,
            RequestErrorKind::Failed {
                reason: PoisonReason::Undecodable,
                attempts: 1,
                error: None
            }
        ),
        "{error}"
    );

    let request = service.request(Question { number: 1 });
    let request = request.time_to_live(MINUTE).reply::<Answer>();
    let request = tokio::spawn(request.into_future());
    let question = service
        .accept::<Question>()
        .wait(MINUTE)
        .await
        .expect("no error");
    let postponed = Disposition::postpone(2 * MINUTE);
    question
        .expect("asked")
        .settle(postponed)
        .await
        .expect("moved");
    let error = request.await.expect("no panic").expect_err("expiring");
    assert!(
        matches!(
            error.kind,
            RequestErrorKind::Failed {
                reason: PoisonReason::Expiring,
                ..
            }
        ),
        "{error}"
    );
}

/// Neither a retry nor a postponement is an end, and a reply is the last word.
#[tokio::test(start_paused = true)]
async fn a_request_waits_while_its_message_is_retried() {
    let service = testing::service().await;
    let handler = async |question: Received<Question>| match question.attempt() {
        1 => Disposition::retry_after(Duration::from_secs(1), "busy"),
        2 if question.dequeue_count() == 2 => Disposition::postpone(Duration::from_secs(1)),
        _ => Disposition::reply(&Answer { number: 7 }).then(&Refusal { why: String::new() }),
    };
    let listener = service.listener(handler).create_queue().start();
    let listener = listener.expect("starts");
    assert_eq!(ask(&service, 1).await.expect("a reply").number, 7);
    stop(listener).await;
}

/// Asks without waiting for long, has the question settled, and returns what was put on the reply queue.
async fn answer_stored(disposition: Disposition) -> (MessageId, Vec<Event>) {
    let storage = shared();
    let (service, other) = (instance(&storage).await, instance(&storage).await);
    let request = service.request(Question { number: 1 }).request_id("r-1");
    let request = request.reply::<Answer>().timeout(Duration::from_millis(1));
    request.await.expect_err("nobody is there yet");
    let accept = other.accept::<Question>().reply_errors();
    let question = accept.await.expect("no error").expect("asked");
    let id = question.envelope().id.clone();
    question.settle(disposition).await.expect("settled");
    let queue = reply_queues(&service).await.remove(0);
    let stored = storage.peek(&queue, 32).await.expect("it exists");
    let events = stored
        .iter()
        .map(|stored| match Body::read(&stored.body, usize::MAX) {
            Body::Event(event) => *event,
            other => panic!("{other:?}"),
        });
    (id, events.collect())
}

/// A reply of `on_poison` is the answer; another follow-up of it is none.
#[tokio::test(start_paused = true)]
async fn a_follow_up_of_a_failure_is_no_answer_unless_it_is_a_reply() {
    let service = testing::service().await;
    let listener = service
        .listener(async |_: Received<Question>| Disposition::reject("no"))
        .on_poison(|question: Poisoned<Question>| {
            let number = question.message.map_or(0, |question| question.number);
            let why = String::new();
            Some(match number {
                0 => FollowUp::new(&Refusal { why }),
                number => FollowUp::reply(&Answer { number }),
            })
        })
        .create_queue()
        .start()
        .expect("starts");
    assert_eq!(ask(&service, 7).await.expect("a reply").number, 7);
    let error = ask(&service, 0).await.expect_err("rejected");
    assert!(
        matches!(error.kind, RequestErrorKind::Rejected { .. }),
        "{error}"
    );
    assert_eq!(count(&service, "refusal").await, 1);
    stop(listener).await;
}

/// The work was done for another message, which had no sender who waits, or for the same one.
#[tokio::test(start_paused = true)]
async fn a_request_for_work_that_was_done_without_a_reply_is_told_so() {
    let service = testing::service().await;
    let results = service.results().expect("in memory");
    let listener = service.listener(async |_: Received<Payment>| ());
    let listener = listener.idempotent(results).create_queue().start();
    let listener = listener.expect("starts");
    service
        .submit(Payment { number: 1 })
        .await
        .expect("submitted");
    for _ in 0..2 {
        let request = service.request(Payment { number: 1 }).reply::<Answer>();
        let error: RequestError<_> = request.timeout(MINUTE).await.expect_err("no reply");
        assert!(
            matches!(error.kind, RequestErrorKind::NotReplied),
            "{error}"
        );
    }
    stop(listener).await;
}

/// What the sender is told is no reason to handle the message again, or to fail it.
#[tokio::test(start_paused = true)]
async fn a_message_ends_also_if_its_sender_cannot_be_told() {
    for disposition in [Disposition::complete, || Disposition::reject("no")] {
        let (service, faults) = testing::service_with_faults().await;
        let handler = move |_: Received<Question>| std::future::ready(disposition());
        let listener = service.listener(handler).create_queue().start();
        let listener = listener.expect("starts");
        faults.fail_next(1, Operation::Apply, Fault::Refused(ErrorKind::Denied));
        let error = ask(&service, 1).await.expect_err("nobody tells it");
        assert!(
            matches!(error.kind, RequestErrorKind::NoReply { .. }),
            "{error}"
        );
        assert_eq!(faults.injected(Operation::Apply), 1);
        let info = listener.info();
        assert_eq!((info.completed + info.poisoned, info.retried), (1, 0));
        assert_eq!(count(&service, "questions").await, 0);
        stop(listener).await;
    }
}

/// A listener whose deletion fails does not run the handler again, with a sender who waits as without one.
#[tokio::test(start_paused = true)]
async fn a_handler_that_has_succeeded_does_not_run_again_because_of_a_request() {
    let (service, faults) = testing::service_with_faults().await;
    let runs = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let counted = Arc::clone(&runs);
    let handler = move |_: Received<Question>| {
        counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        async {}
    };
    let lost = Fault::LeaseLost(Duration::from_secs(30));
    faults.fail_next(1, Operation::Apply, lost);
    let listener = service.listener(handler).create_queue().start();
    let listener = listener.expect("starts");
    let error = ask(&service, 1).await.expect_err("no reply");
    assert!(
        matches!(error.kind, RequestErrorKind::NotReplied),
        "told when the message is deleted: {error}"
    );
    assert_eq!(faults.injected(Operation::Apply), 1);
    assert_eq!(runs.load(std::sync::atomic::Ordering::Relaxed), 1);
    assert_eq!(count(&service, "questions").await, 0);
    stop(listener).await;
}

/// Nobody else's queue, and no queue that does not exist.
#[tokio::test(start_paused = true)]
async fn nothing_is_told_to_other_queues_than_those_for_replies() {
    let storage = shared();
    let service = instance(&storage).await;
    let queue: QueueName = "questions".parse().expect("a name");
    let created = storage.create_queue(&queue, &Default::default()).await;
    created.expect("created");
    let gone = QueueName::random_reply_queue();
    for reply_to in ["answers", "../x", gone.as_str()] {
        for disposition in [Disposition::complete(), Disposition::reject("no")] {
            let question = question_for(reply_to, &storage, &service).await;
            let settled = question.settle(disposition).await;
            settled.expect("settled");
        }
    }
    let queues = service.queues().await.expect("lists");
    assert_eq!(queues, [queue.clone(), queue.poison().expect("a name")]);
}

/// The sender was told when the message was moved. A handler of the poison queue can still answer, but tells nobody that
/// it does not.
#[tokio::test(start_paused = true)]
async fn a_sender_is_told_once_that_its_message_has_failed() {
    let storage = shared();
    let (service, other) = (instance(&storage).await, instance(&storage).await);
    ask_and_settle(&service, &other, Disposition::reject("no")).await;
    let queue = reply_queues(&service).await.remove(0);
    let poison = other.queue_named::<Question>("questions-poison");
    let poison = poison.expect("a name").accept().await.expect("no error");
    poison
        .expect("moved there")
        .complete()
        .await
        .expect("completed");
    assert_eq!(storage.peek(&queue, 1).await.expect("it exists"), []);
}

/// As `docs/design.md` describes it, for a program in another language.
#[tokio::test(start_paused = true)]
async fn what_a_sender_is_told_is_an_event_like_a_reply() {
    let (id, events) = answer_stored(Disposition::reject("no tea")).await;
    let [event] = &events[..] else {
        panic!("{events:?}")
    };
    let envelope = &event.envelope;
    let kind = "queue.no-reply";
    let derived = MessageId::derived(&id, kind, "on-poison reply");
    assert_eq!((&*envelope.kind, &envelope.id), (kind, &derived));
    assert_eq!(envelope.correlation.as_deref(), Some(id.as_str()));
    assert_eq!(envelope.request_id.as_str(), "r-1");
    let expected = br#"{"outcome":"poisoned","reason":"rejected","attempts":1,"error":"no tea"}"#;
    assert_eq!(event.payload.as_bytes(), expected);

    let replied = Disposition::reply(&Answer { number: 2 }).then(&Refusal { why: String::new() });
    let (_, events) = answer_stored(replied).await;
    let kinds: Vec<_> = events.iter().map(|event| &*event.envelope.kind).collect();
    assert_eq!(kinds, ["answer"], "nothing besides the reply");
}
