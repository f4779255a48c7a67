use bytes::Bytes;
use queue_core::QueueName;
use queue_core::backend::{ItemSet, NewMessage};

use super::*;
use crate::rows::messages::Change;
use crate::rows::stored::{Handle, Placed, Stored};
use crate::rows::tables::Steps;

fn orders() -> QueueName {
    "orders".parse().expect("a name")
}

fn push(pending: &mut Pending, request: Request) {
    pending.push(Command::new(request).0);
}

fn put(length: usize) -> Step {
    let body = Bytes::from(vec![b'x'; length]);
    Step::put(orders(), NewMessage::new(body))
}

fn delete() -> Step {
    let handle = Handle {
        seq: 1,
        salt: 1,
        visible_at: 1,
        nonce: 1,
    };
    Step::Delete {
        queue: orders(),
        handle,
    }
}

fn one(step: Step) -> Request {
    Request::Apply(Steps::from([step]))
}

fn is_single_put(request: &Request) -> bool {
    matches!(request, Request::Apply(steps) if matches!(steps[..], [Step::Put { .. }]))
}

fn puts(messages: usize) -> Request {
    Request::Apply((0..messages).map(|_| put(1)).collect())
}

fn settlement(follow_ups: usize) -> Request {
    let puts = (0..follow_ups).map(|_| put(1));
    Request::Apply(puts.chain([delete()]).collect())
}

fn receive(max: usize) -> Request {
    Request::Receive {
        queue: orders(),
        max,
        visibility: Duration::from_secs(30),
    }
}

fn is_receive(command: &Command) -> bool {
    matches!(command.request, Request::Receive { .. })
}

/// Everything that can wait, much of it.
fn loaded() -> Pending {
    let mut pending = Pending::default();
    for _ in 0..64 {
        push(&mut pending, puts(1000));
        push(&mut pending, settlement(1000));
    }
    for _ in 0..100 {
        push(&mut pending, receive(256));
        push(&mut pending, one(put(48 * 1024)));
    }
    pending
}

fn is_lease(command: &Command) -> bool {
    let Request::Apply(steps) = &command.request else {
        return false;
    };
    matches!(steps[..], [Step::Update { .. } | Step::Delete { .. }])
}

#[test]
fn all_renewals_and_settlements_go_into_the_next_batch() {
    let mut pending = loaded();
    for _ in 0..5000 {
        push(&mut pending, one(delete()));
    }
    let receives = pending.take_batch();
    assert!(
        receives.len() == 1 && is_receive(&receives[0]),
        "at most one batch of receives goes first"
    );
    let batch = pending.take_batch();
    assert_eq!(
        batch.iter().filter(|command| is_lease(command)).count(),
        5000
    );
    assert!(batch[..5000].iter().all(is_lease), "they go first");
}

/// Takes all batches of 300 receives and other requests. Returns how many receives and others each has.
fn sizes(others: Vec<Request>) -> Vec<(usize, usize)> {
    let mut pending = Pending::default();
    for _ in 0..300 {
        push(&mut pending, receive(1));
    }
    for request in others {
        push(&mut pending, request);
    }
    let mut sizes = Vec::new();
    while !pending.is_empty() {
        let batch = pending.take_batch();
        let receives = batch.iter().filter(|command| is_receive(command)).count();
        sizes.push((receives, batch.len() - receives));
    }
    sizes
}

#[test]
fn receives_have_batches_of_their_own() {
    let renewal = || {
        let Step::Delete { queue, handle } = delete() else {
            unreachable!("it is a delete")
        };
        one(Step::Update {
            queue,
            handle,
            change: Change::Renew(Duration::from_secs(30)),
            body: None,
        })
    };
    let most = SHARE.messages;
    for others in [
        vec![renewal()],
        vec![one(delete()), renewal()],
        vec![one(put(1))],
        vec![one(delete()), settlement(1)],
    ] {
        let count = others.len();
        assert_eq!(sizes(others), [(most, 0), (0, count), (300 - most, 0)]);
    }
}

#[test]
fn deletes_alone_wait_for_two_batches_of_receives() {
    let deletes = || (0..2).map(|_| one(delete())).collect();
    let most = SHARE.messages;
    assert_eq!(sizes(deletes()), [(most, 0), (300 - most, 0), (0, 2)]);

    let mut pending = Pending::default();
    let mut waited = Vec::new();
    for request in deletes() {
        push(&mut pending, request);
    }
    while waited.last() != Some(&false) {
        push(&mut pending, receive(32));
        waited.push(pending.take_batch().iter().all(is_receive));
    }
    assert_eq!(waited, [true, true, false], "no more than that");
}

/// The answer to a receive of so many messages.
fn received(count: usize) -> Option<Result<Answer>> {
    let claimed = || Stored {
        placed: Placed {
            seq: 1,
            salt: 1,
            nonce: 1,
            inserted_at: 0,
            visible_at: 0,
            expires_at: None,
            place: None,
        },
        read_at: 0,
        dequeue_count: 1,
        body: Ok(Bytes::new()),
        checksum: None,
        deleted_items: ItemSet::default(),
        fence: None,
    };
    Some(Ok(Answer::Received(
        (0..count).map(|_| claimed()).collect(),
    )))
}

#[test]
fn each_received_message_may_soon_be_settled() {
    let mut pace = Pace::default();
    let mut pending = Pending::default();
    push(&mut pending, receive(32));
    pace.begin(&pending);
    pending.take_batch();
    pace.answered(&[received(32), received(1), received(0), None]);
    for settled in 1..=33 {
        push(&mut pending, one(delete()));
        assert_eq!(pace.expects_more(&pending), settled < 33, "{settled}");
    }
}

#[test]
fn a_transaction_waits_only_for_commands_of_the_kind_that_it_executes() {
    let mut pace = Pace::default();
    let mut pending = Pending::default();
    // A listener's receive, and then its settlements, which are more.
    for _ in 0..2 {
        push(&mut pending, receive(32));
        pace.begin(&pending);
        pending.take_batch();
        for _ in 0..32 {
            push(&mut pending, one(delete()));
        }
        pace.begin(&pending);
        pending.take_batch();
    }
    push(&mut pending, one(delete()));
    assert!(pace.expects_more(&pending));
    push(&mut pending, receive(32));
    assert!(!pace.expects_more(&pending), "no other receive is expected");
}

#[test]
fn settlements_that_wait_for_a_receive_are_expected_beside_those_of_its_messages() {
    let mut pace = Pace::default();
    let mut pending = Pending::default();
    for _ in 0..3 {
        push(&mut pending, one(delete()));
    }
    for count in [20, 7] {
        push(&mut pending, receive(32));
        pace.begin(&pending);
        assert!(pending.take_batch().iter().all(is_receive));
        pace.answered(&[received(count)]);
        for _ in 0..count {
            assert!(pace.expects_more(&pending));
            push(&mut pending, one(delete()));
        }
        assert!(!pace.expects_more(&pending));
    }
}

#[test]
fn every_kind_progresses_in_every_batch() {
    let mut pending = loaded();
    for _ in 0..3 {
        // As many renewals as a transaction has room for leave the others their shares.
        for _ in 0..MAX.messages {
            push(&mut pending, one(delete()));
        }
        assert!(pending.take_batch().iter().all(is_receive));
        let batch = pending.take_batch();
        let count = |kind: fn(&Request) -> bool| {
            batch
                .iter()
                .filter(|command| kind(&command.request))
                .count()
        };
        let is_bulk = |request: &Request| match request {
            Request::Apply(steps) => steps.len() > 1 && steps.iter().all(Step::is_put),
            _ => false,
        };
        let is_settlement = |request: &Request| match request {
            Request::Apply(steps) => steps.len() > 1 && !steps.iter().all(Step::is_put),
            _ => false,
        };
        assert_eq!(count(is_bulk), 1);
        assert_eq!(count(is_settlement), 1);
        assert!(count(is_single_put) >= 1);
        let weight = weigh(&batch);
        assert!(weight.messages <= 4 * MAX.messages, "{weight:?}");
        assert!(weight.bytes <= MAX.bytes, "{weight:?}");
    }
}

#[test]
fn a_receive_and_a_put_do_not_wait_for_bulk_puts() {
    let mut pending = Pending::default();
    for _ in 0..64 {
        push(&mut pending, puts(100));
    }
    push(&mut pending, receive(32));
    push(&mut pending, one(put(1)));
    let receives = pending.take_batch();
    assert!(receives.len() == 1 && is_receive(&receives[0]));
    let batch = pending.take_batch();
    assert_eq!(
        batch.len(),
        1 + 11,
        "the bulk puts take the rest of the room"
    );
    assert!(is_single_put(&batch[0].request));
}

#[test]
fn a_put_waits_for_the_puts_before_it() {
    let mut pending = loaded();
    let mut batches = 0;
    for _ in 0..SHARE.messages {
        push(&mut pending, one(put(1)));
    }
    push(&mut pending, one(put(7)));
    let last = |batch: &[Command]| {
        let is_last = |command: &Command| command.request.weight().bytes == 7;
        batch.iter().any(is_last)
    };
    let mut bulk = 0;
    loop {
        push(&mut pending, puts(1000));
        batches += 1;
        let batch = pending.take_batch();
        bulk += batch
            .iter()
            .filter(|c| matches!(c.request, Request::Apply(_)))
            .count();
        if last(&batch) {
            break;
        }
    }
    // Shares of 43, 43 and 256 puts, by their bytes or number, and the rest, each after a batch of receives.
    assert_eq!(batches, 8);
    assert!(bulk >= batches, "bulk progresses as well");
}

#[test]
fn one_kind_alone_has_the_whole_batch() {
    let mut pending = Pending::default();
    for _ in 0..2 * MAX.messages {
        push(&mut pending, one(put(1)));
    }
    assert_eq!(pending.take_batch().len(), MAX.messages);
    assert_eq!(pending.take_batch().len(), MAX.messages);
    assert!(pending.is_empty());
}
