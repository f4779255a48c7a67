//! A share of all requests to Azurite is harmed, and no message is lost: duplicates are allowed, and each
//! completion that is reported has a deletion behind it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use queue_core::ErrorKind;
use queue_crash::harm::{HARMS, Harm, HarmingProxy};
use queue_crash::history::{Figures, History, Promise, Violation};
use queue_crash::ledger::{Entry, Event, Lease, moment};
use queue_crash::messages::{Class, CrashOrder, Named, Receipt};
use queue_crash::plan;
use queue_crash::process::GUARD;
use queue_crash::sabotage::{Bug, Sabotaged};
use queue_runtime::backend::AzureBackend;
use queue_runtime::clock::SystemClock;
use queue_runtime::policy::ExponentialIdle;
use queue_runtime::receive::Settled;
use queue_runtime::send::SubmitErrorKind;
use queue_runtime::{Disposition, Queue, QueueService, Received, RetryPolicy};
use queue_tests::azurite::Azurite;
use tokio::sync::watch;

const ACCOUNT: &str = "harmed";

/// Longer than an undisturbed request on the slowest machine, and short enough to end often.
const VISIBILITY: Duration = Duration::from_secs(3);

/// Of one request. Shorter than the delay of [`Harm::Delayed`].
const DEADLINE: Duration = Duration::from_secs(3);

/// Of one request that nothing harms.
const PATIENCE: Duration = Duration::from_secs(60);

/// More submits of an order than harms can fail in a row.
const ATTEMPTS: usize = 40;

/// The time before a failed operation is repeated.
const PAUSE: Duration = Duration::from_millis(50);

const QUEUES: [&str; 4] = ["orders", "receipts", "orders-poison", "receipts-poison"];

#[derive(Clone)]
struct Run {
    /// Over the proxy.
    service: QueueService,
    entries: Arc<Mutex<Vec<Entry>>>,
    over: watch::Receiver<bool>,
}

impl Run {
    fn note(&self, event: Event, name: &str, lease: Lease) {
        let entry = Entry {
            at: moment(),
            event,
            name: name.to_owned(),
            lease,
        };
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.push(entry);
    }

    /// Submits orders, each again under the same id until it is acknowledged.
    async fn produce(self, producer: usize, orders: usize) {
        for number in 0..orders {
            let class = match number % 4 {
                0 => Class::Receipted,
                _ => Class::Plain,
            };
            let name = format!("{producer}-{number}-{}", class.letter());
            self.note(Event::Submitting, &name, Lease::default());
            self.submit(&name).await;
            self.note(Event::Submitted, &name, Lease::default());
        }
    }

    /// Submits an order until it is acknowledged.
    async fn submit(&self, name: &str) {
        for _ in 0..ATTEMPTS {
            match self.service.submit(CrashOrder::named(name)).id(name).await {
                Ok(_) => return,
                Err(error) => match error.kind {
                    SubmitErrorKind::Storage(_) => tokio::time::sleep(PAUSE).await,
                    problem => panic!("{problem}"),
                },
            }
        }
        panic!("the service cannot be reached");
    }

    /// Accepts and settles messages.
    async fn consume<M: Named>(self) {
        while !*self.over.borrow() {
            let accept = self.service.accept::<M>().visibility_timeout(VISIBILITY);
            let accept = accept.wait(Duration::from_millis(500)).create_queue();
            let accept = accept.retry(RetryPolicy::fixed(PAUSE));
            let delivery = match accept.await {
                Ok(Some(delivery)) => delivery,
                Ok(None) => continue,
                // The service could not be reached.
                Err(_) => {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let (name, lease) = (delivery.name().to_owned(), lease(&delivery));
            let disposition = self.work(&delivery);
            match delivery.settle(disposition).await {
                Ok(Settled::Completed) => self.note(Event::Completed, &name, lease),
                Ok(Settled::Poisoned(_)) => self.note(Event::Poisoned, &name, lease),
                // Otherwise it comes back.
                Ok(_) | Err(_) => {}
            }
        }
    }

    fn work<M: Named>(&self, received: &Received<M>) -> Disposition {
        let lease = lease(received);
        self.note(Event::Started, received.name(), lease);
        match rand::random_range(0..20) {
            0 => return Disposition::reject("rejected by chance"),
            1 => return Disposition::retry("failed by chance"),
            _ => {}
        }
        self.note(Event::Finishing, received.name(), lease);
        match received.follow_up() {
            Some(receipt) => Disposition::complete().then(&receipt),
            None => Disposition::complete(),
        }
    }

    async fn listen<M: Named>(self, queue: Queue<M>) {
        let working = self.clone();
        let handler = move |received: Received<M>| {
            let disposition = working.work(&received);
            async move { disposition }
        };
        let listener = queue
            .listener(handler)
            .visibility_timeout(VISIBILITY)
            .retry(RetryPolicy::fixed(PAUSE))
            .idle(ExponentialIdle::up_to(Duration::from_millis(500)))
            .max_in_flight(8)
            .create_queue()
            .start();
        let listener = listener.expect("the settings are valid");
        let mut over = self.over.clone();
        over.wait_for(|over| *over).await.expect("the test goes on");
        listener.shutdown(GUARD).await;
    }
}

fn lease<M: Named>(received: &Received<M>) -> Lease {
    Lease {
        inserted: received.inserted_at().as_microsecond(),
        dequeued: received.dequeue_count(),
    }
}

/// A violation.
const NOT_DELETED: &str = "was reported as completed, and was not deleted";

/// Redrives poison messages until all queues are empty.
async fn drain(direct: &QueueService) {
    let started = Instant::now();
    loop {
        let mut left = BTreeMap::new();
        for name in QUEUES {
            let queue = direct.any_queue(name).expect("a name");
            match queue.properties().await {
                Ok(properties) => drop(left.insert(name, properties.approximate_count)),
                Err(error) if error.kind() == ErrorKind::QueueNotFound => {}
                Err(error) => panic!("{error}"),
            }
        }
        if left.values().all(|count| *count == 0) {
            return;
        }
        assert!(started.elapsed() < GUARD, "messages remain: {left:?}");
        for name in &QUEUES[2..] {
            if left.get(name).is_some_and(|count| *count > 0) {
                let poison = direct.any_queue(*name).expect("a name");
                poison.redrive().run().await.expect("nothing harms this");
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Runs producers and consumers over a harming proxy, and judges them.
async fn run(
    orders: usize,
    one_in: u32,
    harms: &'static [Harm],
    bug: Option<Bug>,
) -> Result<Figures, Vec<Violation>> {
    let server = Azurite::start(&[ACCOUNT]).unwrap_or_else(|error| panic!("{error}"));
    let url = server.connection_string(ACCOUNT);
    let backend = AzureBackend::builder(&url, Arc::new(SystemClock::new())).deadline(PATIENCE);
    let backend = backend.open().await.expect("nothing is asked yet");
    let direct = QueueService::with_backend(Arc::new(backend));
    let direct = direct.connect().await.expect("connect");
    let proxy = HarmingProxy::start(server.queue_port(), plan::seed(), one_in, harms).await;
    let proxy = proxy.expect("a port");
    let harmed = url.replace(
        &format!(":{}/", server.queue_port()),
        &format!(":{}/", proxy.port()),
    );
    assert_ne!(harmed, url, "the proxy is not used");
    let backend = AzureBackend::builder(&harmed, Arc::new(SystemClock::new())).deadline(DEADLINE);
    let backend = backend.open().await.expect("nothing is asked yet");
    let mut backend: Arc<dyn queue_core::backend::Backend> = Arc::new(backend);
    if let Some(bug) = bug {
        backend = Arc::new(Sabotaged::new(backend, bug));
    }
    let (end, over) = watch::channel(false);
    let service = QueueService::with_backend(backend).connect().await;
    let run = Run {
        service: service.expect("nothing is asked yet"),
        entries: Arc::default(),
        over,
    };
    let producers = (0..4).map(|number| tokio::spawn(run.clone().produce(number, orders / 4)));
    let producers: Vec<_> = producers.collect();
    let consumers = [
        tokio::spawn(run.clone().consume::<CrashOrder>()),
        tokio::spawn(run.clone().consume::<CrashOrder>()),
        tokio::spawn(run.clone().consume::<Receipt>()),
        tokio::spawn(run.clone().listen(run.service.queue::<CrashOrder>())),
        tokio::spawn(run.clone().listen(run.service.queue::<Receipt>())),
    ];
    for producer in producers {
        producer.await.expect("no panic");
    }
    drain(&direct).await;
    end.send_replace(true);
    for consumer in consumers {
        consumer.await.expect("no panic");
    }
    assert_eq!(
        proxy.log().harmed.len(),
        harms.len(),
        "some harm was not done"
    );
    judge(&run, &proxy)
}

fn judge(run: &Run, proxy: &HarmingProxy) -> Result<Figures, Vec<Violation>> {
    let entries = std::mem::take(&mut *run.entries.lock().unwrap_or_else(PoisonError::into_inner));
    let log = proxy.log();
    println!("{} requests; harmed: {:?}", log.requests, log.harmed);
    let mut claims = BTreeMap::<_, usize>::new();
    let mut violations = Vec::new();
    let completed = entries
        .iter()
        .filter(|entry| entry.event == Event::Completed);
    for Entry { at, name, .. } in completed {
        let claimed = claims.entry(name.clone()).or_default();
        *claimed += 1;
        if log.deletions(name, *at) < *claimed {
            let about = log.about(name).join("\n");
            println!("{name} was completed at {at}:\n{about}");
            violations.push(Violation::Other(format!("{name} {NOT_DELETED}")));
        }
    }
    let mut history = History::default();
    history.add(entries);
    match history.check(Promise::AtLeastOnce) {
        Ok(figures) if violations.is_empty() => Ok(figures),
        Ok(_) => Err(violations),
        Err(found) => {
            violations.extend(found);
            Err(violations)
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_when_requests_are_harmed() {
    let orders = plan::times(160);
    let figures = run(orders, 8, &HARMS, None).await;
    let figures = figures.unwrap_or_else(|violations| panic!("{violations:#?}"));
    println!("{figures}");
    assert_eq!(figures.acknowledged, orders);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_completion_without_a_deletion_is_detected() {
    let harms = &[Harm::ResetBefore];
    let violations = run(120, 3, harms, Some(Bug::PresumesDone)).await;
    let violations = violations.expect_err("the suite misses the bug");
    let claim = |violation: &Violation| matches!(violation, Violation::Other(what) if what.ends_with(NOT_DELETED));
    assert!(violations.iter().any(claim), "{violations:#?}");
}
