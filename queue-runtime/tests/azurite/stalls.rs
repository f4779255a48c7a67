//! Time in which Azurite, or the whole machine, did not answer.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use queue_core::backend::Backend as _;
use tokio::runtime::Builder;

use crate::case::{BUSY, connect};
use crate::server::ACCOUNT;

const INTERVAL: Duration = Duration::from_secs(1);
/// Longer than any stall that the test run survives.
const DEADLINE: Duration = Duration::from_secs(3600);

static PULSE: LazyLock<&'static Pulse> = LazyLock::new(start);

/// The stalls since a test began.
pub(crate) struct Stalls {
    before: AtomicU64,
}

#[derive(Default)]
struct Pulse {
    beats: AtomicU64,
    /// The time in milliseconds by which beats came late, in total.
    late: AtomicU64,
}

impl Stalls {
    pub(crate) fn new() -> Self {
        let before = PULSE.late.load(SeqCst).into();
        Self { before }
    }

    /// Starts again.
    pub(crate) fn forget(&self) {
        self.before.store(PULSE.late.load(SeqCst), SeqCst);
    }

    /// Waits for the end of the current stall, and returns the total of all.
    pub(crate) fn total(&self) -> Duration {
        let enough = PULSE.beats.load(SeqCst) + 2;
        while PULSE.beats.load(SeqCst) < enough {
            thread::sleep(INTERVAL / 10);
        }
        Duration::from_millis(PULSE.late.load(SeqCst) - self.before.load(SeqCst))
    }
}

fn start() -> &'static Pulse {
    let pulse: &Pulse = Box::leak(Box::default());
    thread::spawn(|| {
        let runtime = Builder::new_current_thread().enable_all().build();
        runtime.expect("it starts").block_on(pulse.run());
    });
    pulse
}

impl Pulse {
    async fn run(&self) {
        let azurite = connect(&BUSY.connection_string(ACCOUNT), DEADLINE).await;
        loop {
            let begun = Instant::now();
            tokio::time::sleep(INTERVAL).await;
            // Only the time counts here. The tests themselves report an Azurite that fails.
            let _listed = azurite.list_queues("pulse").await;
            let late = begun.elapsed().saturating_sub(INTERVAL);
            self.late.fetch_add(late.as_millis() as u64, SeqCst);
            self.beats.fetch_add(1, SeqCst);
        }
    }
}
