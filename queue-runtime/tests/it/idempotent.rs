//! Work that is done once: `once` and idempotent listeners, over each store.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use queue_runtime::idempotency::{
    Begun, Claim, IdempotencyStore, MemoryResults, Owner, Standing, Swept, WorkKey,
};
use queue_runtime::testing::{self, Fault, TokioClock};
use queue_runtime::{
    AcceptError, Clock, Disposition, Error, ErrorKind, Failure, ListenerEvent, Message, OnceError,
    Operation, QueueService, Received, Result, SettleProblem, SystemClock, once,
};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::support::{count, events, stop};

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "charges")]
struct Charge {
    #[message(key)]
    order: u32,
}

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "receipts")]
struct Receipt {
    order: u32,
}

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "bare-charges", wire = "bare")]
struct BareCharge {
    #[message(key)]
    order: u32,
}

/// Every store, with a folder that it may need.
async fn stores() -> Vec<(
    &'static str,
    Arc<dyn IdempotencyStore>,
    Option<tempfile::TempDir>,
)> {
    let clock = || Arc::new(SystemClock::new());
    let memory = MemoryResults::new(clock());
    let mut stores: Vec<(_, Arc<dyn IdempotencyStore>, _)> =
        vec![("memory", Arc::new(memory), None)];
    #[cfg(feature = "sqlite")]
    {
        use queue_runtime::backend::SqliteBackend;

        let folder = tempfile::tempdir().expect("a folder");
        let file = SqliteBackend::builder(folder.path().join("queues.db"), clock());
        let results = file.open().await.expect("opened").results();
        stores.push(("sqlite", Arc::new(results), Some(folder)));
    }
    #[cfg(feature = "object-store")]
    {
        use object_store::local::LocalFileSystem;
        use object_store::memory::InMemory;
        use queue_runtime::idempotency::ObjectResults;

        let objects = ObjectResults::new(Arc::new(InMemory::new()), "results");
        stores.push(("objects", Arc::new(objects), None));
        let folder = tempfile::tempdir().expect("a folder");
        let files = LocalFileSystem::new_with_prefix(folder.path()).expect("opened");
        let objects = ObjectResults::new(Arc::new(files), "results");
        stores.push(("folder", Arc::new(objects), Some(folder)));
    }
    stores
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_a_hundred_concurrent_duplicates_one_is_done_on_every_store() {
    for (name, store, _folder) in stores().await {
        let effects = Arc::new(AtomicU32::new(0));
        let mut calls = JoinSet::new();
        for call in 0..100_u32 {
            let (store, effects) = (Arc::clone(&store), Arc::clone(&effects));
            calls.spawn(async move {
                let work = async {
                    effects.fetch_add(1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                    Ok::<_, std::io::Error>(call)
                };
                // However slow the machine is, no lease ends.
                let done = once(&store, "order-7", work).lease(Duration::from_secs(3600));
                done.await.expect("done")
            });
        }
        let results: HashSet<u32> = calls.join_all().await.into_iter().collect();
        assert_eq!(results.len(), 1, "{name}: {results:?}");
        assert_eq!(effects.load(Ordering::Relaxed), 1, "{name}");
    }
}

/// Asserts the contract of a store, call by call.
#[tokio::test]
async fn every_store_keeps_the_contract() {
    let hour = Duration::from_secs(3600);
    for (name, store, _folder) in stores().await {
        let key = WorkKey::new("ship", "line\nbreak \u{1f600} '\"/\\");
        let (one, two) = (Owner::random(), Owner::random());
        let begin = |owner| {
            let (store, key) = (&store, &key);
            async move { store.begin(key, owner, hour).await.expect("begun") }
        };
        let Begun::Fresh(claim) = begin(one).await else {
            panic!("{name}: not fresh")
        };
        assert_eq!(begin(one).await, Begun::Fresh(claim), "{name}: repeated");
        let begun = begin(two).await;
        assert!(
            matches!(begun, Begun::InFlight { remaining } if !remaining.is_zero() && remaining <= hour),
            "{name}: {begun:?}"
        );
        let other = store
            .begin(&WorkKey::new("pack", key.key()), two, hour)
            .await;
        assert!(
            matches!(other, Ok(Begun::Fresh(_))),
            "{name}: another scope"
        );
        for _ in 0..3 {
            let renewed = store.renew(&key, claim, hour).await.expect("renewed");
            assert_eq!(renewed, Standing::Held, "{name}");
        }
        store.release(&key, claim).await.expect("released");
        let finished = store.finish(&key, claim, Bytes::new(), hour).await;
        assert_eq!(
            finished.expect("answered"),
            Standing::Lost,
            "{name}: released"
        );
        let renewed = store.renew(&key, claim, hour).await.expect("answered");
        assert_eq!(renewed, Standing::Lost, "{name}: released");

        let Begun::Fresh(claim) = begin(two).await else {
            panic!("{name}: released, and not fresh")
        };
        let result = Bytes::from_static(&[0, 255, b'\n']);
        for _ in 0..2 {
            let finished = store.finish(&key, claim, result.clone(), hour).await;
            assert_eq!(finished.expect("answered"), Standing::Held, "{name}");
        }
        store.release(&key, claim).await.expect("without effect");
        store.sweep().await.expect("swept");
        assert_eq!(begin(one).await, Begun::Done(result), "{name}");
    }
}

#[tokio::test]
async fn a_lease_that_ended_is_taken_over_on_every_store() {
    let moment = Duration::from_millis(20);
    for (name, store, _folder) in stores().await {
        let (key, one, two) = (WorkKey::from("order"), Owner::random(), Owner::random());
        let begun = store.begin(&key, one, moment).await.expect("begun");
        let Begun::Fresh(lost) = begun else {
            panic!("{name}: {begun:?}")
        };
        let claim = loop {
            match store.begin(&key, two, moment).await.expect("begun") {
                Begun::Fresh(claim) => break claim,
                Begun::InFlight { remaining } => store.clock().sleep(remaining).await,
                done => panic!("{name}: {done:?}"),
            }
        };
        let hour = Duration::from_secs(3600);
        let finish = |claim| store.finish(&key, claim, Bytes::from_static(b"x"), hour);
        assert_eq!(
            finish(lost).await.expect("answered"),
            Standing::Lost,
            "{name}"
        );
        assert_eq!(
            finish(claim).await.expect("answered"),
            Standing::Held,
            "{name}"
        );
    }
}

fn memory_results() -> MemoryResults {
    MemoryResults::new(Arc::new(TokioClock::new()))
}

#[tokio::test(start_paused = true)]
async fn work_that_fails_is_done_again_and_work_that_is_dropped_too() {
    let store = memory_results();
    let failed = once(&store, "order", async {
        Err::<u32, _>(Failure::retry("busy").to_string())
    });
    let error = failed.await.expect_err("busy");
    assert!(matches!(error, OnceError::Work(text) if text == "busy"));
    {
        let hanging = once(
            &store,
            "order",
            std::future::pending::<Result<u32, String>>(),
        );
        let dropped = tokio::time::timeout(Duration::from_secs(1), hanging);
        assert!(dropped.await.is_err());
    }
    tokio::task::yield_now().await;
    let done = once(&store, "order", async { Ok::<_, String>(7) });
    assert_eq!(done.wait(Duration::ZERO).await.expect("done"), 7);
}

#[tokio::test(start_paused = true)]
async fn long_work_keeps_its_claim_and_the_others_wait_for_it() {
    let store = memory_results();
    let long = once(&store, "order", async {
        tokio::time::sleep(Duration::from_secs(3600)).await;
        Ok::<_, String>(7)
    });
    let impatient = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        once(&store, "order", async { Ok::<u32, String>(8) }).await
    };
    let patient = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let other = once(&store, "order", async { Ok::<u32, String>(9) });
        other.wait(Duration::from_secs(7200)).await
    };
    let (long, impatient, patient) = tokio::join!(long, impatient, patient);
    assert_eq!(long.expect("done"), 7);
    assert!(
        matches!(impatient, Err(OnceError::InFlight { .. })),
        "{impatient:?}"
    );
    assert_eq!(patient.expect("read"), 7);
}

/// A store that fails while it is told to.
#[derive(Debug, Clone)]
struct Flaky {
    store: MemoryResults,
    down: Arc<AtomicBool>,
    /// Whether it forgets each claim when it is to be finished, as if it had been taken over.
    loses: Arc<AtomicBool>,
    refused: Arc<AtomicU32>,
}

impl Flaky {
    fn new() -> Self {
        Self {
            store: memory_results(),
            down: Arc::default(),
            loses: Arc::default(),
            refused: Arc::default(),
        }
    }

    fn check(&self) -> Result<()> {
        if !self.down.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        Err(Error::new(ErrorKind::Unreachable, Operation::Idempotency))
    }
}

#[async_trait]
impl IdempotencyStore for Flaky {
    fn clock(&self) -> Arc<dyn Clock> {
        self.store.clock()
    }

    async fn begin(&self, key: &WorkKey, owner: Owner, lease: Duration) -> Result<Begun> {
        self.check()?;
        self.store.begin(key, owner, lease).await
    }

    async fn renew(&self, key: &WorkKey, claim: Claim, lease: Duration) -> Result<Standing> {
        self.check()?;
        self.store.renew(key, claim, lease).await
    }

    async fn finish(
        &self,
        key: &WorkKey,
        claim: Claim,
        result: Bytes,
        retention: Duration,
    ) -> Result<Standing> {
        self.check()?;
        if self.loses.swap(false, Ordering::Relaxed) {
            self.store.release(key, claim).await?;
        }
        self.store.finish(key, claim, result, retention).await
    }

    async fn release(&self, key: &WorkKey, claim: Claim) -> Result<()> {
        self.check()?;
        // Whoever does not wait for it finds the key in flight.
        self.clock().sleep(Duration::from_secs(1)).await;
        self.store.release(key, claim).await
    }

    async fn sweep(&self) -> Result<Swept> {
        self.check()?;
        self.store.sweep().await
    }
}

#[tokio::test(start_paused = true)]
async fn once_fails_closed_and_tells_what_was_not_recorded() {
    let store = Flaky::new();
    store.down.store(true, Ordering::Relaxed);
    let down = once(&store, "order", async { Ok::<_, String>(7) }).await;
    assert!(matches!(down, Err(OnceError::Store { .. })), "{down:?}");
    store.down.store(false, Ordering::Relaxed);
    let goes_down = once(&store, "order", async {
        store.down.store(true, Ordering::Relaxed);
        Ok::<_, String>(7)
    });
    let unrecorded = goes_down.await;
    assert!(
        matches!(
            unrecorded,
            Err(OnceError::NotRecorded {
                result: 7,
                source: Some(_),
                ..
            })
        ),
        "{unrecorded:?}"
    );
    // The claim cannot be renewed for a whole lease: another may work now.
    store.down.store(false, Ordering::Relaxed);
    let long = once(&store, "long", async {
        store.down.store(true, Ordering::Relaxed);
        std::future::pending::<Result<u32, String>>().await
    });
    let lost = long.await;
    assert!(matches!(lost, Err(OnceError::Lost { .. })), "{lost:?}");
}

async fn submit(service: &QueueService, order: u32) {
    let submitted = service.submit(Charge { order }).request("checkout");
    submitted.await.expect("submitted");
}

/// A handler that counts its calls and submits a follow-up.
fn charging(
    calls: &Arc<AtomicU32>,
) -> impl Fn(Received<Charge>) -> std::future::Ready<Disposition> + Send + Sync + 'static {
    let calls = Arc::clone(calls);
    move |charge| {
        calls.fetch_add(1, Ordering::Relaxed);
        let order = charge.order;
        std::future::ready(Disposition::complete().then(&Receipt { order }))
    }
}

#[tokio::test(start_paused = true)]
async fn a_listener_handles_one_of_many_duplicates_and_repeats_its_follow_up() {
    let service = testing::service().await;
    let calls = Arc::new(AtomicU32::new(0));
    let listener = service.listener(charging(&calls));
    let listener = listener.idempotent(memory_results()).create_queue();
    let mut seen = listener.events();
    for _ in 0..100 {
        submit(&service, 7).await;
    }
    submit(&service, 8).await;
    let listener = listener.start().expect("valid settings");
    let ended = |event: &ListenerEvent| {
        matches!(
            event,
            ListenerEvent::Completed { .. } | ListenerEvent::Duplicate { .. }
        )
    };
    events(&mut seen, 101, ended).await;
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    let info = listener.info();
    assert_eq!((info.completed, info.duplicates), (2, 99));
    assert_eq!(count(&service, "charges").await, 0);
    let mut ids = HashSet::new();
    let mut receipts = 0;
    while let Some(receipt) = service.accept::<Receipt>().await.expect("accepted") {
        ids.insert(receipt.envelope().id.clone());
        receipts += 1;
        receipt.complete().await.expect("completed");
    }
    assert_eq!((receipts, ids.len()), (101, 2), "one id for each key");
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_message_whose_work_is_in_flight_elsewhere_is_put_back_and_keeps_its_attempts() {
    let service = testing::service().await;
    let store = memory_results();
    submit(&service, 7).await;
    let key = service
        .accept::<Charge>()
        .await
        .expect("accepted")
        .expect("submitted");
    let work = WorkKey::new("queue charges", key.idempotency_key().as_str());
    key.release().await.expect("released");
    let lease = Duration::from_secs(100);
    let begun = store.begin(&work, Owner::random(), lease).await;
    assert!(matches!(begun, Ok(Begun::Fresh(_))));

    let attempts = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&attempts);
    let listener = service
        .listener(move |charge: Received<Charge>| {
            noted.lock().expect("no panic").push(charge.attempt());
            std::future::ready(())
        })
        .idempotent(store)
        .create_queue();
    let mut seen = listener.events();
    let listener = listener.start().expect("valid settings");
    let seen = events(&mut seen, 2, |_| true).await;
    assert!(
        matches!(seen[0], ListenerEvent::Postponed { after, .. } if after == lease),
        "{seen:?}"
    );
    assert!(
        matches!(seen[1], ListenerEvent::Completed { attempt: 1, .. }),
        "{seen:?}"
    );
    assert_eq!(*attempts.lock().expect("no panic"), [1]);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_bare_body_waits_in_place() {
    let service = testing::service().await;
    let store = memory_results();
    service
        .submit(BareCharge { order: 7 })
        .await
        .expect("submitted");
    let charge = service
        .accept::<BareCharge>()
        .await
        .expect("accepted")
        .expect("submitted");
    let work = WorkKey::new("queue bare-charges", charge.idempotency_key().as_str());
    drop(charge);
    tokio::time::sleep(Duration::from_secs(31)).await;
    let lease = Duration::from_secs(1000);
    let begun = store.begin(&work, Owner::random(), lease).await;
    assert!(matches!(begun, Ok(Begun::Fresh(_))));
    let began = tokio::time::Instant::now();
    let receives = Arc::new(AtomicU32::new(0));
    let noted = Arc::clone(&receives);
    let listener = service
        .listener(move |charge: Received<BareCharge>| {
            noted.store(charge.dequeue_count(), Ordering::Relaxed);
            std::future::ready(())
        })
        .idempotent(store);
    let mut seen = listener.events();
    let listener = listener.start().expect("valid settings");
    let seen = events(&mut seen, 1, |_| true).await;
    assert!(
        matches!(seen[0], ListenerEvent::Completed { .. }),
        "{seen:?}"
    );
    assert!(began.elapsed() >= lease, "the other's lease ended");
    // One was that of the test.
    assert_eq!(receives.load(Ordering::Relaxed), 2);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_down_stops_the_handling_and_costs_no_attempts() {
    let service = testing::service().await;
    let store = Flaky::new();
    let calls = Arc::new(AtomicU32::new(0));
    store.down.store(true, Ordering::Relaxed);
    let listener = service.listener(charging(&calls)).poison_threshold(1);
    let listener = listener.idempotent(store.clone()).create_queue();
    let mut seen = listener.events();
    for order in 0..50 {
        submit(&service, order).await;
    }
    let listener = listener.start().expect("valid settings");
    let is_down =
        |event: &ListenerEvent| matches!(event, ListenerEvent::IdempotencyStoreFailed { .. });
    let failures = events(&mut seen, 10, is_down).await;
    let ListenerEvent::IdempotencyStoreFailed { after, .. } = failures[9] else {
        panic!("{failures:?}")
    };
    assert!(after >= Duration::from_secs(10), "it backs off: {after:?}");
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    let refused = store.refused.load(Ordering::Relaxed);
    assert!(
        (10..20_000).contains(&refused),
        "{refused} requests in an hour"
    );
    store.down.store(false, Ordering::Relaxed);
    let completed = |event: &ListenerEvent| matches!(event, ListenerEvent::Completed { .. });
    let completed = events(&mut seen.resubscribe(), 50, completed).await;
    for event in completed {
        assert!(
            matches!(event, ListenerEvent::Completed { attempt: 1, .. }),
            "{event:?}"
        );
    }
    assert_eq!(calls.load(Ordering::Relaxed), 50);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_stops_does_not_wait_for_the_store() {
    let service = testing::service().await;
    let store = Flaky::new();
    store.down.store(true, Ordering::Relaxed);
    let calls = Arc::new(AtomicU32::new(0));
    let listener = service.listener(charging(&calls));
    let listener = listener.idempotent(store).create_queue();
    let mut seen = listener.events();
    submit(&service, 7).await;
    let listener = listener.start().expect("valid settings");
    events(&mut seen, 1, |_| true).await;
    stop(listener).await;
    // Handed back at once.
    let charge = service.accept::<Charge>().await.expect("accepted");
    assert_eq!(charge.expect("visible").attempt(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failed_attempt_releases_the_key_and_a_lost_claim_puts_the_message_back() {
    let service = testing::service().await;
    let store = Flaky::new();
    store.loses.store(true, Ordering::Relaxed);
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let listener = service
        .listener(move |_: Received<Charge>| {
            let call = counted.fetch_add(1, Ordering::Relaxed);
            async move {
                match call {
                    0 => Err("busy"),
                    1 => panic!("a panic of the handler"),
                    _ => Ok(()),
                }
            }
        })
        .retry(queue_runtime::RetryPolicy::fixed(Duration::from_millis(1)))
        .idempotent(store)
        .create_queue();
    let mut seen = listener.events();
    let listener = listener.start().expect("valid settings");
    submit(&service, 7).await;
    let settled = |event: &ListenerEvent| !matches!(event, ListenerEvent::HandlerPanicked { .. });
    let seen = events(&mut seen, 4, settled).await;
    assert!(matches!(seen[0], ListenerEvent::Retried { .. }), "{seen:?}");
    assert!(matches!(seen[1], ListenerEvent::Retried { .. }), "{seen:?}");
    assert!(
        matches!(seen[2], ListenerEvent::Released { .. }),
        "{seen:?}"
    );
    assert!(
        matches!(seen[3], ListenerEvent::Completed { attempt: 3, .. }),
        "{seen:?}"
    );
    assert_eq!(calls.load(Ordering::Relaxed), 4);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_whose_claim_is_lost_is_cancelled() {
    let service = testing::service().await;
    let store = Flaky::new();
    let calls = Arc::new(AtomicU32::new(0));
    let (started, counted) = (Arc::new(Notify::new()), Arc::clone(&calls));
    let starts = Arc::clone(&started);
    let listener = service
        .listener(move |_: Received<Charge>| {
            let call = counted.fetch_add(1, Ordering::Relaxed);
            starts.notify_one();
            async move {
                if call == 0 {
                    std::future::pending::<()>().await;
                }
            }
        })
        .idempotent(store.clone())
        .create_queue();
    let mut seen = listener.events();
    let listener = listener.start().expect("valid settings");
    submit(&service, 7).await;
    started.notified().await;
    store.down.store(true, Ordering::Relaxed);
    let released = |event: &ListenerEvent| matches!(event, ListenerEvent::Released { .. });
    events(&mut seen, 1, released).await;
    store.down.store(false, Ordering::Relaxed);
    let completed = |event: &ListenerEvent| matches!(event, ListenerEvent::Completed { .. });
    events(&mut seen, 1, completed).await;
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_record_whose_message_could_not_be_deleted_is_read_by_the_redelivery() {
    let (service, faults) = testing::service_with_faults().await;
    let store = memory_results();
    submit(&service, 7).await;
    let accept = || service.accept::<Charge>().idempotent(store.clone());
    let charge = accept().await.expect("accepted").expect("submitted");
    // On an atomic backend, neither the follow-up nor the deletion is carried out.
    faults.fail_next(
        1,
        Operation::Apply,
        Fault::LeaseLost(Duration::from_secs(30)),
    );
    let done = Disposition::complete().then(&Receipt { order: 7 });
    let error = charge.settle(done).await.expect_err("the lease is lost");
    assert!(
        matches!(error.problem, SettleProblem::LeaseLost(_)),
        "{error}"
    );
    assert_eq!(faults.injected(Operation::Apply), 1);
    drop(error);
    tokio::time::sleep(Duration::from_secs(31)).await;
    // The redelivery is completed without anybody seeing it.
    assert!(accept().await.expect("accepted").is_none());
    assert_eq!(count(&service, "charges").await, 0);
    assert_eq!(count(&service, "receipts").await, 1);
}

#[tokio::test(start_paused = true)]
async fn accept_reports_a_store_that_is_down_and_hands_the_message_back() {
    let service = testing::service().await;
    let store = Flaky::new();
    submit(&service, 7).await;
    store.down.store(true, Ordering::Relaxed);
    for _ in 0..10 {
        let accepted = service.accept::<Charge>().idempotent(store.clone()).await;
        let error = accepted.expect_err("down");
        assert!(matches!(error, AcceptError::Idempotency(_)), "{error}");
    }
    store.down.store(false, Ordering::Relaxed);
    let charge = service.accept::<Charge>().idempotent(store.clone()).await;
    let charge = charge.expect("accepted").expect("visible");
    assert_eq!((charge.attempt(), charge.dequeue_count()), (1, 11));
    charge.complete().await.expect("completed");
    submit(&service, 7).await;
    let duplicate = service.accept::<Charge>().idempotent(store).await;
    assert!(duplicate.expect("accepted").is_none());
    assert_eq!(count(&service, "charges").await, 0);
}
