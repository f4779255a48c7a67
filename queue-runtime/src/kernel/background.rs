//! The background tasks of a service, renewals and watchdogs, and the thread that runs them.

use std::future::Future;
use std::io;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use queue_core::clock::Clock;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::kernel::panic::{catch_async, log_caught};

/// The pause before a task that has panicked starts again: leases must be renewed soon.
const RESTART_PAUSE: Duration = Duration::from_millis(100);

/// Runs the background tasks of a service until dropped.
#[derive(Debug)]
pub(crate) struct Background {
    handle: Handle,
    form: Form,
}

#[derive(Debug)]
enum Form {
    /// A single-threaded runtime on a separate thread, so that handlers that block all workers of the
    /// application's runtime lose no leases.
    Thread { _stop: oneshot::Sender<()> },
    /// Tasks on the runtime of the caller.
    Tasks { stop: DropGuard },
}

impl Background {
    pub(crate) fn start_thread() -> io::Result<Self> {
        let (stop, stopped) = oneshot::channel::<()>();
        let (built, handle) = mpsc::channel();
        // The runtime is built on its thread: dropping a runtime here, where it may be async, would panic.
        std::thread::Builder::new()
            .name("queue-background".to_owned())
            .spawn(move || {
                let runtime = Builder::new_current_thread().enable_all().build();
                let runtime = match runtime {
                    Ok(runtime) => runtime,
                    Err(error) => return drop(built.send(Err(error))),
                };
                drop(built.send(Ok(runtime.handle().clone())));
                // An error means that the sender was dropped, which is the signal.
                let _ = runtime.block_on(stopped);
                runtime.shutdown_background();
            })?;
        let handle = handle
            .recv()
            .expect("the thread sends a handle or an error")?;
        let form = Form::Thread { _stop: stop };
        Ok(Self { handle, form })
    }

    /// Whether the tasks run although the application's runtime may not.
    pub(crate) fn has_thread(&self) -> bool {
        matches!(self.form, Form::Thread { .. })
    }

    pub(crate) fn on_current_runtime() -> io::Result<Self> {
        let stop = CancellationToken::new().drop_guard();
        let form = Form::Tasks { stop };
        Ok(Self {
            handle: Handle::try_current().map_err(io::Error::other)?,
            form,
        })
    }

    /// Runs a future to its end, even if the caller is dropped. Returns `None` if the background is stopped
    /// before.
    pub(crate) async fn finish<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let (done, output) = oneshot::channel();
        // The receiver is gone if the caller was dropped.
        self.spawn(async move { drop(done.send(future.await)) });
        output.await.ok()
    }

    /// Runs a task that may end only by itself. After a panic, which is logged, the task starts again.
    pub(crate) fn keep_running<F>(
        &self,
        name: &'static str,
        clock: Arc<dyn Clock>,
        start: impl Fn() -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        self.spawn(async move {
            while let Err(panic) = catch_async(start()).await {
                log_caught(
                    || tracing::error!(task = name, %panic, "a background task panicked; starting it again"),
                );
                clock.sleep(RESTART_PAUSE).await;
            }
        });
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        match &self.form {
            Form::Thread { .. } => drop(self.handle.spawn(task)),
            Form::Tasks { stop } => {
                let stop = stop.token().clone();
                let task = async move { stop.run_until_cancelled_owned(task).await.unwrap_or(()) };
                drop(self.handle.spawn(task));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::testing::TokioClock;

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_starts_again_until_it_ends_by_itself() {
        let background = Background::on_current_runtime().expect("a runtime");
        let starts = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&starts);
        background.keep_running("test", Arc::new(TokioClock::new()), move || {
            let start = counted.fetch_add(1, Ordering::Relaxed) + 1;
            async move { assert!(start == 4, "start {start}") }
        });
        tokio::time::sleep(RESTART_PAUSE / 2).await;
        assert_eq!(starts.load(Ordering::Relaxed), 1, "it starts after a pause");
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(starts.load(Ordering::Relaxed), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_to_be_finished_ends_although_its_caller_is_dropped() {
        let background = Background::on_current_runtime().expect("a runtime");
        let (end, ended) = oneshot::channel();
        let late = async move {
            tokio::time::sleep(Duration::from_secs(2)).await;
            end.send("ended").expect("the test waits");
        };
        let second = Duration::from_secs(1);
        let dropped = tokio::time::timeout(second, background.finish(late)).await;
        assert!(dropped.is_err(), "it takes two seconds");
        assert_eq!(ended.await, Ok("ended"));
        assert_eq!(background.finish(async { 7 }).await, Some(7));
    }
}
