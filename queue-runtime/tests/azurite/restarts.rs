//! A service that restarts repeatedly while it is in use.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use queue_runtime::error::Outcome;
use queue_runtime::policy::ExponentialIdle;
use queue_runtime::send::SubmitErrorKind;
use queue_runtime::{Delivery, Queue, Received};
use queue_tests::azurite::Azurite;
use queue_tests::orders::ShopOrder;
use tokio::sync::watch;

use crate::case::{patient, run};
use crate::operation;
use crate::proxy::GUARD;
use crate::server::ACCOUNT;
use crate::stage::{LEASE, changed, durable, until_empty};

const RESTARTS: usize = 3;
const PRODUCERS: u32 = 4;
/// The number of messages submitted, and of messages handled, between two restarts.
const BETWEEN: usize = 40;

/// The messages by their state, as numbers.
#[derive(Debug, Default)]
struct History {
    attempted: BTreeSet<u32>,
    acknowledged: BTreeSet<u32>,
    /// The number of runs for each message.
    handled: BTreeMap<u32, u32>,
    unknown: u32,
    refused: u32,
    /// Producers stop.
    over: bool,
}

#[derive(Clone)]
struct Run {
    history: Arc<watch::Sender<History>>,
    up: watch::Receiver<bool>,
}

impl Run {
    /// Submits every fourth number. Repeats a failed submission with the same id.
    async fn produce(self, queue: Queue<ShopOrder>, first: u32) {
        for number in (first..).step_by(PRODUCERS as usize) {
            if self.history.borrow().over {
                return;
            }
            self.note(|history| history.attempted.insert(number));
            while let Err(error) = queue
                .submit(ShopOrder { number })
                .id(format!("order-{number}"))
                .await
            {
                let problem = &error.kind;
                assert!(
                    matches!(problem, SubmitErrorKind::Storage(_)),
                    "{problem:?}"
                );
                self.note(|history| {
                    if error.outcome() == Outcome::Unknown {
                        history.unknown += 1
                    } else {
                        history.refused += 1
                    }
                });
                let up = self.up.clone().wait_for(|up| *up).await.map(drop);
                up.expect("the test goes on");
            }
            self.note(|history| history.acknowledged.insert(number));
        }
    }

    fn note<T>(&self, change: impl FnOnce(&mut History) -> T) {
        self.history.send_modify(|history| drop(change(history)));
    }

    async fn until(&self, mut wanted: impl FnMut(&History) -> bool) {
        let mut history = self.history.subscribe();
        let waited = tokio::time::timeout(GUARD, history.wait_for(|history| wanted(history)));
        let waited = waited.await.map(drop);
        waited.unwrap_or_else(|_| panic!("in time: {:?}", self.history.borrow()));
    }

    /// Waits until [`BETWEEN`] more messages were submitted, and as many more handled.
    async fn goes_on(&self) {
        let counts = |history: &History| (history.acknowledged.len(), history.handled.len());
        let (acknowledged, handled) = counts(&self.history.borrow());
        let wanted = (acknowledged + BETWEEN, handled + BETWEEN);
        let further = |history: &History| {
            let (acknowledged, handled) = counts(history);
            acknowledged >= wanted.0 && handled >= wanted.1
        };
        self.until(further).await;
    }
}

#[test]
fn acknowledged_messages_are_handled_despite_restarts() {
    run(async {
        let mut server = durable();
        let service = patient(&server.connection_string(ACCOUNT)).await;
        let service = service.connect().await.expect("connect");
        let named = |name| service.queue_named::<ShopOrder>(name).expect("a name");
        let (queue, kept) = (named("restarted-orders"), named("kept-orders"));
        let (power, up) = watch::channel(true);
        let history = Arc::new(watch::Sender::new(History::default()));
        let run = Run { history, up };

        let noted = run.clone();
        let handler = move |received: Received<ShopOrder>| {
            noted.note(|history| *history.handled.entry(received.number).or_default() += 1);
            async {}
        };
        let listener = queue.listener(handler).visibility_timeout(LEASE);
        // Each restart may cost a message several attempts.
        let listener = listener.poison_threshold(100);
        let listener = listener.idle(ExponentialIdle::up_to(Duration::from_millis(250)));
        let listener = listener.create_queue().start().expect("start");
        let producing =
            (0..PRODUCERS).map(|first| run.clone().produce(named("restarted-orders"), first));
        let producing = tokio::spawn(join_all(producing));

        for number in 0..RESTARTS {
            run.goes_on().await;
            let held = hold(&kept, number as u32).await;
            power.send_replace(false);
            server = changed(server, Azurite::restart).await;
            power.send_replace(true);
            held.settle(&kept).await;
        }
        run.goes_on().await;
        run.note(|history| history.over = true);
        producing.await.expect("no panic");

        let all = |history: &History| {
            history
                .acknowledged
                .iter()
                .all(|number| history.handled.contains_key(number))
        };
        run.until(all).await;
        for queue in [&queue, &kept] {
            until_empty(queue).await;
        }
        listener.shutdown(GUARD).await;
        let history = run.history.borrow();
        let (attempted, acknowledged) = (&history.attempted, &history.acknowledged);
        assert_eq!(attempted, acknowledged);
        assert!(
            history.handled.keys().eq(attempted),
            "no other message is handled"
        );
        let queues = service.queues().await.expect("queues");
        let queues: Vec<_> = queues.iter().map(|queue| queue.as_str()).collect();
        assert_eq!(
            queues,
            ["kept-orders", "restarted-orders"],
            "there is no poison queue"
        );
        let twice = history.handled.values().filter(|runs| **runs > 1).count();
        let (unknown, refused) = (history.unknown, history.refused);
        println!(
            "{} messages, {twice} handled more than once; {unknown} submissions unknown, {refused} refused",
            acknowledged.len()
        );
    });
}

/// A message that is leased while the service restarts.
struct Held {
    delivery: Delivery<ShopOrder>,
    since: Instant,
}

async fn hold(queue: &Queue<ShopOrder>, number: u32) -> Held {
    queue.submit(ShopOrder { number }).await.expect("submit");
    let since = Instant::now();
    let accepting = queue.accept().visibility_timeout(operation::LEASE);
    let accepted = accepting.wait(GUARD).await.expect("accept");
    let delivery = accepted.expect("a message");
    assert_eq!(delivery.number, number);
    Held { delivery, since }
}

impl Held {
    /// Completes the message, whose lease has outlasted the restart. If the restart took so long that the
    /// lease had to be renewed, the message may be received again instead.
    async fn settle(self, queue: &Queue<ShopOrder>) {
        let number = self.delivery.number;
        let completed = self.delivery.complete().await;
        let Err(error) = completed else { return };
        let took = self.since.elapsed();
        assert!(took > operation::LEASE / 3, "{took:?}: {:?}", error.kind);
        let accepted = queue.accept().wait(GUARD).await.expect("accept");
        let Some(again) = accepted else { return };
        assert_eq!(again.number, number);
        again.complete().await.expect("complete");
    }
}
