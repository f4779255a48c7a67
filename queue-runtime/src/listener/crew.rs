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
    idle: usize,
    /// A thread was woken or started and has not looked at the jobs yet.
    called: bool,
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
        let called = self.shared.call(&mut state);
        if called.is_err() {
            state.jobs.pop_back();
        }
        called
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

    /// Has one more thread look at the jobs, unless one is on its way already. It calls the next before
    /// it turns to its job; so handlers that are soon done share few threads, and waking costs little.
    fn call(self: &Arc<Self>, state: &mut State) -> io::Result<()> {
        if state.called {
            return Ok(());
        }
        if state.idle > 0 {
            self.work.notify_one();
        } else {
            let shared = Arc::clone(self);
            std::thread::Builder::new()
                .name("queue-handler".to_owned())
                .spawn(move || shared.work())?;
        }
        state.called = true;
        Ok(())
    }

    /// A thread's life.
    fn work(self: Arc<Self>) {
        let mut state = self.lock();
        state.called = false;
        loop {
            if let Some(job) = state.jobs.pop_front() {
                if !state.jobs.is_empty()
                    && let Err(error) = self.call(&mut state)
                {
                    tracing::warn!(%error, "handlers wait: no thread can be started");
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
            state.called = false;
            if waited.timed_out() && state.jobs.is_empty() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

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
