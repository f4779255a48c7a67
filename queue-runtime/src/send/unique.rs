//! Submitting a message of one key once.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{ConditionalPuts, PutIf, Swap};
use queue_core::clock::Timestamp;
use queue_core::idempotency::{IdempotencyStore, WorkKey};
use queue_core::internal::{canonical, error_chain};
use queue_core::{
    Error, ErrorKind, InvalidId, KeyedMessage, MessageId, Operation, Outcome, QueueName, RequestId,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tracing::Instrument as _;

use super::submit::{Outgoing, Sending, Submit, Submitted, Unique};
use super::submit_error::{SubmitError, SubmitProblem};
use crate::idempotency::{OnceError, once};
use crate::observe::{self, record_id};

/// The lease of a submission that is recorded in a store: how long others wait if its process dies.
const LEASE: Duration = Duration::from_secs(30);

/// What is recorded of a submission.
#[derive(Serialize, Deserialize)]
struct Record {
    id: String,
    request: String,
    /// By the clock of its process.
    visible_at: Timestamp,
    /// A random number of the submission.
    token: u64,
}

/// The answer to a conditional submission.
pub(crate) enum SubmittedIf {
    Submitted(Submitted),
    /// Nothing was put, because this is recorded.
    Differs(Option<Bytes>),
}

impl<M> Submit<M> {
    /// Submits the message only if none with the same key was submitted to the queue within the last `duration`.
    ///
    /// The key consists of the message's kind and its key fields; the request id is no part of it, whatever the type's
    /// [`KeyScope`](crate::KeyScope). The duration counts from the first submission, in the storage's time, also if
    /// that message has a delay, has been completed, or has expired since. The second submission puts nothing, and
    /// returns the [receipt](Submitted) of the first, with [`duplicate`](Submitted::duplicate) set.
    ///
    /// In memory and on SQLite the promise is exact: the key is recorded in one step with the put, for all processes,
    /// and a killed process leaves both or neither. A submission of unknown outcome is tried again by itself, and may
    /// be repeated. Elsewhere use [`unique_in`](Self::unique_in).
    ///
    /// It also works for a follow-up by [`Received::submit`](crate::Received::submit). Follow-ups of a
    /// [`Disposition`](crate::Disposition), [`submit_all`](crate::QueueService::submit_all) and
    /// [`in_transaction`](Self::in_transaction) submit unconditionally; the latter refuses a unique submission.
    ///
    /// ```
    /// use std::time::Duration;
    /// use queue_runtime::{Message, testing};
    /// # use serde::{Deserialize, Serialize};
    ///
    /// #[derive(Debug, Serialize, Deserialize, Message)]
    /// struct Reminder {
    ///     #[message(key)]
    ///     customer: u32,
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let service = testing::service().await;
    /// let day = Duration::from_secs(24 * 60 * 60);
    /// let first = service.submit(Reminder { customer: 7 }).unique_for(day).await?;
    /// let second = service.submit(Reminder { customer: 7 }).unique_for(day).await?;
    /// assert!(second.duplicate && second.id == first.id);
    /// assert_eq!(service.submitted::<Reminder>().len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Awaiting the submission then also fails with [`SubmitProblem::NoKey`] for a variant of an enum without key
    /// fields, with [`ErrorKind::InvalidInput`] if the duration is zero, and with [`ErrorKind::Unsupported`] if the
    /// storage cannot put on a [condition](crate::backend::Backend::put_if), as on Azure.
    pub fn unique_for(mut self, duration: Duration) -> Self
    where
        M: KeyedMessage,
    {
        self.unique = Some(Unique {
            retention: duration,
            store: None,
        });
        self
    }

    /// Submits the message as [`unique_for`](Self::unique_for) does, and records its key in a store of results, which
    /// all processes that submit it must share. For storages such as Azure.
    ///
    /// The promise is weaker: the message is put first and recorded then. It may be put again, with another id unless
    /// [`id`](Self::id) sets it, if the process is killed in between, if the outcome of the put is unknown, or if the
    /// store fails just then, which is logged. While another process submits the same key, this waits for up to a
    /// minute.
    ///
    /// ```
    /// use std::time::Duration;
    /// use queue_runtime::{Message, testing};
    /// # use serde::{Deserialize, Serialize};
    /// #
    /// # #[derive(Debug, Serialize, Deserialize, Message)]
    /// # struct Reminder {
    /// #     #[message(key)]
    /// #     customer: u32,
    /// # }
    /// #
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let service = testing::service().await;
    /// let store = service.results().expect("on Azure, `ObjectResults`");
    /// let day = Duration::from_secs(24 * 60 * 60);
    /// let first = service.submit(Reminder { customer: 7 }).unique_in(&store, day).await?;
    /// let second = service.submit(Reminder { customer: 7 }).unique_in(&store, day).await?;
    /// assert!(second.duplicate && second.id == first.id);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`unique_for`](Self::unique_for), except for [`ErrorKind::Unsupported`]; also that of the store if it
    /// is not available, in which case nothing was put, and [`ErrorKind::Timeout`] if another process took too long, or if
    /// this one did and lost the key. Only the error's [`outcome`](Error::outcome) tells whether a message may have been
    /// put.
    pub fn unique_in<S>(mut self, store: &S, duration: Duration) -> Self
    where
        M: KeyedMessage,
        S: IdempotencyStore + Clone,
    {
        self.unique = Some(Unique {
            retention: duration,
            store: Some(Arc::new(store.clone())),
        });
        self
    }

    /// Refuses a unique submission where the message is put in another way.
    pub(super) fn check_unconditional(self) -> Result<Self, SubmitError<M>> {
        if self.unique.is_none() {
            return Ok(self);
        }
        let detail = "a message in a transaction of the application is put unconditionally; leave `unique_for` out";
        let error = self.invalid(detail);
        Err(self.refused(SubmitProblem::Storage(error)))
    }

    pub(super) async fn send_once(self, unique: Unique) -> Result<Submitted, SubmitError<M>> {
        let Unique { retention, store } = unique;
        if retention.is_zero() {
            let error = self.invalid("a message cannot be unique for a duration of zero");
            return Err(self.refused(SubmitProblem::Storage(error)));
        }
        let key = match self.unique_key() {
            Ok(key) => key,
            Err(problem) => return Err(self.refused(problem)),
        };
        let sending = self.sending();
        let (outgoing, message) = self.encode()?;
        let sent = match store {
            None => send_if_first(&sending, &outgoing, key, retention).await,
            Some(store) => send_and_record(&sending, &outgoing, &store, key, retention).await,
        };
        match sent {
            Ok(submitted) => {
                record_id(&submitted.id);
                Ok(submitted)
            }
            Err(error) => Err(outgoing.failed(message, error)),
        }
    }

    /// Submits the message if the swap succeeds.
    pub(crate) async fn send_if(self, swap: &Swap) -> Result<SubmittedIf, SubmitError<M>> {
        let (span, sending) = (observe::send(self.queue(), 1), self.sending());
        let (outgoing, message) = self.encode()?;
        let put = put_if(&sending, &outgoing, swap).instrument(span);
        match put.await {
            Ok(answer) => Ok(answer),
            Err(error) => Err(outgoing.failed(message, error)),
        }
    }

    /// Submits the message, and records that under a key in a store, unless it is recorded there.
    pub(crate) async fn send_recorded(
        self,
        store: &Arc<dyn IdempotencyStore>,
        key: WorkKey,
        retention: Duration,
    ) -> Result<Submitted, SubmitError<M>> {
        let (span, sending) = (observe::send(self.queue(), 1), self.sending());
        let (outgoing, message) = self.encode()?;
        let put = send_and_record(&sending, &outgoing, store, key, retention).instrument(span);
        match put.await {
            Ok(submitted) => Ok(submitted),
            Err(error) => Err(outgoing.failed(message, error)),
        }
    }

    fn unique_key(&self) -> Result<WorkKey, SubmitProblem> {
        let encoded = self.encoded();
        let encoded = encoded.map_err(|error| SubmitProblem::Encode(error.clone()))?;
        let kind = encoded.message_type().kind();
        let fields = encoded.key().ok_or(SubmitProblem::NoKey { kind })?;
        let mut parts = vec![Value::from(kind)];
        parts.extend_from_slice(fields);
        let scope = format!("unique on {}", self.queue());
        Ok(WorkKey::new(scope, canonical(&Value::Array(parts))))
    }

    fn invalid(&self, detail: &str) -> Error {
        let error = Error::new(ErrorKind::InvalidInput, Operation::Put);
        error.with_queue(self.queue()).with_detail(detail).unsent()
    }

    fn refused(self, problem: SubmitProblem) -> SubmitError<M> {
        SubmitError {
            id: None,
            message: self.into_message(),
            problem,
        }
    }
}

/// Puts a message if the swap succeeds. Tries again after an unknown outcome, too, which has no second effect.
async fn put_if(sending: &Sending, outgoing: &Outgoing, swap: &Swap) -> Result<SubmittedIf, Error> {
    let backend = &sending.context.backend;
    let policy = sending.policy.clone().or_unknown(true);
    let put = || backend.put_if(&outgoing.queue, Some(outgoing.new.clone()), swap);
    match sending.repeat(outgoing, &policy, put).await? {
        PutIf::Swapped(Some(receipt)) => {
            sending.announce(outgoing);
            Ok(SubmittedIf::Submitted(
                outgoing.submitted(receipt.visible_at),
            ))
        }
        PutIf::Swapped(None) => Err(corrupt(
            &outgoing.queue,
            "the storage recorded a value without its message",
        )),
        PutIf::Differs(current) => {
            if current.as_ref() == Some(&swap.value) {
                // An earlier try, whose answer was lost, has put it.
                sending.announce(outgoing);
            }
            Ok(SubmittedIf::Differs(current))
        }
    }
}

/// Puts a message and records it in one step, unless its key is recorded.
async fn send_if_first(
    sending: &Sending,
    outgoing: &Outgoing,
    key: WorkKey,
    retention: Duration,
) -> Result<Submitted, Error> {
    let queue = &outgoing.queue;
    if sending.context.backend.capabilities().conditional_puts == ConditionalPuts::Unsupported {
        let unsupported = Error::new(ErrorKind::Unsupported, Operation::Put);
        let detail =
            "this storage cannot record a key with its message; give a store by `unique_in`";
        return Err(unsupported.with_queue(queue).with_detail(detail).unsent());
    }
    let record = Record::of(sending, outgoing);
    let value = serde_json::to_vec(&record).expect("text and numbers are JSON");
    let swap = Swap::new(key, value, retention);
    match put_if(sending, outgoing, &swap).await? {
        SubmittedIf::Submitted(submitted) => Ok(submitted),
        SubmittedIf::Differs(current) => {
            let current = current.and_then(|value| serde_json::from_slice::<Record>(&value).ok());
            let current =
                current.ok_or_else(|| corrupt(queue, "what is recorded of a key is no record"))?;
            current.submitted(queue, &record)
        }
    }
}

/// Puts a message and then records it in a store, unless its key is recorded there.
async fn send_and_record(
    sending: &Sending,
    outgoing: &Outgoing,
    store: &Arc<dyn IdempotencyStore>,
    key: WorkKey,
    retention: Duration,
) -> Result<Submitted, Error> {
    let queue = &outgoing.queue;
    let own = Record::of(sending, outgoing);
    let work = async {
        Ok(Record {
            visible_at: sending.put(outgoing).await?,
            ..Record::of_token(outgoing, own.token)
        })
    };
    let done = once(store, key, work).lease(LEASE).retention(retention);
    let recorded = match done.wait(2 * LEASE).await {
        Ok(recorded) => recorded,
        Err(OnceError::NotRecorded {
            result,
            source,
            key,
        }) => {
            let error = source.map(|error| error_chain(&error));
            let id = &outgoing.id;
            tracing::warn!(%queue, %id, %key, error, "failed to record a unique submission; it may be repeated");
            result
        }
        Err(OnceError::Work(error)) => return Err(error),
        // The outcome of the store's operation says nothing about the message.
        Err(OnceError::Store { source, .. }) => return Err(source.with_outcome(Outcome::NotDone)),
        Err(OnceError::InFlight { .. }) => {
            let late = Error::new(ErrorKind::Timeout, Operation::Idempotency);
            let late = late.with_detail("another process has begun to submit the same key");
            return Err(late.with_queue(queue).with_outcome(Outcome::NotDone));
        }
        Err(OnceError::Lost { .. }) => {
            let lost = Error::new(ErrorKind::Timeout, Operation::Idempotency).with_queue(queue);
            let lost = lost.with_detail("the claim of the key was lost while the message was put");
            return Err(lost.with_outcome(Outcome::Unknown));
        }
        Err(OnceError::Result { .. }) => {
            return Err(corrupt(queue, "what is recorded of a key is no record"));
        }
    };
    recorded.submitted(queue, &own)
}

fn corrupt(queue: &QueueName, detail: &str) -> Error {
    let error = Error::new(ErrorKind::Corrupt, Operation::Idempotency);
    error.with_queue(queue).with_detail(detail)
}

impl Record {
    fn of(sending: &Sending, outgoing: &Outgoing) -> Self {
        let now = sending.context.clock.now();
        let visible_at = now.checked_add(outgoing.new.delay);
        Self {
            visible_at: visible_at.unwrap_or(Timestamp::MAX),
            ..Self::of_token(outgoing, rand::random())
        }
    }

    fn of_token(outgoing: &Outgoing, token: u64) -> Self {
        Self {
            id: outgoing.id.to_string(),
            request: outgoing.request.to_string(),
            visible_at: Timestamp::MIN,
            token,
        }
    }

    /// Returns the receipt of this submission, as that of `own`.
    fn submitted(self, queue: &QueueName, own: &Self) -> Result<Submitted, Error> {
        let invalid = |_: InvalidId| corrupt(queue, "what is recorded of a key is no record");
        Ok(Submitted {
            id: MessageId::new(self.id).map_err(invalid)?,
            request: RequestId::new(self.request).map_err(invalid)?,
            queue: queue.clone(),
            visible_at: self.visible_at,
            duplicate: self.token != own.token,
        })
    }
}

impl fmt::Debug for Unique {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unique")
            .field("retention", &self.retention)
            .finish_non_exhaustive()
    }
}
