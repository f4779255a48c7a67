//! The runtime that renews leases and runs listeners, apart from the threads that run handlers.

use std::future::Future;
use std::io;

use tokio::runtime::{Builder, Handle, TryCurrentError};
use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};

/// A runtime for renewals and settlements. Dropping the engine stops its tasks.
#[derive(Debug)]
pub(crate) struct Engine {
    handle: Handle,
    form: Form,
}

#[derive(Debug)]
enum Form {
    /// A single-threaded runtime on its own thread: a handler that blocks every worker of the
    /// application's runtime loses no lease.
    Thread { _stop: oneshot::Sender<()> },
    /// Tasks on the caller's runtime.
    Tasks { stop: DropGuard },
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
            form: Form::Thread { _stop: stop },
        })
    }

    pub(crate) fn on_current_runtime() -> Result<Self, TryCurrentError> {
        Ok(Self {
            handle: Handle::try_current()?,
            form: Form::Tasks {
                stop: CancellationToken::new().drop_guard(),
            },
        })
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
