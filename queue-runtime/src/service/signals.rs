use std::io;

#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};
#[cfg(windows)]
use tokio::signal::windows::CtrlC;

/// The signals that ask a process to stop: SIGTERM and SIGINT, which Ctrl-C sends; on Windows, Ctrl-C.
///
/// [`QueueService::shutdown_on_signal`](crate::QueueService::shutdown_on_signal) is usually enough. This is for
/// programs that stop other work as well.
///
/// ```no_run
/// use std::time::Duration;
/// use queue_runtime::{QueueService, StopSignals};
///
/// # async fn import() {}
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let service = QueueService::connect("memory:").await?;
/// let mut signals = StopSignals::new()?;
/// tokio::select! {
///     () = import() => println!("imported"),
///     () = signals.next() => println!("interrupted"),
/// }
/// service.shutdown(Duration::from_secs(30)).await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct StopSignals {
    #[cfg(unix)]
    terminate: Signal,
    #[cfg(unix)]
    interrupt: Signal,
    #[cfg(windows)]
    interrupt: CtrlC,
}

impl StopSignals {
    /// Starts to listen. From now on, and until the process ends, the signals no longer end it.
    ///
    /// # Errors
    /// The system's error, if it does not allow the process to handle the signals.
    ///
    /// # Panics
    /// If called outside a Tokio runtime with I/O enabled.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            #[cfg(unix)]
            terminate: signal(SignalKind::terminate())?,
            #[cfg(unix)]
            interrupt: signal(SignalKind::interrupt())?,
            #[cfg(windows)]
            interrupt: tokio::signal::windows::ctrl_c()?,
        })
    }

    /// Waits for the next signal since the last one that this returned. Signals that arrive at the same time may count
    /// as one.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn next(&mut self) {
        // `None` would mean that there are no more signals, which the runtime never says.
        #[cfg(unix)]
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
        #[cfg(windows)]
        let _ = self.interrupt.recv().await;
    }
}
