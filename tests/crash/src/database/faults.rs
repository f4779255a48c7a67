use std::time::{SystemTime, UNIX_EPOCH};

use queue_tests::postgres::PostgresServer;
use rand::RngExt as _;
use rand::rngs::SmallRng;

use super::{Faults, number};

/// The server crashes, and ends connections.
#[derive(Debug)]
pub struct Crashes(PostgresServer);

/// What the strikes are: one of so many is a crash of the server, and so many others end connections.
const OF: u32 = 8;
const ENDS: u32 = 4;

impl Crashes {
    /// Starts a server.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start() -> Self {
        Self(PostgresServer::start().expect("PostgreSQL starts"))
    }
}

impl Faults for Crashes {
    fn direct(&self) -> String {
        self.0.url().to_owned()
    }

    fn strike(&mut self, random: &mut SmallRng) -> Option<&'static str> {
        match random.random_range(0..OF) {
            0 => {
                self.0.crash().expect("it starts again");
                Some("crash")
            }
            1..=ENDS => {
                let end = "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity \
                    WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() ORDER BY random() LIMIT 3) AS some_of";
                number(self.0.url(), end);
                Some("ended connections")
            }
            _ => None,
        }
    }
}

/// The primary stops for ever, and its synchronous standby is promoted.
#[derive(Debug)]
pub struct Failover {
    primary: PostgresServer,
    standby: PostgresServer,
    /// The number of calls until it happens.
    strikes: usize,
}

impl Failover {
    /// Starts a primary and a standby, which fail over at the strike of that number, from 1.
    ///
    /// # Panics
    /// If they do not start.
    #[must_use]
    pub fn start(at: usize) -> Self {
        let primary = PostgresServer::builder().waits_for_a_standby().start();
        let primary = primary.expect("the primary starts");
        let standby = PostgresServer::builder().standby_of(&primary).start();
        Self {
            standby: standby.expect("the standby starts"),
            primary,
            strikes: at,
        }
    }
}

impl Faults for Failover {
    fn direct(&self) -> String {
        let (primary, standby) = (self.primary.port(), self.standby.port());
        format!("postgres://postgres@127.0.0.1:{primary},127.0.0.1:{standby}/postgres")
    }

    fn strike(&mut self, _: &mut SmallRng) -> Option<&'static str> {
        self.strikes = self.strikes.wrapping_sub(1);
        if self.strikes != 0 {
            return None;
        }
        self.primary.stop().expect("the primary stops");
        // The setting by which the primary waits for a standby is not the standby's.
        self.standby.promote().expect("the standby is promoted");
        Some("failover")
    }
}

/// The server's clock steps forward, and then back and forward again, by minutes.
#[derive(Debug)]
pub struct SteppedClock {
    server: PostgresServer,
    /// How far the clock is ahead of the system's, in seconds.
    ahead: i64,
}

/// The name of a step of the clock to the latest time that any process has seen, or later.
pub const STEP_FORWARD: &str = "step forward";
/// The name of a step of the clock to before what processes have seen.
pub const STEP_BACK: &str = "step back";

/// One of so many strikes is a step.
const STEPS: u32 = 2;

/// How far ahead of the system's clock the steps forward go, and how far back the others, in seconds.
const AHEAD: i64 = 90;
const BACK: std::ops::RangeInclusive<i64> = 60..=150;

impl SteppedClock {
    /// Starts a server with a clock of its own.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start() -> Self {
        let server = PostgresServer::builder().with_its_own_clock().start();
        let mut clock = Self {
            server: server.expect("PostgreSQL starts"),
            ahead: 0,
        };
        clock.set(0);
        clock
    }

    /// Sets the clock, and proves that it is set.
    fn set(&mut self, ahead: i64) {
        const TIME: &str = "SELECT floor(extract(epoch FROM clock_timestamp()))::bigint";

        self.server.set_clock(ahead).expect("the clock is set");
        let before = seconds() + ahead;
        let shown = number(self.server.url(), TIME);
        let after = seconds() + ahead;
        assert!(
            (before..=after).contains(&shown),
            "the server's clock shows {shown}, and not {before} to {after}"
        );
        self.ahead = ahead;
    }

    fn step_forward(&mut self) -> &'static str {
        self.set(AHEAD);
        STEP_FORWARD
    }
}

impl Faults for SteppedClock {
    fn direct(&self) -> String {
        self.server.url().to_owned()
    }

    fn strike(&mut self, random: &mut SmallRng) -> Option<&'static str> {
        if !random.random_ratio(1, STEPS) {
            return None;
        }
        if self.ahead < AHEAD {
            return Some(self.step_forward());
        }
        self.set(AHEAD - random.random_range(BACK));
        Some(STEP_BACK)
    }

    /// Steps forward, since the queues are not empty before the clock has caught up.
    fn end(&mut self) -> Option<&'static str> {
        (self.ahead < AHEAD).then(|| self.step_forward())
    }
}

fn seconds() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.expect("the clock is set").as_secs();
    i64::try_from(now).expect("it is not far in the future")
}
