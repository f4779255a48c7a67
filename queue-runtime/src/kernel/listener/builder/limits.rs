use std::hash::Hash;
use std::sync::Arc;

use queue_core::Message;

use super::ListenerBuilder;
use crate::extensions::flow::keys::key_of;
use crate::kernel::policy::{CircuitBreaker, Rate, TaskRange};

/// How much is received and handled at a time.
impl<M> ListenerBuilder<M> {
    /// Sets the number of dequeue tasks, which receive concurrently, up to 1,024: a fixed one, such as
    /// `tasks(4)`, or a range, such as `tasks(1..=16)` or `tasks(0..=16)`. The default is a range from 1 to the number
    /// of processors, but at least 2 and at most 16.
    ///
    /// Within a range the number follows the load: the [`scale`](Self::scale) policy adds tasks, and those that
    /// find the queue empty end. How many handlers run at a time does not depend on it: one task alone receives until
    /// [`max_in_flight`](Self::max_in_flight) messages are in flight. Scaling costs a storage transaction when a receive
    /// after idleness fills all the room that it had, and one in 1 to 5 seconds under such load.
    ///
    /// With a range from zero, no task polls while the queue has no messages, invisible ones included, and a
    /// [notifier](crate::notify) announces all that are put. The listener receives as soon as one is announced, and
    /// asks for the number of messages about every 5 minutes, in case a notification was lost. A lost announcement, or
    /// the end of the lease of a crashed consumer, is noticed up to 6 minutes later than by polling.
    ///
    /// Without such a notifier, or while it has failed, one task polls. The memory backend's and
    /// [`NatsNotifier`](crate::notify) qualify. SQLite's does not, because its datagrams do not reach processes in
    /// other network namespaces, such as containers.
    pub fn tasks(mut self, tasks: impl Into<TaskRange>) -> Self {
        self.options.config.tasks = Some(tasks.into());
        self
    }

    /// Sets the maximum number of messages in flight. The default is 32.
    ///
    /// A [`blocking`](crate::blocking) handler uses a thread for each.
    pub fn max_in_flight(mut self, messages: usize) -> Self {
        self.options.config.max_in_flight = Some(messages);
        self
    }

    /// Sets the maximum number of bytes in flight: of the bodies as they are stored, or of their data once it is expanded.
    /// The default is no maximum. A message whose data is larger than the maximum is handled when no other one is. One that
    /// waits for room for a visibility timeout is made visible to others, and the attempt does not count.
    ///
    /// The size of a message is known only once it is received, so a receive needs room for the largest message
    /// that the backend allows, which is 48 KiB in memory and on SQLite. A message that was moved, such as one on a
    /// poison queue, may be larger; it counts as one of the largest.
    pub fn max_bytes_in_flight(mut self, bytes: usize) -> Self {
        self.options.config.max_bytes_in_flight = Some(bytes);
        self
    }

    /// Limits how many handlers start in a time, such as `rate(Rate::per_minute(100))`. The default is no limit.
    ///
    /// The listener receives only as many messages as it may handle, with one receive at a time, so that others are left to
    /// other instances. A message that waits after its receive, for an idempotency store for example, has used its turn. The
    /// rate is that of this listener: divide what a system downstream allows by the number of instances.
    pub fn rate(mut self, rate: Rate) -> Self {
        self.options.config.rate = Some(rate);
        self
    }

    /// Has messages of one key handled one at a time, such as those of one account: in the order in which they were received,
    /// until one of them is retried or put back. Messages of other keys go on meanwhile.
    ///
    /// Messages that wait for their turn are leased, and those of one key take up to half of the room in flight. Further ones of
    /// the key, and those that have waited for the handler timeout, are put back for up to 30 s without counting the attempt;
    /// bare bodies wait in place. So the order holds as long as no more messages of a key than that are received at a time. A
    /// message whose payload is stored elsewhere, or compressed, gets its turn when its payload has been read, and one on its
    /// last chance when that is recorded. The function is
    /// called when a message is received, by one [task](Self::tasks) at a time, and must be quick. If it panics, that is a failed
    /// attempt.
    ///
    /// This holds within one listener. A message whose lease was lost while its handler goes on may be handled by another one
    /// meanwhile. To have it for several processes, run one listener, or let the database decide: a transaction that checks
    /// the row's version.
    ///
    /// ```
    /// use queue_runtime::{Message, Received, testing};
    /// # use serde::{Deserialize, Serialize};
    ///
    /// #[derive(Serialize, Deserialize, Message)]
    /// struct Deposit {
    ///     account: String,
    ///     amount: i64,
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # async fn enter(deposit: Received<Deposit>) { println!("{} to {}", deposit.amount, deposit.account) }
    /// # let service = testing::service().await;
    /// # service.submit(Deposit { account: "ada".to_owned(), amount: 7 }).await?;
    /// let listener = service
    ///     .listener(enter)
    ///     .one_at_a_time_by(|deposit| deposit.account.clone())
    ///     .start()?;
    /// # assert_eq!(testing::drain([&listener]).await?.completed(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn one_at_a_time_by<K: Hash>(
        mut self,
        key: impl Fn(&M) -> K + Send + Sync + 'static,
    ) -> Self
    where
        M: Message,
    {
        let key = key_of(key);
        self.parts
            .iter_mut()
            .for_each(|part| part.key = Some(Arc::clone(&key)));
        self
    }

    /// Sets the maximum number of messages of one receive. The default, and the limit, is what the backend allows.
    ///
    /// Smaller batches spread the messages over more consumers; larger ones cost fewer transactions.
    pub fn batch(mut self, messages: usize) -> Self {
        self.options.config.batch = Some(messages);
        self
    }

    /// Stops receiving while a system that the handlers depend on is down, so that the outage does not turn the
    /// whole queue into poison: opens a circuit breaker when this share of the last `attempts` has
    /// failed, such as `circuit_breaker(0.9, 20)`.
    ///
    /// An attempt fails if the handler returns an error, panics or times out, or has completed the message in a
    /// transaction that it did not commit; a rejected message says nothing. While the circuit breaker is open, the
    /// listener receives one message about every 10 seconds, or the `probe_interval` of a
    /// [`ConsumerConfig`](crate::ConsumerConfig), and continues once such a probe succeeds. Handlers that were running
    /// when it opened continue, and their failures do not count as attempts. Those of the probes do, except that a probe
    /// never moves its message to the poison queue.
    ///
    /// If all messages fail for another reason, the listener remains in that state, which it reports as events and
    /// logs as errors. Bare bodies have no record of their attempts: for them every receive counts.
    pub fn circuit_breaker(mut self, failed: f64, attempts: usize) -> Self {
        let config = &mut self.options.config;
        let interval = config.circuit_breaker.map(|breaker| breaker.probe_interval);
        config.circuit_breaker = Some(CircuitBreaker {
            failed,
            attempts,
            probe_interval: interval.unwrap_or_else(CircuitBreaker::default_interval),
        });
        self
    }

    /// Sets whether the listener has fewer messages in flight while the storage throttles its receives. It is on
    /// by default.
    ///
    /// Throttling halves the number, at most once a second. It rises again while receives succeed, from zero to all
    /// in 16 seconds. [`Throttled`](crate::ListenerEventKind::Throttled) and
    /// [`ThrottledPersistently`](crate::ListenerEventKind::ThrottledPersistently) report it.
    pub fn adaptive_concurrency(mut self, on: bool) -> Self {
        self.options.config.adaptive_concurrency = Some(on);
        self
    }
}
