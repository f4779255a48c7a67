//! What idle listeners cost, what messages do, and how long they wait: the library's own code, run in simulated time.

mod traffic;
mod waits;

use std::sync::Arc;
use std::time::Duration;

use queue_clock::TokioClock;
use queue_runtime::backend::{Backend, MemoryBackend};
use queue_runtime::meter::{MeterReading, TransactionCounts};
use queue_runtime::policy::{ExponentialIdle, Idle, IdlePolicy};
use queue_runtime::{Failure, ListenerBuilder, Message as _, QueueService, Received};

use crate::workflow::messages::SliceRequest;

pub use traffic::{Sending, Used, deliver};
pub use waits::{Arrival, Waits, waits};

/// The longest pause between two polls on Azure, by default.
const AZURE_IDLE_CAP: Duration = Duration::from_secs(30);

/// Instances of a role that wait for slice requests.
#[derive(Debug, Clone, Copy)]
pub struct Fleet {
    /// The number of instances, each with a service and a listener of its own.
    pub instances: u32,
    /// The maximum number of dequeue tasks of an instance.
    pub tasks: usize,
    /// How the listeners poll.
    pub polling: Polling,
}

/// How idle listeners poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Polling {
    /// All tasks, once a second each.
    EverySecond,
    /// Tasks end, and the last one polls at growing intervals, up to 30 seconds on Azure: `tasks(1..=n)`.
    Backoff,
    /// The same, up to this interval: `idle(ExponentialIdle::up_to(cap))`.
    Capped(Duration),
    /// No task polls while a notifier announces messages; the depth of the queue is read every five minutes:
    /// `tasks(0..=n)`. Between machines, such a notifier is `NatsNotifier`.
    Announced,
}

#[derive(Debug)]
struct EverySecond;

impl IdlePolicy for EverySecond {
    fn delay(&self, _: Idle) -> Duration {
        Duration::from_secs(1)
    }
}

/// Runs the listeners of a fleet on empty queues in memory for `idle`, and returns their storage transactions, counted
/// as those on Azure.
///
/// Takes a thread, but little time: it has a runtime of its own, whose time is simulated.
///
/// # Errors
/// If the runtime or a listener cannot be started.
pub fn simulate(fleet: Fleet, idle: Duration) -> Result<TransactionCounts, Failure> {
    in_simulated_time(run(fleet, idle))
}

fn in_simulated_time<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build()?;
    runtime.block_on(work)
}

async fn run(fleet: Fleet, idle: Duration) -> Result<TransactionCounts, Failure> {
    let clock = Arc::new(TokioClock::new());
    let backend = empty_queue(&clock).await?;
    let mut instances = Vec::new();
    for _ in 0..fleet.instances {
        let service = connect(&backend, &clock).await?;
        let listener = service.listener(async |_: Received<SliceRequest>| {});
        fleet.configure(listener).start()?;
        instances.push(service);
    }
    tokio::time::sleep(idle).await;
    let readings = instances.iter().map(QueueService::meter);
    let used = readings.map(|reading: MeterReading| reading.total()).sum();
    for service in instances {
        service.shutdown(Duration::ZERO).await;
    }
    Ok(used)
}

/// Creates the queue of slice requests, in memory, where listeners wait as long between polls as on Azure.
async fn empty_queue(clock: &Arc<TokioClock>) -> Result<Arc<dyn Backend>, Failure> {
    let backend = MemoryBackend::new(clock.clone()).with_idle_cap(AZURE_IDLE_CAP);
    let queue = SliceRequest::TYPE.queue();
    backend.create_queue(&queue, &Default::default()).await?;
    Ok(Arc::new(backend))
}

async fn connect(
    backend: &Arc<dyn Backend>,
    clock: &Arc<TokioClock>,
) -> Result<QueueService, Failure> {
    let service = QueueService::with_backend(Arc::clone(backend));
    let service = service.clock(clock.clone()).on_current_runtime();
    Ok(service.connect().await?)
}

impl Fleet {
    fn configure(&self, listener: ListenerBuilder<SliceRequest>) -> ListenerBuilder<SliceRequest> {
        let listener = listener.max_in_flight(self.tasks).batch(32);
        match self.polling {
            Polling::EverySecond => listener.tasks(self.tasks).idle(EverySecond),
            Polling::Backoff => listener.tasks(1..=self.tasks),
            Polling::Capped(cap) => {
                let idle = ExponentialIdle::up_to(cap);
                listener.tasks(1..=self.tasks).idle(idle)
            }
            Polling::Announced => listener.tasks(0..=self.tasks),
        }
    }
}

#[cfg(test)]
mod tests {
    use queue_runtime::meter::TransactionKind;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn polling_every_second_costs_a_transaction_a_second_for_each_task() {
        let fleet = Fleet {
            instances: 2,
            tasks: 20,
            polling: Polling::EverySecond,
        };
        // The poll at the end of the hour has not begun.
        let used = simulate(fleet, HOUR - Duration::from_millis(1)).expect("simulated");
        let polls = used.of(TransactionKind::EmptyReceive);
        assert_eq!(polls, 2 * 20 * 3600, "{used}");
        let others = used.total() - polls;
        assert!(others <= 2 * 61, "settings are read once a minute: {used}");
    }

    #[test]
    fn idle_instances_poll_with_one_task_each_at_the_longest_interval() {
        let fleet = Fleet {
            instances: 10,
            tasks: 20,
            polling: Polling::Backoff,
        };
        let used = simulate(fleet, 22 * HOUR).expect("simulated");
        // 22 hours of polls every 24 to 36 seconds, and reads of the settings once a minute.
        let polls = used.of(TransactionKind::EmptyReceive);
        let longest_and_shortest = 10 * 22 * 100..10 * 22 * 150;
        assert!(longest_and_shortest.contains(&polls), "{used}");
        assert!(used.total() - polls <= 10 * 22 * 61, "{used}");
    }

    #[test]
    fn with_a_cap_of_a_second_each_instance_polls_about_once_a_second() {
        let fleet = Fleet {
            instances: 2,
            tasks: 20,
            polling: Polling::Capped(Duration::from_secs(1)),
        };
        let used = simulate(fleet, HOUR).expect("simulated");
        // A poll every 0.8 to 1.45 seconds: with jitter, and at a quarter of a second.
        let polls = used.of(TransactionKind::EmptyReceive);
        assert!((2 * 2_480..2 * 4_600).contains(&polls), "{used}");
    }

    #[test]
    fn instances_whose_messages_are_announced_poll_only_for_safety() {
        let fleet = Fleet {
            instances: 10,
            tasks: 20,
            polling: Polling::Announced,
        };
        let used = simulate(fleet, 22 * HOUR).expect("simulated");
        // Polling every second with each task takes 15,840,000.
        assert!(used.total() <= 15_000, "{used}");
        let polls = used.of(TransactionKind::EmptyReceive);
        assert!(polls <= 10 * 10, "before no task polls: {used}");
        let safety_polls = used.of(TransactionKind::Properties);
        assert!(
            (10 * 22 * 9..10 * 22 * 16).contains(&safety_polls),
            "{used}"
        );
    }
}
