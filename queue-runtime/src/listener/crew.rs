//! The threads that handlers run on: as many as handlers are running, no more.
//!
//! A handler that never returns keeps its thread. The next handler gets another, so nothing waits
//! behind it.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

type Job = Box<dyn FnOnce() + Send>;

/// How long a thread waits for work before it ends.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub(super) struct Crew {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Threads that wait for work, woken or not.
    idle: usize,
    /// A thread was woken and has not looked at the jobs yet.
    waking: bool,
    closed: bool,
}

impl Crew {
    pub(super) fn new() -> Self {
        Self {
            shared: Arc::new(Shared {
                state: Mutex::default(),
                work: Condvar::new(),
            }),
        }
    }

    /// Runs a job at once: on an idle thread, or on a new one.
    pub(super) fn run(&self, job: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let mut state = self.shared.lock();
        state.jobs.push_back(Box::new(job));
        if state.jobs.len() <= state.idle {
            self.shared.wake_one(&mut state);
            return Ok(());
        }
        let shared = Arc::clone(&self.shared);
        let started = std::thread::Builder::new()
            .name("queue-handler".to_owned())
            .spawn(move || shared.work());
        if started.is_err() {
            state.jobs.pop_back();
        }
        started.map(drop)
    }

    /// Lets the threads end as they become idle.
    pub(super) fn close(&self) {
        self.shared.lock().closed = true;
        self.shared.work.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes a thread, unless one is waking already: that one wakes the next before it turns to its own
    /// job. So jobs that are soon done share few threads, and most are spared the cost of waking one.
    fn wake_one(&self, state: &mut State) {
        if !state.waking {
            state.waking = true;
            self.work.notify_one();
        }
    }

    /// A thread's life.
    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                if !state.jobs.is_empty() && state.idle > 0 {
                    self.wake_one(&mut state);
                }
                drop(state);
                job();
                state = self.lock();
                continue;
            }
            if state.closed {
                return;
            }
            state.idle += 1;
            let (woken, waited) = self
                .work
                .wait_timeout(state, KEEP_ALIVE)
                .unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            // Whichever thread was meant: this one looks now, and wakes the next if there is more to do.
            state.waking = false;
            if waited.timed_out() && state.jobs.is_empty() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Barrier, mpsc};

    use super::*;

    /// Jobs that wait for each other, and end only if all run at a time.
    fn meet(crew: &Crew, jobs: usize) {
        let barrier = Arc::new(Barrier::new(jobs));
        let (done, ended) = mpsc::channel();
        for _ in 0..jobs {
            let (barrier, done) = (Arc::clone(&barrier), done.clone());
            let job = move || {
                barrier.wait();
                done.send(()).expect("the test waits");
            };
            crew.run(job).expect("a thread");
        }
        for _ in 0..jobs {
            let end = ended.recv_timeout(Duration::from_secs(60));
            end.expect("all of them run");
        }
    }

    #[test]
    fn each_job_has_a_thread_of_its_own_whether_threads_are_idle_or_not() {
        let crew = Crew::new();
        for jobs in [8, 8, 16, 4, 16] {
            meet(&crew, jobs);
        }
        crew.close();
    }

    #[test]
    fn a_job_that_never_ends_holds_up_no_other() {
        let crew = Crew::new();
        let (release, blocked) = mpsc::channel::<()>();
        crew.run(move || while blocked.recv().is_ok() {})
            .expect("a thread");
        let (done, finished) = mpsc::channel();
        for n in 0..100 {
            let done = done.clone();
            crew.run(move || done.send(n).expect("the test waits"))
                .expect("a thread");
        }
        let mut all: Vec<i32> = finished.iter().take(100).collect();
        all.sort_unstable();
        assert_eq!(all, (0..100).collect::<Vec<_>>());
        drop(release);
        crew.close();
    }
}
