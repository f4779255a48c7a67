//! From a received message to one that may be handled: `accept` and the listener share this way in.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use queue_core::backend::ReceivedMessage;
use queue_core::envelope::{AttemptRecord, PoisonReason};
use queue_core::wire::{self, Body};
use queue_core::{ClientId, Envelope, MessageId, MessageType, QueueName, RequestId, Timestamp};

use crate::attempts::{Verdict, judge, judge_bare};
use crate::dispose::{Fate, poison};
use crate::lease::Lease;
use crate::poison::OnPoison;
use crate::policy::RetryPolicy;
use crate::service::Shared;
use crate::settle::{Last, SettleFailure, settle};
use crate::terms::Terms;

/// Where messages of a queue come from and may go to.
#[derive(Debug, Clone)]
pub(crate) struct Route {
    pub(crate) queue: QueueName,
    pub(crate) poison_queue: QueueName,
    pub(crate) message_type: MessageType,
    pub(crate) retry: RetryPolicy,
    pub(crate) version_patience: Duration,
    pub(crate) on_poison: Option<OnPoison>,
}

/// A message that is leased to us, read but not yet decoded as its type.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) lease: Lease,
    pub(crate) body: Body,
    /// The body as it was stored.
    pub(crate) original: bytes::Bytes,
    pub(crate) envelope: Arc<Envelope>,
    pub(crate) meta: Meta,
    pub(crate) attempt: u32,
    pub(crate) terms: Terms,
    /// Where the follow-ups that go with the settlement begin to be numbered: the same in a second try
    /// at it.
    pub(crate) settlement_ordinal: OnceLock<u32>,
    /// Counts the follow-ups that have no key of their own.
    pub(crate) ordinals: Arc<AtomicU32>,
}

/// What the storage service says of a message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Meta {
    pub(crate) dequeue_count: u32,
    pub(crate) inserted_at: Timestamp,
    pub(crate) expires_at: Option<Timestamp>,
}

/// What became of a message on the way in.
#[derive(Debug)]
pub(crate) enum Intake {
    /// It may be handled.
    Run(Incoming),
    /// It was dealt with without a handler, after so many attempts.
    Done {
        attempts: u32,
        fate: Result<Fate, SettleFailure>,
    },
}

impl Route {
    /// The route of a type over a queue, with the defaults.
    pub(crate) fn new(
        queue: QueueName,
        poison_queue: Option<QueueName>,
        message_type: MessageType,
    ) -> Result<Self, queue_core::InvalidName> {
        let poison_queue = match (poison_queue, message_type.poison_queue) {
            (Some(queue), _) => queue,
            (None, Some(name)) => name.parse()?,
            (None, None) => queue.poison()?,
        };
        Ok(Self {
            queue,
            poison_queue,
            message_type,
            retry: RetryPolicy::default(),
            version_patience: Duration::from_secs(24 * 60 * 60),
            on_poison: None,
        })
    }
}

impl Incoming {
    /// Reads a received message and takes over its lease. `asked_at` is when the receive was sent, on
    /// the monotonic clock; the lease is renewed until `renew_for` from then.
    pub(crate) fn new(
        shared: &Shared,
        route: &Route,
        terms: Terms,
        message: ReceivedMessage,
        asked_at: Duration,
        renew_for: Duration,
    ) -> Self {
        let lease = Lease::hold(
            &shared.keeper,
            &route.queue,
            &message,
            terms.visibility,
            asked_at,
            renew_for,
        );
        let body = Body::read(&message.body, shared.backend.capabilities().max_body);
        let envelope = match &body {
            Body::Event(event) => event.envelope.clone(),
            Body::Bare(_) | Body::Malformed(_) => foreign_envelope(shared, route, &message),
        };
        Self {
            lease,
            body,
            original: message.body,
            envelope: Arc::new(envelope),
            meta: Meta {
                dequeue_count: message.dequeue_count,
                inserted_at: message.inserted_at,
                expires_at: message.expires_at,
            },
            attempt: 1,
            terms,
            settlement_ordinal: OnceLock::new(),
            ordinals: Arc::new(AtomicU32::new(0)),
        }
    }

    /// The number of the first follow-up that goes with the settlement.
    pub(crate) fn settlement_ordinal(&self) -> u32 {
        *self
            .settlement_ordinal
            .get_or_init(|| self.ordinals.load(Ordering::Relaxed))
    }

    /// The event with other accounting, as the backend stores it, if it fits.
    pub(crate) fn rewritten(
        &self,
        shared: &Shared,
        record: &AttemptRecord,
    ) -> Option<bytes::Bytes> {
        let Body::Event(event) = &self.body else {
            return None;
        };
        let fits = |body: &Vec<u8>| body.len() <= shared.body_limit();
        let rewrite = |record: &AttemptRecord| wire::rewrite(&event.body, record, None);
        let body = rewrite(record).filter(fits).or_else(|| {
            let mut shorter = record.clone();
            shorter.last_error = None;
            rewrite(&shorter).filter(fits)
        })?;
        Some(shared.stored(body))
    }
}

/// Decides whether a message is handled: not if it is remembered as done, nor if its attempts are used
/// up.
pub(crate) async fn take_in(shared: &Shared, route: &Route, mut incoming: Incoming) -> Intake {
    if shared
        .remembered
        .contains(&route.queue, incoming.lease.id())
    {
        let (backend, clock) = (&*shared.backend, &*shared.clock);
        let deleted = settle(backend, clock, &incoming.lease, Vec::new(), Last::Delete).await;
        return Intake::Done {
            attempts: incoming.attempt,
            fate: deleted.map(|_| Fate::Completed),
        };
    }
    let count = incoming.meta.dequeue_count;
    let threshold = incoming.terms.threshold;
    let verdict = match &incoming.body {
        Body::Event(event) => judge(count, &event.envelope.attempts, threshold),
        Body::Bare(_) | Body::Malformed(_) => judge_bare(count, threshold),
    };
    match verdict {
        Verdict::Run { attempt, mark } => {
            incoming.attempt = attempt;
            if mark && let Err(failure) = mark_last_chance(shared, &mut incoming).await {
                return Intake::Done {
                    attempts: attempt,
                    fate: Err(failure),
                };
            }
            Intake::Run(incoming)
        }
        Verdict::Poison { reason, attempts } => {
            incoming.attempt = attempts;
            let error = match reason {
                PoisonReason::Crashed => Some(format!(
                    "{attempts} attempts ended with nothing written, as when a process dies"
                )),
                _ => incoming.envelope.attempts.last_error.clone(),
            };
            let fate = poison(shared, route, &incoming, reason, error).await;
            Intake::Done { attempts, fate }
        }
    }
}

/// Marks a message whose attempts ended unexplained. If the mark's own outcome is unknown, or it does
/// not succeed for now, the handler runs anyway, within the lease that it has.
async fn mark_last_chance(shared: &Shared, incoming: &mut Incoming) -> Result<(), SettleFailure> {
    let mut record = incoming.envelope.attempts.clone();
    record.last_chance = true;
    let Some(body) = incoming.rewritten(shared, &record) else {
        return Ok(());
    };
    let marked = incoming.lease.lock().await.rewrite(body).await;
    match marked {
        Ok(()) => {
            Arc::make_mut(&mut incoming.envelope).attempts = record;
            Ok(())
        }
        Err(error) if error.is_lease_gone() => Err(SettleFailure::LeaseLost(error)),
        Err(error) => {
            let (queue, id) = (incoming.lease.queue(), &incoming.envelope.id);
            tracing::warn!(%queue, %id, %error, "failed to mark a message as on its last chance");
            Ok(())
        }
    }
}

/// The envelope of a body that has none: the storage service's id is the message's.
fn foreign_envelope(shared: &Shared, route: &Route, message: &ReceivedMessage) -> Envelope {
    let uri = shared.backend.queue_uri(&route.queue);
    let id = message.id.as_str();
    let request = RequestId::of_foreign(&uri, id);
    let id = MessageId::new(id).unwrap_or_else(|_| MessageId::random());
    let client = ClientId::new(uri.as_str()).unwrap_or_else(|_| shared.client.clone());
    let mut envelope = Envelope::new(id, client, request, route.message_type.kind);
    envelope.version = route.message_type.version;
    envelope.queue_uri = Some(uri);
    envelope
}
