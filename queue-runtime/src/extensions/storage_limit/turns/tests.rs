use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use queue_clock::TokioClock;
use queue_tests::SECOND;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::sleep;

use super::Urgency::{Leased, Ordinary};
use super::*;

/// Requests that note when they are sent.
struct Storage {
    turns: RequestTurns,
    /// When each was sent, and its name.
    sent: Mutex<Vec<(Duration, String)>>,
}

impl Storage {
    fn new(limit: StorageLimit) -> Arc<Self> {
        Arc::new(Self {
            turns: RequestTurns::new(limit, Arc::new(TokioClock::new())),
            sent: Mutex::default(),
        })
    }

    async fn send(&self, name: &str, queue: &str, urgency: Urgency) {
        let queue = format!("queue-{queue}").parse().expect("a name");
        self.turns.take(Some(&queue), urgency).await;
        let now = self.turns.clock.monotonic();
        self.sent.hold().push((now, name.to_owned()));
    }

    /// Has a request wait. Those that are started one after another arrive in this order.
    async fn start(self: &Arc<Self>, name: &str, queue: &str, urgency: Urgency) -> JoinHandle<()> {
        let (storage, name, queue) = (Arc::clone(self), name.to_owned(), queue.to_owned());
        let task = tokio::spawn(async move { storage.send(&name, &queue, urgency).await });
        yield_now().await;
        task
    }

    async fn start_all(
        self: &Arc<Self>,
        count: usize,
        queue: &str,
        urgency: Urgency,
    ) -> Vec<JoinHandle<()>> {
        let mut tasks = Vec::new();
        for number in 0..count {
            let name = format!("{queue} {number}");
            tasks.push(self.start(&name, queue, urgency).await);
        }
        tasks
    }

    fn sent(&self) -> Vec<String> {
        let sent = self.sent.hold();
        sent.iter().map(|(_, name)| name.clone()).collect()
    }

    fn times(&self, name: &str) -> Vec<Duration> {
        let sent = self.sent.hold();
        let named = sent.iter().filter(|(_, sent)| sent.starts_with(name));
        named.map(|(at, _)| *at).collect()
    }

    /// The most requests whose names start with this that were sent in any one second.
    fn most(&self, name: &str) -> usize {
        let times = self.times(name);
        let within = |from: &Duration| {
            let second = times
                .iter()
                .filter(|at| (*from..*from + SECOND).contains(&**at));
            second.count()
        };
        times.iter().map(within).max().unwrap_or_default()
    }
}

async fn all(tasks: impl IntoIterator<Item = JoinHandle<()>>) {
    for task in tasks {
        task.await.expect("no panic");
    }
}

#[tokio::test(start_paused = true)]
async fn all_of_a_queue_share_its_tokens() {
    let storage = Storage::new(StorageLimit::new().per_queue(90));
    let mut tasks = storage.start_all(500, "a", Ordinary).await;
    tasks.extend(storage.start_all(400, "a", Leased).await);
    tasks.extend(storage.start_all(450, "b", Ordinary).await);
    all(tasks).await;
    let last = |name| *storage.times(name).last().expect("sent");
    // All but the 9 of the first moment, at 90 a second; and a timer is exact to the millisecond.
    for (queue, requests) in [("a", 900), ("b", 450)] {
        let expected = SECOND * (requests - 9) / 90;
        let (last, most) = (last(queue), storage.most(queue));
        assert!(last.abs_diff(expected) < SECOND / 100, "{queue}: {last:?}");
        assert!((81..=99).contains(&most), "{queue}: {most}");
    }
}

#[tokio::test(start_paused = true)]
async fn all_queues_share_the_tokens_of_the_account() {
    let storage = Storage::new(StorageLimit::new().per_queue(90).per_account(100));
    let mut tasks = Vec::new();
    for _ in 0..200 {
        for queue in ["a", "b", "c"] {
            tasks.push(storage.start(queue, queue, Ordinary).await);
        }
    }
    all(tasks).await;
    let last = *storage.times("").last().expect("sent");
    let expected = SECOND * (600 - 10) / 100;
    assert!(last.abs_diff(expected) < SECOND / 50, "{last:?}");
    let most = storage.most("");
    assert!(most <= 110, "{most}");
    for queue in ["a", "b", "c"] {
        let most = storage.most(queue);
        assert!(most <= 100, "{queue}: {most}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_limit_of_queues_there_is_one_line() {
    let storage = Storage::new(StorageLimit::new().per_account(10));
    let mut tasks = storage.start_all(2, "a", Ordinary).await;
    tasks.extend(storage.start_all(2, "b", Ordinary).await);
    tasks.extend(storage.start_all(1, "c", Leased).await);
    all(tasks).await;
    assert_eq!(storage.sent(), ["a 0", "c 0", "a 1", "b 0", "b 1"]);
    assert_eq!(storage.turns.state.hold().lines.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_leased_goes_before_all_else_that_waits() {
    let storage = Storage::new(StorageLimit::new().per_queue(10));
    let mut tasks = storage.start_all(5, "a", Ordinary).await;
    tasks.extend(storage.start_all(2, "b", Ordinary).await);
    tasks.push(storage.start("renewal", "a", Leased).await);
    tasks.push(storage.start("settlement", "a", Leased).await);
    all(tasks).await;
    let sent = storage.sent();
    let of_a: Vec<_> = sent.iter().filter(|name| !name.starts_with('b')).collect();
    let expected = ["a 0", "renewal", "settlement", "a 1", "a 2", "a 3", "a 4"];
    assert_eq!(of_a, expected);
    assert_eq!(storage.times("renewal"), [SECOND / 10]);
    assert_eq!(storage.times("b 1"), [SECOND / 10], "another queue");
}

/// It needs a token of its queue, which another request holds already, and is the first of the account.
#[tokio::test(start_paused = true)]
async fn what_is_leased_goes_before_other_queues_and_takes_over_the_token_of_its_own() {
    let storage = Storage::new(StorageLimit::new().per_queue(100).per_account(10));
    let mut tasks = storage.start_all(3, "a", Ordinary).await;
    tasks.extend(storage.start_all(1, "b", Ordinary).await);
    tasks.extend(storage.start_all(1, "c", Ordinary).await);
    tasks.push(storage.start("renewal", "c", Leased).await);
    all(tasks).await;
    let expected = ["a 0", "renewal", "a 1", "a 2", "b 0", "c 0"];
    assert_eq!(storage.sent(), expected);
}

#[tokio::test(start_paused = true)]
async fn the_rest_of_the_tokens_are_for_all_others() {
    let storage = Storage::new(StorageLimit::new().per_queue(20));
    let ordinary = storage.start_all(95, "a", Ordinary).await;
    let ended = Arc::new(AtomicBool::new(false));
    let (renewals, end) = (Arc::clone(&storage), Arc::clone(&ended));
    let renewing = tokio::spawn(async move {
        while !end.load(Relaxed) {
            renewals.send("renewal", "a", Leased).await;
            sleep(SECOND / 10).await;
        }
    });
    all(ordinary).await;
    ended.store(true, Relaxed);
    all([renewing]).await;
    let (renewals, last) = (
        storage.times("renewal"),
        *storage.times("a").last().expect("sent"),
    );
    assert!(last > 7 * SECOND && last < 11 * SECOND, "{last:?}");
    let late = renewals.windows(2).map(|two| two[1] - two[0]).max();
    let late = late.expect("renewals");
    assert!(late <= SECOND / 10 + SECOND / 20 + SECOND / 200, "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn what_is_dropped_takes_nothing_and_lets_the_next_go() {
    for limit in [
        StorageLimit::new().per_queue(10),
        StorageLimit::new().per_account(10),
        StorageLimit::new().per_queue(100).per_account(10),
    ] {
        let storage = Storage::new(limit);
        let tasks = storage.start_all(5, "a", Ordinary).await;
        let last = storage.start("last", "a", Ordinary).await;
        tasks.iter().for_each(JoinHandle::abort);
        last.await.expect("sent");
        assert_eq!(storage.sent(), ["a 0", "last"], "{limit:?}");
        assert_eq!(storage.times("last"), [SECOND / 10], "{limit:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn queues_that_nobody_uses_are_forgotten() {
    let storage = Storage::new(StorageLimit::new().per_queue(1));
    for round in 0..10 {
        for number in 0..1_000 {
            let queue = format!("reply-{round}-{number}");
            storage.send("reply", &queue, Ordinary).await;
        }
        sleep(SECOND).await;
    }
    let kept = storage.turns.state.hold().lines.len();
    assert!(kept <= 2 * 1_000, "{kept}");
    // One that is used is not forgotten.
    storage.send("used", "used", Ordinary).await;
    for number in 0..4_000 {
        storage
            .send("reply", &format!("late-{number}"), Ordinary)
            .await;
    }
    let before = storage.turns.clock.monotonic();
    storage.send("used", "used", Ordinary).await;
    assert_eq!(storage.turns.clock.monotonic() - before, SECOND);
}
