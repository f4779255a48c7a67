use std::path::PathBuf;
use std::thread::available_parallelism;
use std::time::Duration;

use mosaic::roles::{Settings, broker, controller, processor};
use queue_runtime::Failure;

use super::arguments::{Kind, Role};
use super::location::open;

/// How long handlers get to finish after the signal to stop.
const GRACE: Duration = Duration::from_secs(20);

/// Runs one role until the process is told to stop; told again, it stops at once.
pub(crate) async fn role(arguments: Role) -> Result<(), Failure> {
    let tasks = match arguments.tasks {
        Some(tasks) => usize::from(tasks),
        None => available_parallelism().map_or(1, usize::from),
    };
    let settings = Settings {
        tasks,
        visibility_timeout: arguments.visibility_timeout,
        poison_threshold: arguments.poison_threshold,
        pace: arguments.pace,
    };
    let data = arguments
        .location
        .data
        .clone()
        .unwrap_or_else(|| PathBuf::from("mosaic-data"));
    let (service, store) = open(&data, &arguments.location).await?;
    let mut signals = Signals::new()?;
    let role = match arguments.role {
        Kind::Broker => broker(&service, &store, &settings)?,
        Kind::Controller => controller(&service, &store, &settings)?,
        Kind::Processor => processor(&service, &store, &settings)?,
    };
    signals.next().await?;
    tokio::select! {
        _ = role.shutdown(GRACE) => Ok(()),
        told = signals.next() => {
            told?;
            Err("stopped at once; what was in hand comes back when its lease runs out".into())
        }
    }
}

#[cfg(unix)]
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> std::io::Result<()> {
        tokio::select! {
            _ = self.terminate.recv() => Ok(()),
            _ = self.interrupt.recv() => Ok(()),
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) -> std::io::Result<()> {
        tokio::signal::ctrl_c().await
    }
}
