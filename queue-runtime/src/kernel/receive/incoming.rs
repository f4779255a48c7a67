use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{ReceivedMessage, Swap};
use queue_core::envelope::AttemptRecord;
use queue_core::wire::{Body, Lines, RAW_KIND};
use queue_core::{
    ClientId, Envelope, IdempotencyKey, MessageId, MessageType, RequestId, Timestamp, Wire,
};

use super::attempts::{AttemptVerdict, believe, judge, judge_bare};
use super::consumer::Consumer;
use super::progress::Progress;
use crate::kernel::claim::HeldClaim;
use crate::kernel::context::Context;
use crate::kernel::lease::{Lease, MARGIN};
use crate::kernel::settings::Settings;
use crate::kernel::settlement::AddedRiders;

/// A message that was received but not parsed yet, whose lease is renewed.
#[derive(Debug)]
pub(crate) struct Fetched {
    /// The message without id and receipt, which the lease has.
    pub(crate) message: ReceivedMessage,
    pub(crate) lease: Lease,
    pub(crate) settings: Settings,
}

/// A received message whose body has been parsed, but not decoded as its type yet.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) lease: Lease,
    pub(crate) body: Body,
    /// The body as it was stored.
    pub(crate) stored: Bytes,
    pub(crate) envelope: Arc<Envelope>,
    pub(crate) meta: Meta,
    pub(crate) settings: Settings,
    /// The maximum number of attempts.
    pub(crate) threshold: usize,
    pub(crate) verdict: AttemptVerdict,
    /// Whether the message must be handled alone: it has had an attempt, or has only one.
    pub(crate) alone: bool,
    /// Why the body must not be decoded, if the storage found it damaged.
    pub(crate) damage: Option<Box<str>>,
    pub(crate) shared: Arc<MessageShared>,
    /// Whether the consumer has a result store.
    pub(super) wants_key: bool,
    /// The idempotency key, once the message is decoded, if it is wanted.
    pub(super) key: OnceLock<IdempotencyKey>,
    /// The claim of the key, while the message is handled.
    pub(crate) claim: Option<HeldClaim>,
}

/// What the handler of a message shares with the settlement.
#[derive(Debug)]
pub(crate) struct MessageShared {
    /// Counts the follow-ups that have no key of their own.
    pub(crate) ordinals: Ordinals,
    pub(crate) progress: Progress,
    /// What a transaction that completes the message records for its key, once the key is claimed.
    pub(crate) finish: OnceLock<Swap>,
    /// What the application has travel with the settlement.
    pub(crate) riders: AddedRiders,
    /// The number of this attempt, or of those that were made if there is no further one.
    pub(crate) attempts: usize,
    /// When the message was received, on the monotonic clock.
    pub(crate) received_at: Duration,
}

/// The numbers of the follow-ups of a message that have no key of their own.
#[derive(Debug, Default)]
pub(crate) struct Ordinals {
    next: AtomicU32,
    settlement: Mutex<Range<u32>>,
}

/// What the storage reports about a message, in the storage's time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Meta {
    pub(crate) dequeue_count: usize,
    pub(crate) inserted_at: Timestamp,
    pub(crate) expires_at: Option<Timestamp>,
    pub(crate) fence: Option<u64>,
}

impl Incoming {
    /// Parses a message and judges its attempts.
    pub(crate) fn read(context: &Context, consumer: &Consumer, fetched: Fetched) -> Self {
        Self::read_by(context, fetched, |_| consumer)
    }

    /// Parses a message and judges its attempts, for the consumer that is chosen by its body.
    pub(crate) fn read_by<'c>(
        context: &Context,
        fetched: Fetched,
        consumer: impl FnOnce(&Body) -> &'c Consumer,
    ) -> Self {
        let Fetched {
            message,
            lease,
            settings,
        } = fetched;
        let limit = context.backend.capabilities().max_body;
        let mut body = Body::of_stored(&message.body, message.damage.as_deref(), limit);
        let consumer = consumer(&body);
        let settings = settings.for_type(&consumer.options.config);
        let message_type = consumer.serves.of_body(&body);
        let threshold = settings.threshold(message_type.and_then(MessageType::poison_threshold));
        let mut count = message.dequeue_count;
        let mut alone = threshold == 1;
        let mut forgive = |explained: usize| {
            let unexplained = count.saturating_sub(1).saturating_sub(explained);
            alone |= unexplained > 0;
            // Another message of its batch may have ended the process.
            count -= usize::from(consumer.options.batched && unexplained > 0);
            count
        };
        let (envelope, verdict) = match &mut body {
            Body::Event(event) => {
                if let Some(error) = &event.invalid_trace {
                    let (queue, id) = (&consumer.queue, &event.envelope.id);
                    tracing::debug!(%queue, %id, %error, "a message has an invalid trace context, which is ignored");
                }
                let attempts = &mut Arc::make_mut(&mut event.envelope).attempts;
                believe(attempts, &message);
                let explained = attempts.failures.saturating_add(attempts.forgiven);
                let verdict = judge(forgive(explained), attempts, threshold);
                (Arc::clone(&event.envelope), verdict)
            }
            Body::Bare(_) | Body::Malformed(_) => (
                Arc::new(foreign_envelope(
                    context,
                    consumer,
                    message_type,
                    (&lease, &message.body),
                )),
                judge_bare(forgive(0), threshold),
            ),
        };
        let shared = MessageShared {
            attempts: verdict.attempts(),
            received_at: lease.storage_time().answered_at(),
            ..MessageShared::of(&envelope, &consumer.options.riders)
        };
        Self {
            lease,
            body,
            shared: Arc::new(shared),
            envelope,
            meta: Meta {
                dequeue_count: message.dequeue_count,
                inserted_at: message.inserted_at,
                expires_at: message.expires_at,
                fence: message.fence,
            },
            stored: message.body,
            settings,
            threshold,
            alone: alone || matches!(verdict, AttemptVerdict::Run { attempt: 2.., .. }),
            verdict,
            damage: message.damage,
            wants_key: consumer.options.idempotency.is_some(),
            key: OnceLock::new(),
            claim: None,
        }
    }

    /// Returns the number of this attempt, from 1, or the number of attempts made if there is no further
    /// one.
    pub(crate) fn attempt(&self) -> usize {
        self.verdict.attempts()
    }

    /// Gives up the claim of the message's key, if there is one, so that another attempt can begin at once.
    pub(crate) async fn release_claim(&self) {
        if let Some(claim) = &self.claim {
            claim.release().await;
        }
    }

    /// Leaves the claim of the message's key to its lease: the work may still be going on.
    pub(crate) fn leave_claim(&self) {
        if let Some(claim) = &self.claim {
            claim.leave();
        }
    }

    /// Returns whether the message may expire within `delay`, so that it must not be hidden for that long.
    pub(crate) fn expires_within(&self, context: &Context, delay: Duration) -> bool {
        self.expires_in(context).is_some_and(|life| delay >= life)
    }

    /// Returns for how long the message can certainly be hidden before it expires, if it does, in the storage's time,
    /// with a margin of 2 s.
    pub(crate) fn expires_in(&self, context: &Context) -> Option<Duration> {
        let expiry = self.lease.storage_time().earliest(self.meta.expires_at?);
        let now = context.clock.monotonic();
        Some(expiry.saturating_sub(now.saturating_add(MARGIN)))
    }

    /// Returns how long it is until the message is due that was put back for longer than the storage can hide it.
    pub(super) fn not_due(&self, context: &Context) -> Option<Duration> {
        let due = self.envelope.attempts.not_before?;
        let due = self.lease.storage_time().latest(due);
        let left = due.saturating_sub(context.clock.monotonic());
        (!left.is_zero()).then_some(left)
    }

    /// Returns whether the message has expired, in the storage's time, without a margin: only the storage decides, this
    /// explains its answer.
    pub(crate) fn is_expired(&self, context: &Context) -> bool {
        let now = context.clock.monotonic();
        let expires_at = self.meta.expires_at;
        expires_at.is_some_and(|expiry| now >= self.lease.storage_time().latest(expiry))
    }

    /// Returns the current time of the storage, to within 2 s.
    pub(crate) fn storage_now(&self, context: &Context) -> Timestamp {
        let now = context.clock.monotonic();
        self.lease.storage_time().latest_now(now)
    }

    /// Has the lease renewed for as long as a wait takes, a request to the result store after it, and the
    /// handler, whose time begins with it.
    pub(crate) fn keep_leased(&self, context: &Context, wait: Duration) {
        let settings = &self.settings;
        let wait = wait.saturating_add(settings.visibility);
        let until = context.clock.monotonic().saturating_add(wait);
        let until = until.saturating_add(settings.handler_timeout);
        self.lease.renew_until(until);
    }

    /// Keeps the key of the message, once it is decoded, if its consumer has a result store.
    pub(super) fn keep_key(&self, key: impl FnOnce() -> IdempotencyKey) {
        if self.wants_key {
            self.key.get_or_init(key);
        }
    }

    /// Returns the body with this attempt record and the last checkpoint, or `None` if that is too large, or the body
    /// is not an event.
    pub(crate) fn rewritten(&self, context: &Context, record: &AttemptRecord) -> Option<Bytes> {
        let Body::Event(event) = &self.body else {
            return None;
        };
        let mut record = record.clone();
        record.progress = self.shared.progress.text();
        context.encoder.put_back(event, &record)
    }
}

impl MessageShared {
    pub(super) fn of(envelope: &Envelope, riders: &AddedRiders) -> Self {
        Self {
            ordinals: Ordinals::default(),
            progress: Progress::of(envelope),
            finish: OnceLock::new(),
            riders: riders.clone(),
            attempts: 1,
            received_at: Duration::ZERO,
        }
    }
}

impl Ordinals {
    /// Returns the next ordinal.
    pub(super) fn next(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Reserves ordinals for the follow-ups of the settlement, and returns the first, which stays the same if the
    /// settlement is tried again, unless with more follow-ups.
    pub(crate) fn of_settlement(&self, follow_ups: usize) -> u32 {
        let follow_ups = u32::try_from(follow_ups).unwrap_or(u32::MAX);
        let reserved = self.settlement.lock();
        let mut reserved = reserved.unwrap_or_else(PoisonError::into_inner);
        if reserved.end - reserved.start < follow_ups {
            let first = self.next.fetch_add(follow_ups, Ordering::Relaxed);
            *reserved = first..first.saturating_add(follow_ups);
        }
        reserved.start
    }
}

/// Returns an envelope for a body that is not an event, with the ids that a body in lines has. The message id is the
/// storage id.
fn foreign_envelope(
    context: &Context,
    consumer: &Consumer,
    message_type: Option<&MessageType>,
    (lease, body): (&Lease, &Bytes),
) -> Envelope {
    let uri = context.backend.queue_uri(&consumer.queue);
    let id = lease.id().as_str();
    let request = RequestId::of_foreign(&uri, id);
    let id = MessageId::new(id).unwrap_or_else(|_| MessageId::random());
    let client = ClientId::new(uri.as_str()).unwrap_or_else(|_| context.client_id.clone());
    let kind = message_type.map_or(RAW_KIND, MessageType::kind);
    let mut envelope = Envelope::new(id, client, request, kind);
    envelope.version = message_type.map_or(1, MessageType::version);
    envelope.queue_uri = Some(uri);
    let is_lines = message_type.is_some_and(|one| one.wire() == Wire::Lines);
    // What does not begin like a message in lines is not decoded either.
    if is_lines && let Ok(lines) = Lines::read(body) {
        lines.identify(&mut envelope);
    }
    envelope
}
