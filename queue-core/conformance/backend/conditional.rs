//! Messages put on a condition. A backend without conditional puts must say so.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;

use super::harness::{Fixture, Harness, LONG, Survival, assert_refused};
use crate::backend::{
    BackendExt as _, ConditionalPuts, FoundRecord, NewMessage, Op, OpOutcome, PutIf, Swap,
    TimeToLive,
};
use crate::error::{ErrorKind, Result};
use crate::idempotency::{Claim, Owner, WorkKey};
use crate::name::QueueName;

/// Opens a store, unless its backend has no conditional puts, and refuses them.
pub(super) async fn conditional(harness: &dyn Harness) -> Option<Fixture> {
    let f = Fixture::open(harness).await;
    if f.backend.capabilities().conditional_puts == ConditionalPuts::Supported {
        return Some(f);
    }
    let refused = put_if(&f, "one", &swap("key", "first")).await;
    assert_refused(refused, ErrorKind::Unsupported);
    let (queue, swap) = (f.queue.clone(), swap("key", "first"));
    let refused = f.backend.apply(vec![Op::Swap { queue, swap }].into()).await;
    let refused = refused.expect_err("it puts without a condition").error;
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    f.assert_nothing_visible().await;
    None
}

fn swap(key: &str, value: &'static str) -> Swap {
    Swap::new(WorkKey::new("conformance", key), value, LONG)
}

async fn put_if(f: &Fixture, body: &'static str, swap: &Swap) -> Result<PutIf> {
    let message = NewMessage::new(body);
    f.backend.put_if(&f.queue, Some(message), swap).await
}

async fn assert_swapped(f: &Fixture, body: &'static str, swap: &Swap) {
    let put = put_if(f, body, swap).await.expect("put");
    assert!(matches!(put, PutIf::Swapped(Some(_))), "{put:?}");
}

fn differs(value: &'static str) -> PutIf {
    PutIf::Differs(Some(Bytes::from(value)))
}

pub(super) async fn a_value_is_recorded_with_its_message(f: Fixture) {
    let delayed = NewMessage::new("first").with_delay(2 * f.lease);
    let delayed = delayed.with_time_to_live(TimeToLive::After(4 * f.lease));
    let first = swap("key", "1");
    let put = f.backend.put_if(&f.queue, Some(delayed), &first).await;
    let Ok(PutIf::Swapped(Some(receipt))) = put else {
        panic!("nothing was recorded: {put:?}");
    };
    assert!(receipt.expires_at.is_some());
    f.assert_nothing_visible().await;
    assert_swapped(&f, "other", &swap("another key", "1")).await;
    let other_scope = Swap::new(WorkKey::new("elsewhere", "key"), "1", LONG);
    assert_swapped(&f, "other scope", &other_scope).await;
    assert_eq!(f.in_order(f.drain().await), ["other", "other scope"]);
    f.advance(2 * f.lease).await;
    assert_eq!(f.receive_one().await.id, receipt.id);
}

pub(super) async fn a_value_that_differs_changes_nothing(f: Fixture) {
    let none = put_if(&f, "none", &swap("key", "2").in_place_of("1")).await;
    assert_eq!(none.expect("answered"), PutIf::Differs(None));
    assert_swapped(&f, "first", &swap("key", "1")).await;
    for repeated in [swap("key", "1"), swap("key", "2")] {
        let put = put_if(&f, "second", &repeated).await.expect("answered");
        assert_eq!(put, differs("1"));
    }
    let stale = swap("key", "3").in_place_of("0");
    assert_eq!(
        put_if(&f, "third", &stale).await.expect("answered"),
        differs("1")
    );
    assert_swapped(&f, "next", &swap("key", "2").in_place_of("1")).await;
    let late = swap("key", "4").in_place_of("1");
    assert_eq!(
        put_if(&f, "late", &late).await.expect("answered"),
        differs("2")
    );
    assert_eq!(f.in_order(f.drain().await), ["first", "next"]);
}

pub(super) async fn a_value_is_kept_until_its_retention_is_over(f: Fixture) {
    let short = Swap::new(WorkKey::new("conformance", "key"), "1", 2 * f.lease);
    assert_swapped(&f, "first", &short).await;
    f.advance(f.lease).await;
    assert_eq!(
        put_if(&f, "early", &swap("key", "2"))
            .await
            .expect("answered"),
        differs("1")
    );
    f.advance(f.lease + Duration::from_millis(1)).await;
    let stale = swap("key", "2").in_place_of("1");
    assert_eq!(
        put_if(&f, "stale", &stale).await.expect("answered"),
        PutIf::Differs(None)
    );
    assert_swapped(&f, "second", &swap("key", "2")).await;
    assert_eq!(f.in_order(f.drain().await), ["first", "second"]);
}

pub(super) async fn a_value_is_recorded_without_a_message(f: Fixture) {
    let missing = f.store.queue("missing");
    let record = async |queue: &QueueName, swap: &Swap| {
        let recorded = f.backend.put_if(queue, None, swap).await;
        recorded.expect("answered")
    };
    let first = swap("key", "1");
    assert_eq!(record(&missing, &first).await, PutIf::Swapped(None));
    assert_eq!(record(&f.queue, &first).await, differs("1"));
    let second = swap("key", "2").in_place_of("1");
    assert_eq!(record(&f.queue, &second).await, PutIf::Swapped(None));
    assert_swapped(&f, "third", &swap("key", "3").in_place_of("2")).await;
    assert_eq!(f.drain().await, ["third"]);
}

pub(super) async fn a_refused_put_records_nothing(f: Fixture) {
    let missing = f.store.queue("missing");
    let message = || Some(NewMessage::new("one"));
    let put = f
        .backend
        .put_if(&missing, message(), &swap("key", "1"))
        .await;
    assert_refused(put, ErrorKind::QueueNotFound);
    let large = vec![b'x'; f.backend.capabilities().max_body + 1];
    let large = Some(NewMessage::new(large));
    let put = f.backend.put_if(&f.queue, large, &swap("key", "1")).await;
    assert_refused(put, ErrorKind::TooLarge);
    assert_swapped(&f, "first", &swap("key", "2")).await;
    let put = f
        .backend
        .put_if(&missing, message(), &swap("key", "3"))
        .await;
    assert_refused(put, ErrorKind::QueueNotFound);
    assert_eq!(f.drain().await, ["first"]);
}

pub(super) async fn one_of_many_conditional_puts_wins(harness: &dyn Harness) {
    let Some(f) = conditional(harness).await else {
        return;
    };
    let clients = [Arc::clone(&f.backend), f.store.second_client().await];
    let mut before: Option<Bytes> = None;
    for round in 0..5 {
        let winners: Arc<Mutex<Vec<Bytes>>> = Arc::default();
        let tasks = (0..16).map(|task| {
            let (backend, queue) = (Arc::clone(&clients[task % 2]), f.queue.clone());
            let value = Bytes::from(format!("{round}/{task}"));
            let mut swap = Swap::new(WorkKey::new("conformance", "key"), value.clone(), LONG);
            if let Some(before) = &before {
                swap = swap.in_place_of(before.clone());
            }
            let winners = Arc::clone(&winners);
            harness.spawn(Box::pin(async move {
                let message = NewMessage::new(value.clone());
                let put = backend.put_if(&queue, Some(message), &swap).await;
                if let PutIf::Swapped(_) = put.expect("answered") {
                    winners.lock().expect("no panic").push(value);
                }
            }))
        });
        join_all(tasks).await;
        let mut winners = winners.lock().expect("no panic");
        assert_eq!(winners.len(), 1, "round {round}: {winners:?}");
        before = winners.pop();
    }
    assert_eq!(f.count().await, 5);
}

pub(super) async fn recorded_values_survive_like_messages(mut f: Fixture) {
    assert_swapped(&f, "first", &swap("key", "1")).await;
    f = f.reopen().await;
    let put = f.backend.put_if(&f.queue, None, &swap("key", "2")).await;
    let expected = match f.store.survival() {
        Survival::Kept => differs("1"),
        Survival::Gone => PutIf::Swapped(None),
    };
    assert_eq!(put.expect("answered"), expected);
}

pub(super) async fn a_swap_is_one_step_with_the_operations_beside_it(f: Fixture) {
    let put = |body| Op::Put {
        queue: f.queue.clone(),
        message: NewMessage::new(body),
    };
    let op = |swap: Swap| Op::Swap {
        queue: f.queue.clone(),
        swap,
    };
    let next = || swap("key", "2").in_place_of("1");
    let early = f.backend.apply(vec![put("early"), op(next())].into()).await;
    let early = early.expect_err("nothing is recorded");
    assert_eq!((early.index, early.error.kind()), (1, ErrorKind::Conflict));
    assert_eq!(early.found(), None);

    let ops = vec![op(swap("key", "1")), put("first"), op(next())];
    let done = f.backend.apply(ops.into()).await.expect("applied");
    assert_eq!(
        (&done[0], &done[2]),
        (&OpOutcome::Swapped, &OpOutcome::Swapped)
    );

    let late = vec![put("late"), op(swap("another", "1")), op(next())];
    let late = f
        .backend
        .apply(late.into())
        .await
        .expect_err("another value");
    assert_eq!((late.index, late.error.kind()), (2, ErrorKind::Conflict));
    let found = late.found().and_then(|found| found.value.as_deref());
    assert_eq!(found, Some(&b"2"[..]));
    let (queue, message) = (f.store.queue("missing"), NewMessage::new("lost"));
    let failed = vec![
        op(swap("key", "3").in_place_of("2")),
        op(Swap::forget(WorkKey::new("conformance", "key")).in_place_of("3")),
        Op::Put { queue, message },
    ];
    let failed = f.backend.apply(failed.into()).await.expect_err("no queue");
    assert_eq!(failed.error.kind(), ErrorKind::QueueNotFound);
    // No refused `apply` has left a trace.
    assert_swapped(&f, "another", &swap("another", "1")).await;
    assert_swapped(&f, "last", &swap("key", "3").in_place_of("2")).await;
    let put = ["first", "another", "last"].map(str::to_owned);
    assert_eq!(f.in_order(f.drain().await), f.in_order(put.to_vec()));
}

pub(super) async fn a_forgotten_value_is_not_recorded_any_more(f: Fixture) {
    let forget = || Swap::forget(WorkKey::new("conformance", "key"));
    for value in ["1", "2"] {
        assert_swapped(&f, value, &swap("key", value)).await;
        let other = f.backend.put_if(&f.queue, None, &forget()).await;
        assert_eq!(other.expect("answered"), differs(value));
        let swap = forget().in_place_of(value);
        match value {
            "1" => {
                let forgotten = f.backend.put_if(&f.queue, None, &swap).await;
                assert_eq!(forgotten.expect("answered"), PutIf::Swapped(None));
            }
            _ => {
                let queue = f.queue.clone();
                let forgotten = f.backend.apply(vec![Op::Swap { queue, swap }].into()).await;
                assert_eq!(forgotten.expect("applied")[..], [OpOutcome::Swapped]);
            }
        }
        let nothing = f.backend.put_if(&f.queue, None, &forget()).await;
        assert_eq!(nothing.expect("answered"), PutIf::Swapped(None));
    }
    assert_swapped(&f, "3", &swap("key", "3")).await;
    assert_eq!(f.in_order(f.drain().await), ["1", "2", "3"]);
}

pub(super) async fn a_value_ends_with_its_message(f: Fixture) {
    let swap = |value| swap("key", value).ending_with_message();
    // However the message goes.
    assert_swapped(&f, "deleted", &swap("1")).await;
    let leased = f.receive_one().await;
    for held in [swap("2"), swap("2").in_place_of("0")] {
        let put = put_if(&f, "no", &held).await.expect("answered");
        assert_eq!(put, differs("1"));
    }
    let deleted = f.backend.delete(&f.queue, &leased.id, &leased.receipt);
    deleted.await.expect("deleted");
    let stale = put_if(&f, "stale", &swap("2").in_place_of("0")).await;
    assert_eq!(stale.expect("answered"), PutIf::Differs(None));
    assert_swapped(&f, "cleared", &swap("2")).await;
    f.backend.clear(&f.queue).await.expect("cleared");
    assert_swapped(&f, "queue deleted", &swap("3")).await;
    f.backend.delete_queue(&f.queue).await.expect("deleted");
    f.backend.ensure_queue(&f.queue).await.expect("created");
    let brief = NewMessage::new("expired").with_time_to_live(TimeToLive::After(2 * f.lease));
    let put = f.backend.put_if(&f.queue, Some(brief), &swap("4")).await;
    assert!(matches!(put, Ok(PutIf::Swapped(Some(_)))), "{put:?}");
    f.advance(2 * f.lease + Duration::from_millis(1)).await;

    // A swap's message is that of the put before it; in the step that deletes the message, its value is still what is
    // expected.
    let put = |body| Op::Put {
        queue: f.queue.clone(),
        message: NewMessage::new(body),
    };
    let op = |swap: Swap| Op::Swap {
        queue: f.queue.clone(),
        swap,
    };
    let done = f
        .backend
        .apply(vec![put("own"), op(swap("5"))].into())
        .await;
    done.expect("applied");
    f.backend
        .apply(vec![put("other")].into())
        .await
        .expect("applied");
    let held = put_if(&f, "no", &swap("6")).await.expect("answered");
    assert_eq!(held, differs("5"));
    let own = loop {
        let one = f.receive_one().await;
        if one.body == "own" {
            break one;
        }
    };
    let release = Swap::forget(WorkKey::new("conformance", "key")).in_place_of("5");
    let delete = Op::Delete {
        queue: f.queue.clone(),
        id: own.id,
        receipt: own.receipt,
        moved: false,
    };
    let done = f.backend.apply(vec![delete, op(release)].into()).await;
    assert_eq!(
        done.expect("applied")[..],
        [OpOutcome::Deleted, OpOutcome::Swapped]
    );
    // A value without a message is not ended by any.
    let alone = f.backend.put_if(&f.queue, None, &swap("6")).await;
    assert_eq!(alone.expect("answered"), PutIf::Swapped(None));
    f.backend.clear(&f.queue).await.expect("cleared");
    let held = put_if(&f, "no", &swap("7")).await.expect("answered");
    assert_eq!(held, differs("6"));
}

/// Carries out a swap alone. Returns what it has found if its condition does not hold.
async fn claim(f: &Fixture, swap: Swap) -> std::result::Result<(), Option<FoundRecord>> {
    let queue = f.queue.clone();
    match f.backend.apply(vec![Op::Swap { queue, swap }].into()).await {
        Ok(done) => {
            assert_eq!(done[..], [OpOutcome::Swapped]);
            Ok(())
        }
        Err(failed) => {
            assert_eq!(failed.error.kind(), ErrorKind::Conflict, "{failed}");
            Err(failed.found().cloned())
        }
    }
}

pub(super) async fn a_claim_is_its_owners_until_another_takes_it(f: Fixture) {
    let key = || WorkKey::new("conformance", "key");
    let [own, other] = [1, 2].map(|number| Claim::new(Owner::from_u64(number), 0));
    let begin = |claim: Claim| Swap::begin(key(), claim.owner, f.lease);
    let past_the_lease = f.lease + Duration::from_millis(1);

    let nothing = claim(&f, Swap::renew(key(), own, f.lease)).await;
    assert_eq!(nothing, Err(None));
    assert_eq!(claim(&f, begin(own)).await, Ok(()));
    let value = || swap("key", "value");
    for refused in [
        begin(other),
        begin(own),
        value(),
        value().in_place_of("value"),
        Swap::renew(key(), other, f.lease),
        Swap::finish(key(), other, "value", LONG),
        Swap::release(key(), other),
    ] {
        let found = claim(&f, refused.clone()).await.expect_err("it is taken");
        let found = found.unwrap_or_else(|| panic!("nothing is told: {refused:?}"));
        assert_eq!((found.owner, found.value), (own.owner, None), "{refused:?}");
        assert!(!found.remaining.is_zero() && found.remaining <= f.lease);
    }

    // What has ended is still the owner's, and no absence.
    f.advance(past_the_lease).await;
    let found = claim(&f, value()).await.expect_err("it is a claim");
    let found = found.expect("it is told");
    assert_eq!((found.owner, found.remaining), (own.owner, Duration::ZERO));
    assert_eq!(claim(&f, Swap::renew(key(), own, f.lease)).await, Ok(()));
    claim(&f, begin(other)).await.expect_err("it is renewed");

    f.advance(past_the_lease).await;
    assert_eq!(claim(&f, begin(other)).await, Ok(()));
    for late in [
        Swap::renew(key(), own, f.lease),
        Swap::finish(key(), own, "late", LONG),
        Swap::release(key(), own),
    ] {
        let found = claim(&f, late).await.expect_err("it is another's");
        assert_eq!(found.map(|found| found.owner), Some(other.owner));
    }

    // Late, and in one step with a put.
    f.advance(past_the_lease).await;
    assert_swapped(&f, "finished", &Swap::finish(key(), other, "done", LONG)).await;
    for finished in [begin(own), Swap::renew(key(), other, f.lease)] {
        let found = claim(&f, finished).await.expect_err("it is a value");
        let found = found.expect("it is told");
        assert_eq!(found.owner, other.owner);
        assert_eq!(found.value.as_deref(), Some(&b"done"[..]));
    }
    assert_eq!(f.drain().await, ["finished"]);

    let key = || WorkKey::new("conformance", "another");
    let begin = |claim: Claim| Swap::begin(key(), claim.owner, f.lease);
    assert_eq!(claim(&f, begin(own)).await, Ok(()));
    assert_eq!(claim(&f, Swap::release(key(), own)).await, Ok(()));
    assert_eq!(claim(&f, begin(other)).await, Ok(()));
}
