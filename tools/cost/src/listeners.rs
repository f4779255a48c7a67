//! Idle listeners: what their polls cost, and how long messages wait for them, with and without push: the library's own
//! code, run in simulated time.

use std::sync::Arc;
use std::time::Duration;

use queue_clock::TokioClock;
use queue_runtime::backend::{Backend, BackendExt as _, MemoryBackend, NewMessage};
use queue_runtime::meter::{MeterReading, TransactionCounts};
use queue_runtime::notify::Notification;
use queue_runtime::policy::{ExponentialIdle, Idle, IdlePolicy};
use queue_runtime::{Failure, ListenerBuilder, Message, QueueService, Received};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::{Instant, sleep};

use crate::traffic::samples;

/// The longest pause between two polls on Azure, by default.
const AZURE_IDLE_CAP: Duration = Duration::from_secs(30);

/// A message of a simulation.
#[derive(Debug, Clone, Serialize, Deserialize, Message)]
#[message(kind = "sample", queue = "sample")]
pub(crate) struct Sample {
    #[message(key)]
    pub(crate) number: u32,
    pub(crate) filling: String,
}

/// Instances of a program that wait for messages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fleet {
    /// The number of instances, each with a service and a listener of its own.
    pub(crate) instances: u32,
    /// The maximum number of dequeue tasks of an instance.
    pub(crate) tasks: usize,
    /// How the listeners poll.
    pub(crate) polling: Polling,
}

/// How idle listeners poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Polling {
    /// All tasks, once a second each.
    EverySecond,
    /// Tasks end, and the last one polls at growing intervals, up to 30 seconds on Azure: `tasks(1..=n)`.
    Backoff,
    /// As `Backoff`, up to this interval: `idle(ExponentialIdle::up_to(cap))`.
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
/// Takes a thread, but little time: its runtime's time is simulated.
pub(crate) fn simulate(fleet: Fleet, idle: Duration) -> Result<TransactionCounts, Failure> {
    in_simulated_time(be_idle(fleet, idle))
}

pub(crate) fn in_simulated_time<T>(
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build()?;
    runtime.block_on(work)
}

async fn be_idle(fleet: Fleet, idle: Duration) -> Result<TransactionCounts, Failure> {
    let clock = Arc::new(TokioClock::new());
    let backend = empty_queue(&clock).await?;
    let mut instances = Vec::new();
    for _ in 0..fleet.instances {
        let service = connect(&backend, &clock).await?;
        let listener = service.listener(async |_: Received<Sample>| {});
        fleet.configure(listener).start()?;
        instances.push(service);
    }
    sleep(idle).await;
    let readings = instances.iter().map(QueueService::meter);
    let used = readings.map(|reading: MeterReading| reading.total()).sum();
    for service in instances {
        service.shutdown(Duration::ZERO).await;
    }
    Ok(used)
}

/// Creates the queue of the simulation, in memory, where listeners wait as long between polls as on Azure.
async fn empty_queue(clock: &Arc<TokioClock>) -> Result<Arc<dyn Backend>, Failure> {
    let backend = MemoryBackend::new(clock.clone()).with_idle_cap(AZURE_IDLE_CAP);
    let queue = Sample::TYPE.queue();
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
    fn configure(&self, listener: ListenerBuilder<Sample>) -> ListenerBuilder<Sample> {
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

/// How a message reaches the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// A notifier announces the message to the listeners.
    Pushed,
    /// Nobody announces the message, as from a machine without a notifier.
    Quiet,
}

/// The time from putting messages to their handlers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Waits {
    /// Half of the messages waited at most so long.
    pub(crate) median: Duration,
    /// All messages waited at most so long.
    pub(crate) longest: Duration,
}

/// What idle listeners need to reach their longest pauses after a message.
fn time_to_idle(polling: Polling) -> Duration {
    match polling {
        Polling::EverySecond => Duration::from_secs(2),
        Polling::Capped(cap) => 20 * cap,
        Polling::Backoff | Polling::Announced => Duration::from_secs(180),
    }
}

/// The moments of the messages are spread over the longest pause between polls.
const SPREAD: Duration = Duration::from_secs(36);

/// Puts so many messages on a queue, each after the listeners of the fleet have become idle, and returns how long they
/// waited. Storage and notifier take no time.
pub(crate) fn waits(fleet: Fleet, arrival: Arrival, messages: u32) -> Result<Waits, Failure> {
    in_simulated_time(put_and_wait(fleet, arrival, messages))
}

async fn put_and_wait(fleet: Fleet, arrival: Arrival, messages: u32) -> Result<Waits, Failure> {
    let clock = Arc::new(TokioClock::new());
    let backend = empty_queue(&clock).await?;
    let (sender, mut handled) = unbounded_channel();
    let mut instances = Vec::new();
    for _ in 0..fleet.instances {
        let (service, sender) = (connect(&backend, &clock).await?, sender.clone());
        let listener = service.listener(move |_: Received<Sample>| {
            // The receiver lives as long as the listeners.
            let _ = sender.send(Instant::now());
            async {}
        });
        fleet.configure(listener).start()?;
        instances.push(service);
    }
    let mut waits = Vec::new();
    for (number, body) in bodies(&clock, messages).await?.into_iter().enumerate() {
        sleep(time_to_idle(fleet.polling) + SPREAD * number as u32 / messages).await;
        let (queue, put) = (Sample::TYPE.queue(), Instant::now());
        backend.put(&queue, body).await?;
        if let (Arrival::Pushed, Some(notifier)) = (arrival, backend.notifier()) {
            notifier.publish(&Notification::new(&backend.account(), &queue));
        }
        let handled = handled.recv().await.ok_or("no listener runs")?;
        waits.push(handled.duration_since(put));
    }
    for service in instances {
        service.shutdown(Duration::ZERO).await;
    }
    waits.sort_unstable();
    Ok(Waits {
        median: *waits.get(waits.len() / 2).ok_or("there are no messages")?,
        longest: *waits.last().ok_or("there are no messages")?,
    })
}

/// Returns messages as they are stored, from a queue of which the fleet does not know.
async fn bodies(clock: &Arc<TokioClock>, messages: u32) -> Result<Vec<NewMessage>, Failure> {
    let elsewhere = empty_queue(clock).await?;
    let service = connect(&elsewhere, clock).await?;
    service.submit_all(samples(0..messages, 0)).await?;
    service.shutdown(Duration::ZERO).await;
    let (queue, mut bodies) = (Sample::TYPE.queue(), Vec::new());
    while bodies.len() < messages as usize {
        let stored = elsewhere.receive(&queue, 32, SPREAD).await?;
        bodies.extend(
            stored
                .into_iter()
                .map(|stored| NewMessage::new(stored.body)),
        );
    }
    Ok(bodies)
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

    /// Returns the waits of sixty messages on the queue of one instance.
    fn of(polling: Polling, arrival: Arrival) -> Waits {
        let fleet = Fleet {
            instances: 1,
            tasks: 20,
            polling,
        };
        waits(fleet, arrival, 60).expect("simulated")
    }

    #[test]
    fn without_push_a_message_waits_for_the_next_poll() {
        let seconds = Duration::from_secs;
        let idle = of(Polling::Backoff, Arrival::Quiet);
        assert!((seconds(5)..seconds(25)).contains(&idle.median), "{idle:?}");
        assert!(
            (seconds(20)..seconds(37)).contains(&idle.longest),
            "{idle:?}"
        );
        let capped = of(Polling::Capped(seconds(1)), Arrival::Quiet);
        assert!(capped.longest < seconds(2), "{capped:?}");
        assert!(capped.median > Duration::from_millis(200), "{capped:?}");
    }

    #[test]
    fn with_push_a_message_is_handled_at_once() {
        for polling in [Polling::Backoff, Polling::Announced] {
            let pushed = of(polling, Arrival::Pushed);
            assert_eq!(pushed.longest, Duration::ZERO, "{polling:?}");
        }
    }
}
