//! Moving a message to the poison queue, with a record of the reason, the error and the attempts. The sender of a
//! request is told if its message ends without a reply, even by completion.

use std::sync::Arc;

use bytes::Bytes;
use queue_core::QueueName;
use queue_core::backend::NewMessage;
use queue_core::envelope::{Envelope, PoisonReason, PoisonRecord};
use queue_core::internal::{MAX_ERROR, MAX_LOGGED, error_chain, escape_short, shorten};
use queue_core::wire::{Body, Event, RAW_KIND};

use super::LOG;
use super::added::Ended;
use super::callbacks::{Caution, OnPoison};
use super::carry_out::Settling;
use super::end::{SettleErrorKind, Settled};
use super::riders::{RiderKind, Riders};
use super::write::{MessageChange, Unsettled, fingerprint, write};
use crate::kernel::attachment::moved;
use crate::kernel::context::Context;
use crate::kernel::lease::Purpose;
use crate::kernel::panic;
use crate::kernel::receive::Incoming;
use crate::kernel::send::{Role, Unreplied, encode_follow_ups};

impl Settling<'_> {
    /// Moves a message to the poison queue and submits the follow-up of `on_poison`, in one step if the backend
    /// is atomic.
    pub(super) async fn poison(
        self,
        reason: PoisonReason,
        error: Option<&str>,
    ) -> Result<Settled, SettleErrorKind> {
        let Self {
            context,
            consumer,
            incoming,
        } = self;
        let (queue, poison_queue) = (&consumer.queue, consumer.poison_queue());
        let (id, inserted_at) = (incoming.lease.id().as_str(), incoming.meta.inserted_at);
        let mut record = PoisonRecord::new(reason, queue.as_str(), id, inserted_at);
        record.last = incoming.storage_now(context);
        record.attempts = incoming.attempt();
        record.error = error.map(|error| escape_short(error, MAX_ERROR).into_owned());
        let body = body_with_record(context, incoming, &mut record);
        let copy = moved(context, queue, incoming.lease.id(), body);
        let copy = (poison_queue.clone(), copy);
        let on_poison = consumer.options.on_poison.as_ref();
        let follow_up =
            on_poison.map(|on_poison| follow_up(on_poison, context, incoming, record.clone()));
        let follow_up = match follow_up.transpose() {
            Ok(follow_up) => follow_up.flatten(),
            Err(error) => {
                not_submitted(incoming, &*error);
                None
            }
        };
        let purpose = Purpose::Poison {
            reason,
            error: fingerprint(&record.error),
        };
        let shown = record
            .error
            .clone()
            .filter(|_| consumer.options.reply_errors);
        let unreplied = Unreplied::poisoned(reason, record.attempts, shown);
        let mut riders = Riders::default();
        riders.add(RiderKind::PoisonCopy, Some(copy));
        riders.add(RiderKind::OnPoison, follow_up);
        let taken = self.take_along(&mut riders, |attempts, took| Ended::Poisoned {
            reason,
            attempts,
            took,
            error: record.error.as_deref(),
        });
        debug_assert!(
            taken.is_ok(),
            "no rider keeps a message from its poison queue"
        );
        self.delete_and_tell(purpose, riders, &unreplied).await?;
        tracing::warn!(target: LOG, %queue,
            %poison_queue,
            id = %incoming.envelope.id,
            kind = &*escape_short(&incoming.envelope.kind, MAX_LOGGED),
            %reason,
            attempts = record.attempts,
            error = &*shorten(record.error.as_deref().unwrap_or_default(), MAX_LOGGED),
            "moved a message to the poison queue"
        );
        Ok(Settled::Poisoned(reason))
    }
}

fn not_submitted(incoming: &Incoming, error: &(dyn std::error::Error + 'static)) {
    let (queue, id) = (incoming.lease.queue(), &incoming.envelope.id);
    let error = error_chain(error);
    tracing::error!(target: LOG, %queue, %id, error, "failed to submit the follow-up of `on_poison`");
}

/// Calls `on_poison` and encodes its follow-up. A panic is an error, so that it does not prevent the move.
fn follow_up(
    on_poison: &OnPoison,
    context: &Context,
    incoming: &Incoming,
    record: PoisonRecord,
) -> Result<Option<(QueueName, NewMessage)>, Box<dyn std::error::Error + Send + Sync>> {
    let caution = match record.reason {
        PoisonReason::Crashed => Caution::after(record.attempts, incoming.threshold),
        _ => Caution::None,
    };
    let body = match caution {
        Caution::None => Some(&incoming.body),
        Caution::Undecoded => None,
        Caution::Uncalled => {
            return Err("`on_poison` is not called any more for this message: ten calls ended without the message being moved, as when the process is killed".into());
        }
    };
    let envelope = Arc::clone(&incoming.envelope);
    let follow_up = panic::catch(|| on_poison.call(body, envelope, record))
        .map_err(|panic| format!("`on_poison` panicked: {panic}"))?;
    let follow_up = follow_up.as_slice();
    let mut puts = encode_follow_ups(context, &incoming.envelope, follow_up, Role::OnPoison, 0)?;
    Ok(puts.pop())
}

/// Returns the body for the poison queue, and notes in the record whether the original body is inside it. Without room
/// for the record, the body is the original one, less any record that its sender wrote, which a redrive would believe.
fn body_with_record(context: &Context, incoming: &Incoming, record: &mut PoisonRecord) -> Bytes {
    let (encoder, stored) = (context.encoder, &incoming.stored);
    let progress = incoming.shared.progress.text();
    let progress = progress.as_deref();
    let marked =
        |event: &Event, record: &PoisonRecord| encoder.poison_event(event, record, progress);
    let earlier = incoming.body.poison();
    record.raw = earlier.is_some() || !matches!(incoming.body, Body::Event(_));
    let body = match &incoming.body {
        Body::Event(event) if earlier.is_none() => marked(event, record),
        // A message of a poison queue needs its earlier record when it is redriven, which is replaced only without room
        // for both.
        Body::Event(event) => wrapped(context, incoming, record).or_else(|| {
            record.raw = earlier.is_some_and(|earlier| earlier.raw);
            marked(event, record)
        }),
        Body::Bare(_) | Body::Malformed(_) => wrapped(context, incoming, record),
    };
    body.unwrap_or_else(|| encoder.without_record(stored, progress))
}

/// Returns the original body inside an event with the record.
fn wrapped(context: &Context, incoming: &Incoming, record: &PoisonRecord) -> Option<Bytes> {
    let Incoming {
        envelope, stored, ..
    } = incoming;
    let (id, request) = (envelope.id.clone(), envelope.request_id.clone());
    let mut wrapper = Envelope::new(id, context.client_id.clone(), request, RAW_KIND);
    wrapper.time = Some(record.first);
    wrapper.queue_uri.clone_from(&envelope.queue_uri);
    context.encoder.poison_raw(stored, &wrapper, record)
}

impl Settling<'_> {
    /// Deletes the message with its riders, and tells its sender how it ended, unless one of them does.
    pub(super) async fn delete_and_tell(
        self,
        purpose: Purpose,
        mut riders: Riders,
        unreplied: &Unreplied,
    ) -> Result<(), Unsettled> {
        let (context, incoming) = (self.context, self.incoming);
        let notice = unreplied.notice(context, &incoming.envelope, riders.puts());
        riders.add(RiderKind::Notice, notice);
        let delete = MessageChange::Delete {
            moved: matches!(purpose, Purpose::Poison { .. }),
        };
        write(context, incoming, purpose, riders, delete).await
    }
}
