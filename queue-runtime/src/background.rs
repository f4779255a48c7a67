//! Where the service's own tasks run: renewals and watchdogs.

use std::future::Future;
use std::io;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// Runs a service's tasks apart from the threads that run handlers.
///
/// Renewals run here, so a handler that blocks every worker of the application's runtime loses no
/// lease. Dropping it ends its tasks.
#[derive(Debug)]
pub(crate) struct Background {
    handle: Handle,
    /// Ends the thread when it is dropped; `None` on a runtime that belongs to somebody else.
    _thread: Option<oneshot::Sender<()>>,
}

impl Background {
    /// Starts a thread with a single-threaded runtime of its own.
    pub(crate) fn start_thread() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        std::thread::Builder::new()
            .name("queue-background".to_owned())
            .spawn(move || {
                // An error says that the sender was dropped, which is the signal.
                let _ = runtime.block_on(stopped);
                runtime.shutdown_background();
            })?;
        Ok(Self {
            handle,
            _thread: Some(stop),
        })
    }

    /// Runs the tasks on an existing runtime, which has to be driven for leases to be kept.
    pub(crate) fn on(handle: Handle) -> Self {
        Self {
            handle,
            _thread: None,
        }
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.handle.spawn(task));
    }
}
