//! How long messages wait on an idle queue, with and without push.

use std::sync::Arc;
use std::time::Duration;

use queue_clock::TokioClock;
use queue_runtime::backend::{Backend, BackendExt as _, NewMessage};
use queue_runtime::notify::Notification;
use queue_runtime::{Failure, Message as _, Received};
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::{Instant, sleep};

use super::traffic::requests;
use super::{Fleet, Polling, connect, empty_queue, in_simulated_time};
use crate::workflow::messages::SliceRequest;

/// How a message reaches the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// A notifier announces it to the listeners.
    Pushed,
    /// Nobody announces it, as from a machine without a notifier.
    Quiet,
}

/// The time from putting messages to their handlers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waits {
    /// Half of the messages waited at most so long.
    pub median: Duration,
    /// All of them did.
    pub longest: Duration,
}

/// What idle listeners need to reach their longest pauses after a message.
fn idle(polling: Polling) -> Duration {
    match polling {
        Polling::EverySecond => Duration::from_secs(2),
        Polling::Capped(cap) => 20 * cap,
        Polling::Backoff | Polling::Announced => Duration::from_secs(180),
    }
}

/// The moments of the messages are spread over this, the longest of these pauses.
const SPREAD: Duration = Duration::from_secs(36);

/// Puts so many messages on a queue, each after the listeners of the fleet have become idle, and returns how long they
/// waited. Storage and notifier take no time.
///
/// # Errors
/// If there are no messages, or the runtime or a listener cannot be started.
pub fn waits(fleet: Fleet, arrival: Arrival, messages: u32) -> Result<Waits, Failure> {
    in_simulated_time(run(fleet, arrival, messages))
}

async fn run(fleet: Fleet, arrival: Arrival, messages: u32) -> Result<Waits, Failure> {
    let clock = Arc::new(TokioClock::new());
    let backend = empty_queue(&clock).await?;
    let (sender, mut handled) = unbounded_channel();
    let mut instances = Vec::new();
    for _ in 0..fleet.instances {
        let (service, sender) = (connect(&backend, &clock).await?, sender.clone());
        let listener = service.listener(move |_: Received<SliceRequest>| {
            // The receiver lives as long as the listeners.
            let _ = sender.send(Instant::now());
            async {}
        });
        fleet.configure(listener).start()?;
        instances.push(service);
    }
    let mut waits = Vec::new();
    for (number, body) in bodies(&clock, messages).await?.into_iter().enumerate() {
        sleep(idle(fleet.polling) + SPREAD * number as u32 / messages).await;
        let (queue, put) = (SliceRequest::TYPE.queue(), Instant::now());
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
    service.submit_all(requests(0..messages)).await?;
    service.shutdown(Duration::ZERO).await;
    let (queue, mut bodies) = (SliceRequest::TYPE.queue(), Vec::new());
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
    use super::*;

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
