use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task;
use tokio::time::timeout;

use super::*;

/// How long a test waits for what must happen.
const GUARD: Duration = Duration::from_secs(60);

/// Tells its task, and waits until it may end.
struct Item {
    started: UnboundedSender<task::Id>,
    end: oneshot::Receiver<()>,
}

impl Item {
    async fn work(self) {
        self.started.send(task::id()).expect("the test listens");
        // An error says that the test dropped the sender.
        let _ = self.end.await;
    }
}

fn pool(max_idle: usize) -> TaskPool<Item> {
    TaskPool::new(Handle::current(), max_idle, Item::work)
}

fn idle<T>(pool: &TaskPool<T>) -> usize {
    pool.shared.state.hold().idle
}

async fn until(holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            yield_now().await;
        }
    };
    timeout(GUARD, waiting).await.expect("in time");
}

/// Waits until so many tasks of the runtime are left.
async fn tasks_are(count: usize) {
    let metrics = Handle::current().metrics();
    until(|| metrics.num_alive_tasks() == count).await;
}

/// Has the pool work on so many items at once. Returns their tasks once all have started and may end.
async fn work(pool: &TaskPool<Item>, items: usize) -> BTreeSet<task::Id> {
    let (started, mut tasks) = unbounded_channel();
    let (ends, items): (Vec<_>, Vec<_>) = (0..items)
        .map(|_| {
            let (sender, end) = oneshot::channel::<()>();
            let started = started.clone();
            (sender, Item { started, end })
        })
        .unzip();
    drop(started);
    let mut all = BTreeSet::new();
    pool.work_on(items);
    for _ in &ends {
        let task = timeout(GUARD, tasks.recv()).await;
        let task = task.expect("no item waits for ever");
        all.insert(task.expect("no item is dropped"));
    }
    all
}

#[tokio::test]
async fn items_are_worked_on_side_by_side() {
    assert_eq!(work(&pool(0), 100).await.len(), 100);
}

#[tokio::test]
async fn a_task_that_has_finished_takes_another_item() {
    let pool = pool(2);
    let first = work(&pool, 2).await;
    tasks_are(2).await;
    until(|| idle(&pool) == 2).await;
    assert_eq!(work(&pool, 2).await, first);
    until(|| idle(&pool) == 2).await;
    let more = work(&pool, 5).await;
    assert!(more.is_superset(&first) && more.len() == 5);
}

#[tokio::test]
async fn no_more_idle_tasks_are_kept_than_wanted() {
    let pool = pool(2);
    work(&pool, 50).await;
    tasks_are(2).await;
    assert_eq!(idle(&pool), 2);
    // All work as before.
    assert_eq!(work(&pool, 50).await.len(), 50);
    tasks_are(2).await;
    drop(pool);
    tasks_are(0).await;
}

#[tokio::test]
async fn idle_tasks_end_when_they_are_told_so() {
    let pool = pool(5);
    work(&pool, 5).await;
    until(|| idle(&pool) == 5).await;
    // Items that come while the tasks have not ended yet are worked on, and so are those after that.
    pool.end_idle();
    pool.end_idle();
    assert_eq!(work(&pool, 7).await.len(), 7);
    tasks_are(0).await;
    assert_eq!((idle(&pool), work(&pool, 7).await.len()), (0, 7));
}

#[tokio::test]
async fn what_waits_is_worked_on_after_the_pool_is_closed() {
    let pool = pool(1);
    let (started, mut tasks) = unbounded_channel();
    let items = (0..3).map(|_| Item {
        started: started.clone(),
        end: oneshot::channel().1,
    });
    pool.work_on(items.collect());
    pool.close();
    drop(started);
    tasks_are(0).await;
    for _ in 0..3 {
        assert!(tasks.recv().await.is_some());
    }
    assert_eq!(tasks.recv().await, None);
}

#[tokio::test]
async fn a_panic_ends_one_task_only() {
    let pool = pool(1);
    let (started, tasks) = unbounded_channel();
    drop(tasks);
    let (_, end) = oneshot::channel();
    // It panics because nobody listens.
    pool.work_on(vec![Item { started, end }]);
    tasks_are(0).await;
    assert_eq!(idle(&pool), 0);
    assert_eq!(work(&pool, 2).await.len(), 2);
}

/// One poll of a task works on one item. The dequeue task would otherwise wait for the next handler, if that blocks.
#[tokio::test]
async fn what_an_item_wakes_runs_before_the_same_task_takes_another() {
    let (sender, mut order) = unbounded_channel();
    let woken = Arc::new(tokio::sync::Notify::new());
    let waiting = tokio::spawn({
        let (woken, sender) = (Arc::clone(&woken), sender.clone());
        async move {
            woken.notified().await;
            sender.send("woken").expect("the test listens");
        }
    });
    yield_now().await;
    type Work = (UnboundedSender<&'static str>, Arc<tokio::sync::Notify>);
    let work = |(sender, woken): Work| async move {
        sender.send("item").expect("the test listens");
        woken.notify_one();
    };
    let pool = TaskPool::new(Handle::current(), 1, work);
    // One task for two items.
    pool.shared.state.hold().idle = 1;
    pool.work_on(vec![(sender.clone(), Arc::clone(&woken)); 2]);
    waiting.await.expect("it is woken");
    drop(sender);
    let mut seen = Vec::new();
    while seen.len() < 2 {
        seen.push(order.recv().await.expect("sent"));
    }
    assert_eq!(seen, ["item", "woken"]);
}

/// Counts the items that were worked on, and drops the runtime in which none had the chance.
fn dropped_unworked(shut_down: impl FnOnce(Runtime)) {
    static WORKED_ON: AtomicU32 = AtomicU32::new(0);
    let runtime = Builder::new_current_thread().build().expect("a runtime");
    let item = Arc::new(());
    let work = |_: Arc<()>| async {
        WORKED_ON.fetch_add(1, Ordering::Relaxed);
    };
    let pool = TaskPool::new(runtime.handle().clone(), 1, work);
    pool.work_on(vec![Arc::clone(&item); 3]);
    shut_down(runtime);
    assert_eq!(Arc::strong_count(&item), 1);
    pool.work_on(vec![Arc::clone(&item); 3]);
    assert_eq!(Arc::strong_count(&item), 1);
    assert_eq!(WORKED_ON.load(Ordering::Relaxed), 0);
}

#[test]
fn items_are_dropped_if_the_runtime_shuts_down() {
    dropped_unworked(drop);
}

#[test]
fn items_are_dropped_if_a_panic_drops_the_runtime() {
    dropped_unworked(|runtime| {
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let _runtime = runtime;
            panic!("planted");
        }));
        assert!(unwound.is_err());
    });
}

#[test]
fn items_are_dropped_if_the_runtime_shuts_down_while_tasks_are_idle() {
    let runtime = Builder::new_current_thread().build().expect("a runtime");
    let item = Arc::new(());
    let pool = TaskPool::new(runtime.handle().clone(), 2, |_: Arc<()>| async {});
    pool.work_on(vec![Arc::clone(&item); 2]);
    runtime.block_on(async {
        while Arc::strong_count(&item) > 1 || idle(&pool) < 2 {
            yield_now().await;
        }
    });
    pool.work_on(vec![Arc::clone(&item); 2]);
    drop(runtime);
    assert_eq!(Arc::strong_count(&item), 1);
}
