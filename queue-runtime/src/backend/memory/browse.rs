//! Looking at messages in any state.

use std::ops::Bound;

use queue_core::QueueName;
use queue_core::backend::{Page, PageMark};
use queue_core::store_clock::timestamp;

use super::store::{Result, State};

/// The last message of a page: when it becomes visible, and its number.
pub(super) type Place = (i64, u64);

impl State {
    pub(super) fn browse(
        &mut self,
        name: &QueueName,
        after: Option<Place>,
        max: u32,
        now: i64,
    ) -> Result<Page> {
        let queue = self.queue(name)?;
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let places = queue.schedule.range((start, Bound::Unbounded));
        let messages = places.filter_map(|&place| {
            let message = queue.messages.get(&place.1)?;
            message.is_alive(now).then_some((place, message))
        });
        // One more than wanted shows whether there is another page.
        let mut found: Vec<_> = messages.take(max as usize + 1).collect();
        let is_last = found.len() <= max as usize;
        found.truncate(max as usize);
        let browsed = found
            .iter()
            .map(|&(_, message)| message.clone().received(now).into());
        let mut page = Page::new(browsed.collect(), timestamp(now));
        if let (false, Some((place, _))) = (is_last, found.last()) {
            page.next = Some(PageMark::new(format!("{}/{}", place.0, place.1)));
        }
        Ok(page)
    }
}

/// Reads the mark of a page.
pub(super) fn parse(mark: &PageMark) -> Option<Place> {
    let (visible_at, number) = mark.as_str().split_once('/')?;
    Some((visible_at.parse().ok()?, number.parse().ok()?))
}
