//! What the application has travel with a settlement, besides what a handler returns.

use std::fmt;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::NewMessage;
use queue_core::envelope::{Envelope, PoisonReason};
use queue_core::internal::error_chain;
use queue_core::{FollowUp, MessageType, QueueName};

use super::LOG;
use super::riders::{RiderKind, Riders};
use crate::kernel::context::Context;
use crate::kernel::panic::catch;
use crate::kernel::receive::MessageShared;
use crate::kernel::send::{FollowUpError, Role, check_one_step, encode_follow_ups};
use crate::kernel::settings::InvalidSetting;

/// What is submitted whenever a message ends, whatever its handler returns: an entry of an audit log, an event for a
/// dashboard. For [`ListenerBuilder::rider`](crate::ListenerBuilder::rider).
///
/// What a rider returns is put together with the settlement: in one step if the storage is atomic, otherwise before the
/// message is deleted, so that it is never missing, and may be there twice, with the same id. A message that is put back has
/// not ended. A [transaction](crate::receive::Received::complete_within) that completes a message has the riders in it, too.
///
/// ```
/// use queue_runtime::envelope::Envelope;
/// use queue_runtime::receive::{Ended, Rider};
/// use queue_runtime::{FollowUp, Message, Received, testing};
/// use serde::{Deserialize, Serialize};
///
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// # async fn ship(_: Received<Order>) {}
/// #[derive(Debug, Serialize, Deserialize, Message)]
/// struct Audited {
///     id: String,
///     how: String,
/// }
///
/// struct AuditLog;
///
/// impl Rider for AuditLog {
///     fn ride(&self, message: &Envelope, ended: Ended<'_>) -> Option<FollowUp> {
///         let (id, how) = (message.id.to_string(), format!("{ended:?}"));
///         Some(FollowUp::new(&Audited { id, how }))
///     }
///
///     fn is_required(&self) -> bool {
///         true
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let service = testing::service().await;
/// # service.submit(Order { number: 7 }).await?;
/// let listener = service.listener(ship).rider(AuditLog).start()?;
/// # testing::drain([&listener]).await?;
/// let audited = service.accept::<Audited>().await?.expect("put with the settlement");
/// assert!(audited.how.starts_with("Completed"));
/// # Ok(())
/// # }
/// ```
pub trait Rider: Send + Sync + 'static {
    /// Returns what is submitted with the settlement of this message, if anything. Must be quick; may be called again for
    /// the same settlement.
    fn ride(&self, message: &Envelope, ended: Ended<'_>) -> Option<FollowUp>;

    /// Whether a message is not completed without what `ride` returns: if that cannot be put, or `ride` panics, the attempt
    /// has failed. Otherwise, and when a message is moved to the poison queue, an error is logged, and the message ends
    /// without it. The default is no.
    fn is_required(&self) -> bool {
        false
    }
}

/// How a message ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended<'a> {
    /// It is completed.
    #[non_exhaustive]
    Completed {
        /// The number of attempts.
        attempts: usize,
        /// How long ago it was received for the last attempt.
        took: Duration,
    },
    /// It is moved to the poison queue.
    #[non_exhaustive]
    Poisoned {
        /// Why it is moved.
        reason: PoisonReason,
        /// The number of attempts.
        attempts: usize,
        /// How long ago it was received for the last time.
        took: Duration,
        /// The error of the last attempt, if there was one.
        error: Option<&'a str>,
    },
}

/// What a service has travel with the settlements of a consumer because of the types of its messages.
pub(crate) trait OfTypes: fmt::Debug + Send + Sync {
    /// Returns the rider for the messages of a queue that are of these types, if there is one.
    ///
    /// # Errors
    /// If there cannot be one.
    fn rider(
        &self,
        context: &Arc<Context>,
        queue: &QueueName,
        types: &[MessageType],
    ) -> Result<Option<Arc<dyn Rider>>, InvalidSetting>;
}

/// The riders of one type of messages, in the order of their addition.
#[derive(Clone, Default)]
pub(crate) struct AddedRiders(Option<Arc<Vec<Arc<dyn Rider>>>>);

impl AddedRiders {
    pub(crate) fn add(&mut self, rider: impl Rider) {
        self.extend([Arc::new(rider) as Arc<dyn Rider>]);
    }

    /// Returns these riders, and then others.
    pub(crate) fn then(mut self, others: &Self) -> Self {
        if let Some(others) = &others.0 {
            self.extend(others.iter().cloned());
        }
        self
    }

    pub(crate) fn extend(&mut self, riders: impl IntoIterator<Item = Arc<dyn Rider>>) {
        let mut riders = riders.into_iter().peekable();
        if riders.peek().is_some() {
            Arc::make_mut(self.0.get_or_insert_default()).extend(riders);
        }
    }
}

impl fmt::Debug for AddedRiders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let riders = self.0.as_ref().map_or(0, |riders| riders.len());
        write!(f, "AddedRiders({riders})")
    }
}

impl Riders {
    /// Takes along what the application has travel with the settlement of a message.
    ///
    /// # Errors
    /// Why a rider cannot travel without which the message is not completed.
    pub(crate) fn take_along<'e>(
        &mut self,
        shared: &MessageShared,
        context: &Context,
        (queue, message): (&QueueName, &Envelope),
        ended: impl FnOnce(usize, Duration) -> Ended<'e>,
    ) -> Result<(), String> {
        let Some(added) = &shared.riders.0 else {
            return Ok(());
        };
        let took = context.clock.monotonic().saturating_sub(shared.received_at);
        let ended = ended(shared.attempts, took);
        let riders = added.iter();
        for (rider, number) in riders.zip(0..) {
            let is_required = rider.is_required() && matches!(ended, Ended::Completed { .. });
            match self.encode(&**rider, context, message, ended, number) {
                Ok(put) if is_required => self.add(RiderKind::FollowUp, put),
                Ok(put) => self.add(RiderKind::Added, put),
                Err(error) if is_required => {
                    return Err(format!(
                        "a rider of the settlement failed: {}",
                        error_chain(&*error)
                    ));
                }
                Err(error) => {
                    let (id, error) = (&message.id, error_chain(&*error));
                    tracing::error!(target: LOG, %queue, %id, error, "a message ends without what a rider has it take along");
                }
            }
        }
        Ok(())
    }

    fn encode(
        &self,
        rider: &dyn Rider,
        context: &Context,
        message: &Envelope,
        ended: Ended<'_>,
        number: u32,
    ) -> Result<Option<(QueueName, NewMessage)>, FollowUpError> {
        let ridden = catch(|| rider.ride(message, ended));
        let ridden = ridden.map_err(|panic| format!("it panicked: {panic}"))?;
        let Some(follow_up) = ridden else {
            return Ok(None);
        };
        let follow_up = slice::from_ref(&follow_up);
        // The same message may end twice, if it is redriven in between.
        let role = match ended {
            Ended::Completed { .. } => Role::Rider,
            Ended::Poisoned { .. } => Role::RiderOnPoison,
        };
        let mut puts = encode_follow_ups(context, message, follow_up, role, number)?;
        let all = self.puts().iter().chain(&puts);
        check_one_step(context.backend.capabilities(), all)?;
        Ok(puts.pop())
    }
}
