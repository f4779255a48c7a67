//! Receiving messages for `accept` and listeners, with the settings of the queue and a deadline.

use std::iter;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context as Polling, Poll};
use std::time::Duration;

use queue_core::backend::ReceivedMessage;
use queue_core::clock::BoxFuture;
use queue_core::internal::between;
use queue_core::{Error, ErrorKind, Operation, Outcome, QueueName, Result};

use super::consumer::{Consumer, MissingQueue};
use super::incoming::{Fetched, Incoming};
use super::send_time::SendTime;
use crate::kernel::clock::ready_by;
use crate::kernel::context::Context;
use crate::kernel::lease::{Lease, Receive};
use crate::kernel::settings::{ConsumerConfig, Settings};
use crate::kernel::settlement::Settling;

/// Returns the settings of the consumer's queue, which is created first if it does not exist and the consumer does
/// that.
///
/// # Errors
/// The backend's error, or a timeout if it does not answer.
pub(crate) async fn open(context: &Context, consumer: &Consumer) -> Result<Settings> {
    let (queue, config) = (&consumer.queue, config(consumer));
    let settings = || context.settings(queue, declared(consumer), config);
    let began = context.creations.now();
    match (settings().await, consumer.options.missing_queue) {
        (Err(error), MissingQueue::Create) => {
            Box::pin(context.creations.create_missing(error, began)).await?;
            Box::pin(settings()).await
        }
        (settings, _) => settings,
    }
}

/// Receives up to `max` messages, and leases them for the visibility timeout that `visibility` chooses. Hands back
/// surplus messages in the background. Returns no messages if none are visible, or if a missing queue has just been
/// created.
///
/// # Errors
/// The backend's error, or a timeout if it does not answer within the visibility timeout, counted from when the receive
/// was sent. The messages of a late answer are handed back in the background, without counting the attempt.
///
/// # Cancel safety
/// If the future is dropped before the receive was sent, because of the storage limit, the receive is not sent. If the
/// future is dropped later, before the backend answers, the messages of the answer are handed back in the background,
/// without counting the attempt.
pub(crate) async fn fetch(
    context: &Arc<Context>,
    consumer: &Arc<Consumer>,
    max: usize,
    visibility: impl FnOnce(&Settings) -> Duration,
) -> Result<Vec<Fetched>> {
    let queue = &consumer.queue;
    // Settings of any age: while nothing is received, the queue's metadata is not read again.
    let settings = match known(context, consumer) {
        Some(known) => known,
        None => Box::pin(open(context, consumer)).await?,
    };
    if let Some(hold) = consumer.options.config.max_pack_hold {
        context.parts.set_max_hold(queue, hold);
    }
    let visibility = visibility(&settings);
    let began = context.creations.now();
    let mut receiving = Receiving::start(context, consumer, settings, visibility, max);
    let received = receiving.answer().await;
    let received = received.unwrap_or_else(|| Err(timeout(consumer)));
    let asked_at = receiving.counts_from();
    drop(receiving);
    let (messages, settings) = match (received, consumer.options.missing_queue) {
        (Ok(answer), _) => answer,
        (Err(error), MissingQueue::Create) => {
            Box::pin(context.creations.create_missing(error, began)).await?;
            return Ok(Vec::new());
        }
        (Err(error), MissingQueue::Report) => return Err(error),
    };
    let receive = answered(context, settings, visibility, asked_at);
    record_lag(context, queue, &messages);
    let mut fetched = hold(context, consumer, settings, receive, messages);
    if receive.answered_at.saturating_sub(asked_at) >= visibility && !fetched.is_empty() {
        context
            .background
            .spawn(hand_back(context, consumer, fetched));
        return Err(timeout(consumer));
    }
    let surplus = fetched.split_off(fetched.len().min(max));
    if !surplus.is_empty() {
        report_surplus(context, consumer, max, surplus.len());
        context
            .background
            .spawn(hand_back(context, consumer, surplus));
    }
    Ok(fetched)
}

/// Records how long messages waited that are received for the first time, in the storage's time alone.
fn record_lag(context: &Context, queue: &QueueName, messages: &[ReceivedMessage]) {
    let mut new = messages.iter().filter(|message| message.dequeue_count == 1);
    if let Some(first) = new.next() {
        let measures = context.meter.measures(queue);
        for message in iter::once(first).chain(new) {
            measures.lag(between(message.inserted_at, message.received_at));
        }
    }
}

/// Warns once per service that its backend returns more messages than it is asked for.
fn report_surplus(context: &Context, consumer: &Consumer, max: usize, surplus: usize) {
    if !context.surplus_seen.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            queue = %consumer.queue, max, surplus,
            "the backend returned more messages than requested; the surplus is handed back"
        );
    }
}

/// Makes received messages visible at once, without counting the attempt.
fn hand_back(
    context: &Arc<Context>,
    consumer: &Arc<Consumer>,
    messages: Vec<Fetched>,
) -> impl Future<Output = ()> + Send + 'static {
    let (context, consumer) = (Arc::clone(context), Arc::clone(consumer));
    async move {
        for fetched in messages {
            let incoming = Incoming::read(&context, &consumer, fetched);
            Settling::new(&context, &consumer, &incoming)
                .release_unasked()
                .await;
        }
    }
}

/// Receives messages, and then makes sure that the settings of the queue are not old, for a quarter of the visibility
/// timeout at most.
async fn receive(
    context: Arc<Context>,
    consumer: Arc<Consumer>,
    known: Settings,
    visibility: Duration,
    max: usize,
    sending: SendTime,
) -> Answer {
    let queue = &consumer.queue;
    let messages = context.backend.receive(queue, max, visibility).await?;
    if messages.is_empty() {
        return Ok((messages, known));
    }
    let (now, declared) = (context.clock.monotonic(), declared(&consumer));
    let fresh = context
        .settings
        .still_fresh(queue, declared, config(&consumer), now);
    let settings = match fresh {
        Some(settings) => settings,
        // Boxed, because this future is rare and large.
        None => tokio::select! {
            biased;
            // The messages are handed back.
            () = sending.given_up() => known,
            settings = Box::pin(refreshed(&context, &consumer, known, visibility / 4)) => settings,
        },
    };
    Ok((messages, settings))
}

/// Makes sure that the settings of the consumer's queue are not old.
///
/// # Errors
/// The error of [`open`], if the settings have never been read; otherwise a failure is logged, and they stay as they
/// are.
pub(crate) async fn refresh(context: &Context, consumer: &Consumer) -> Result<()> {
    match known(context, consumer) {
        Some(known) => refreshed(context, consumer, known, known.visibility / 4).await,
        None => open(context, consumer).await?,
    };
    Ok(())
}

/// Returns the settings of the consumer's queue, or those that are known if they cannot be read within this time.
async fn refreshed(
    context: &Context,
    consumer: &Consumer,
    known: Settings,
    patience: Duration,
) -> Settings {
    let queue = &consumer.queue;
    let settings = context.settings(queue, declared(consumer), config(consumer));
    let give_up_at = context.clock.monotonic().saturating_add(patience);
    match ready_by(&*context.clock, give_up_at, settings).await {
        Some(Ok(settings)) => settings,
        Some(Err(error)) => {
            tracing::warn!(%queue, %error, "failed to refresh a queue's metadata; using the cached settings");
            known
        }
        None => {
            tracing::warn!(%queue, "a queue's metadata takes long to read; using the cached settings");
            known
        }
    }
}

/// Returns the settings of the consumer's queue if its metadata was read before, however long ago.
fn known(context: &Context, consumer: &Consumer) -> Option<Settings> {
    let (queue, config) = (&consumer.queue, config(consumer));
    context.settings.known(queue, declared(consumer), config)
}

/// Returns after how many attempts a message of a consumer of one type is poison, if the metadata of its queue was read
/// before.
pub(crate) fn known_threshold(context: &Context, consumer: &Consumer) -> Option<usize> {
    let declared = consumer.serves.types().first()?.poison_threshold();
    Some(known(context, consumer)?.threshold(declared))
}

fn declared(consumer: &Consumer) -> Option<Duration> {
    consumer.serves.visibility_timeout()
}

fn config(consumer: &Consumer) -> &ConsumerConfig {
    &consumer.options.config
}

/// What a receive returns, with the settings for its messages.
type Answer = Result<(Vec<ReceivedMessage>, Settings)>;

/// A receive that the backend has been asked for.
struct Receiving {
    context: Arc<Context>,
    consumer: Arc<Consumer>,
    visibility: Duration,
    /// When asked, on the monotonic clock.
    asked_at: Duration,
    sending: SendTime,
    /// The call, until it is answered.
    answer: Option<BoxFuture<'static, Answer>>,
}

impl Receiving {
    fn start(
        context: &Arc<Context>,
        consumer: &Arc<Consumer>,
        settings: Settings,
        visibility: Duration,
        max: usize,
    ) -> Self {
        let (context, consumer) = (Arc::clone(context), Arc::clone(consumer));
        let asked_at = context.clock.monotonic();
        let sending = SendTime::default();
        let (shared, served) = (Arc::clone(&context), Arc::clone(&consumer));
        let answer = receive(shared, served, settings, visibility, max, sending.clone());
        let answer: BoxFuture<'static, Answer> = if context.is_limited {
            Box::pin(sending.scope(answer))
        } else {
            Box::pin(answer)
        };
        Self {
            context,
            consumer,
            visibility,
            asked_at,
            sending,
            answer: Some(answer),
        }
    }

    /// Waits for the answer until the messages in it may be visible again, and returns `None` then.
    async fn answer(&mut self) -> Option<Answer> {
        let context = Arc::clone(&self.context);
        loop {
            let deadline = self.deadline();
            let answer = ready_by(&*context.clock, deadline, &mut *self).await;
            // The receive may have been sent only after the deadline was computed.
            if answer.is_some() || self.deadline() <= context.clock.monotonic() {
                return answer;
            }
        }
    }

    fn deadline(&self) -> Duration {
        self.counts_from().saturating_add(self.visibility)
    }

    /// Returns the time from which the leases count.
    fn counts_from(&self) -> Duration {
        let clock = &*self.context.clock;
        self.sending.counts_from(self.asked_at, clock)
    }
}

impl Future for Receiving {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, polling: &mut Polling<'_>) -> Poll<Self::Output> {
        // Taken out while it is polled: a future that panicked must not be polled again.
        let mut answer = self
            .answer
            .take()
            .expect("it is not polled after its answer");
        let polled = answer.as_mut().poll(polling);
        if polled.is_pending() {
            self.answer = Some(answer);
        }
        polled
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        let Some(answer) = self.answer.take() else {
            return;
        };
        self.sending.give_up();
        let (context, consumer) = (Arc::clone(&self.context), Arc::clone(&self.consumer));
        let (visibility, asked_at) = (self.visibility, self.asked_at);
        let sending = self.sending.clone();
        self.context.background.spawn(async move {
            let (messages, settings) = match answer.await {
                Ok(answer) => answer,
                Err(error) if error.is_unsent() => return,
                Err(error) => {
                    tracing::warn!(queue = %consumer.queue, %error, "a cancelled receive failed");
                    return;
                }
            };
            let asked_at = sending.counts_from(asked_at, &*context.clock);
            let receive = answered(&context, settings, visibility, asked_at);
            let fetched = hold(&context, &consumer, settings, receive, messages);
            hand_back(&context, &consumer, fetched).await;
        });
    }
}

/// Returns a receive that is answered now.
fn answered(
    context: &Context,
    settings: Settings,
    visibility: Duration,
    asked_at: Duration,
) -> Receive {
    Receive {
        asked_at,
        answered_at: context.clock.monotonic(),
        visibility,
        renewal: settings.visibility,
    }
}

/// Takes over the leases of messages that have just been received.
fn hold(
    context: &Context,
    consumer: &Consumer,
    settings: Settings,
    receive: Receive,
    messages: Vec<ReceivedMessage>,
) -> Vec<Fetched> {
    let renew_for = settings.handler_timeout;
    let hold = |message: ReceivedMessage| {
        let (renewals, queue) = (&context.renewals, &consumer.queue);
        Fetched {
            lease: Lease::hold(renewals, queue, &message, receive, renew_for),
            message,
            settings,
        }
    };
    messages.into_iter().map(hold).collect()
}

fn timeout(consumer: &Consumer) -> Error {
    Error::new(ErrorKind::Timeout, Operation::Receive)
        .with_queue(&consumer.queue)
        .with_outcome(Outcome::Unknown)
}
