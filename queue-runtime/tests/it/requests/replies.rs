//! Requests and their replies.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use queue_runtime::backend::{Backend, BackendExt as _, NewMessage};
use queue_runtime::error::Operation;
use queue_runtime::message::Wire;
use queue_runtime::receive::Poisoned;
use queue_runtime::request::RequestErrorKind;
use queue_runtime::send::SubmitErrorKind;
use queue_runtime::testing::{self, Fault, FaultInjector};
use queue_runtime::{
    Disposition, ErrorKind, FollowUp, Message, QueueName, QueueService, Received, wire::Body,
};
use queue_tests::MINUTE;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, advance, sleep};

use crate::requests::fixture::{
    Answer, LEASE, Question, Refusal, answering, ask, instance, question_for, reply_queues, shared,
};
use crate::support::storage::Storage;
use crate::support::{count, stop};

#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "readings", wire = "bare")]
struct Reading {
    celsius: i32,
}

#[tokio::test(start_paused = true)]
async fn requests_of_several_instances_get_their_replies() {
    for storage in [Storage::new(), Storage::new().in_order()] {
        let storage: Arc<dyn Backend> = Arc::new(storage);
        let (first, second) = (instance(&storage).await, instance(&storage).await);
        let listener = answering(&instance(&storage).await);
        let asked = (0..100).map(|number| {
            let service = [&first, &second][number as usize % 2].clone();
            tokio::spawn(async move { ask(&service, number).await })
        });
        for (number, asked) in asked.collect::<Vec<_>>().into_iter().enumerate() {
            let reply = asked.await.expect("no panic").expect("a reply");
            assert_eq!(reply.number, 2 * number as u32);
            assert!(reply.envelope().correlation.is_some());
        }
        assert_eq!(reply_queues(&first).await.len(), 2, "one for each instance");
        stop(listener).await;
    }
}

/// Replies to a question that nobody asked with a request.
async fn answer_a_submission<R: Message>(service: &QueueService, reply: &R) {
    let submitted = service.submit(Question { number: 1 }).await;
    submitted.expect("submitted");
    let question = service.accept::<Question>().await.expect("no error");
    let settled = question.expect("submitted").reply(reply).await;
    settled.expect("settled");
}

/// It is announced, so nobody waits for the next poll.
#[tokio::test(start_paused = true)]
async fn a_reply_in_the_same_process_arrives_at_once() {
    let service = testing::service().await;
    let listener = answering(&service);
    for number in 0..3 {
        sleep(MINUTE).await;
        let began = Instant::now();
        ask(&service, number).await.expect("a reply");
        assert_eq!(began.elapsed(), Duration::ZERO, "request {number}");
    }
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_reply_is_of_the_same_request_and_its_id_is_derived() {
    let service = testing::service().await;
    let asked = service.clone();
    let request = asked.request(Question { number: 1 }).request_id("r-1");
    let request = tokio::spawn(async move { request.reply::<Answer>().await });
    let accept = service.accept::<Question>().create_queue().wait(MINUTE);
    let question = accept.await.expect("no error").expect("asked");
    let id = question.envelope().id.clone();
    question
        .reply(&Answer { number: 2 })
        .await
        .expect("replied");
    let reply = request.await.expect("no panic").expect("a reply");
    let envelope = reply.envelope();
    assert_eq!(envelope.correlation.as_deref(), Some(id.as_str()));
    assert_eq!(envelope.request_id.as_str(), "r-1");
    assert_eq!(
        envelope.id,
        queue_runtime::MessageId::derived(&id, "answer", "reply")
    );
    assert_eq!(count(&service, "questions").await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_nobody_answers_ends_in_time_and_says_which_it_was() {
    let service = testing::service().await;
    let began = Instant::now();
    let request = service.request(Question { number: 1 }).request_id("r-1");
    let error = request.reply::<Answer>().timeout(MINUTE).await;
    let error = error.expect_err("nobody is there");
    assert_eq!(began.elapsed(), MINUTE);
    assert!(matches!(error.kind, RequestErrorKind::NoReply { waited } if waited == MINUTE));
    assert!(error.message.is_none(), "it was submitted");
    let expected = format!(
        "failed to get the reply to message {} of request r-1 on queue `questions`: no reply within 60s",
        error.id
    );
    assert_eq!(error.to_string(), expected);
    assert_eq!(count(&service, "questions").await, 1);

    // The reply that comes now is dropped, and the next request gets its own.
    let listener = answering(&service);
    assert_eq!(ask(&service, 21).await.expect("a reply").number, 42);
    sleep(Duration::from_secs(5)).await;
    let replies = reply_queues(&service).await;
    assert_eq!(count(&service, replies[0].as_str()).await, 0);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_reply_of_another_kind_is_the_error_of_its_request_alone() {
    let service = testing::service().await;
    let handler = async |question: Received<Question>| match question.number {
        0 => Disposition::reply(&Refusal {
            why: "zero".to_owned(),
        }),
        number => Disposition::reply(&Answer { number }),
    };
    let listener = service.listener(handler).create_queue().start();
    let listener = listener.expect("starts");
    let (refused, answered) = tokio::join!(ask(&service, 0), ask(&service, 1));
    let error = refused.expect_err("another kind");
    assert!(matches!(error.kind, RequestErrorKind::Undecodable(_)));
    let text = error.to_string();
    let expected = r#"on queue `questions`: the reply cannot be read: the event is of kind "refusal", and "answer" was expected"#;
    assert!(text.ends_with(expected), "{text}");
    assert_eq!(answered.expect("a reply").number, 1);
    stop(listener).await;
}

/// Messages on the reply queue that are no replies, or replies to others, are dropped and hold up nobody.
#[tokio::test(start_paused = true)]
async fn what_is_no_reply_is_dropped() {
    let storage = shared();
    let service = instance(&storage).await;
    let asked = service.clone();
    let request = tokio::spawn(async move { ask(&asked, 1).await });
    let question = service.accept::<Question>().create_queue().wait(MINUTE);
    let question = question.await.expect("no error").expect("asked");
    let queue = reply_queues(&service).await.remove(0);
    let event = |correlation: &str| {
        format!(
            r#"{{"specversion":"1.0","id":"x","source":"s","type":"answer","correlationid":"{correlation}","data":{{"number":9}}}}"#
        )
    };
    for body in ["junk".to_owned(), event("another"), event("")] {
        storage
            .put(&queue, NewMessage::new(body))
            .await
            .expect("put");
    }
    sleep(Duration::from_secs(5)).await;
    assert_eq!(count(&service, queue.as_str()).await, 0, "dropped");
    question
        .reply(&Answer { number: 2 })
        .await
        .expect("replied");
    let reply = request.await.expect("no panic").expect("a reply");
    assert_eq!(reply.number, 2);
}

/// The copies of a request have one id, and so have their replies.
#[tokio::test(start_paused = true)]
async fn a_request_that_is_handled_twice_has_one_reply() {
    let storage = shared();
    let (service, other) = (instance(&storage).await, instance(&storage).await);
    let asked = service.clone();
    let request = tokio::spawn(async move { ask(&asked, 1).await });
    sleep(Duration::from_secs(1)).await;
    let questions: QueueName = "questions".parse().expect("a name");
    let stored = storage.peek(&questions, 1).await.expect("it exists");
    let copy = NewMessage::new(stored[0].body.clone());
    storage.put(&questions, copy).await.expect("put");
    for number in 1..=2 {
        let question = other.accept::<Question>().await.expect("no error");
        let replied = question.expect("two").reply(&Answer { number }).await;
        replied.expect("replied");
    }
    let reply = request.await.expect("no panic").expect("a reply");
    assert_eq!(reply.number, 1);
    let queue = reply_queues(&service).await.remove(0);
    let left = storage.peek(&queue, 32).await.expect("it exists");
    let copies = left.iter().all(|left| {
        let body = Body::read(&left.body, usize::MAX);
        matches!(body, Body::Event(event) if event.envelope.id == reply.envelope().id)
    });
    assert!(copies, "{left:?}");

    // The other is dropped before the next request has its reply.
    let listener = answering(&other);
    assert_eq!(ask(&service, 7).await.expect("a reply").number, 14);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(count(&service, queue.as_str()).await, 0);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_submission_fails_gives_the_message_back() {
    let (service, faults) = testing::service_with_faults().await;
    service
        .queue::<Question>()
        .any()
        .create()
        .await
        .expect("created");
    let denied = Fault::Refused(ErrorKind::Denied);
    faults.fail_next(1, Operation::Put, denied);
    let error = ask(&service, 1).await.expect_err("denied");
    assert!(matches!(
        error.kind,
        RequestErrorKind::Submit(SubmitErrorKind::Storage(_))
    ));
    assert_eq!(error.message, Some(Question { number: 1 }));
    faults.fail_next(1, Operation::Put, Fault::AnswerLost);
    let error = ask(&service, 1).await.expect_err("unknown");
    assert_eq!(error.message, None, "it may have been submitted");
    let request = service.request(Question { number: 1 }).request_id("");
    let error = request.reply::<Answer>().await.expect_err("no id");
    assert!(matches!(
        error.kind,
        RequestErrorKind::Submit(SubmitErrorKind::Id(_))
    ));
    assert!(error.to_string().contains("request id is empty"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn bare_messages_neither_ask_nor_answer() {
    let service = testing::service().await;
    let request = service.request(Reading { celsius: 1 }).reply::<Answer>();
    let error = request.await.expect_err("no envelope");
    assert!(matches!(
        error.kind,
        RequestErrorKind::NotAnEvent {
            kind: "reading",
            wire: Wire::Bare
        }
    ));
    assert_eq!(error.message, Some(Reading { celsius: 1 }));
    let request = service.request(Question { number: 1 }).reply::<Reading>();
    let error = request.await.expect_err("no envelope");
    assert!(matches!(
        error.kind,
        RequestErrorKind::NotAnEvent {
            kind: "reading",
            wire: Wire::Bare
        }
    ));
    assert!(service.queues().await.expect("lists").is_empty());

    // A handler that answers so is wrong whenever it runs.
    answer_a_submission(&service, &Reading { celsius: 1 }).await;
    assert_eq!(count(&service, "questions-poison").await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_message_without_a_request_has_no_reply() {
    let service = testing::service().await;
    answer_a_submission(&service, &Answer { number: 2 }).await;
    let queues = service.queues().await.expect("lists");
    assert_eq!(queues, ["questions".parse().expect("a name")]);
}

/// A sender cannot have a handler write to other queues.
#[tokio::test(start_paused = true)]
async fn replies_go_to_reply_queues_only() {
    let storage = shared();
    let service = instance(&storage).await;
    service
        .submit(Question { number: 1 })
        .await
        .expect("submitted");
    let queue: QueueName = "questions".parse().expect("a name");
    storage.clear(&queue).await.expect("cleared");
    for reply_to in [
        "answers",
        "queue-replies-answers",
        "../x",
        "https://example.com/inbox",
    ] {
        let question = question_for(reply_to, &storage, &service).await;
        let settled = question.reply(&Answer { number: 2 }).await;
        settled.expect("completed");
    }
    let queues = service.queues().await.expect("lists");
    assert_eq!(queues, [queue]);
}

#[tokio::test(start_paused = true)]
async fn a_failure_can_be_answered_too() {
    let service = testing::service().await;
    let listener = service
        .listener(async |_: Received<Question>| Disposition::reject("no"))
        .on_poison(|question: Poisoned<Question>| {
            let number = question.message.map_or(0, |question| question.number);
            Some(FollowUp::reply(&Answer { number }))
        })
        .create_queue()
        .start()
        .expect("starts");
    assert_eq!(ask(&service, 7).await.expect("a reply").number, 7);
    assert_eq!(count(&service, "questions-poison").await, 1);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_storage_that_fails_for_a_while_delays_replies() {
    let (service, faults) = testing::service_with_faults().await;
    let listener = answering(&service);
    ask(&service, 1).await.expect("a reply");
    for (operation, times) in [
        (Operation::Receive, 3),
        (Operation::Apply, 3),
        // It was carried out, as its repeat finds.
        (Operation::Delete, 1),
        (Operation::SetMetadata, 3),
    ] {
        faults.fail_next(times, operation, Fault::AnswerLost);
        if operation == Operation::SetMetadata {
            // Four heartbeats fall due, of which the last succeeds.
            sleep(LEASE + Duration::from_secs(1)).await;
        }
        let reply = service.request(Question { number: 2 }).reply::<Answer>();
        let reply = reply.timeout(10 * MINUTE).await.expect("a reply");
        assert_eq!(reply.number, 4, "{operation:?}");
        // The reply may come before the last fault: an answer that is lost was carried out.
        sleep(LEASE).await;
        assert_eq!(faults.injected(operation), times, "{operation:?}");
    }
    stop(listener).await;
}

/// A service whose storage can fail, and one on the same storage that answers and does not.
async fn asking_and_answering() -> (QueueService, FaultInjector, QueueService) {
    let storage = shared();
    let faults = FaultInjector::new(Arc::clone(&storage));
    let asking: Arc<dyn Backend> = Arc::new(faults.clone());
    (instance(&asking).await, faults, instance(&storage).await)
}

/// With the defaults of a service and of a request.
#[tokio::test(start_paused = true)]
async fn a_reply_is_in_time_although_the_answer_that_holds_it_is_lost() {
    for (fault, times) in [
        (Fault::AnswerLost, 1),
        (Fault::AnswerLost, usize::MAX),
        (Fault::AnswerStalled, 1),
        (Fault::AnswerStalled, 2),
    ] {
        let (service, faults, answering) = asking_and_answering().await;
        let request = service.request(Question { number: 1 }).reply::<Answer>();
        let request = tokio::spawn(request.into_future());
        let question = answering.accept::<Question>().create_queue().wait(MINUTE);
        let question = question.await.expect("no error").expect("asked");
        faults.fail_next(times, Operation::Receive, fault.clone());
        let replied = question.reply(&Answer { number: 2 }).await;
        replied.expect("replied");
        if times == usize::MAX {
            // Long enough for the reply to come twice.
            sleep(Duration::from_secs(5)).await;
            faults.heal();
        }
        let reply = request.await.expect("no panic");
        assert_eq!(reply.expect("a reply").number, 2, "{fault:?}, {times}");
        assert!(faults.injected(Operation::Receive) >= times.min(2));
    }
}

/// With the defaults of a service and of a request.
#[tokio::test(start_paused = true)]
async fn a_reply_is_in_time_although_deletions_or_heartbeats_are_not_answered() {
    for operation in [Operation::Delete, Operation::SetMetadata] {
        for (fault, times) in [Fault::AnswerLost, Fault::AnswerStalled]
            .into_iter()
            .flat_map(|fault| [(fault.clone(), 1), (fault, 2)])
        {
            let (service, faults, other) = asking_and_answering().await;
            let listener = answering(&other);
            let ask = |number| service.request(Question { number }).reply::<Answer>();
            ask(1).await.expect("a reply");
            // The next request begins with a heartbeat.
            advance(LEASE).await;
            faults.fail_next(times, operation, fault.clone());
            // The deletion of one reply may hold up the next.
            for number in 2..=4 {
                let reply = ask(number).await;
                let reply = reply.unwrap_or_else(|error| panic!("{fault:?}, {times}: {error}"));
                assert_eq!(reply.number, 2 * number);
            }
            assert_eq!(faults.injected(operation), times);
            stop(listener).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_is_never_answered_does_not_stop_later_replies() {
    for fault in [Fault::Stalled, Fault::AnswerStalled] {
        let (service, faults) = testing::service_with_faults().await;
        let listener = answering(&service);
        // The handler's completion stores the reply in one `apply`; only the reply is deleted alone.
        faults.fail_next(1, Operation::Delete, fault.clone());
        for number in 1..=3 {
            let reply = ask(&service, number).await.expect("a reply");
            assert_eq!(reply.number, 2 * number, "{fault:?}");
        }
        assert!(faults.history().contains(&(Operation::Delete, fault)));
        // If it was not carried out, the reply came again.
        sleep(Duration::from_secs(1)).await;
        let queue = reply_queues(&service).await.remove(0);
        assert_eq!(count(&service, queue.as_str()).await, 0, "all are deleted");
        stop(listener).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_dropped_leaves_others_alone() {
    let service = testing::service().await;
    let dropped = tokio::time::timeout(Duration::from_secs(1), ask(&service, 1)).await;
    assert!(dropped.is_err(), "nobody answers");
    let answered = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&answered);
    let listener = service.listener(move |question: Received<Question>| {
        counted.fetch_add(1, Ordering::Relaxed);
        let number = question.number;
        async move { Disposition::reply(&Answer { number }) }
    });
    let listener = listener.start().expect("starts");
    assert_eq!(ask(&service, 2).await.expect("a reply").number, 2);
    assert_eq!(answered.load(Ordering::Relaxed), 2, "both were handled");
    stop(listener).await;
}
