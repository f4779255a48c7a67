//! What is known of messages that may have been cancelled, and whether it agrees.

use std::collections::BTreeMap;
use std::path::Path;

use queue_runtime::service::{Browsed, Cancelled, HistoryEntry, HowEnded};
use queue_runtime::{MessageId, QueueService};

use super::{CancelFigures, Cancellable};

/// How long a handler may still begin whose message was held when it was cancelled, in nanoseconds: a lease, for as long as
/// a process is stopped, and a second.
const TOLD: u64 = 10_000_000_000;

/// What is known of a message.
#[derive(Debug, Default, Clone)]
pub(super) struct Known {
    /// What its cancel has answered, and when.
    pub(super) cancelled: Option<(Cancelled, u64)>,
    /// When its handlers began.
    begun: Vec<u64>,
    /// The entries of the history.
    entries: Vec<HowEnded>,
    /// Whether there is another message with the same id.
    pub(super) is_copied: bool,
}

/// What is known of all messages, with their numbers, by their ids.
pub(super) type All = BTreeMap<MessageId, (u32, Known)>;

/// Reads what the processes have written of the handlers that began.
pub(super) fn read_begun(folder: &Path, all: &mut All) {
    let mut begun: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for file in std::fs::read_dir(folder).expect("a folder") {
        let path = file.expect("a file").path();
        if path.extension().is_some_and(|of| of == "runs") {
            let log = std::fs::read_to_string(&path).expect("readable");
            // A line that was being written when its process was killed is incomplete.
            let lines = log
                .split_inclusive('\n')
                .filter_map(|line| line.strip_suffix('\n'));
            for line in lines {
                let (number, at) = line.split_once(' ').expect("two numbers");
                let number = number.parse().expect("a number");
                begun
                    .entry(number)
                    .or_default()
                    .push(at.parse().expect("a time"));
            }
        }
    }
    for (number, known) in all.values_mut() {
        known.begun = begun.remove(number).unwrap_or_default();
    }
}

/// Reads what became of the messages. Returns an entry of another message, if there is one.
pub(super) async fn read_history(service: &QueueService, all: &mut All) -> Option<HistoryEntry> {
    let history = service
        .queue::<Cancellable>()
        .any()
        .history()
        .expect("a name");
    let (mut from, mut unknown) = (None, None);
    loop {
        let page = history.browse(from.as_ref(), 256).await.expect("read");
        for entry in page.messages.iter().map(Browsed::history) {
            let entry = entry.expect("an entry");
            match all.get_mut(&entry.id) {
                Some((_, known)) => known.entries.push(entry.how),
                None => unknown = Some(entry),
            }
        }
        from = page.next;
        if from.is_none() {
            return unknown;
        }
    }
}

/// Checks each message, with its entries in the history if they are one step with its end.
pub(super) fn judge(all: &All, has_entries: bool, wrong: &mut Vec<String>) -> CancelFigures {
    let mut figures = CancelFigures {
        messages: all.len(),
        ..CancelFigures::default()
    };
    for (id, (number, known)) in all {
        figures.runs += known.begun.len();
        let ends = known.entries.iter();
        let completed = ends.filter(|how| **how == HowEnded::Completed).count();
        let was_completed =
            completed == 1 || known.is_copied && completed == 2 || !has_entries && completed > 1;
        // Of two copies, one may have been completed before.
        let was_not = completed == 0 || known.is_copied && completed == 1 || !has_entries;
        let begun_after = |at: u64| known.begun.iter().any(|begun| *begun > at);
        let agrees = match known.cancelled {
            None => was_completed && !known.begun.is_empty(),
            Some((Cancelled::Completed, at)) => {
                figures.completed += 1;
                was_completed && !begun_after(at)
            }
            Some((Cancelled::Removed, at)) => {
                figures.removed += 1;
                was_not && !begun_after(at)
            }
            // One whose first cancel was dropped may have been held then.
            Some((Cancelled::Revoked | Cancelled::Before, at)) => {
                figures.revoked += 1;
                was_not && !begun_after(at + TOLD)
            }
            // The cancel before, which was dropped, may have removed it, maybe on its way to the poison queue, and recorded
            // nothing.
            Some((Cancelled::Gone, at)) if !has_entries => {
                !begun_after(at + TOLD) || known.entries.contains(&HowEnded::Poisoned)
            }
            Some((Cancelled::Poison, at)) => {
                figures.poison += 1;
                // The cancel before, which was dropped, may have removed the other copy, and recorded that later.
                was_completed || known.is_copied && !begun_after(at + TOLD)
            }
            Some(_) => false,
        };
        if !agrees {
            wrong.push(format!("message {number}, {id}: {known:?}"));
        }
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(cancelled: Option<(Cancelled, u64)>, begun: &[u64], entries: &[HowEnded]) -> bool {
        judged_with(cancelled, begun, entries, false)
    }

    fn judged_with(
        cancelled: Option<(Cancelled, u64)>,
        begun: &[u64],
        entries: &[HowEnded],
        is_copied: bool,
    ) -> bool {
        let known = Known {
            cancelled,
            begun: begun.to_vec(),
            entries: entries.to_vec(),
            is_copied,
        };
        agrees(known, true)
    }

    fn agrees(known: Known, has_entries: bool) -> bool {
        let mut wrong = Vec::new();
        let id = MessageId::new("7").expect("an id");
        judge(&All::from([(id, (7, known))]), has_entries, &mut wrong);
        wrong.is_empty()
    }

    #[test]
    fn where_entries_are_steps_of_their_own_handlers_are_checked() {
        let known = |cancelled, begun: &[u64], entries: &[HowEnded], is_copied| Known {
            cancelled: Some((cancelled, 5)),
            begun: begun.to_vec(),
            entries: entries.to_vec(),
            is_copied,
        };
        let gone = |begun, entries: &[HowEnded]| {
            agrees(known(Cancelled::Gone, &[begun], entries, false), false)
        };
        assert!(gone(6, &[]) && !gone(6 + TOLD, &[]));
        assert!(gone(6 + TOLD, &[HowEnded::Poisoned]), "it was on its way");
        let poison = |begun, is_copied| {
            let entries = [HowEnded::Poisoned];
            agrees(
                known(Cancelled::Poison, &[begun], &entries, is_copied),
                false,
            )
        };
        assert!(poison(6, true) && !poison(6 + TOLD, true) && !poison(6, false));
        assert!(!agrees(known(Cancelled::Removed, &[6], &[], false), false));
    }

    #[test]
    fn answers_that_do_not_agree_with_what_was_handled_are_detected() {
        const DONE: &[HowEnded] = &[HowEnded::Completed];
        let removed = Some((Cancelled::Removed, 5));
        assert!(judged(removed, &[], &[]) && judged(removed, &[4], &[]));
        assert!(!judged(removed, &[6], &[]), "it ran after it was removed");
        assert!(!judged(removed, &[4], DONE));
        let revoked = Some((Cancelled::Revoked, 5));
        assert!(judged(revoked, &[6], &[]) && !judged(revoked, &[6 + TOLD], &[]));
        assert!(!judged(revoked, &[4], DONE));
        let completed = Some((Cancelled::Completed, 5));
        assert!(judged(completed, &[4], DONE) && !judged(completed, &[4], &[]));
        assert!(!judged(Some((Cancelled::Gone, 5)), &[4], DONE));
        assert!(judged(None, &[4], DONE) && !judged(None, &[4], &[]));
        let twice = [HowEnded::Completed; 2];
        assert!(!judged(None, &[4], &twice), "two entries");
        assert!(judged_with(None, &[4, 5], &twice, true));
        assert!(!judged_with(None, &[4], &[HowEnded::Completed; 3], true));
        assert!(judged_with(removed, &[4], DONE, true), "the other copy");
        assert!(!judged_with(removed, &[4, 6], DONE, true));
        let poison = Some((Cancelled::Poison, 5));
        let redriven = [HowEnded::Poisoned, HowEnded::Completed];
        assert!(judged(poison, &[4, 6], &redriven) && !judged(poison, &[4], &redriven[..1]));
    }
}
