//! The task of an agent: waits until it is the only one of its queue, and then looks, decides and acts.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use metrics::gauge;
use queue_runtime::backend::{Browsing, MessageState};
use queue_runtime::clock::Clock;
use queue_runtime::error::{Operation, Outcome};
use queue_runtime::panic::catch_async;
use queue_runtime::settings::paused;
use queue_runtime::{AnyQueue, Error, ErrorKind, Failure, QueueName};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::agent::{AgentEventKind, AgentState, Shared};
use crate::control::{Control, Look};
use crate::instances::{Instance, Instances};
use crate::keeper::{Keeper, Standing};

/// The gauge of the number of instances that are wanted.
pub(crate) const WANTED: &str = "queue.wanted_instances";

/// The gauge's label, as OpenTelemetry names the queue.
const QUEUE: &str = "messaging.destination.name";

/// How long an answer of the storage about the queue is waited for.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// How long an answer of [`Instances`] is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// The pause before an agent that has panicked goes on, such as by an implementation of [`Instances`].
const AFTER_PANIC: Duration = Duration::from_secs(5);

/// The pause between two looks at instances that are to end.
const ENDING: Duration = Duration::from_millis(100);

pub(crate) struct Run {
    /// At least one, of which the first has the agent's name.
    pub(crate) queues: Vec<AnyQueue>,
    pub(crate) lock_queue: QueueName,
    pub(crate) instances: Box<dyn Instances>,
    pub(crate) control: Control,
    pub(crate) timing: Timing,
    pub(crate) shared: Arc<Shared>,
    /// Tells the handles when the task has ended, also with its runtime.
    pub(crate) ended: DropGuard,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    pub(crate) interval: Duration,
    pub(crate) grace: Duration,
    pub(crate) lock_timeout: Duration,
}

impl Run {
    pub(crate) async fn run(mut self) {
        let stop = self.shared.stop.clone();
        let (clock, shared) = (Arc::clone(self.queues[0].clock()), Arc::clone(&self.shared));
        let clock = &*clock;
        let give_back = CancellationToken::new();
        let (timeout, queue) = (self.timing.lock_timeout, self.lock_queue.clone());
        let keeper = Keeper::new(&self.queues[0], queue, timeout, give_back.clone());
        let (keeper, standing) = keeper;
        let work = async {
            while !stop.is_cancelled() {
                let work = self.work(clock, standing.clone());
                if let Err(panic) = catch_async(work).await {
                    let panic = panic.to_string();
                    self.publish(AgentEventKind::Panicked { panic });
                    self.pause(AFTER_PANIC).await;
                }
            }
            if let Err(panic) = catch_async(self.end(clock)).await {
                let panic = panic.to_string();
                self.publish(AgentEventKind::Panicked { panic });
            }
            // The lock is given back last, so that no other agent starts instances beside those that stop.
            give_back.cancel();
        };
        let keep = async {
            while let Err(panic) = catch_async(keeper.keep()).await {
                tracing::error!(queue = %shared.queue, %panic, "keeping the lock of an agent panicked; it goes on after a pause");
                clock.sleep(AFTER_PANIC).await;
            }
        };
        tokio::join!(keep, work);
        self.shared.change(|info| info.state = AgentState::Stopped);
        drop(self.ended);
    }

    /// Works until the agent is shut down, or another agent has taken over.
    async fn work(&mut self, clock: &dyn Clock, mut standing: watch::Receiver<Standing>) {
        while !self.shared.stop.is_cancelled() {
            let now = standing.borrow_and_update().clone();
            match now {
                Standing::Working => break,
                Standing::Waiting(Some(error)) => self.is_blind(error),
                // The agent has just begun, or has frozen since a panic.
                Standing::Unknown | Standing::Frozen => {}
                Standing::Waiting(None) => {
                    self.shared.change(|info| info.failure = None);
                    self.publish(AgentEventKind::Waiting);
                }
            }
            tokio::select! {
                _ = standing.changed() => {}
                () = self.shared.stop.cancelled() => return,
            }
        }
        self.shared.change(|info| info.state = AgentState::Working);
        self.publish(AgentEventKind::Working);
        while !self.shared.stop.is_cancelled() {
            let now = standing.borrow().clone();
            match now {
                Standing::Working => self.look(clock, &standing).await,
                Standing::Unknown | Standing::Frozen => {
                    self.is_blind("the lock of the agent could not be renewed".to_owned());
                }
                Standing::Waiting(_) => {
                    self.publish(AgentEventKind::Replaced);
                    self.end(clock).await;
                    self.control.begin_again();
                    self.shared.change(|info| {
                        info.state = AgentState::Waiting;
                        (info.wanted, info.load) = (None, None);
                    });
                    return;
                }
            }
            self.pause(self.timing.interval).await;
        }
    }

    /// Looks once, and does what is decided.
    async fn look(&mut self, clock: &dyn Clock, standing: &watch::Receiver<Standing>) {
        let listed = match self.list(clock).await {
            Ok(listed) => listed,
            Err(error) => return self.is_blind(error.chain()),
        };
        let queue = match read_all(&self.queues).await {
            Ok(read) => Some(read),
            Err(error) => {
                self.is_blind(chain(error));
                None
            }
        };
        let is_paused = queue.is_some_and(|read| read.is_paused);
        let queue = queue.map(|read| (read.depth, read.age));
        let look = Look {
            at: clock.monotonic(),
            now: clock.now(),
            queue,
            is_paused,
            instances: &listed,
            are_local: self.instances.are_local(),
        };
        let step = self.control.decide(&look);
        let wanted = self.control.wanted().cloned();
        if let Some(wanted) = &wanted {
            let queue = self.shared.queue.to_string();
            gauge!(WANTED, QUEUE => queue).set(wanted.instances as f64);
        }
        let (starts, load) = (step.starts, step.load.clone());
        self.tell(step.events);
        let stop = self.shared.stop.clone();
        let may_act = || *standing.borrow() == Standing::Working && !stop.is_cancelled();
        if may_act() {
            self.stop(clock, step.stops).await;
        }
        for _ in 0..starts {
            if !may_act() || !self.start(clock).await {
                break;
            }
        }
        self.shared.change(|info| {
            info.looked_at = Some(clock.now());
            info.wanted = wanted;
            info.load = load.or(info.load.take());
            info.instances = living(listed);
            if queue.is_some() {
                info.failure = None;
            }
        });
    }

    /// Starts an instance, and returns whether that succeeded.
    async fn start(&mut self, clock: &dyn Clock) -> bool {
        let until = clock.monotonic().saturating_add(PATIENCE);
        let queues: Vec<_> = self
            .queues
            .iter()
            .map(|queue| queue.name().clone())
            .collect();
        let started = self.instances.start(&queues);
        let started = ready_by(clock, until, started).await;
        let at = clock.monotonic();
        match started.unwrap_or_else(|| Err(no_answer())) {
            Ok(id) => {
                let event = self.control.started(at, id);
                self.publish(event);
                true
            }
            Err(error) => {
                let (error, pause) = (error.chain(), self.control.not_started(at));
                self.publish(AgentEventKind::NotStarted { error, pause });
                false
            }
        }
    }

    /// Asks instances to stop, and returns whether all could be asked.
    async fn stop(&mut self, clock: &dyn Clock, stops: Vec<String>) -> bool {
        let mut all = true;
        for id in stops {
            let until = clock.monotonic().saturating_add(PATIENCE);
            let asked = self.instances.stop(&id, self.timing.grace);
            let asked = ready_by(clock, until, asked).await;
            match asked.unwrap_or_else(|| Err(no_answer())) {
                Ok(()) => self.control.asked(&id),
                Err(error) => {
                    let error = error.chain();
                    self.publish(AgentEventKind::NotStopped { id, error });
                    all = false;
                }
            }
        }
        all
    }

    async fn list(&mut self, clock: &dyn Clock) -> Result<Vec<Instance>, Failure> {
        let until = clock.monotonic().saturating_add(PATIENCE);
        let listed = ready_by(clock, until, self.instances.list()).await;
        listed.unwrap_or_else(|| Err(no_answer()))
    }

    /// Stops all instances, and waits until they have ended, or could be ended.
    async fn end(&mut self, clock: &dyn Clock) {
        // After the grace, instances were ended, if possible.
        let grace = self.timing.grace.saturating_add(PATIENCE);
        let give_up_at = clock.monotonic().saturating_add(grace);
        loop {
            let mut pause = ENDING;
            match self.list(clock).await {
                Ok(listed) => {
                    let step = self.control.stop_all(clock.monotonic(), &listed);
                    self.tell(step.events);
                    if !self.stop(clock, step.stops).await {
                        pause = self.timing.interval;
                    }
                    let listed = living(listed);
                    let is_over = listed.is_empty();
                    self.shared.change(|info| info.instances = listed);
                    if is_over {
                        return;
                    }
                }
                Err(error) => {
                    self.is_blind(error.chain());
                    pause = self.timing.interval;
                }
            }
            if clock.monotonic() >= give_up_at {
                tracing::error!(queue = %self.shared.queue, "instances have not ended; they are left as they are");
                return;
            }
            clock.sleep(pause).await;
        }
    }

    /// Waits, but not beyond the agent's shutdown.
    async fn pause(&mut self, pause: Duration) {
        let clock = self.queues[0].clock();
        tokio::select! {
            () = clock.sleep(pause) => {}
            () = self.shared.stop.cancelled() => {}
        }
    }

    /// Tells once that nothing can be decided.
    fn is_blind(&self, error: String) {
        let is_known = self.shared.info.borrow().failure.is_some();
        if !is_known {
            let error = error.clone();
            self.publish(AgentEventKind::Blind { error });
        }
        self.shared.change(|info| info.failure = Some(error));
    }

    fn tell(&self, events: Vec<AgentEventKind>) {
        for event in events {
            self.publish(event);
        }
    }

    fn publish(&self, kind: AgentEventKind) {
        let at = self.queues[0].clock().now();
        self.shared.publish(at, kind);
    }
}

fn living(mut instances: Vec<Instance>) -> Vec<Instance> {
    instances.retain(|instance| instance.ended.is_none());
    instances
}

fn no_answer() -> Failure {
    Failure::retry(format!("there was no answer within {PATIENCE:?}"))
}

/// What the storage tells of a queue, or of all.
#[derive(Debug, Clone, Copy, Default)]
struct Read {
    /// The number of messages.
    depth: usize,
    /// The age of the first visible message, where the storage tells that.
    age: Option<Duration>,
    /// Whether the queue is paused for everybody.
    is_paused: bool,
}

/// Reads the queues. What is on one that is paused does not count, unless all are: instances would receive none of it.
async fn read_all(queues: &[AnyQueue]) -> Result<Read, Error> {
    let read = try_join_all(queues.iter().map(read)).await?;
    let is_paused = read.iter().all(|one| one.is_paused);
    let counts = read.iter().filter(|one| is_paused || !one.is_paused);
    Ok(counts.fold(Read::default(), |all, one| Read {
        depth: all.depth.saturating_add(one.depth),
        age: all.age.max(one.age),
        is_paused,
    }))
}

/// Reads a queue; one that does not exist yet is empty.
async fn read(queue: &AnyQueue) -> Result<Read, Error> {
    let (backend, clock, queue) = (queue.backend(), &**queue.clock(), queue.name());
    let read = async {
        let properties = backend.properties(queue).await?;
        let depth = properties.approximate_count;
        let is_paused = paused(&properties.metadata).is_some();
        let read = Read {
            depth,
            age: None,
            is_paused,
        };
        let tells = backend.capabilities().browsing == Browsing::Supported;
        if depth == 0 || !tells {
            return Ok(read);
        }
        let page = backend.browse(queue, None, 1).await?;
        let first = page.messages.first();
        let visible = first.filter(|first| first.state == MessageState::Visible);
        let age = visible.map(|first| page.now.duration_since(first.inserted_at));
        let age = age.map(|age| Duration::try_from(age).unwrap_or_default());
        Ok(Read { age, ..read })
    };
    let deadline = clock.monotonic().saturating_add(READ_TIMEOUT);
    let read = ready_by(clock, deadline, read).await.unwrap_or_else(|| {
        let timeout = Error::new(ErrorKind::Timeout, Operation::Properties);
        Err(timeout.with_queue(queue).with_outcome(Outcome::NotDone))
    });
    match read {
        Err(error) if error.kind() == ErrorKind::QueueNotFound => Ok(Read::default()),
        read => read,
    }
}

/// Returns an error's text, with its causes.
pub(crate) fn chain(error: Error) -> String {
    Failure::retry(error).chain()
}

/// Awaits a future until this moment on the monotonic clock; returns `None` if it is not ready by then.
pub(crate) async fn ready_by<T>(
    clock: &dyn Clock,
    deadline: Duration,
    future: impl Future<Output = T>,
) -> Option<T> {
    tokio::select! {
        biased;
        output = future => Some(output),
        () = clock.sleep_until(deadline) => None,
    }
}
