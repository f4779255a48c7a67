//! What the processes of the suites do. Each process ends when its standard input does, so that none outlives its test.
//!
//! | module | role |
//! |---|---|
//! | `produce` | submits orders, one by one and in batches |
//! | `listen` | handles orders and receipts with listeners |
//! | `packs` | submits orders in packs, and does other things with them |
//! | `keys` | handles orders and receipts of one key one at a time |
//! | `groups` | handles messages of groups, and records what it does |
//! | `accept` | handles orders and receipts with `accept` |
//! | `serve` | handles orders with a listener until a signal to stop |
//! | `redrive` | moves poison messages back |
//! | `ask`, `answer` | send requests and wait for the replies; reply to them |
//! | `transfer` | orders transfers of the example `ledger`, and handles them |
//! | `submit` | submits messages once by key |
//! | `schedule` | runs schedules by a clock that is told the time |
//! | `once` | does work that it is asked for many times at once |
//! | `portions` | works on a job of a hundred portions, and kills itself after each |
//! | `hold` | holds one message, and settles it when told to |
//! | `fill`, `consume` | submit large orders and complete them, each a fixed number |
//! | `bulk` | handles large orders with a listener, and says how much memory that has taken (Linux only) |
//! | `drain` | completes a number of orders, and says what that has used (Linux only) |
//! | `soak` | works in rounds under faults, and says what the process uses (Linux only) |
//! | `errand` | a short fixed sequence of submissions and completions, repeated where the storage fails, also in an application's database |
//! | `full_disk` | fills its disk, completes everything on it, and submits again |
//! | `role` | the roles, and their names on the command line |
//! | `work` | what a consumer does with a message |

mod accept;
mod answer;
mod ask;
#[cfg(target_os = "linux")]
mod bulk;
mod cancels;
mod consume;
#[cfg(target_os = "linux")]
mod drain;
mod errand;
mod fill;
mod full_disk;
mod groups;
mod hold;
mod keys;
mod listen;
mod once;
mod packs;
mod portions;
mod produce;
mod redrive;
mod role;
mod schedule;
mod serve;
#[cfg(target_os = "linux")]
mod soak;
mod submit;
mod transfer;
mod work;

use std::ffi::OsString;
use std::io::{BufRead as _, stdin};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use queue_core::backend::Backend;
use queue_runtime::QueueService;
use queue_runtime::backend::{SqliteBackend, SqliteBuilder, Synchronous};
use queue_runtime::clock::{ManualClock, SystemClock};
use queue_runtime::payloads::{ObjectPayloads, PayloadStore};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::sync::watch;

use crate::ledger::Ledger;
use crate::packs::{Marks, Observed};
use crate::process::GUARD;
use crate::sabotage::{Bug, Sabotaged};

pub use ask::{ASKED, AT_ONCE, End};
pub use errand::FAILED;
pub use hold::{GO, HELD, Settle};
use listen::Style;
pub use once::{Kept, Step};
pub use packs::{ATTEMPTS, DEADLY};
pub use portions::{Job, PORTIONS, value};
pub use role::Role;
pub use serve::Stopped;
pub use submit::{ANSWERED, BEGUN, UNKNOWN};

/// How long a process may go without a heartbeat before others delete its reply queue: longer than the pauses of a busy
/// machine.
pub const REPLY_LEASE: Duration = Duration::from_secs(40);

/// The arguments of a process.
#[derive(Debug, Clone)]
pub struct Arguments {
    /// What the process does.
    pub role: Role,
    /// The database.
    pub file: PathBuf,
    /// The ledger, which the process creates.
    pub ledger: PathBuf,
    /// Distinguishes the process from all others of the run.
    pub number: u64,
    /// Seed of random choices.
    pub seed: u64,
    /// The bug planted in the storage.
    pub bug: Option<Bug>,
    /// Additional environment variables.
    pub environment: Vec<(&'static str, OsString)>,
}

/// What a role works with.
struct Desk {
    service: QueueService,
    ledger: Arc<Ledger>,
    number: u64,
    random: Mutex<SmallRng>,
    /// Changes when a line arrives on the standard input, and closes at its end.
    input: watch::Receiver<String>,
}

impl Arguments {
    /// The command line of a process.
    #[must_use]
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .arg(self.role.to_string())
            .args([&self.file, &self.ledger])
            .args([self.number.to_string(), self.seed.to_string()])
            .args(self.bug.map(Bug::name))
            .envs(self.environment.iter().cloned());
        command
    }

    /// Reads the command line of this process.
    ///
    /// # Panics
    /// If the line is not one of [`command`](Self::command).
    #[must_use]
    pub fn of_this_process() -> Self {
        let mut given = std::env::args().skip(1);
        let mut next = || given.next().expect("an argument");
        Self {
            role: next().parse().expect("a role"),
            file: next().into(),
            ledger: next().into(),
            number: next().parse().expect("a number"),
            seed: next().parse().expect("a seed"),
            bug: given.next().map(|bug| bug.parse().expect("a bug")),
            environment: Vec::new(),
        }
    }
}

/// Plays the role until the standard input ends.
///
/// # Panics
/// If a promise is broken that the role relies on.
pub async fn run(arguments: Arguments) {
    if arguments.role == Role::Portions {
        return portions::run(&arguments).await;
    }
    let input = input();
    let ledger = Arc::new(Ledger::create(&arguments.ledger));
    let builder = builder(&arguments.file);
    let builder = match arguments.role {
        Role::Adopt => builder.adopt(),
        _ => builder,
    };
    let payloads = std::env::var_os(PAYLOADS);
    let mut backend = match std::env::var(DATABASE) {
        Ok(url) => with_bug(connect_repeatedly(&url).await, arguments.bug),
        Err(_) => sabotaged(builder, arguments.bug).await,
    };
    if arguments.role.meets_packs() {
        let marks = match &payloads {
            Some(_) => Marks::InHeader,
            None => Marks::Beside,
        };
        let observed = Observed::new(backend, Arc::clone(&ledger), marks, arguments.bug);
        backend = Arc::new(observed);
    }
    let mut service = QueueService::with_backend(Arc::clone(&backend)).reply_lease(REPLY_LEASE);
    if arguments.bug == Some(Bug::AcceptsStaleReceipts) {
        // The service itself would know from the clock that its lease has ended.
        service = service.clock(Arc::new(ManualClock::new()));
    }
    if let Some(folder) = payloads {
        service = service.payloads(in_folder(Path::new(&folder)));
    }
    let service = service.connect().await;
    let desk = Desk {
        service: service.expect("connecting opens nothing"),
        ledger,
        number: arguments.number,
        random: Mutex::new(SmallRng::seed_from_u64(arguments.seed ^ arguments.number)),
        input,
    };
    let desk = Arc::new(desk);
    match arguments.role {
        Role::Produce => produce::run(&desk).await,
        Role::Pack => packs::produce(&desk).await,
        Role::Listen => listen::run(desk, Style::Usual).await,
        Role::Batch => listen::run(desk, Style::Batches).await,
        Role::Keys => {
            let are_known = arguments.bug != Some(Bug::IgnoresKeys);
            listen::run(desk, Style::Keys { are_known }).await;
        }
        Role::Groups => groups::run(&desk, &arguments.ledger.with_extension("runs")).await,
        Role::Cancels => cancels::run(&desk, &arguments.ledger.with_extension("runs")).await,
        Role::Unpack => listen::run(desk, Style::Packs).await,
        Role::UnpackAlone => listen::run(desk, Style::Alone).await,
        Role::Serve => serve::run(desk).await,
        Role::Accept => accept::run(&desk).await,
        Role::AcceptMany => accept::run_many(&desk).await,
        Role::Redrive => redrive::run(&desk).await,
        Role::Ask(seconds) => ask::run(desk, Duration::from_secs(seconds)).await,
        Role::Answer => answer::run(desk).await,
        Role::CrashOrder => transfer::order(&desk).await,
        Role::Transfer => transfer::handle(&desk, &arguments.file, arguments.bug).await,
        Role::Once(kept) => {
            let log = arguments.ledger.with_extension("claims");
            once::run(&desk, kept, &arguments.file, &log, arguments.bug).await;
        }
        Role::Submit(kept) => submit::run(desk, kept, &arguments.file, arguments.bug).await,
        Role::Schedule => schedule::run(&desk, backend, arguments.bug).await,
        Role::Portions => unreachable!("it opens the file itself"),
        Role::Hold(settle) => hold::run(&desk, settle).await,
        Role::Fill => fill::run(&desk).await,
        Role::Consume => consume::run(&desk).await,
        Role::Errand | Role::Adopt => errand::run(&desk).await,
        Role::FullDisk => full_disk::run(&arguments.file).await,
        #[cfg(target_os = "linux")]
        Role::Bulk => bulk::run(&desk).await,
        #[cfg(target_os = "linux")]
        Role::Drain(orders) => drain::run(&desk, orders).await,
        #[cfg(target_os = "linux")]
        Role::Soak(rounds) => soak::run(backend, arguments.seed, rounds).await,
    }
}

/// The environment variable that names the folder of payloads, if they are not in the file.
pub const PAYLOADS: &str = "CRASH_PAYLOADS";

/// The environment variable with the URL of the queues, if they are not in the file.
pub const DATABASE: &str = "CRASH_DATABASE";

/// Opens a folder of payloads.
///
/// # Panics
/// If the folder cannot be opened.
pub fn in_folder(folder: &Path) -> Arc<dyn PayloadStore> {
    Arc::new(ObjectPayloads::create_in_folder(folder).expect("the folder opens"))
}

/// Opens the file, with a planted bug if one is given.
///
/// # Panics
/// If the file cannot be opened.
pub async fn open(file: &Path, bug: Option<Bug>) -> Arc<dyn Backend> {
    sabotaged(builder(file), bug).await
}

fn builder(file: &Path) -> SqliteBuilder {
    SqliteBackend::builder(file, Arc::new(SystemClock::new()))
}

async fn sabotaged(mut builder: SqliteBuilder, bug: Option<Bug>) -> Arc<dyn Backend> {
    if bug == Some(Bug::SkipsSync) {
        builder = builder.synchronous(Synchronous::Normal);
    }
    with_bug(Arc::new(open_repeatedly(builder).await), bug)
}

fn with_bug(opened: Arc<dyn Backend>, bug: Option<Bug>) -> Arc<dyn Backend> {
    match bug {
        Some(bug) => Arc::new(Sabotaged::new(opened, bug)),
        None => opened,
    }
}

/// Connects to a database, whose server may be restarting.
async fn connect_repeatedly(url: &str) -> Arc<dyn Backend> {
    let started = Instant::now();
    loop {
        match queue_runtime::backend::connect(url).await {
            Ok(backend) => return backend,
            Err(error) => assert!(started.elapsed() < GUARD, "{error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Opens the file, with a few repeats, for runs in which the storage fails for a while.
async fn open_repeatedly(builder: SqliteBuilder) -> SqliteBackend {
    for _ in 0..errand::ATTEMPTS {
        match builder.clone().open().await {
            Ok(backend) => return backend,
            Err(error) => errand::report(&error),
        }
    }
    panic!("the file does not open");
}

impl Desk {
    /// Returns a number below 100.
    fn dice(&self) -> u32 {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        random.random_range(0..100)
    }

    fn is_stopping(&self) -> bool {
        self.input.has_changed().is_err()
    }

    async fn stopping(&self) {
        let mut input = self.input.clone();
        while input.changed().await.is_ok() {}
    }
}

/// Reads the standard input on a thread.
fn input() -> watch::Receiver<String> {
    let (sender, receiver) = watch::channel(String::new());
    std::thread::spawn(move || {
        for line in stdin().lock().lines().map_while(Result::ok) {
            sender.send_replace(line);
        }
    });
    receiver
}
