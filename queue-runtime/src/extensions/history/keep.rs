use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use queue_core::backend::Browsing;
use queue_core::envelope::Envelope;
use queue_core::name::HISTORY_SUFFIX;
use queue_core::{FollowUp, Message as _, MessageId, MessageType, QueueName};

use super::entry::{HowEnded, Stored, milliseconds};
use super::trim::Trimmed;
use crate::kernel::context::Context;
use crate::kernel::settings::InvalidSetting;
use crate::kernel::settlement::{Ended, OfTypes, Rider};

/// The histories of a service.
#[derive(Debug, Default)]
pub(crate) struct Histories(Mutex<HashMap<QueueName, Arc<Trimmed>>>);

/// How many characters of an id are the time of its creation, if the id is not the application's.
const TIME: usize = 13;

/// The id by which a storage finds the entries of a tracked message: another one than the message's, of which there may be
/// more copies than a storage tells of. It begins as the message's does, because an index of ids in the order of their times
/// has fewer pages to write than one of hashes.
pub(crate) fn locator(id: &MessageId) -> MessageId {
    let time: String = id.as_str().chars().take(TIME).collect();
    let hash = MessageId::derived(id, Stored::TYPE.kind(), "");
    MessageId::new(format!("{time} {hash}")).expect("a part of an id, and another one")
}

/// Makes the entries of one queue's history.
struct Keep {
    context: Arc<Context>,
    /// The types that have a history.
    types: Vec<MessageType>,
    history: Arc<Trimmed>,
}

impl OfTypes for Histories {
    fn rider(
        &self,
        context: &Arc<Context>,
        queue: &QueueName,
        types: &[MessageType],
    ) -> Result<Option<Arc<dyn Rider>>, InvalidSetting> {
        let Some(most) = types.iter().filter_map(MessageType::history).max() else {
            return Ok(None);
        };
        let can_browse = context.backend.capabilities().browsing == Browsing::Supported;
        InvalidSetting::check(
            can_browse,
            "history",
            format_args!("{most} entries"),
            || "none on a storage that shows only visible messages, such as Azure".to_owned(),
        )?;
        let history = queue.history();
        let setting = "queue of a history";
        InvalidSetting::check(history.is_ok(), setting, format_args!("`{queue}`"), || {
            format!("a name that leaves room for `{HISTORY_SUFFIX}`")
        })?;
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let history = all.entry(queue.clone()).or_insert_with(|| {
            let history = history.expect("it was checked");
            Arc::new(Trimmed::new(history))
        });
        let has_age = types.iter().any(|one| one.history_age().is_some());
        history.keep_at_least(most, has_age);
        let types = types.iter().filter(|one| one.history().is_some());
        Ok(Some(Arc::new(Keep {
            context: Arc::clone(context),
            types: types.copied().collect(),
            history: Arc::clone(history),
        })))
    }
}

impl Rider for Keep {
    fn ride(&self, message: &Envelope, ended: Ended<'_>) -> Option<FollowUp> {
        let mut types = self.types.iter();
        let of_type = types.find(|one| one.accepts(&message.kind))?;
        let (how, attempts, took, reason, error) = match ended {
            Ended::Completed { attempts, took } => {
                (HowEnded::Completed, attempts, took, None, None)
            }
            Ended::Poisoned {
                reason,
                attempts,
                took,
                error,
            } => (HowEnded::Poisoned, attempts, took, Some(reason), error),
        };
        let entry = FollowUp::new(&Stored {
            id: message.id.to_string(),
            kind: message.kind.clone(),
            how,
            attempts,
            took_ms: milliseconds(took),
            reason: reason.map(|reason| reason.as_str().to_owned()),
            error: error.map(str::to_owned),
        });
        let mut entry = entry.with_queue(self.history.queue().clone()).ok()?;
        if let Some(age) = of_type.history_age() {
            entry = entry.with_time_to_live(age);
        }
        if of_type.is_tracked() {
            entry = entry.located_by(locator(&message.id));
        }
        Arc::clone(&self.history).count(&self.context);
        Some(entry)
    }
}
