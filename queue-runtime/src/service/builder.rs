use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use queue_clock::SystemClock;
use queue_core::ClientId;
use queue_core::backend::{Backend, Sharding};
use queue_core::clock::Clock;
use queue_core::encoder::{Encoder, MessageEncoding};
use queue_core::wire::DEFAULT_MAX_PAYLOAD;

use super::connect::{empty, target};
use super::connect_error::{ConnectError, ConnectErrorKind};
use super::containers::{Payloads, beside, results_beside};
use super::queue_service::QueueService;
use super::target::{Account, Target};
use crate::extensions::history::Histories;
use crate::extensions::meter::Metered;
use crate::extensions::packs::Packs;
use crate::extensions::payloads::{PayloadPlace, PayloadStore, WithPayloads};
use crate::extensions::request::{DEFAULT_LEASE, LONGEST_LEASE, SHORTEST_LEASE};
use crate::extensions::storage_limit::StorageLimit;
use crate::kernel::attachment::PayloadIdentity;
use crate::kernel::background::Background;
use crate::kernel::context::{Context, Storage};
use crate::kernel::notify::Notifier;
use crate::kernel::observe::Meter;
use crate::kernel::policy::StorageRetry;
use crate::kernel::settings::{InvalidSetting, reads_are_cheap};

/// A builder of a [`QueueService`], from [`QueueService::builder`] or [`QueueService::with_backend`].
///
/// ```
/// use queue_runtime::QueueService;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = QueueService::builder("memory:").client_id("checkout/7").connect().await?;
/// assert_eq!(service.client_id().as_str(), "checkout/7");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a builder does nothing until `connect`"]
pub struct ServiceBuilder {
    /// An invalid URL is reported when the service connects.
    target: Result<Target, ConnectErrorKind>,
    client_id: Option<String>,
    clock: Option<Arc<dyn Clock>>,
    encoding: MessageEncoding,
    max_payload: usize,
    storage_retry: StorageRetry,
    storage_limit: StorageLimit,
    notifiers: Vec<Arc<dyn Notifier>>,
    payloads: Option<Payloads>,
    results: Option<String>,
    reply_lease: Duration,
    depth_interval: Option<Duration>,
    reads_back: bool,
    relies_on_notifier: bool,
    /// Starts what runs renewals and watchdogs.
    background: fn() -> io::Result<Background>,
}

/// The allowed intervals between two reads of the depths for metrics, and the default.
const DEPTHS: RangeInclusive<Duration> =
    RangeInclusive::new(Duration::from_secs(1), Duration::from_secs(24 * 60 * 60));
const DEPTH_INTERVAL: Duration = Duration::from_secs(20);

/// The allowed limits of a payload, whose size CloudEvents can tell.
const MAX_PAYLOADS: (usize, usize) = (4096, i32::MAX as usize);

impl QueueService {
    /// Connects to the queues at `url` with the default settings. [`builder`](Self::builder) lists the
    /// URLs.
    ///
    /// # Errors
    /// [`ConnectError`] if the URL is not supported or the storage cannot be opened.
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::builder(url).connect().await
    }

    /// Connects to the queues at the URL in the environment variable `QUEUE_URL`.
    ///
    /// # Errors
    /// [`ConnectError`] if `QUEUE_URL` is not set or not valid Unicode, or for the reasons of
    /// [`connect`](Self::connect).
    pub async fn from_env() -> Result<Self, ConnectError> {
        match std::env::var("QUEUE_URL") {
            Ok(url) if url.is_empty() => Err(ConnectError { kind: empty() }),
            Ok(url) => Self::connect(&url).await,
            Err(error) => Err(ConnectError {
                kind: ConnectErrorKind::Environment(error),
            }),
        }
    }

    /// Returns a builder of a service on the queues at `url`.
    ///
    /// | URL | backend |
    /// |---|---|
    /// | `memory:` | in this process, private to this service |
    /// | `memory:NAME` | in this process, shared by all services that use the name |
    /// | `sqlite:PATH` | one SQLite file, shared by several processes; `?synchronous=normal` is faster, but a power loss may undo the last commits |
    /// | `sqlite:PATH?adopt` | queues in a SQLite database that may have tables of the application already |
    /// | `sqlite:PATH?max_delay=30d`, and likewise of `memory:NAME` and `postgres://…` | delays of up to 30 days instead of 7, Azure's limit |
    /// | `postgres://USER@HOST/DATABASE` | a PostgreSQL database, shared by any number of machines; `?schema=NAME` for the schema of the tables, `queues` by default |
    /// | `azure://ACCOUNT` | Azure Queue Storage with Entra ID: workload identity, managed identity, then developer tools |
    /// | `https://…?sig=…` | Azure Queue Storage with a shared access signature |
    /// | `AccountName=…;AccountKey=…`, `UseDevelopmentStorage=true` | Azure Queue Storage or its emulator, by a connection string |
    /// | `sharded:NUMBER\|URL\|URL…` | each queue spread over NUMBER queues at the URLs, as by [`sharded`](Self::sharded) |
    ///
    /// The Azure URLs require the feature `azure`, those of PostgreSQL `postgres`.
    /// [`backend::register`](crate::backend::register) adds a scheme. Pass a URL that contains a secret in `QUEUE_URL`
    /// rather than on a command line.
    pub fn builder(url: &str) -> ServiceBuilder {
        ServiceBuilder::new(target(url))
    }

    /// Returns a builder of a service on this backend: a custom [`Backend`], or one with settings that a URL does
    /// not have.
    ///
    /// A backend that has a clock needs the same clock as the service, so pass the clock to
    /// [`clock`](ServiceBuilder::clock) too.
    pub fn with_backend(backend: Arc<dyn Backend>) -> ServiceBuilder {
        ServiceBuilder::new(Ok(Target::One(backend.into())))
    }

    /// Returns a builder of a service whose queues are each spread over several queues, the shards, on these storages, for
    /// more requests a second than one queue or one account carries. Sharding changes nothing in the program but the
    /// connecting. [Shards](crate::sharded) tells what does not hold across shards.
    ///
    /// The number of shards is that of the first program that connects; afterwards only
    /// [`resize`](crate::backend::Sharded::resize) changes it. All programs name the same storages in the same
    /// order.
    ///
    /// ```
    /// use queue_runtime::sharded::Shards;
    /// use queue_runtime::{Message, QueueService, Received};
    /// # use serde::{Deserialize, Serialize};
    /// #
    /// # #[derive(Debug, Serialize, Deserialize, Message)]
    /// # struct Order {
    /// #     number: u32,
    /// # }
    /// # async fn ship(_: Received<Order>) {}
    /// #
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let accounts = ["memory:west", "memory:east"];
    /// let service = QueueService::sharded(accounts, Shards::new(4)).connect().await?;
    /// service.submit_all((0..100).map(|number| Order { number })).await?;
    /// let listener = service.listener(ship).until_empty().start()?;
    /// assert_eq!(listener.drained().await.info.completed, 100);
    ///
    /// let shards = service.shards().expect("it has some");
    /// assert_eq!(shards.resize(8).await?.shards, 8);
    /// # Ok(())
    /// # }
    /// ```
    pub fn sharded<A: Into<Account>>(
        accounts: impl IntoIterator<Item = A>,
        sharding: impl Sharding,
    ) -> ServiceBuilder {
        ServiceBuilder::new(Ok(Target::Shards {
            accounts: accounts.into_iter().map(Into::into).collect(),
            sharding: Arc::new(sharding),
        }))
    }
}

impl ServiceBuilder {
    fn new(target: Result<Target, ConnectErrorKind>) -> Self {
        Self {
            target,
            client_id: None,
            clock: None,
            encoding: MessageEncoding::default(),
            max_payload: DEFAULT_MAX_PAYLOAD,
            storage_retry: StorageRetry::default(),
            storage_limit: StorageLimit::new(),
            notifiers: Vec::new(),
            payloads: None,
            results: None,
            reply_lease: DEFAULT_LEASE,
            depth_interval: None,
            reads_back: false,
            relies_on_notifier: false,
            background: Background::start_thread,
        }
    }

    /// Sets the client id of submitted messages. The default is the host name and the process id.
    ///
    /// [`connect`](Self::connect) reports an invalid id.
    pub fn client_id(mut self, id: impl Into<String>) -> Self {
        self.client_id = Some(id.into());
        self
    }

    /// Sets the form in which bodies are written to storage that holds only text. The default is Base64.
    pub fn message_encoding(mut self, encoding: MessageEncoding) -> Self {
        self.encoding = encoding;
        self
    }

    /// Sets the largest payload of a message, in bytes, from 4 KiB to 2 GiB. The default is 64 MiB.
    ///
    /// A payload that does not fit its message is compressed. A payload of more than `bytes` is refused before anything
    /// is stored, and a received payload that would expand to more is not expanded: its message is moved to the poison
    /// queue. A handler gets its message whole, so up to `bytes` of memory are taken for each message in flight.
    /// Compressing and expanding occupy a thread of the runtime.
    pub fn max_payload(mut self, bytes: usize) -> Self {
        self.max_payload = bytes;
        self
    }

    /// Stores payloads that do not fit their messages in this store, not in the storage of the messages.
    ///
    /// Each message with a payload in the store takes one more transaction of the storage. All services that submit to
    /// a queue or consume from it need the same store: a service without the store leaves messages with payloads in it
    /// where they are. With a payload store, messages and their follow-ups are not stored in one step: as on Azure,
    /// unique submissions, and schedules with large payloads, need a result store, and transactions of the application
    /// ([`submit_within`](QueueService::submit_within)) are refused.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use queue_runtime::QueueService;
    /// use queue_runtime::payloads::MemoryPayloads;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let payloads = Arc::new(MemoryPayloads::new());
    /// let service = QueueService::builder("memory:").payloads(payloads).connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn payloads(mut self, store: Arc<dyn PayloadStore>) -> Self {
        self.payloads = Some(Payloads::Store(store));
        self
    }

    /// Stores payloads that do not fit their messages in a container of this name beside the queues: on Azure, in the
    /// same account. The container is created with the first payload. Memory and SQLite keep payloads themselves:
    /// `payload_container` changes nothing on them.
    ///
    /// On Azure the name has 3 to 63 lower-case letters, digits and single hyphens. A connection string with the
    /// `QueueEndpoint` of an emulator or of another host needs its `BlobEndpoint` too, and a shared access signature
    /// needs the permissions for blobs. [`payloads`](Self::payloads) says what a payload store changes.
    ///
    /// ```no_run
    /// use queue_runtime::QueueService;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let service = QueueService::builder("azure://shop").payload_container("payloads").connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn payload_container(mut self, name: impl Into<String>) -> Self {
        self.payloads = Some(Payloads::Container(name.into()));
        self
    }

    /// Records results in a container of this name beside the queues, if the storage of the queues keeps none: on Azure, in
    /// the same account. [`QueueService::results`] is then the store in that container, and
    /// [schedules](QueueService::schedule) record their ticks there. The container is created with the first result, and
    /// nothing else may use it. **If it is deleted, a process that starts creates it anew, empty, and recorded work is done
    /// again.** On memory, SQLite and PostgreSQL, which keep results themselves, `results_in` changes nothing.
    ///
    /// The name is as for [`payload_container`](Self::payload_container), and another one. What a store of results beside
    /// the queues promises less than one in their storage, [`ObjectResults`](crate::idempotency::ObjectResults) and
    /// [`Schedule::recorded_in`](crate::recurring::Schedule::recorded_in) say: unique submissions are `unique_in` it, not
    /// `unique_for` a time.
    ///
    /// ```no_run
    /// use queue_runtime::QueueService;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let service = QueueService::builder("azure://shop").results_in("results").connect().await?;
    /// assert!(service.can().results);
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "object-store")]
    pub fn results_in(mut self, container: impl Into<String>) -> Self {
        self.results = Some(container.into());
        self
    }

    /// Sets how often and until when storage operations that failed are tried again, unless an operation sets it.
    /// The default is [`StorageRetry::default`].
    pub fn storage_retry(mut self, policy: StorageRetry) -> Self {
        self.storage_retry = policy;
        self
    }

    /// Sets how many requests are sent to the storage each second at most. The default is no limit.
    ///
    /// Requests beyond the limit wait. Requires a Tokio runtime with timers enabled.
    pub fn storage_limit(mut self, limit: StorageLimit) -> Self {
        self.storage_limit = limit;
        self
    }

    /// Adds a [`Notifier`], which wakes consumers that wait for messages of other processes or machines. Repeat the
    /// call for several notifiers.
    ///
    /// Without a notifier too, the services of one process announce to each other what they put on a storage.
    pub fn notifier(mut self, notifier: Arc<dyn Notifier>) -> Self {
        self.notifiers.push(notifier);
        self
    }

    /// Sets the lease of the queue for replies to the [requests](QueueService::request) of this instance: how long the
    /// instance may go without a heartbeat before others delete the queue, from a second to an hour. The default is a
    /// minute.
    ///
    /// A heartbeat is written four times in each lease while the reply queue exists. A process that is suspended for
    /// longer than the lease loses the replies that it waits for.
    pub fn reply_lease(mut self, lease: Duration) -> Self {
        self.reply_lease = lease;
        self
    }

    /// Sets how often a listener reads the number of messages on its queue and on its poison queue, for the metrics
    /// `queue.depth` and `queue.poison.depth`, from a second to a day. One listener of a service reads the depths of
    /// each queue, and only if a recorder of metrics was installed before it was started.
    ///
    /// The default is 20 seconds in memory and on SQLite. On Azure, where each read is a transaction, depths are not
    /// read unless `depth_metrics` is called. Depths of a custom backend are read if idle consumers poll it at least
    /// every 5 seconds, as its [`idle_cap`](crate::backend::Capabilities::idle_cap) says.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use queue_runtime::QueueService;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // Before listeners start: install a recorder, for example that of `metrics-exporter-prometheus`.
    /// let minute = Duration::from_secs(60);
    /// let service = QueueService::builder("azure://shop").depth_metrics(minute).connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn depth_metrics(mut self, interval: Duration) -> Self {
        self.depth_interval = Some(interval);
        self
    }

    /// Replaces the system's clock, for tests. The default is a [`SystemClock`].
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Runs renewals and watchdogs as tasks on the current Tokio runtime instead of on a separate thread.
    ///
    /// Intended for tests that pause Tokio's time, because pausing affects only the current runtime. If handlers block
    /// the current runtime, leases are not renewed and may be lost.
    pub fn on_current_runtime(mut self) -> Self {
        self.background = Background::on_current_runtime;
        self
    }

    /// Has the service refuse messages that their types do not read back as written. Read-back is for services of
    /// tests, because each message is encoded twice.
    #[cfg(feature = "testing")]
    pub(crate) fn reading_back(mut self) -> Self {
        self.reads_back = true;
        self
    }

    /// Has idle listeners poll no more often than leases end: a storage in memory loses no notification. A test in paused
    /// time would poll 350,000 times a day.
    #[cfg(feature = "testing")]
    pub(crate) fn relying_on_notifier(mut self) -> Self {
        self.relies_on_notifier = true;
        self
    }

    /// Opens the storage and starts the service's background thread.
    ///
    /// Connecting reads nothing but the shards from the storage, and [`storage_retry`](Self::storage_retry) repeats a
    /// read that fails.
    ///
    /// # Errors
    /// [`ConnectError`] if the URL is not supported, the client id or a setting is invalid, the storage cannot be
    /// opened, or the background thread cannot be started.
    pub async fn connect(self) -> Result<QueueService, ConnectError> {
        let connected = self.try_connect().await;
        connected.map_err(|kind| ConnectError { kind })
    }

    async fn try_connect(self) -> Result<QueueService, ConnectErrorKind> {
        let allowed = SHORTEST_LEASE..=LONGEST_LEASE;
        InvalidSetting::duration("reply lease", self.reply_lease, &allowed)?;
        if let Some(interval) = self.depth_interval {
            InvalidSetting::duration("interval of depth metrics", interval, &DEPTHS)?;
        }
        let (least, most) = MAX_PAYLOADS;
        InvalidSetting::within("largest payload in bytes", self.max_payload, least, most)?;
        let StorageLimit {
            per_queue,
            per_account,
        } = self.storage_limit;
        for (setting, rate) in [
            ("storage limit of a queue in requests a second", per_queue),
            (
                "storage limit of an account in requests a second",
                per_account,
            ),
        ] {
            let (rate, most) = (rate.unwrap_or(1), StorageLimit::MOST);
            InvalidSetting::count(setting, rate, most)?;
        }
        let clock = self.clock.unwrap_or_else(|| Arc::new(SystemClock::new()));
        let client_id = ClientId::new(self.client_id.unwrap_or_else(default_client))?;
        let meter = Arc::new(Meter::new());
        let (limit, retry) = (self.storage_limit, &self.storage_retry);
        let layer = |backend, sharding: Option<&_>| -> Arc<dyn Backend> {
            let (limiter, meter) = (limit.limiter(&clock), Arc::clone(&meter));
            Arc::new(Metered::new(backend, limiter, meter, sharding.cloned()))
        };
        let mut backend = self.target?.open(&clock, retry, &layer).await?;
        backend.introduce(&client_id);
        let background = (self.background)();
        let background = background.map_err(ConnectErrorKind::Background)?;
        let costs_little = reads_are_cheap(backend.capabilities());
        let depth_interval = self
            .depth_interval
            .or_else(|| costs_little.then_some(DEPTH_INTERVAL));
        let results = results_beside(&*backend, self.results, self.payloads.as_ref(), &clock)?;
        let payloads = match self.payloads {
            None => None,
            Some(Payloads::Store(store)) => Some(store),
            Some(Payloads::Container(name)) => beside(&*backend, &name)?,
        };
        let payloads = payloads.map(|store| Arc::new(PayloadPlace::new(store, Arc::clone(&clock))));
        if let Some(place) = &payloads {
            backend = Arc::new(WithPayloads::new(backend, Arc::clone(place), self.encoding));
        }
        let encoder = Encoder::new(backend.capabilities(), self.encoding);
        let backend = Packs::start(backend, encoder, &clock, &background);
        let mut context = Context::new(
            Storage { backend, meter },
            clock,
            client_id,
            encoder,
            self.storage_retry,
            self.notifiers,
            background,
        );
        context.is_limited = limit.is_some();
        context.payloads = payloads
            .clone()
            .map(|place| place as Arc<dyn PayloadIdentity>);
        context.results = results;
        context.of_types = Some(Arc::new(Histories::default()));
        context.depth_interval = depth_interval;
        context.reads_back = self.reads_back;
        context.relies_on_notifier = self.relies_on_notifier;
        context.encoder = context.encoder.with_max_payload(self.max_payload);
        let context = Arc::new(context);
        Ok(QueueService::new(context, self.reply_lease, payloads))
    }
}

fn default_client() -> String {
    let host = gethostname::gethostname().to_string_lossy().into_owned();
    let host = if host.is_empty() {
        "localhost".to_owned()
    } else {
        host
    };
    format!("{host}/{}", std::process::id())
}
