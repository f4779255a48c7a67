//! Looking at messages in any state.

use std::ops::Bound;

use queue_core::QueueName;
use queue_core::backend::{Page, PageMark};
use queue_core::store_clock::timestamp;

use super::message::StoredMessage;
use super::store::{Result, StoredQueues};

/// The last message of a page: when it becomes visible, and its number.
pub(super) type PageEnd = (i64, u64);

/// How many messages a search looks at under one lock.
const STEP: usize = 256;

impl StoredQueues {
    pub(super) fn browse(
        &mut self,
        name: &QueueName,
        after: Option<PageEnd>,
        max: usize,
        now: i64,
    ) -> Result<Page> {
        let queue = self.queue(name)?;
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let places = queue.schedule.range((start, Bound::Unbounded));
        let messages = places.filter_map(|&place| {
            let message = queue.messages.get(&place.1)?;
            message.is_alive(now).then_some((place, message))
        });
        // One message more than wanted shows whether there is another page.
        let mut found: Vec<_> = messages.take(max + 1).collect();
        let is_last = found.len() <= max;
        found.truncate(max);
        let browsed = found
            .iter()
            .map(|&(_, message)| message.clone().browsed(now));
        let mut page = Page::new(browsed.collect(), timestamp(now));
        if let (false, Some((place, _))) = (is_last, found.last()) {
            page.next = Some(PageMark::new(format!("{}/{}", place.0, place.1)));
        }
        Ok(page)
    }

    /// Returns the first messages with higher numbers than `number`, in the order of the puts, and the time. A message
    /// keeps its number, so no message that is always there is left out.
    pub(super) fn messages_after(
        &mut self,
        name: &QueueName,
        number: u64,
        now: i64,
    ) -> Result<(Vec<StoredMessage>, i64)> {
        let queue = self.queue(name)?;
        let range = (Bound::Excluded(number), Bound::Unbounded);
        let messages = queue.messages.range(range).map(|(_, message)| message);
        let alive = messages.filter(|message| message.is_alive(now));
        Ok((alive.take(STEP).cloned().collect(), now))
    }
}

/// Reads the mark of a page.
pub(super) fn parse(mark: &PageMark) -> Option<PageEnd> {
    let (visible_at, number) = mark.as_str().split_once('/')?;
    Some((visible_at.parse().ok()?, number.parse().ok()?))
}
