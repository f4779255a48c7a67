//! Time in which Azurite, or the whole machine, did not answer.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use queue_core::backend::Backend as _;
use tokio::runtime::Builder;

use crate::case::connect;

const INTERVAL: Duration = Duration::from_secs(1);
/// Longer than any stall that the test run survives.
const DEADLINE: Duration = Duration::from_secs(3600);

/// The stalls of an Azurite since a test began.
pub(crate) struct Stalls {
    pulse: &'static Pulse,
    before: AtomicU64,
}

/// Asks an Azurite again and again.
#[derive(Default)]
pub(crate) struct Pulse {
    beats: AtomicU64,
    /// The time in milliseconds by which beats came late, in total.
    late: AtomicU64,
}

impl Stalls {
    pub(crate) fn of(pulse: &'static Pulse) -> Self {
        let before = pulse.late.load(SeqCst).into();
        Self { pulse, before }
    }

    /// Starts again.
    pub(crate) fn forget(&self) {
        self.before.store(self.pulse.late.load(SeqCst), SeqCst);
    }

    /// Waits for the end of the current stall, and returns the total of all.
    pub(crate) fn total(&self) -> Duration {
        let enough = self.pulse.beats.load(SeqCst) + 2;
        while self.pulse.beats.load(SeqCst) < enough {
            thread::sleep(INTERVAL / 10);
        }
        Duration::from_millis(self.pulse.late.load(SeqCst) - self.before.load(SeqCst))
    }
}

impl Pulse {
    /// Asks the account of a connection string.
    pub(crate) fn start(account: String) -> &'static Self {
        let pulse: &Self = Box::leak(Box::default());
        thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build();
            runtime.expect("it starts").block_on(pulse.run(&account));
        });
        pulse
    }

    async fn run(&self, account: &str) {
        let azurite = connect(account, DEADLINE).await;
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
