//! The thread that keeps leases and runs listeners, apart from the threads that run handlers.

use std::future::Future;
use std::io;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// A single-threaded tokio runtime on a thread of its own.
///
/// Renewals and settlements run here, so a handler that blocks every worker of the application's
/// runtime loses no lease. Dropping the engine drops its tasks.
#[derive(Debug)]
pub(crate) struct Engine {
    handle: Handle,
    _stop_on_drop: oneshot::Sender<()>,
}

impl Engine {
    pub(crate) fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        std::thread::Builder::new()
            .name("queue-engine".to_owned())
            .spawn(move || {
                // An error says that the sender was dropped, which is the signal.
                let _ = runtime.block_on(stopped);
                runtime.shutdown_background();
            })?;
        Ok(Self {
            handle,
            _stop_on_drop: stop,
        })
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.handle.spawn(task));
    }
}
