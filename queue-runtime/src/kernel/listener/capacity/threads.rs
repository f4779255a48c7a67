//! The thread pool of blocking handlers. A thread is reserved for each message before it is received.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use queue_core::internal::LockExt as _;

use crate::kernel::panic::catch;

type Job = Box<dyn FnOnce() + Send>;

/// The function that starts a thread for a job; tests replace it.
pub(crate) type StartThread = Arc<dyn Fn(Job) -> io::Result<()> + Send + Sync>;

/// A pool that grows to the number of threads reserved at once. Dropping the pool ends the threads as they become idle.
pub(crate) struct HandlerThreads {
    shared: Arc<ThreadPool>,
    start: StartThread,
}

/// Reserved threads, which a drop returns to the pool.
pub(crate) struct Reserved {
    shared: Arc<ThreadPool>,
    threads: usize,
}

/// Which messages of a listener need a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NeedsThread {
    EachMessage,
    /// Messages of some types, which are known only once received, or one message at a time.
    SomeMessages,
}

#[derive(Default)]
struct ThreadPool {
    state: Mutex<Threads>,
    work: Condvar,
}

#[derive(Default)]
struct Threads {
    jobs: VecDeque<Job>,
    /// Threads that have been started.
    started: usize,
    /// Threads that are reserved or run a job.
    reserved: usize,
    closed: bool,
}

impl HandlerThreads {
    pub(crate) fn new(start: StartThread) -> Self {
        let shared = Arc::default();
        Self { shared, start }
    }

    /// Reserves at least one thread and at most `wanted`.
    ///
    /// # Errors
    /// The operating system's error if no thread is idle and none can be started.
    pub(crate) fn reserve(&self, wanted: usize) -> io::Result<Reserved> {
        let mut state = self.shared.state.hold();
        while state.started - state.reserved < wanted {
            let shared = Arc::clone(&self.shared);
            match (self.start)(Box::new(move || shared.work())) {
                Ok(()) => state.started += 1,
                Err(error) if state.started == state.reserved => return Err(error),
                Err(_) => break,
            }
        }
        let threads = wanted.min(state.started - state.reserved);
        state.reserved += threads;
        Ok(Reserved {
            shared: Arc::clone(&self.shared),
            threads,
        })
    }
}

impl Drop for HandlerThreads {
    fn drop(&mut self) {
        self.shared.state.hold().closed = true;
        self.shared.work.notify_all();
    }
}

/// Starts a thread of the operating system.
pub(crate) fn start_thread() -> StartThread {
    Arc::new(|job| {
        let thread = std::thread::Builder::new().name("queue-handler".to_owned());
        thread.spawn(job).map(drop)
    })
}

impl Reserved {
    pub(crate) fn count(&self) -> usize {
        self.threads
    }

    /// Splits off one thread. Returns `None` if none is left.
    pub(crate) fn split(&mut self) -> Option<Self> {
        self.threads = self.threads.checked_sub(1)?;
        Some(Self {
            shared: Arc::clone(&self.shared),
            threads: 1,
        })
    }

    /// Runs a job on a reserved thread, gives the thread back, and then runs what the job returned.
    pub(crate) fn run<F: FnOnce()>(self, job: impl FnOnce() -> F + Send + 'static) {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.state.hold();
        state.jobs.push_back(Box::new(move || {
            let then = job();
            drop(self);
            then();
        }));
        drop(state);
        shared.work.notify_one();
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.shared.state.hold().reserved -= self.threads;
    }
}

impl ThreadPool {
    /// Runs jobs until the pool is closed.
    fn work(&self) {
        let mut state = self.state.hold();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                if let Err(panic) = catch(job) {
                    tracing::error!(%panic, "a thread for handlers caught a panic");
                }
                state = self.state.hold();
            } else if state.closed {
                return;
            } else {
                state = self
                    .work
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl fmt::Debug for HandlerThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.state.hold();
        f.debug_struct("HandlerThreads")
            .field("started", &state.started)
            .field("reserved", &state.reserved)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Reserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reserved")
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Barrier, mpsc};
    use std::time::Duration;

    use super::*;

    /// Runs jobs that wait for each other, and so end only if all run at once.
    fn meet(threads: &HandlerThreads, jobs: usize) {
        let mut reserved = threads.reserve(jobs).expect("threads");
        assert_eq!(reserved.count(), jobs);
        let barrier = Arc::new(Barrier::new(jobs));
        let (done, ended) = mpsc::channel();
        while let Some(thread) = reserved.split() {
            let (barrier, done) = (Arc::clone(&barrier), done.clone());
            thread.run(move || {
                barrier.wait();
                move || done.send(()).expect("the test waits")
            });
        }
        for _ in 0..jobs {
            let end = ended.recv_timeout(Duration::from_secs(60));
            end.expect("all of them run");
        }
    }

    #[test]
    fn each_job_has_a_thread_of_its_own() {
        let threads = HandlerThreads::new(start_thread());
        for jobs in [8, 8, 16, 4, 16] {
            meet(&threads, jobs);
        }
        assert_eq!(threads.shared.state.hold().started, 16);
    }

    #[test]
    fn what_is_reserved_is_given_back() {
        let threads = HandlerThreads::new(start_thread());
        for _ in 0..3 {
            let mut reserved = threads.reserve(2).expect("threads");
            drop(reserved.split());
        }
        let state = threads.shared.state.hold();
        assert_eq!((state.started, state.reserved), (2, 0));
        drop(state);
    }

    #[test]
    fn a_job_that_never_ends_holds_up_no_other() {
        let threads = HandlerThreads::new(start_thread());
        let (release, blocked) = mpsc::channel::<()>();
        let stuck = threads.reserve(1).expect("a thread");
        stuck.run(move || {
            while blocked.recv().is_ok() {}
            || ()
        });
        for _ in 0..100 {
            meet(&threads, 1);
        }
        drop(release);
    }
}
