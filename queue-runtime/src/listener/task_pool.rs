//! Tasks on a runtime that work on one item at a time.

use std::collections::VecDeque;
use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::panicking;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;

/// Tasks that work on items, each item in a task of its own. A task that has finished takes another item, because waking
/// a task costs less than starting one. Once this is dropped, the tasks end as soon as no item waits.
pub(super) struct TaskPool<T> {
    shared: Arc<Shared<T>>,
    start: Box<dyn Fn(Worker<T>) + Send + Sync>,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    /// A permit for each item that waits.
    permits: Semaphore,
    /// The number of tasks without an item that are kept.
    max_idle: usize,
}

struct State<T> {
    /// The items that idle tasks will take.
    waiting: VecDeque<T>,
    /// The number of tasks without an item, at least as many as there are items that wait.
    idle: usize,
    is_runtime_gone: bool,
}

impl<T: Send + 'static> TaskPool<T> {
    /// Keeps up to `max_idle` tasks that have nothing to do.
    pub(super) fn new<W, F>(runtime: Handle, max_idle: usize, work: W) -> Self
    where
        W: Fn(T) -> F + Copy + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(State {
                    waiting: VecDeque::new(),
                    idle: 0,
                    is_runtime_gone: false,
                }),
                permits: Semaphore::new(0),
                max_idle,
            }),
            // In a box, because a task moves its future several times.
            start: Box::new(move |worker| drop(runtime.spawn(Box::pin(worker.run(work))))),
        }
    }

    /// Has a task work on each item. Items are dropped if the runtime has shut down.
    pub(super) fn take(&self, items: Vec<T>) {
        let count = items.len();
        let mut state = self.shared.lock();
        if state.is_runtime_gone {
            drop(state);
            return;
        }
        state.waiting.extend(items);
        let missing = state.waiting.len().saturating_sub(state.idle);
        state.idle += missing;
        drop(state);
        self.shared.permits.add_permits(count);
        for _ in 0..missing {
            (self.start)(Worker {
                shared: Arc::clone(&self.shared),
                has_ended: false,
            });
        }
    }
}

impl<T> Drop for TaskPool<T> {
    fn drop(&mut self) {
        self.shared.permits.close();
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One task.
struct Worker<T> {
    shared: Arc<Shared<T>>,
    has_ended: bool,
}

impl<T> Worker<T> {
    async fn run<F: Future<Output = ()>>(mut self, work: impl Fn(T) -> F) {
        while let Some(item) = self.next().await {
            work(item).await;
            if !self.stays() {
                break;
            }
        }
        self.has_ended = true;
    }

    /// Waits for an item. Returns `None` once the pool is dropped and no item waits.
    async fn next(&self) -> Option<T> {
        if let Ok(permit) = self.shared.permits.acquire().await {
            permit.forget();
        }
        let mut state = self.shared.lock();
        let item = state.waiting.pop_front()?;
        state.idle -= 1;
        Some(item)
    }

    /// Returns whether the task, which has finished with its item, is kept.
    fn stays(&self) -> bool {
        let mut state = self.shared.lock();
        let stays = state.idle < state.waiting.len() + self.shared.max_idle;
        state.idle += usize::from(stays);
        stays
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        if self.has_ended || panicking() {
            return;
        }
        // The runtime drops a task only when it shuts down, and then no task takes another item.
        let mut state = self.shared.lock();
        state.is_runtime_gone = true;
        let waiting = take(&mut state.waiting);
        drop(state);
        drop(waiting);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tokio::runtime::Runtime;
    use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
    use tokio::sync::oneshot;
    use tokio::task::{self, yield_now};

    use super::*;

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
        pool.shared.lock().idle
    }

    /// Has the pool work on so many items at once. Returns their tasks once all have ended.
    async fn work(pool: &TaskPool<Item>, items: usize) -> BTreeSet<task::Id> {
        let (started, mut tasks) = unbounded_channel();
        let before = idle(pool);
        let (ends, items): (Vec<_>, Vec<_>) = (0..items)
            .map(|_| {
                let (sender, end) = oneshot::channel::<()>();
                let started = started.clone();
                (sender, Item { started, end })
            })
            .unzip();
        let count = items.len();
        let kept = before.max(count.min(pool.shared.max_idle));
        pool.take(items);
        let mut all = BTreeSet::new();
        for _ in 0..count {
            all.insert(tasks.recv().await.expect("each item is worked on"));
        }
        drop(ends);
        while idle(pool) < kept {
            yield_now().await;
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
        assert_eq!(work(&pool, 2).await, first);
        let more = work(&pool, 5).await;
        assert!(more.is_superset(&first) && more.len() == 5);
    }

    #[tokio::test]
    async fn no_more_tasks_are_kept_than_wanted() {
        let pool = pool(2);
        work(&pool, 50).await;
        for _ in 0..100 {
            yield_now().await;
        }
        assert_eq!(idle(&pool), 2);
        let metrics = Handle::current().metrics();
        assert_eq!(metrics.num_alive_tasks(), 2);
        drop(pool);
        while metrics.num_alive_tasks() > 0 {
            yield_now().await;
        }
    }

    #[tokio::test]
    async fn what_waits_is_worked_on_after_the_pool_is_dropped() {
        let pool = pool(1);
        let (started, mut tasks) = unbounded_channel();
        let items = (0..3).map(|_| Item {
            started: started.clone(),
            end: oneshot::channel().1,
        });
        pool.take(items.collect());
        drop((pool, started));
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
        pool.take(vec![Item { started, end }]);
        assert_eq!(work(&pool, 1).await.len(), 1);
    }

    #[test]
    fn items_are_dropped_if_the_runtime_has_shut_down() {
        let runtime = Runtime::new().expect("a runtime");
        let item = Arc::new(());
        let pool = TaskPool::new(runtime.handle().clone(), 1, |_: Arc<()>| async {});
        pool.take(vec![Arc::clone(&item)]);
        runtime.shutdown_background();
        for _ in 0..3 {
            pool.take(vec![Arc::clone(&item), Arc::clone(&item)]);
        }
        while Arc::strong_count(&item) > 1 {
            std::thread::yield_now();
        }
    }
}
