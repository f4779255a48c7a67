//! A redrive on a storage that can be browsed: what is left is not touched, and nothing is hidden.

use queue_core::backend::MessageState;

use super::pass::Pass;
use super::report::{RedriveError, RedriveOutcome};

/// The most messages that are moved in one step.
const STEP: usize = 32;

/// Looks at all messages that are on the queue at the start.
pub(super) async fn run(pass: &mut Pass<'_>) -> Result<(), RedriveError> {
    let redrive = pass.redrive;
    let step = redrive.interval.map_or(STEP, |_| 1);
    let backend = &redrive.context.backend;
    let most = backend.capabilities().max_receive;
    let properties = pass.ask(|| backend.properties(&redrive.queue)).await?;
    // Redriven messages may fail and come back: their number, and the time, bound the pass.
    let (mut unseen, mut start, mut from) = (properties.approximate_count, None, None);
    while unseen > 0 {
        let page = pass.ask(|| backend.browse(&redrive.queue, from.as_ref(), most));
        let page = page.await?;
        let start = *start.get_or_insert(page.now);
        let mut moves = Vec::new();
        for message in page.messages {
            if unseen == 0 || message.inserted_at > start {
                continue;
            }
            unseen -= 1;
            let damage = message.damage.as_deref();
            let item = pass.item(message.id, message.receipt, message.body, damage);
            if message.state != MessageState::Visible {
                pass.report(&item, &RedriveOutcome::Hidden);
                continue;
            }
            moves.extend(pass.plan(item, page.now));
        }
        while !moves.is_empty() {
            let rest = moves.split_off(step.min(moves.len()));
            pass.move_all(moves).await?;
            moves = rest;
        }
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    Ok(())
}
