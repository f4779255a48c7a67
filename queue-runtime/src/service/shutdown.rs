//! The end of a service: on demand, or on a signal to the process.

#[cfg(feature = "signal")]
use std::future::Future;
#[cfg(feature = "signal")]
use std::io;
use std::time::Duration;

use super::queue_service::QueueService;
#[cfg(feature = "signal")]
use super::signals::StopSignals;
use crate::kernel::listener::ServiceShutdown;

impl QueueService {
    /// Stops all listeners and schedules of this service and its clones side by side. Listeners stop as
    /// [`ListenerHandle::shutdown`](crate::ListenerHandle::shutdown) says: they receive nothing any more, running
    /// handlers have up to `grace` to finish, and then the remaining handlers are cancelled and their messages handed
    /// back without counting the attempt, which takes up to 10 seconds. Schedules submit no further tick; a submission
    /// that is under way when the grace period is over is abandoned, and may or may not be carried out.
    ///
    /// No listener or schedule starts after a shutdown: the errors are
    /// [`StartErrorKind::ShutDown`](crate::listener::StartErrorKind::ShutDown) and
    /// [`ScheduleErrorKind::ShutDown`](crate::recurring::ScheduleErrorKind::ShutDown). After a shutdown, `submit`,
    /// `accept`, `request` and deliveries that an `accept` has returned still work, for handlers within the grace
    /// period, and for the program after it. If the program makes requests, call
    /// [`delete_reply_queue`](Self::delete_reply_queue) at its end.
    ///
    /// Further calls of `shutdown` return the same report, and end the grace period after their own `grace` if that is
    /// sooner.
    ///
    /// ```
    /// use std::time::Duration;
    /// use queue_runtime::{Message, Received, StartError, testing};
    /// use queue_runtime::listener::StartErrorKind;
    /// # use serde::{Deserialize, Serialize};
    /// #
    /// # #[derive(Debug, Serialize, Deserialize, Message)]
    /// # struct Order {
    /// #     number: u32,
    /// # }
    /// #
    /// # #[derive(Debug, Serialize, Deserialize, Message)]
    /// # struct Invoice {
    /// #     number: u32,
    /// # }
    /// #
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # async fn ship(_: Received<Order>) {}
    /// # async fn send(_: Received<Invoice>) {}
    /// let service = testing::service().await;
    /// service.listener(ship).start()?;
    /// service.listener(send).start()?;
    ///
    /// let report = service.shutdown(Duration::from_secs(30)).await;
    /// assert!(report.graceful);
    /// assert_eq!(report.listeners.len(), 2);
    /// assert!(matches!(service.listener(ship).start(), Err(StartError { kind: StartErrorKind::ShutDown, .. })));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// If the future is dropped, the shutdown goes on in the background. Another call of `shutdown` waits for the stop.
    ///
    /// # Panics
    /// If the Tokio runtime of a service that was built with
    /// [`on_current_runtime`](crate::service::ServiceBuilder::on_current_runtime) has shut down.
    pub async fn shutdown(&self, grace: Duration) -> ServiceShutdown {
        let (context, running) = (&self.context, &self.running);
        let stop_schedules = |shutdown| running.schedules.shut_down(shutdown);
        let shutdown = running.listeners.shutdown(context, grace, stop_schedules);
        shutdown.await
    }

    /// [Shuts down](Self::shutdown) on the first [signal to stop](StopSignals), such as SIGTERM, or SIGINT by Ctrl-C
    /// (feature `signal`).
    ///
    /// A second signal ends the grace period, so that handlers are cancelled and their messages handed back at once; the
    /// process is ended 11 seconds later if it still runs.
    ///
    /// From this call on, the first signal does not end the process; once the future has completed or is dropped, each
    /// signal does again. The future has to be awaited for the first signal to have an effect: call
    /// `shutdown_on_signal` before the first listener starts, and await the future afterwards.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use queue_runtime::{Message, QueueService, Received};
    /// # use serde::{Deserialize, Serialize};
    /// #
    /// # #[derive(Debug, Serialize, Deserialize, Message)]
    /// # struct Order {
    /// #     number: u32,
    /// # }
    /// # async fn ship(_: Received<Order>) {}
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let service = QueueService::connect("sqlite:orders.db").await?;
    /// let shutdown = service.shutdown_on_signal(Duration::from_secs(30))?;
    /// service.listener(ship).start()?;
    /// let report = shutdown.await;
    /// eprintln!("stopped; {} messages handed back", report.released());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The system's error, if it does not allow the process to handle the signals.
    ///
    /// # Panics
    /// The future panics as [`shutdown`](Self::shutdown) does.
    ///
    /// # Cancel safety
    /// If the future is dropped before a signal, nothing is shut down; afterwards the [`shutdown`](Self::shutdown) goes
    /// on in the background.
    #[cfg(feature = "signal")]
    pub fn shutdown_on_signal(
        &self,
        grace: Duration,
    ) -> io::Result<impl Future<Output = ServiceShutdown> + Send + use<>> {
        let mut signals = StopSignals::new()?;
        let service = self.clone();
        Ok(async move {
            let signal = signals.next().await;
            tracing::info!(%signal, ?grace, "shutting down on a signal");
            tokio::select! {
                biased;
                report = service.shutdown(grace) => report,
                signal = signals.next() => {
                    tracing::info!(%signal, "ending the grace period on another signal");
                    service.shutdown(Duration::ZERO).await
                }
            }
        })
    }
}
