//! Room for messages in flight that several listeners share.
//!
//! Each listener is a lane with a weight. Room that no other lane waits for goes to any that asks. If several lanes
//! wait, each message that a lane gets room for moves its *pass* by the inverse of its weight, and the lane with the
//! lowest pass is next (stride scheduling). A lane that was idle has no claim to the room that it did not use: when it
//! begins to wait, its pass is raised to that of the lane that was served last.

use std::sync::{Arc, Mutex};

use queue_core::internal::{LockExt as _, as_u64};
use tokio::sync::Notify;
use tokio::task::yield_now;

/// The room of all lanes.
#[derive(Debug)]
pub(crate) struct SharedRoom {
    messages: usize,
    state: Mutex<Shares>,
    /// Told when there is more room, or another lane may be next.
    changed: Notify,
}

/// The part of one listener.
#[derive(Debug)]
pub(crate) struct Lane {
    room: Arc<SharedRoom>,
    index: usize,
}

#[derive(Debug)]
struct Shares {
    free: usize,
    /// The pass of the lane that was served last.
    now: u64,
    lanes: Vec<LaneState>,
}

#[derive(Debug)]
struct LaneState {
    /// How far a message moves the pass.
    stride: u64,
    pass: u64,
    /// How many dequeue tasks wait.
    waiting: usize,
}

/// The stride of a lane of weight 1.
const STRIDE: u64 = 1 << 20;

impl SharedRoom {
    /// Creates room for `messages`, and returns a lane for each weight.
    pub(crate) fn lanes(messages: usize, weights: &[usize]) -> Vec<Lane> {
        let lane = |weight: &usize| LaneState {
            stride: STRIDE / as_u64(*weight),
            pass: 0,
            waiting: 0,
        };
        let room = Arc::new(Self {
            messages,
            state: Mutex::new(Shares {
                free: messages,
                now: 0,
                lanes: weights.iter().map(lane).collect(),
            }),
            changed: Notify::new(),
        });
        let lane = |index| Lane {
            room: Arc::clone(&room),
            index,
        };
        (0..weights.len()).map(lane).collect()
    }
}

impl Lane {
    /// Waits until there is room and this lane is next, and takes room for up to `most` messages.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn acquire(&self, most: usize) -> usize {
        let _waiting = Waiting::begin(self);
        loop {
            let changed = self.room.changed.notified();
            if self.room.state.hold().next() == Some(self.index) {
                // Settlements are committed in groups, so room comes in groups: let it all come.
                yield_now().await;
                let taken = self.room.state.hold().take(self.index, most);
                if taken > 0 {
                    return taken;
                }
            } else {
                changed.await;
            }
        }
    }

    /// Returns how many messages of all lanes may be in flight.
    pub(crate) fn shared(&self) -> usize {
        self.room.messages
    }

    /// Releases the room of messages that are no longer in flight.
    pub(crate) fn release(&self, messages: usize) {
        if messages > 0 {
            self.room.state.hold().free += messages;
            self.room.changed.notify_waiters();
        }
    }

    /// Gives back room for messages that were not received, and do not count.
    pub(crate) fn give_back(&self, messages: usize) {
        let mut state = self.room.state.hold();
        let lane = &mut state.lanes[self.index];
        lane.pass = lane.pass.saturating_sub(lane.stride * messages as u64);
        drop(state);
        self.release(messages);
    }
}

/// A dequeue task that waits for room.
struct Waiting<'a>(&'a Lane);

impl<'a> Waiting<'a> {
    fn begin(lane: &'a Lane) -> Self {
        lane.room.state.hold().begin_to_wait(lane.index);
        Self(lane)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Lane { room, index } = self.0;
        room.state.hold().lanes[*index].waiting -= 1;
        // Another lane may be next now.
        room.changed.notify_waiters();
    }
}

impl Shares {
    fn begin_to_wait(&mut self, lane: usize) {
        let now = self.now;
        let lane = &mut self.lanes[lane];
        if lane.waiting == 0 {
            lane.pass = lane.pass.max(now);
        }
        lane.waiting += 1;
    }

    /// Returns the lane that gets the next room, if there is any: of equal lanes, the first.
    fn next(&self) -> Option<usize> {
        let waiting = self.lanes.iter().enumerate();
        let waiting = waiting.filter(|(_, lane)| self.free > 0 && lane.waiting > 0);
        let (index, _) = waiting.min_by_key(|(_, lane)| lane.pass)?;
        Some(index)
    }

    /// Takes room for up to `most` messages, as long as the lane is next.
    fn take(&mut self, lane: usize, most: usize) -> usize {
        let mut taken = 0;
        while taken < most && self.next() == Some(lane) {
            let served = &mut self.lanes[lane];
            self.now = self.now.max(served.pass);
            served.pass += served.stride;
            self.free -= 1;
            taken += 1;
        }
        taken
    }
}

#[cfg(test)]
mod tests;
