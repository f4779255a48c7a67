//! The background tasks of a service, renewals and watchdogs, and the thread that runs them.

use std::future::Future;
use std::io;
use std::sync::mpsc;

use tokio::runtime::{Builder, Handle, TryCurrentError};
use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Runs the background tasks of a service. Dropping it stops them.
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
        // The runtime is built on its thread: dropping one here, where it may be async, would panic.
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

    pub(crate) fn on_current_runtime() -> Result<Self, TryCurrentError> {
        let stop = CancellationToken::new().drop_guard();
        let form = Form::Tasks { stop };
        Ok(Self {
            handle: Handle::try_current()?,
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
