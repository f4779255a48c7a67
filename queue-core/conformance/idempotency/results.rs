//! What is recorded, by its key and as a listing shows it. The suite checks that a store without a listing says so.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;

use super::{Fixture, LONG, Listing, Retention, expect_fresh};
use crate::backend::PageMark;
use crate::error::ErrorKind;
use crate::idempotency::{
    Claim, ClaimOutcome, ClaimStatus, Forgotten, MAX_RESULT, Owner, RecordState, Recorded,
    RecordedPage, WorkKey,
};

pub(super) async fn a_result_is_what_all_later_calls_return(f: Fixture) {
    let owner = Owner::random();
    let claim = expect_fresh(&f.begin(owner).await);
    assert_eq!(f.finish(claim, "done").await, ClaimStatus::Held);
    for _ in 0..2 {
        f.assert_done("done").await;
        let own = f.begin(owner).await;
        assert_eq!(own, ClaimOutcome::Done(Bytes::from_static(b"done")));
    }
    f.store.advance(f.lease * 2).await;
    f.assert_done("done").await;
}

pub(super) async fn results_of_all_sizes_come_back(f: Fixture) {
    let bytes = (0..=255).collect::<Vec<u8>>();
    let largest = bytes.repeat(MAX_RESULT / bytes.len());
    assert_eq!(largest.len(), MAX_RESULT);
    for (number, result) in [Vec::new(), bytes, largest].into_iter().enumerate() {
        let (key, result) = (WorkKey::from(number.to_string()), Bytes::from(result));
        let begun = f.client.begin(&key, Owner::random(), f.lease).await;
        let claim = expect_fresh(&begun);
        let finished = f.client.finish(&key, claim, result.clone(), LONG).await;
        assert_eq!(finished, ClaimStatus::Held);
        let begun = f.client.begin(&key, Owner::random(), f.lease).await;
        let length = result.len();
        assert!(begun == ClaimOutcome::Done(result), "{length} bytes");
    }
}

pub(super) async fn a_finished_claim_is_finished_once(f: Fixture) {
    let claim = f.fresh().await;
    assert_eq!(f.finish(claim, "done").await, ClaimStatus::Held);
    assert_eq!(
        f.finish(claim, "again").await,
        ClaimStatus::Held,
        "repeated"
    );
    f.release(claim).await;
    // A renewal of finished work may answer anything, but changes nothing.
    let _ = f.renew(claim).await;
    f.store.advance(f.lease * 2).await;
    f.assert_done("done").await;
}

pub(super) async fn a_result_is_kept_until_its_retention_is_over(f: Fixture) {
    let claim = f.fresh().await;
    let (result, retention) = (Bytes::from_static(b"done"), f.lease * 4);
    let finished = f.client.finish(&f.key, claim, result, retention).await;
    assert_eq!(finished, ClaimStatus::Held);
    f.store.advance(f.lease * 3).await;
    f.assert_done("done").await;
    if f.store.retention() == Retention::Exact {
        f.store.advance(f.lease + Duration::from_millis(1)).await;
        let next = f.fresh().await;
        assert_eq!(f.finish(next, "again").await, ClaimStatus::Held);
        f.assert_done("again").await;
    }
}

pub(super) async fn a_sweep_removes_what_is_over_and_nothing_else(f: Fixture) {
    let keys = ["over", "kept", "in flight", "stopped"].map(WorkKey::from);
    let mut claims = Vec::new();
    for key in &keys {
        let begun = f.client.begin(key, Owner::random(), f.lease).await;
        claims.push(expect_fresh(&begun));
    }
    for (at, retention) in [(0, f.lease), (1, LONG)] {
        let result = Bytes::from_static(b"done");
        let finished = f.client.finish(&keys[at], claims[at], result, retention);
        assert_eq!(finished.await, ClaimStatus::Held);
    }
    assert_eq!(f.client.sweep().await, 0);
    f.store.advance(f.lease * 2).await;
    let renewed = f.client.renew(&keys[2], claims[2], f.lease).await;
    assert_eq!(renewed, ClaimStatus::Held);
    let removed = f.client.sweep().await;
    assert!(removed <= 1, "{removed}");
    if f.store.retention() == Retention::Exact && !f.store.sweeps_itself() {
        assert_eq!(removed, 1);
    }
    let kept = f.client.begin(&keys[1], Owner::random(), f.lease).await;
    assert_eq!(kept, ClaimOutcome::Done(Bytes::from_static(b"done")));
    for at in [2, 3] {
        let result = Bytes::from_static(b"late");
        let finished = f.client.finish(&keys[at], claims[at], result, LONG);
        assert_eq!(finished.await, ClaimStatus::Held, "{:?}", keys[at].key());
    }
}

impl Fixture {
    /// Whether the store has listings; asserts that one without them says so.
    async fn lists(&self) -> bool {
        if self.store.listing() == Listing::Supported {
            return true;
        }
        let (store, key) = (&self.client.0, &self.key);
        let errors = [
            store.list(None, None, 10).await.map(drop),
            store.find(key).await.map(drop),
            store.forget(key).await.map(drop),
        ];
        for refused in errors {
            let refused = refused.expect_err("it has no listings");
            assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        }
        false
    }

    async fn list(&self, scope: Option<&str>, from: Option<&PageMark>, max: usize) -> RecordedPage {
        self.client.0.list(scope, from, max).await.expect("a page")
    }

    /// Returns the keys of all pages, of up to `max` records each.
    async fn keys(&self, scope: Option<&str>, max: usize) -> Vec<WorkKey> {
        let (mut keys, mut from) = (Vec::new(), None);
        for _ in 0..1000 {
            let page = self.list(scope, from.as_ref(), max).await;
            assert!(page.records.len() <= max, "{page:?}");
            keys.extend(page.records.into_iter().map(|recorded| recorded.key));
            from = page.next;
            if from.is_none() {
                return keys;
            }
        }
        panic!("the listing does not end");
    }

    async fn find(&self, key: &WorkKey) -> Option<Recorded> {
        self.client.0.find(key).await.expect("looked up")
    }

    async fn forget(&self, key: &WorkKey) -> Forgotten {
        self.client.0.forget(key).await.expect("asked")
    }

    async fn begun(&self, key: &WorkKey) -> Claim {
        expect_fresh(&self.client.begin(key, Owner::random(), self.lease).await)
    }

    async fn done(&self, key: &WorkKey, result: &'static [u8], retention: Duration) {
        let claim = self.begun(key).await;
        let result = Bytes::from_static(result);
        let finished = self.client.finish(key, claim, result, retention).await;
        assert_eq!(finished, ClaimStatus::Held);
    }
}

pub(super) async fn records_are_listed_by_scope_and_key_page_by_page(f: Fixture) {
    if !f.lists().await {
        return;
    }
    assert_eq!(f.list(None, None, 10).await.records, [], "an empty store");
    // Scopes and keys are in this order byte by byte only.
    let scopes = ["", "Ship", "charge", "charge b", "\u{e9}"];
    let keys = ["", "A", "a", "a/b", "b", "\u{e9}", "\u{1f600}"];
    let each = |scope| keys.map(|key| WorkKey::new(scope, key));
    let all: Vec<WorkKey> = scopes.into_iter().flat_map(each).collect();
    for key in all.iter().rev() {
        f.done(key, b"done", LONG).await;
    }
    for max in [1, 2, 7, 1000, usize::MAX] {
        assert_eq!(f.keys(None, max).await, all, "{max} a page");
        for scope in scopes {
            assert_eq!(f.keys(Some(scope), max).await, each(scope), "{max} a page");
        }
    }
    assert_eq!(f.keys(None, 1).await.len(), all.len());
    assert_eq!(f.keys(Some("char"), 10).await, [], "no scope starts so");
    let page = f.list(Some("charge"), None, 2).await;
    let mark = page.next.expect("there are more");
    for (scope, mark) in [(Some("ship"), &mark), (None, &PageMark::new("no mark"))] {
        let refused = f.client.0.list(scope, Some(mark), 2).await;
        let refused = refused.expect_err("it is no mark of this listing");
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
    }
}

pub(super) async fn a_record_says_what_it_is_and_when_it_ends(f: Fixture) {
    if !f.lists().await {
        return;
    }
    let [done, over, begun, stopped] =
        ["a done", "b over", "c begun", "d stopped"].map(WorkKey::from);
    f.done(&done, b"result", LONG).await;
    f.done(&over, b"result", f.lease).await;
    let owner = Owner::random();
    expect_fresh(&f.client.begin(&stopped, owner, f.lease).await);
    f.store.advance(f.lease * 2).await;
    let other = Owner::random();
    expect_fresh(&f.client.begin(&begun, other, f.lease).await);

    let page = f.list(None, None, 10).await;
    assert_eq!(page.next, None);
    let shown = |key: &WorkKey| {
        let mut records = page.records.iter();
        let found = records.find(|recorded| recorded.key == *key);
        found.cloned()
    };
    assert_eq!(shown(&over), None, "its retention is over");
    assert_eq!(f.find(&over).await, None, "its retention is over");
    let found = [&done, &begun, &stopped].map(|key| shown(key).expect("it is listed"));
    assert_eq!(page.records.len(), found.len());
    let states = found.each_ref().map(|recorded| &recorded.state);
    let expected = [
        RecordState::Done { size: 6 },
        RecordState::InFlight { owner: other },
        RecordState::InFlight { owner },
    ];
    assert_eq!(states, expected.each_ref());
    // Compared to within a lease, because the time of some stores runs on.
    let left = found.each_ref().map(|recorded| {
        let left = recorded.ends_at.duration_since(page.now);
        (left.as_secs_f64() / f.lease.as_secs_f64()).round() as i64
    });
    let kept = (LONG.as_secs_f64() / f.lease.as_secs_f64()).round() as i64;
    assert!((kept - 3..=kept - 1).contains(&left[0]), "{left:?}");
    assert!((0..=1).contains(&left[1]), "{left:?}");
    assert!((-2..0).contains(&left[2]), "{left:?}");

    for recorded in &found {
        assert_eq!(recorded.value, None, "a listing reads no values");
        let value = (recorded.key == done).then(|| Bytes::from_static(b"result"));
        let alone = f.find(&recorded.key).await.expect("it is there");
        assert_eq!(alone.value, value);
        assert_eq!((&alone.key, &alone.state), (&recorded.key, &recorded.state));
        assert_eq!(alone.ends_at, recorded.ends_at);
    }
    assert_eq!(f.find(&WorkKey::from("nothing")).await, None);
    let shown = format!("{page:?}{:?}", f.find(&done).await);
    assert!(!shown.contains("a done"), "keys are hidden: {shown}");
}

pub(super) async fn a_listing_misses_nothing_that_stays(f: Fixture) {
    if !f.lists().await {
        return;
    }
    let key = |number: u32| WorkKey::new("charge", format!("{number:03}"));
    let staying: BTreeSet<_> = (0..100).step_by(2).map(key).collect();
    for number in 0..100 {
        f.done(&key(number), b"done", LONG).await;
    }
    // Between pages, other records come and go on both sides of the mark, also the one where the next page starts.
    let (mut seen, mut from, mut round) = (Vec::new(), None, 0);
    loop {
        let page = f.list(Some("charge"), from.as_ref(), 3).await;
        seen.extend(page.records.into_iter().map(|recorded| recorded.key));
        from = page.next;
        if from.is_none() {
            break;
        }
        round += 1;
        let last: &WorkKey = seen.last().expect("a page has records, or is the last one");
        let last: u32 = last.key()[..3].parse().expect("a number");
        for number in last.saturating_sub(3)..last + 3 {
            if number % 2 == 1 {
                let _ = f.forget(&key(number)).await;
                let other = WorkKey::new("charge", format!("{number:03}+{round}"));
                f.done(&other, b"", LONG).await;
            }
        }
    }
    assert!(round > 20, "{round} pages");
    assert!(seen.is_sorted(), "{seen:?}");
    let listed: BTreeSet<_> = seen.iter().cloned().collect();
    assert_eq!(listed.len(), seen.len(), "none twice");
    assert!(staying.is_subset(&listed), "none is missing");
}

pub(super) async fn forgotten_work_begins_anew_and_work_in_flight_is_not_forgotten(f: Fixture) {
    if !f.lists().await {
        return;
    }
    assert_eq!(f.forget(&f.key).await, Forgotten::Missing);
    let claim = f.fresh().await;
    let Forgotten::InFlight { remaining } = f.forget(&f.key).await else {
        panic!("it is in flight");
    };
    assert!(
        !remaining.is_zero() && remaining <= f.lease,
        "{remaining:?}"
    );
    f.assert_in_flight().await;
    assert_eq!(f.finish(claim, "done").await, ClaimStatus::Held);

    let other = WorkKey::new("ship", f.key.key());
    f.done(&other, b"done", LONG).await;
    assert_eq!(f.forget(&f.key).await, Forgotten::Removed);
    assert_eq!(f.forget(&f.key).await, Forgotten::Missing);
    assert_eq!(f.find(&f.key).await, None);
    assert!(f.find(&other).await.is_some(), "another scope");
    let claim = f.fresh().await;

    // A worker that has stopped does not keep its record for ever.
    f.store.advance(f.lease + Duration::from_millis(1)).await;
    assert_eq!(f.forget(&f.key).await, Forgotten::Removed);
    assert_eq!(f.renew(claim).await, ClaimStatus::Lost);
    assert_eq!(f.finish(claim, "late").await, ClaimStatus::Lost);
    assert_eq!(f.find(&f.key).await, None);
}
