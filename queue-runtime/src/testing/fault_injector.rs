use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use queue_core::Operation;
use queue_core::backend::Backend;
use queue_core::internal::LockExt as _;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::sync::watch;

use super::fault::{Fault, Skew};

/// A [`Backend`] that forwards calls to another backend, and injects faults into some calls.
///
/// Faults are scripted ([`fail_next`](Self::fail_next), [`fail_every`](Self::fail_every)) or random
/// ([`fail_sometimes`](Self::fail_sometimes)). A call has at most one fault; `fail_next` has precedence over
/// `fail_every`, which has it over `fail_sometimes`. An [`apply`](Backend::apply) of one operation, or of a put and its
/// swap, is a call of [`Operation::Put`], [`Update`](Operation::Update) or [`Delete`](Operation::Delete); an `apply` of
/// several operations is a call of [`Operation::Apply`]. Clones share script, counts and storage, so a test can keep a
/// clone of the backend that it passes to the service.
///
/// ```
/// use std::sync::Arc;
/// use queue_runtime::backend::{Backend, BackendExt as _, NewMessage};
/// use queue_runtime::backend::MemoryBackend;
/// use queue_runtime::testing::{Fault, FaultInjector, TokioClock};
/// use queue_runtime::ErrorKind;
/// use queue_runtime::error::Operation;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let memory = MemoryBackend::new(Arc::new(TokioClock::new()));
/// let backend = FaultInjector::new(Arc::new(memory));
/// let queue = "orders".parse()?;
/// backend.create_queue(&queue, &Default::default()).await?;
///
/// backend.fail_next(1, Operation::Put, Fault::Throttled(None));
/// let error = backend.put(&queue, NewMessage::new("a")).await.unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Throttled);
///
/// backend.put(&queue, NewMessage::new("a")).await?;
/// assert_eq!(backend.calls(Operation::Put), 2);
/// assert_eq!(backend.injected(Operation::Put), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct FaultInjector {
    shared: Arc<Shared>,
}

struct Shared {
    inner: Arc<dyn Backend>,
    seed: u64,
    plan: Mutex<Plan>,
    skew: Mutex<Skew>,
    /// Signals each call and each fault.
    counted: watch::Sender<()>,
    /// Signals stalled calls to continue.
    release: watch::Sender<()>,
}

impl FaultInjector {
    /// Wraps a backend. Random faults are drawn from a random [`seed`](Self::seed).
    #[must_use]
    pub fn new(backend: Arc<dyn Backend>) -> Self {
        Self::seeded(backend, rand::random())
    }

    /// Wraps a backend. Random faults are drawn from this seed.
    ///
    /// The same seed and rules choose the same faults for the same sequence of calls. The order of
    /// concurrent calls may vary.
    #[must_use]
    pub fn seeded(backend: Arc<dyn Backend>, seed: u64) -> Self {
        Self {
            shared: Arc::new(Shared {
                inner: backend,
                seed,
                plan: Mutex::new(Plan::new(seed)),
                skew: Mutex::new(Skew::NONE),
                counted: watch::Sender::new(()),
                release: watch::Sender::new(()),
            }),
        }
    }

    /// Returns the seed of the random faults. Print the seed, so that a failed run can be repeated.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.shared.seed
    }

    /// Makes the next `calls` calls of an operation fail. A second `fail_next` for the operation starts after the
    /// first.
    ///
    /// # Panics
    /// If the fault does not [apply to](Fault::applies_to) the operation.
    pub fn fail_next(&self, calls: usize, operation: Operation, fault: Fault) {
        check(operation, &fault);
        let mut plan = self.plan();
        let next = plan.next.entry(operation).or_default();
        next.push_back((calls, fault));
    }

    /// Makes every call of an operation fail until [`heal`](Self::heal). Replaces an earlier fault that recurs for the
    /// operation.
    ///
    /// # Panics
    /// If the fault does not [apply to](Fault::applies_to) the operation.
    pub fn fail_every(&self, operation: Operation, fault: Fault) {
        check(operation, &fault);
        self.plan().every.insert(operation, fault);
    }

    /// Makes calls of an operation fail with this probability until [`heal`](Self::heal).
    ///
    /// ```
    /// use std::sync::Arc;
    /// use queue_runtime::backend::MemoryBackend;
    /// use queue_runtime::testing::{Fault, FaultInjector, TokioClock};
    /// use queue_runtime::error::Operation;
    ///
    /// let memory = MemoryBackend::new(Arc::new(TokioClock::new()));
    /// let backend = FaultInjector::new(Arc::new(memory));
    /// println!("seed {}", backend.seed());
    /// backend.fail_sometimes(0.1, Operation::Put, Fault::Duplicated);
    /// backend.fail_sometimes(0.1, Operation::Delete, Fault::AnswerLost);
    /// ```
    ///
    /// # Panics
    /// If the probability is not from 0 to 1, or the fault does not [apply to](Fault::applies_to) the
    /// operation.
    pub fn fail_sometimes(&self, probability: f64, operation: Operation, fault: Fault) {
        check(operation, &fault);
        assert!(
            (0.0..=1.0).contains(&probability),
            "{probability} is not a probability"
        );
        self.plan().sometimes.push((operation, probability, fault));
    }

    /// Removes all faults and releases stalled calls. Keeps the counts of calls and faults, and the shift of
    /// timestamps.
    pub fn heal(&self) {
        self.plan().heal();
        self.release();
    }

    /// Lets [stalled](Fault::Stalled) calls continue.
    pub fn release(&self) {
        self.shared.release.send_replace(());
    }

    /// Shifts all timestamps that the storage reports from now on into the future, by `by`.
    pub fn set_clock_ahead(&self, by: Duration) {
        *self.shared.skew.hold() = Skew::Ahead(by);
    }

    /// Shifts all timestamps that the storage reports from now on into the past, by `by`.
    pub fn set_clock_behind(&self, by: Duration) {
        *self.shared.skew.hold() = Skew::Behind(by);
    }

    /// Returns the number of calls of an operation so far, including failed ones.
    #[must_use]
    pub fn calls(&self, operation: Operation) -> usize {
        let plan = self.plan();
        plan.calls.get(&operation).copied().unwrap_or_default()
    }

    /// Returns the number of faults injected into calls of an operation so far.
    #[must_use]
    pub fn injected(&self, operation: Operation) -> usize {
        let plan = self.plan();
        let of = |(of, _): &&(Operation, Fault)| *of == operation;
        plan.injected.iter().filter(of).count()
    }

    /// Returns all faults injected so far, oldest first.
    #[must_use]
    pub fn history(&self) -> Vec<(Operation, Fault)> {
        self.plan().injected.clone()
    }

    /// Completes once the total number of calls of an operation reaches `calls`.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn until_called(&self, calls: usize, operation: Operation) {
        self.until(|| self.calls(operation) >= calls).await;
    }

    /// Completes once the total number of faults injected into an operation reaches `faults`.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn until_injected(&self, faults: usize, operation: Operation) {
        self.until(|| self.injected(operation) >= faults).await;
    }

    /// Counts a call and chooses its fault.
    pub(super) fn count(&self, operation: Operation) -> Option<Fault> {
        let fault = self.plan().call(operation);
        self.shared.counted.send_replace(());
        fault
    }

    /// Records a fault that has happened.
    pub(super) fn record(&self, operation: Operation, fault: Fault) {
        self.plan().injected.push((operation, fault));
        self.shared.counted.send_replace(());
    }

    /// Returns a receiver that the next [`release`](Self::release) notifies.
    pub(super) fn next_release(&self) -> watch::Receiver<()> {
        self.shared.release.subscribe()
    }

    pub(super) fn inner(&self) -> &dyn Backend {
        &*self.shared.inner
    }

    pub(super) fn skew(&self) -> Skew {
        *self.shared.skew.hold()
    }

    async fn until(&self, reached: impl Fn() -> bool) {
        let mut counted = self.shared.counted.subscribe();
        let reached = counted.wait_for(|()| reached());
        reached.await.expect("this injector holds the sender");
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.shared.plan.hold()
    }
}

impl fmt::Debug for FaultInjector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultInjector")
            .field("seed", &self.shared.seed)
            .field("backend", &self.shared.inner)
            .finish_non_exhaustive()
    }
}

fn check(operation: Operation, fault: &Fault) {
    assert!(
        fault.applies_to(operation),
        "{fault:?} cannot happen to {operation:?}"
    );
}

/// The scripted and random faults, and a record of the injected ones.
#[derive(Debug)]
struct Plan {
    random: StdRng,
    /// Faults for the next calls, oldest first.
    next: HashMap<Operation, VecDeque<(usize, Fault)>>,
    every: HashMap<Operation, Fault>,
    sometimes: Vec<(Operation, f64, Fault)>,
    calls: HashMap<Operation, usize>,
    injected: Vec<(Operation, Fault)>,
}

impl Plan {
    fn new(seed: u64) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            next: HashMap::new(),
            every: HashMap::new(),
            sometimes: Vec::new(),
            calls: HashMap::new(),
            injected: Vec::new(),
        }
    }

    fn heal(&mut self) {
        self.next.clear();
        self.every.clear();
        self.sometimes.clear();
    }

    fn call(&mut self, operation: Operation) -> Option<Fault> {
        *self.calls.entry(operation).or_default() += 1;
        self.take_next(operation)
            .or_else(|| self.every.get(&operation).cloned())
            .or_else(|| self.draw(operation))
    }

    fn take_next(&mut self, operation: Operation) -> Option<Fault> {
        let next = self.next.get_mut(&operation)?;
        while next.front().is_some_and(|(calls, _)| *calls == 0) {
            next.pop_front();
        }
        let (calls, fault) = next.front_mut()?;
        *calls -= 1;
        Some(fault.clone())
    }

    fn draw(&mut self, operation: Operation) -> Option<Fault> {
        let Self {
            random, sometimes, ..
        } = self;
        sometimes
            .iter()
            .filter(|(of, ..)| *of == operation)
            .find(|(_, probability, _)| random.random_bool(*probability))
            .map(|(.., fault)| fault.clone())
    }
}
