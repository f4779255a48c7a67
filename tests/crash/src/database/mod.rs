//! A PostgreSQL database that faults befall while processes use it.
//!
//! | module | contents |
//! |---|---|
//! | `faults` | crashes of the server, a failover to a standby, a clock that steps |
//! | `network` | a proxy that cuts, refuses and stalls connections |

mod faults;
mod network;

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use queue_runtime::postgres::tokio_postgres::{Client, NoTls, connect};
use rand::rngs::SmallRng;
use tokio::runtime::Builder;

use crate::ledger::moment;
use crate::messages::LEASE;
pub use faults::{Crashes, Failover, STEP_BACK, STEP_FORWARD, SteppedClock};
pub use network::{CUT, DEAF, Network, REFUSED, STALLED};

/// A database, and what befalls it.
#[derive(Debug)]
pub struct Database {
    /// The URL for processes, and the one that no fault befalls.
    address: String,
    direct: String,
    /// Each campaign has a schema of its own.
    campaigns: AtomicU32,
    faults: Mutex<Box<dyn Faults>>,
    struck: Mutex<Vec<Struck>>,
}

/// A strike.
#[derive(Debug, Clone)]
pub struct Struck {
    /// The name of what was done.
    pub fault: &'static str,
    /// When it was done, on the clock of [`moment`].
    pub at: RangeInclusive<u64>,
}

/// What befalls a database while processes use it.
pub trait Faults: fmt::Debug + Send {
    /// Returns the URL of the server, without options.
    fn direct(&self) -> String;

    /// Returns the URL for the processes, without options.
    fn address(&self) -> String {
        self.direct()
    }

    /// Strikes, or does nothing. Returns the name of what was done.
    fn strike(&mut self, random: &mut SmallRng) -> Option<&'static str>;

    /// Ends what would keep the queues from being drained. Returns the name of what was done.
    fn end(&mut self) -> Option<&'static str> {
        None
    }
}

impl Database {
    /// Creates a database that faults befall.
    #[must_use]
    pub fn with(faults: impl Faults + 'static) -> Self {
        Self {
            address: faults.address(),
            direct: faults.direct(),
            campaigns: AtomicU32::new(0),
            faults: Mutex::new(Box::new(faults)),
            struck: Mutex::default(),
        }
    }

    /// Has the queues be new ones.
    pub(crate) fn begin(&self) {
        self.campaigns.fetch_add(1, Ordering::Relaxed);
    }

    fn schema(&self) -> String {
        format!("campaign_{}", self.campaigns.load(Ordering::Relaxed))
    }

    /// Returns the URL of the queues.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}?schema={}", self.address, self.schema())
    }

    fn faults(&self) -> MutexGuard<'_, Box<dyn Faults>> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn struck(&self) -> MutexGuard<'_, Vec<Struck>> {
        self.struck.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a fault befall the database, or does nothing.
    ///
    /// # Panics
    /// If the fault does not take effect.
    pub fn strike(&self, random: &mut SmallRng) {
        self.record(|faults| faults.strike(random));
    }

    /// Ends what would keep the queues from being drained.
    ///
    /// # Panics
    /// If it does not end.
    pub fn end(&self) {
        self.record(|faults| faults.end());
    }

    fn record(&self, act: impl FnOnce(&mut dyn Faults) -> Option<&'static str>) {
        let before = moment();
        let done = act(&mut **self.faults());
        let at = before..=moment();
        let struck = done.map(|fault| Struck { fault, at });
        self.struck().extend(struck);
    }

    /// Returns how often a fault has struck.
    #[must_use]
    pub fn count(&self, fault: &str) -> usize {
        let struck = self.struck();
        struck.iter().filter(|one| one.fault == fault).count()
    }

    /// Returns the time after the last strike, on the clock of [`moment`], if there was one.
    #[must_use]
    pub fn last_struck(&self) -> Option<u64> {
        self.struck().last().map(|last| *last.at.end())
    }

    /// Returns the times, on the clock of [`moment`], in which a process may take a lease for lasting that another takes
    /// for ended: after a step forward, until leases of before have ended, and after a step back, until the clock has
    /// stepped forward again.
    #[must_use]
    pub fn disputed(&self) -> Vec<RangeInclusive<u64>> {
        let lease = u64::try_from(LEASE.as_nanos()).expect("a second");
        let (mut disputed, mut back) = (Vec::new(), None);
        for Struck { fault, at } in &*self.struck() {
            match *fault {
                STEP_BACK => back = back.or(Some(*at.start())),
                STEP_FORWARD => {
                    let from = back.take().unwrap_or(*at.start());
                    disputed.push(from..=at.end() + lease);
                }
                _ => {}
            }
        }
        disputed.extend(back.map(|from| from..=u64::MAX));
        disputed
    }

    /// Returns how many attachments count as a message's, after the queues were emptied.
    ///
    /// # Panics
    /// If the server does not answer.
    #[must_use]
    pub fn left_attached(&self) -> i64 {
        let schema = self.schema();
        let left = format!("SELECT count(*) FROM {schema}.messages WHERE attachment IS NOT NULL");
        number(&self.direct, &left)
    }
}

/// Returns the number that a statement answers.
fn number(address: &str, sql: &str) -> i64 {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let (client, connection): (Client, _) =
            connect(address, NoTls).await.expect("it can be reached");
        tokio::spawn(connection);
        client.query_one(sql, &[]).await.expect("answered").get(0)
    })
}
