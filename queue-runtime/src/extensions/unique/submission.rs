//! Submitting a message of one key once.

use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::{Atomicity, ConditionalPuts, Swap};
use queue_core::encoder::Encoded;
use queue_core::idempotency::{ResultStore, WorkKey};
use queue_core::internal::canonical;
use queue_core::{Error, ErrorKind, KeyedMessage, Operation};
use serde_json::Value;
use tracing::Instrument as _;

use super::conditional::{SubmittedIf, put_if, release, send_and_record, send_if_first};
use super::replacing::send_replacing;
use crate::extensions::idempotency::DEFAULT_RETENTION;
use crate::kernel::observe::{self, record_id};
use crate::kernel::send::{
    Submit, SubmitError, SubmitErrorKind, Submitted, Unique, UniqueKey, UniquePut,
};

/// The longest scope of unique submissions, in bytes.
const MAX_SCOPE: usize = 256;

impl<M> Submit<M> {
    /// Submits the message only if no message with the same key was submitted to the queue within the last `duration`.
    ///
    /// The key consists of the message's kind and its key fields; the request id is no part of it, whatever the type's
    /// [`KeyScope`](crate::message::KeyScope). The duration counts from the first submission, in the storage's time,
    /// also if the first message has a delay, has been completed, or has expired since, or its queue was cleared or
    /// deleted. The second submission puts nothing, and returns the [receipt](Submitted) of the first, with
    /// [`duplicate`](Submitted::duplicate) set.
    ///
    /// | the key is unique | |
    /// |---|---|
    /// | among the messages of the queue | by default |
    /// | among the messages of several queues, such as lanes | [`unique_scope`](Self::unique_scope) |
    /// | for this duration | by default |
    /// | among those that wait: the last one counts | [`replacing`](Self::replacing) |
    /// | while the message is neither completed, poison nor gone, and for this duration at most | [`unique_until_settled`](Self::unique_until_settled) |
    /// | until the key is released | [`release_unique`](Self::release_unique) |
    ///
    /// In memory, on SQLite and on PostgreSQL the key is recorded in one step with the put, for all processes, and a killed
    /// process leaves both or neither. A submission of unknown outcome is tried again by itself, and may be repeated,
    /// except for one that is unique [until settled](Self::unique_until_settled). On storages such as Azure, use
    /// [`unique_in`](Self::unique_in).
    ///
    /// Unique submissions also work for a follow-up by [`Received::submit`](crate::Received::submit). Follow-ups of a
    /// [`Disposition`](crate::Disposition), [`submit_all`](crate::QueueService::submit_all) and
    /// [`within`](Self::within) submit unconditionally; `within` refuses a unique submission.
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
    /// Awaiting a unique submission also fails with [`SubmitErrorKind::NoKey`] for a variant of an enum without key
    /// fields, with [`ErrorKind::InvalidInput`] if the duration is zero, and with [`ErrorKind::Unsupported`] if the
    /// storage cannot put on a [condition](crate::backend::BackendExt::put_if), as on Azure.
    pub fn unique_for(mut self, duration: Duration) -> Self
    where
        M: KeyedMessage,
    {
        self.chosen().unique.get_or_insert_default().duration = Some(duration);
        self
    }

    /// Submits the message only if no other message of the same key is waiting or being handled: until that message is
    /// completed or moved to the poison queue, the second submission puts nothing.
    ///
    /// The key is released in one step with the settlement, also in a transaction of the
    /// [application](crate::Received::complete_within). A message that is put back, such as for a retry, keeps its key,
    /// and a [redrive](crate::service::redrive::Redrive) of a poison message that held its key to the end takes the key
    /// again; if another message holds the key by then, the poison message stays where it is, as
    /// [refused](crate::service::redrive::RedriveOutcome::Refused).
    ///
    /// A submission of [unknown](SubmitError::outcome) outcome is not tried again by itself, but only by the caller or
    /// [`retry_unknown`](Self::retry_unknown), because its message may have been handled, and its key released, since:
    /// another try would put the message a second time.
    ///
    /// The key does not outlive its message: it is free as soon as the message is removed or has expired, or its queue was
    /// cleared or deleted. The key also ends with the duration of [`unique_for`](Self::unique_for), which is 7 days
    /// unless it is set, and 7 days after a redrive.
    ///
    /// ```
    /// use queue_runtime::{Message, testing};
    /// # use serde::{Deserialize, Serialize};
    ///
    /// #[derive(Debug, Serialize, Deserialize, Message)]
    /// struct Reindex {
    ///     #[message(key)]
    ///     customer: u32,
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let service = testing::service().await;
    /// let submit = || service.submit(Reindex { customer: 7 }).unique_until_settled();
    /// submit().await?;
    /// assert!(submit().await?.duplicate, "the first is still waiting");
    ///
    /// let reindex = service.accept::<Reindex>().await?.expect("just submitted");
    /// reindex.complete().await?;
    /// assert!(!submit().await?.duplicate);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`unique_for`](Self::unique_for). [`ErrorKind::InvalidInput`] also for a bare message, which
    /// cannot carry its key, and together with [`unique_in`](Self::unique_in).
    pub fn unique_until_settled(mut self) -> Self
    where
        M: KeyedMessage,
    {
        self.chosen().unique.get_or_insert_default().until_settled = true;
        self
    }

    /// Submits the message in any case, in place of the message of the same key that waits: of many submissions within a
    /// time, the last one is handled. With a [delay](Submit::delay), each submission pushes the message back, until none
    /// has come for that long. The message holds its key until it is settled, as with
    /// [`unique_until_settled`](Self::unique_until_settled).
    ///
    /// Removing the one and putting the other is one step. The replaced message counts as
    /// [cancelled](crate::QueueService::cancel), as its status says. A message that was received, because a consumer holds
    /// it or has put it back for later, is not replaced but followed: the new one takes the key, and both are handled. The
    /// receipt is never a [`duplicate`](Submitted::duplicate).
    ///
    /// ```
    /// use std::time::Duration;
    /// use queue_runtime::{Message, testing};
    /// # use serde::{Deserialize, Serialize};
    ///
    /// #[derive(Debug, Serialize, Deserialize, Message)]
    /// #[message(tracked)]
    /// struct Reindex {
    ///     #[message(key)]
    ///     customer: u32,
    ///     revision: u32,
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let service = testing::service().await;
    /// for revision in 1..=3 {
    ///     let reindex = Reindex { customer: 7, revision };
    ///     service.submit(reindex).delay(Duration::from_secs(10)).replacing().await?;
    ///     tokio::time::sleep(Duration::from_secs(2)).await;
    /// }
    /// assert!(service.accept::<Reindex>().await?.is_none(), "the last came two seconds ago");
    /// tokio::time::sleep(Duration::from_secs(8)).await;
    /// let reindex = service.accept::<Reindex>().await?.expect("it waited for ten seconds");
    /// assert_eq!(reindex.revision, 3);
    /// # reindex.complete().await?;
    /// # assert!(service.accept::<Reindex>().await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`unique_until_settled`](Self::unique_until_settled). [`ErrorKind::InvalidInput`] also for a type that
    /// is not `tracked`, whose waiting message would not be found, and [`ErrorKind::Timeout`] if that message changes each
    /// time that it is found.
    pub fn replacing(mut self) -> Self
    where
        M: KeyedMessage,
    {
        let unique = self.chosen().unique.get_or_insert_default();
        (unique.until_settled, unique.replaces) = (true, true);
        self
    }

    /// Sets the scope within which the key is unique: submissions with a scope of this name exclude each other,
    /// whichever queues of the storage they go to. The default scope is the queue. A scope's name has 1 to 256 bytes.
    ///
    /// ```
    /// use std::time::Duration;
    /// use queue_runtime::{Message, QueueName, testing};
    /// # use serde::{Deserialize, Serialize};
    /// #
    /// # #[derive(Debug, Serialize, Deserialize, Message)]
    /// # struct Reminder {
    /// #     #[message(key)]
    /// #     customer: u32,
    /// # }
    /// const BULK: QueueName = QueueName::from_static("reminder-bulk");
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let service = testing::service().await;
    /// let day = Duration::from_secs(24 * 60 * 60);
    /// let submit = || service.submit(Reminder { customer: 7 }).unique_for(day).unique_scope("reminders");
    /// let first = submit().await?;
    /// let second = submit().to(BULK)?.await?;
    /// assert!(second.duplicate && second.queue == first.queue);
    /// # Ok(())
    /// # }
    /// ```
    pub fn unique_scope(mut self, name: impl Into<String>) -> Self
    where
        M: KeyedMessage,
    {
        self.chosen().unique.get_or_insert_default().scope = Some(name.into());
        self
    }

    /// Releases the key of this message instead of submitting it, so that the next unique submission stores its
    /// message. Returns whether the key was held.
    ///
    /// Queue and [scope](Self::unique_scope) must be those of the unique submission. The message that has held the key
    /// stays on its queue, and is handled. A submission of the key's holder that has got no answer yet and is being
    /// tried again puts the message a second time, with the same id.
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
    /// # let service = testing::service().await;
    /// let day = Duration::from_secs(24 * 60 * 60);
    /// service.submit(Reminder { customer: 7 }).unique_for(day).await?;
    /// assert!(service.submit(Reminder { customer: 7 }).release_unique().await?);
    /// assert!(!service.submit(Reminder { customer: 7 }).unique_for(day).await?.duplicate);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`SubmitError`] returns the message, with an error of [`unique_for`](Self::unique_for). [`ErrorKind::Unsupported`]
    /// also after [`unique_in`](Self::unique_in): a store keeps what it has recorded.
    ///
    /// # Cancel safety
    /// If the future is dropped, the key may or may not have been released.
    pub async fn release_unique(mut self) -> Result<bool, SubmitError<M>>
    where
        M: KeyedMessage,
    {
        let mut unique = self.take_unique().unwrap_or_default();
        unique.duration = Some(DEFAULT_RETENTION);
        if unique.store.is_some() {
            let detail = "a key in a result store cannot be released; remove `unique_in`";
            let refusal = self.refusal(ErrorKind::Unsupported, detail);
            return Err(self.failed(refusal));
        }
        let key = match self.check_unique(unique) {
            Ok((key, _)) => key.work_key(),
            Err(problem) => return Err(self.failed(problem)),
        };
        let sending = self.sending();
        let (outgoing, message) = self.encode()?;
        let held = release(&sending, &outgoing, key).await;
        held.map_err(|error| outgoing.failed(message, error))
    }

    /// Submits the message as [`unique_for`](Self::unique_for) does, and records its key in a result store, which all
    /// processes that submit it must share. Storages such as Azure need a result store for unique submissions.
    ///
    /// With a store, the message is put first and recorded afterwards. The message may be put again, with another id
    /// unless [`id`](Self::id) sets it, if the process is killed between put and record, if the outcome of the put is
    /// unknown, or if the store fails to record it, which is logged. The key is held for the duration, whatever becomes
    /// of the message. While another process submits the same key, the submission waits for up to a minute.
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
    /// let store = service.results().expect("on Azure, `results_in`");
    /// let day = Duration::from_secs(24 * 60 * 60);
    /// let first = service.submit(Reminder { customer: 7 }).unique_in(&store, day).await?;
    /// let second = service.submit(Reminder { customer: 7 }).unique_in(&store, day).await?;
    /// assert!(second.duplicate && second.id == first.id);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`unique_for`](Self::unique_for), except for [`ErrorKind::Unsupported`]; the error of a store that
    /// is not available, in which case nothing was put; [`ErrorKind::Timeout`] if another process took too long, or if
    /// this process did and lost the key. Only the error's [`outcome`](Error::outcome) tells whether a message may have
    /// been put.
    pub fn unique_in<S>(mut self, store: &S, duration: Duration) -> Self
    where
        M: KeyedMessage,
        S: ResultStore + Clone,
    {
        let unique = self.chosen().unique.get_or_insert_default();
        unique.duration = Some(duration);
        unique.store = Some(Arc::new(store.clone()));
        self
    }

    /// Refuses a unique submission where the message is put in another way.
    pub(crate) fn check_unconditional(mut self) -> Result<Self, SubmitError<M>> {
        if self.take_unique().is_none() {
            return Ok(self);
        }
        let detail = "a submission in a transaction cannot be unique; remove `unique_for` or `unique_until_settled`";
        let refusal = self.refusal(ErrorKind::InvalidInput, detail);
        Err(self.failed(refusal))
    }

    pub(crate) async fn send_once(mut self, unique: Unique) -> Result<Submitted, SubmitError<M>> {
        let (until_settled, replaces) = (unique.until_settled, unique.replaces);
        let store = unique.store.clone();
        let (key, duration) = match self.check_unique(unique) {
            Ok(checked) => checked,
            Err(problem) => return Err(self.failed(problem)),
        };
        if until_settled {
            let text = key.text();
            self.encoded = self.encoded.map(|encoded| encoded.with_unique_key(text));
        }
        let sending = self.sending();
        let (outgoing, message) = self.encode()?;
        let sent = match store {
            None if replaces => send_replacing(&sending, &outgoing, &key, duration).await,
            None => send_if_first(&sending, &outgoing, &key, duration, until_settled).await,
            Some(store) => {
                let key = key.work_key();
                send_and_record(&sending, &outgoing, &store, key, duration).await
            }
        };
        sent.inspect(|submitted| record_id(&submitted.id))
            .map_err(|error| outgoing.failed(message, error))
    }

    /// Submits the message if the swap succeeds and, with a key, no other message holds it. The message holds the key until
    /// it is settled.
    pub(crate) async fn send_if(
        mut self,
        swap: &Swap,
        key: Option<UniqueKey>,
    ) -> Result<SubmittedIf, SubmitError<M>> {
        if let Some(key) = &key {
            let text = key.text();
            self.encoded = self.encoded.map(|encoded| encoded.with_unique_key(text));
        }
        let (span, sending) = (observe::send(&self.queue, 1), self.sending());
        let (outgoing, message) = self.encode_in(&span)?;
        let put = put_if(&sending, &outgoing, swap, key.as_ref(), true).instrument(span);
        let answer = put.await;
        answer.map_err(|error| outgoing.failed(message, error))
    }

    /// Submits the message, and records that under a key in a store, unless it is recorded there.
    pub(crate) async fn send_recorded(
        self,
        store: &Arc<dyn ResultStore>,
        key: WorkKey,
        retention: Duration,
    ) -> Result<Submitted, SubmitError<M>> {
        let (span, sending) = (observe::send(&self.queue, 1), self.sending());
        let (outgoing, message) = self.encode_in(&span)?;
        let put = send_and_record(&sending, &outgoing, store, key, retention).instrument(span);
        let submitted = put.await;
        submitted.map_err(|error| outgoing.failed(message, error))
    }

    /// Returns the key, and for how long it is held at most.
    fn check_unique(&self, unique: Unique) -> Result<(UniqueKey, Duration), SubmitErrorKind> {
        let invalid = |detail: &str| Err(self.refusal(ErrorKind::InvalidInput, detail));
        let capabilities = self.context.backend.capabilities();
        let is_exact = capabilities.conditional_puts == ConditionalPuts::Supported
            && capabilities.atomicity == Atomicity::Atomic;
        let length = unique.scope.as_ref().map_or(1, String::len);
        if !(1..=MAX_SCOPE).contains(&length) {
            return invalid(&format!(
                "the scope of a unique submission has {length} bytes; allowed are 1 to {MAX_SCOPE}"
            ));
        }
        if unique.until_settled {
            let not_an_event = |encoded: &Encoded| !encoded.message_type().wire().is_event();
            if unique.store.is_some() {
                return invalid(
                    "a result store cannot release a key when its message is settled; leave `unique_until_settled` \
                     or `unique_in` out",
                );
            }
            if self.encoded.as_ref().is_ok_and(not_an_event) {
                return invalid(
                    "a message that is not an event cannot carry the key that it holds until it is settled",
                );
            }
        }
        let is_tracked = |encoded: &Encoded| encoded.message_type().is_tracked();
        if unique.replaces && !self.encoded.as_ref().is_ok_and(is_tracked) {
            return invalid(
                "only a message whose type says `#[message(tracked)]` replaces the one that waits, which is found by its id",
            );
        }
        if unique.store.is_none() && !is_exact {
            let detail = "this storage cannot record a key together with its message; set a store with `unique_in`";
            return Err(self.refusal(ErrorKind::Unsupported, detail));
        }
        let duration = match unique.duration {
            Some(Duration::ZERO) => {
                return invalid("a message cannot be unique for a duration of zero");
            }
            Some(duration) => duration,
            None if unique.until_settled => DEFAULT_RETENTION,
            None => {
                return invalid("a unique submission needs `unique_for` or `unique_until_settled`");
            }
        };
        let encoded = self.encoded.as_ref();
        let encoded = encoded.map_err(|error| SubmitErrorKind::Encode(error.clone()))?;
        let kind = encoded.message_type().kind();
        let fields = encoded.key().ok_or(SubmitErrorKind::NoKey { kind })?;
        let mut parts = vec![Value::from(kind)];
        parts.extend_from_slice(fields);
        let key = self.key_of(unique.scope, canonical(Value::Array(parts)));
        Ok((key, duration))
    }

    /// Returns a key that this message would hold.
    pub(crate) fn key_of(&self, scope: Option<String>, key: String) -> UniqueKey {
        UniqueKey {
            scope,
            key,
            put: UniquePut::of(&self.context, &self.queue, self.delay),
        }
    }

    fn refusal(&self, kind: ErrorKind, detail: &str) -> SubmitErrorKind {
        let error = Error::new(kind, Operation::Put).with_queue(&self.queue);
        SubmitErrorKind::Storage(error.with_detail(detail).unsent())
    }

    fn failed(self, problem: SubmitErrorKind) -> SubmitError<M> {
        SubmitError::unsent(self.into_message(), problem)
    }
}
