use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use queue_runtime::Received;

use super::{Desk, work};
use crate::ledger::Event;
use crate::messages::CrashOrder;

/// Shorter than the longest handler.
const GRACE: Duration = Duration::from_millis(100);

/// Longer than a process is stopped by a busy machine.
const LEASE: Duration = Duration::from_secs(600);

/// How a process that was asked to stop has ended, which it prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped {
    /// Messages that were handed back.
    pub released: usize,
    /// Handlers that blocked their threads.
    pub stuck: usize,
}

/// Handles orders until a signal to stop.
pub(super) async fn run(desk: Arc<Desk>) {
    let shutdown = desk.service.shutdown_on_signal(GRACE);
    let shutdown = shutdown.expect("signals can be handled");
    let listener = desk
        .service
        .listener_with(Arc::clone(&desk), handle)
        .visibility_timeout(LEASE)
        .max_in_flight(8)
        .create_queue();
    listener.start().expect("the settings are valid");
    let report = tokio::select! {
        report = shutdown => report,
        // The test has ended.
        () = desk.stopping() => return,
    };
    let stopped = Stopped {
        released: report.released(),
        stuck: report.listeners.iter().map(|listener| listener.stuck).sum(),
    };
    println!("{stopped}");
}

async fn handle(desk: Arc<Desk>, order: Received<CrashOrder>) {
    let lease = work::lease(&order);
    desk.ledger.write(Event::Started, &order.name, lease);
    let pause = 3 * u64::from(desk.dice());
    tokio::time::sleep(Duration::from_millis(pause)).await;
    desk.ledger.write(Event::Finishing, &order.name, lease);
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "released {} stuck {}", self.released, self.stuck)
    }
}

impl FromStr for Stopped {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        let (released, stuck) = line
            .strip_prefix("released ")
            .and_then(|rest| rest.split_once(" stuck "))
            .ok_or(())?;
        Ok(Self {
            released: released.parse().map_err(drop)?,
            stuck: stuck.parse().map_err(drop)?,
        })
    }
}
