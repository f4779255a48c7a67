//! The state that all parts of one service share. Neither `context` nor the modules below it import the facade
//! `service`.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use queue_core::backend::Backend;
use queue_core::clock::Clock;
use queue_core::encoder::{Encoded, Encoder};
use queue_core::idempotency::ResultStore;
use queue_core::{ClientId, EncodeError, Error, QueueName};
use tokio::sync::Semaphore;

use crate::kernel::attachment::PayloadIdentity;
use crate::kernel::background::Background;
use crate::kernel::clock::KnownTimer;
use crate::kernel::lease::Renewals;
use crate::kernel::notify::{Notifier, Notifiers, Unannounced, Wakeups};
use crate::kernel::observe::Meter;
use crate::kernel::parts::Parts;
use crate::kernel::policy::{Outage, StorageRetry};
use crate::kernel::repeat::{Creations, Repeats};
use crate::kernel::served::ServedKinds;
use crate::kernel::settings::{ConsumerConfig, Settings, SettingsCache};
use crate::kernel::settlement::{CompletedIds, OfTypes};

/// The state of one service.
#[derive(Debug)]
pub(crate) struct Context {
    /// The backend, which counts in `meter`.
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) creations: Creations,
    pub(crate) meter: Arc<Meter>,
    /// Whether requests to the storage may wait for a limit.
    pub(crate) is_limited: bool,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) timer: KnownTimer,
    pub(crate) client_id: ClientId,
    pub(crate) encoder: Encoder,
    pub(crate) storage_retry: StorageRetry,
    pub(crate) notifiers: Notifiers,
    pub(crate) unannounced: Unannounced,
    pub(crate) renewals: Renewals,
    pub(crate) background: Background,
    pub(crate) settings: SettingsCache,
    pub(crate) completed: CompletedIds,
    /// Whether the backend has returned more messages than it was asked for.
    pub(crate) surplus_seen: AtomicBool,
    /// Whether handlers have held up their runtime.
    pub(crate) stall_seen: AtomicBool,
    pub(crate) served: ServedKinds,
    /// The failures in a row of reading attachments.
    pub(crate) attachments: Outage,
    /// The identity of the payload store, if there is one beside the storage.
    pub(crate) payloads: Option<Arc<dyn PayloadIdentity>>,
    /// The result store beside the storage, if the storage keeps none.
    pub(crate) results: Option<Arc<dyn ResultStore>>,
    /// What travels with settlements because of the messages' types.
    pub(crate) of_types: Option<Arc<dyn OfTypes>>,
    /// The backend, as far as its messages are parts of the storage's.
    pub(crate) parts: Arc<dyn Parts>,
    /// Held by the handler that is in a transaction.
    pub(crate) transacting: Arc<Semaphore>,
    /// The pause between two reads of the depths of a listener's queues for metrics, if they are read.
    pub(crate) depth_interval: Option<Duration>,
    /// Whether what is submitted is read back, as in tests.
    pub(crate) reads_back: bool,
    /// Whether idle listeners rely on the notifier for puts, as in tests.
    pub(crate) relies_on_notifier: bool,
}

/// Where messages are stored.
#[derive(Debug)]
pub(crate) struct Storage {
    /// The backend whose requests `meter` counts.
    pub(crate) backend: Arc<dyn Parts>,
    pub(crate) meter: Arc<Meter>,
}

impl Context {
    /// Calls the storage until it answers, or as often as the service's policy allows.
    pub(crate) async fn ask<T, F>(&self, operation: impl Fn() -> F) -> queue_core::Result<T>
    where
        F: Future<Output = queue_core::Result<T>>,
    {
        let repeats = Repeats::by(&self.storage_retry, &*self.clock);
        // A name that is being deleted is blocked for longer than anybody waits.
        repeats.ask(operation, Error::is_queue_gone).await
    }

    pub(crate) fn new(
        storage: Storage,
        clock: Arc<dyn Clock>,
        client_id: ClientId,
        encoder: Encoder,
        storage_retry: StorageRetry,
        notifiers: Vec<Arc<dyn Notifier>>,
        background: Background,
    ) -> Self {
        let Storage {
            backend: parts,
            meter,
        } = storage;
        let backend: Arc<dyn Backend> = Arc::<dyn Parts>::clone(&parts);
        let renewals = Renewals::start("renewals", &backend, &clock, &background);
        let settings = SettingsCache::new(backend.capabilities());
        Self {
            notifiers: Notifiers::new(&*backend, notifiers),
            unannounced: Unannounced::default(),
            encoder,
            creations: Creations::new(Arc::clone(&backend)),
            backend,
            meter,
            is_limited: false,
            clock,
            timer: KnownTimer::default(),
            client_id,
            storage_retry,
            renewals,
            background,
            settings,
            completed: CompletedIds::default(),
            surplus_seen: AtomicBool::new(false),
            stall_seen: AtomicBool::new(false),
            served: ServedKinds::default(),
            attachments: Outage::default(),
            payloads: None,
            results: None,
            of_types: None,
            parts,
            transacting: Arc::new(Semaphore::new(1)),
            depth_interval: None,
            reads_back: false,
            relies_on_notifier: false,
        }
    }

    /// Checks, in a service for tests, that a message's type reads it as what was written.
    pub(crate) fn read_back(&self, message: &Encoded) -> Result<(), EncodeError> {
        if self.reads_back {
            message.read_back()?;
        }
        Ok(())
    }

    /// Subscribes a consumer of a queue, which receives up to `batch` messages at a time.
    pub(crate) fn wakeups(&self, queue: &QueueName, batch: usize) -> Wakeups {
        Wakeups::subscribe(&self.notifiers, Arc::clone(&self.clock), queue, batch)
    }

    /// Returns the effective settings for a queue. `declared` is the visibility timeout of its messages' type.
    pub(crate) async fn settings(
        &self,
        queue: &QueueName,
        declared: Option<Duration>,
        config: &ConsumerConfig,
    ) -> queue_core::Result<Settings> {
        let (backend, clock) = (&*self.backend, &*self.clock);
        self.settings
            .settings(backend, clock, queue, declared, config)
            .await
    }
}
