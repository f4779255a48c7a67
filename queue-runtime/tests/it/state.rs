//! Handlers with the application's state.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use queue_runtime::listener::DrainEnd;
use queue_runtime::{Received, blocking, testing};

use crate::support::NEVER;
use crate::support::jobs::{Job, Mood, submit_jobs};

#[derive(Clone, Default)]
struct App {
    handled: Arc<AtomicU64>,
}

impl App {
    fn count(&self, job: &Job) {
        assert_eq!(job.mood, Mood::Good);
        self.handled.fetch_add(1, Ordering::Relaxed);
    }

    async fn handle(self, job: Received<Job>) {
        self.count(&job);
    }

    fn handle_blocking(self, job: Received<Job>) {
        self.count(&job);
    }
}

#[tokio::test(start_paused = true)]
async fn every_call_shares_the_state() {
    let service = testing::service().await;
    let app = App::default();
    for (round, is_blocking) in [(1, false), (2, true)] {
        submit_jobs(&service, 5).await;
        let listener = if is_blocking {
            service.listener_with(app.clone(), blocking(App::handle_blocking))
        } else {
            service.listener_with(app.clone(), App::handle)
        };
        let listener = listener.handler_timeout(NEVER).until_empty();
        let report = listener.start().expect("starts").drained().await;
        assert_eq!((report.end, report.info.completed), (DrainEnd::Empty, 5));
        assert_eq!(app.handled.load(Ordering::Relaxed), 5 * round);
    }
}
