//! The task of an agent: waits until it is the only one of its queue, and then looks, decides and acts.

use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::{Browsing, MessageState};
use queue_core::internal::{between, error_chain};
use queue_core::{Error, ErrorKind, Failure, QueueName};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::control::{Control, Look};
use super::event::AgentEventKind;
use super::handle::{AgentState, Shared};
use super::instance::{Instance, Instances};
use super::keeper::{Keeper, Standing};
use crate::kernel::clock::ready_by;
use crate::kernel::context::Context;
use crate::kernel::panic::catch_async;
use crate::kernel::settings::{paused, read_in_time};
use crate::service::AnyQueue;

/// How long an answer of [`Instances`] is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// The pause before an agent that has panicked goes on, such as by an implementation of [`Instances`].
const AFTER_PANIC: Duration = Duration::from_secs(5);

/// The pause between two looks at instances that are to end.
const ENDING: Duration = Duration::from_millis(100);

pub(super) struct Run {
    pub(super) queue: AnyQueue,
    pub(super) lock_queue: QueueName,
    pub(super) instances: Box<dyn Instances>,
    pub(super) control: Control,
    pub(super) timing: Timing,
    pub(super) shared: Arc<Shared>,
    /// Tells the handles when the task has ended, also with its runtime.
    pub(super) ended: DropGuard,
}

/// The times of an agent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timing {
    pub(super) interval: Duration,
    pub(super) grace: Duration,
    pub(super) lock_timeout: Duration,
}

impl Run {
    pub(super) async fn run(mut self) {
        let stop = self.shared.stop.clone();
        let (context, shared) = (Arc::clone(self.queue.context()), Arc::clone(&self.shared));
        let give_back = CancellationToken::new();
        let (timeout, queue) = (self.timing.lock_timeout, self.lock_queue.clone());
        let keeper = Keeper::new(Arc::clone(&context), queue, timeout, give_back.clone());
        let (keeper, standing) = keeper;
        let work = async {
            while !stop.is_cancelled() {
                let work = self.work(&context, standing.clone());
                if let Err(panic) = catch_async(work).await {
                    let panic = panic.to_string();
                    self.publish(AgentEventKind::Panicked { panic });
                    self.pause(AFTER_PANIC).await;
                }
            }
            if let Err(panic) = catch_async(self.end(&context)).await {
                let panic = panic.to_string();
                self.publish(AgentEventKind::Panicked { panic });
            }
            // Only now, so that no other agent starts instances beside those that stop.
            give_back.cancel();
        };
        let keep = async {
            while let Err(panic) = catch_async(keeper.keep()).await {
                tracing::error!(queue = %shared.queue, %panic, "keeping the lock of an agent panicked; it goes on after a pause");
                context.clock.sleep(AFTER_PANIC).await;
            }
        };
        tokio::join!(keep, work);
        self.shared.change(|info| info.state = AgentState::Stopped);
        drop(self.ended);
    }

    /// Works until the agent is shut down, or another one has taken over.
    async fn work(&mut self, context: &Context, mut standing: watch::Receiver<Standing>) {
        while !self.shared.stop.is_cancelled() {
            let now = standing.borrow_and_update().clone();
            match now {
                Standing::Working => break,
                Standing::Waiting(Some(error)) => self.is_blind(error),
                // At first; and it has frozen since a panic.
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
                Standing::Working => self.look(context, &standing).await,
                Standing::Unknown | Standing::Frozen => {
                    self.is_blind("the lock of the agent could not be renewed".to_owned());
                }
                Standing::Waiting(_) => {
                    self.publish(AgentEventKind::Replaced);
                    self.end(context).await;
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
    async fn look(&mut self, context: &Context, standing: &watch::Receiver<Standing>) {
        let listed = match self.list(context).await {
            Ok(listed) => listed,
            Err(error) => return self.is_blind(error.chain()),
        };
        let queue = match read(context, self.queue.name()).await {
            Ok(read) => Some(read),
            Err(error) => {
                self.is_blind(error_chain(&error).to_string());
                None
            }
        };
        let is_paused = queue.is_some_and(|read| read.is_paused);
        let queue = queue.map(|read| (read.depth, read.age));
        let look = Look {
            at: context.clock.monotonic(),
            queue,
            is_paused,
            instances: &listed,
            are_local: self.instances.are_local(),
        };
        let step = self.control.decide(&look);
        let wanted = self.control.wanted().cloned();
        if let Some(wanted) = &wanted {
            let measures = context.meter.measures(self.queue.name());
            measures.wanted_instances(wanted.instances);
        }
        let (starts, load) = (step.starts, step.load.clone());
        self.tell(step.events);
        let stop = self.shared.stop.clone();
        let may_act = || *standing.borrow() == Standing::Working && !stop.is_cancelled();
        if may_act() {
            self.stop(context, step.stops).await;
        }
        for _ in 0..starts {
            if !may_act() || !self.start(context).await {
                break;
            }
        }
        self.shared.change(|info| {
            info.looked_at = Some(context.clock.now());
            info.wanted = wanted;
            info.load = load.or(info.load.take());
            info.instances = living(listed);
            if queue.is_some() {
                info.failure = None;
            }
        });
    }

    /// Starts an instance. Returns whether that succeeded.
    async fn start(&mut self, context: &Context) -> bool {
        let until = context.clock.monotonic().saturating_add(PATIENCE);
        let started = self.instances.start(self.queue.name());
        let started = ready_by(&*context.clock, until, started).await;
        let at = context.clock.monotonic();
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

    /// Asks instances to stop. Returns whether all could be asked.
    async fn stop(&mut self, context: &Context, stops: Vec<String>) -> bool {
        let mut all = true;
        for id in stops {
            let until = context.clock.monotonic().saturating_add(PATIENCE);
            let asked = self.instances.stop(&id, self.timing.grace);
            let asked = ready_by(&*context.clock, until, asked).await;
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

    async fn list(&mut self, context: &Context) -> Result<Vec<Instance>, Failure> {
        let until = context.clock.monotonic().saturating_add(PATIENCE);
        let listed = ready_by(&*context.clock, until, self.instances.list()).await;
        listed.unwrap_or_else(|| Err(no_answer()))
    }

    /// Stops all instances, and waits until they have ended, or could be ended.
    async fn end(&mut self, context: &Context) {
        let clock = &context.clock;
        // Then they were ended, if they can be.
        let grace = self.timing.grace.saturating_add(PATIENCE);
        let give_up_at = clock.monotonic().saturating_add(grace);
        loop {
            let mut pause = ENDING;
            match self.list(context).await {
                Ok(listed) => {
                    let step = self.control.stop_all(clock.monotonic(), &listed);
                    self.tell(step.events);
                    if !self.stop(context, step.stops).await {
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

    /// Waits, or until the agent is shut down.
    async fn pause(&mut self, pause: Duration) {
        let clock = &self.queue.context().clock;
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
        let at = self.queue.context().clock.now();
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

/// What the storage tells of the queue.
#[derive(Debug, Clone, Copy, Default)]
struct Read {
    /// The number of messages.
    depth: u64,
    /// The age of the first visible one, where the storage tells that.
    age: Option<Duration>,
    /// Whether it is paused for everybody.
    is_paused: bool,
}

/// Reads the queue. One that does not exist yet is empty.
async fn read(context: &Context, queue: &QueueName) -> Result<Read, Error> {
    let (backend, clock) = (&context.backend, &*context.clock);
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
        let age = visible.map(|first| between(first.inserted_at, page.now));
        Ok(Read { age, ..read })
    };
    match read_in_time(clock, queue, read).await {
        Err(error) if error.kind() == ErrorKind::QueueNotFound => Ok(Read::default()),
        read => read,
    }
}
