//! Which request gets the next token. The [module](super) shows the states of requests.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_core::QueueName;
use queue_core::clock::Clock;
use queue_core::internal::LockExt as _;
use tokio::sync::Notify;

use super::limited::StorageLimit;
use crate::kernel::bucket::Bucket;
use crate::kernel::policy::Rate;

/// When a bucket that nobody takes from is certainly full, as a new one is.
const FULL_AFTER: Duration = Duration::from_secs(1);

fn a_second(rate: NonZeroUsize) -> Rate {
    Rate::per_second(rate.get())
}

/// Which requests go first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Urgency {
    /// The request renews a lease or settles a message.
    Leased,
    /// All other requests.
    Ordinary,
}

/// The requests to one account that wait for tokens.
pub(super) struct RequestTurns {
    clock: Arc<dyn Clock>,
    per_queue: Option<NonZeroUsize>,
    state: Mutex<State>,
}

struct State {
    account: Option<Bucket>,
    /// One line for each queue, if queues are limited, and one for the requests that are on no queue.
    lines: HashMap<Line, Waiting>,
    /// The number of lines at which those that are as good as new are forgotten.
    forget_at: usize,
    /// The number of requests so far.
    arrived: u64,
}

/// The queue whose tokens a request needs.
type Line = Option<QueueName>;

/// The requests on one queue that wait.
struct Waiting {
    bucket: Option<Bucket>,
    /// Whether a token was taken from the bucket for the first request, which waits for a token of the account.
    has_token: bool,
    places: BTreeMap<Place, Arc<Notify>>,
    /// When the last request arrived or was sent, on the monotonic clock.
    used_at: Duration,
}

/// The order in which requests are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    urgency: Urgency,
    number: u64,
}

/// What a request is to do.
enum Next {
    Send,
    /// The request is the first, but there is no token before this time.
    WaitUntil(Duration),
    /// Another request is before this one, and will wake it.
    WaitForOthers,
}

const FEW_LINES: usize = 64;

impl RequestTurns {
    pub(super) fn new(limit: StorageLimit, clock: Arc<dyn Clock>) -> Self {
        let account = limit.per_account.and_then(NonZeroUsize::new);
        Self {
            per_queue: limit.per_queue.and_then(NonZeroUsize::new),
            state: Mutex::new(State {
                account: account.map(|rate| Bucket::new(&a_second(rate), &clock)),
                lines: HashMap::new(),
                forget_at: FEW_LINES,
                arrived: 0,
            }),
            clock,
        }
    }

    /// Waits until a request may be sent: on this queue, or on none.
    ///
    /// # Cancel safety
    /// Cancel safe: a request that is dropped has taken nothing.
    pub(super) async fn take(&self, queue: Option<&QueueName>, urgency: Urgency) {
        let line = queue.filter(|_| self.per_queue.is_some()).cloned();
        let request = self.arrive(line, urgency);
        loop {
            let next = self.state.hold().next(&request, self.clock.monotonic());
            match next {
                Next::Send => return,
                Next::WaitUntil(at) => tokio::select! {
                    biased;
                    () = request.called.notified() => {}
                    () = self.clock.sleep_until(at) => {}
                },
                Next::WaitForOthers => request.called.notified().await,
            }
        }
    }

    fn arrive(&self, line: Line, urgency: Urgency) -> Request<'_> {
        let (called, now) = (Arc::new(Notify::new()), self.clock.monotonic());
        let mut state = self.state.hold();
        let number = state.arrived;
        state.arrived += 1;
        let place = Place { urgency, number };
        if !state.lines.contains_key(&line) {
            state.forget_idle(now);
            let rate = self.per_queue.filter(|_| line.is_some());
            let new = Waiting {
                bucket: rate.map(|rate| Bucket::new(&a_second(rate), &self.clock)),
                has_token: false,
                places: BTreeMap::new(),
                used_at: now,
            };
            state.lines.insert(line.clone(), new);
        }
        let waiting = state.line(&line);
        waiting.used_at = now;
        waiting.places.insert(place, Arc::clone(&called));
        drop(state);
        Request {
            turns: self,
            line,
            place,
            called,
        }
    }
}

/// A request that waits, and leaves its line when it is dropped.
struct Request<'a> {
    turns: &'a RequestTurns,
    line: Line,
    place: Place,
    /// Told when the request may be the first.
    called: Arc<Notify>,
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        self.turns.state.hold().leave(&self.line, self.place);
    }
}

impl State {
    fn line(&mut self, line: &Line) -> &mut Waiting {
        let waiting = self.lines.get_mut(line);
        waiting.expect("a line with a request in it is not forgotten")
    }

    fn next(&mut self, request: &Request<'_>, now: Duration) -> Next {
        let waiting = self.line(&request.line);
        if waiting.first() != Some(request.place) {
            return Next::WaitForOthers;
        }
        if !waiting.has_token {
            if let Some(Err(at)) = waiting.bucket.as_ref().map(Bucket::take) {
                return Next::WaitUntil(at);
            }
            waiting.has_token = true;
        }
        if let Some(account) = &self.account {
            let before = self.first_with_token();
            if let Some((_, called)) = before.filter(|(place, _)| *place != request.place) {
                called.notify_one();
                return Next::WaitForOthers;
            }
            if let Err(at) = account.take() {
                return Next::WaitUntil(at);
            }
        }
        let waiting = self.line(&request.line);
        (waiting.has_token, waiting.used_at) = (false, now);
        Next::Send
    }

    fn leave(&mut self, line: &Line, place: Place) {
        let waiting = self.line(line);
        waiting.places.remove(&place);
        if let Some(called) = waiting.places.values().next() {
            called.notify_one();
        }
        if self.account.is_some()
            && let Some((_, called)) = self.first_with_token()
        {
            called.notify_one();
        }
    }

    /// Returns the first of the requests that have their queue's token.
    fn first_with_token(&self) -> Option<(Place, &Notify)> {
        let ready = self.lines.values().filter(|waiting| waiting.has_token);
        let first = ready.filter_map(|waiting| waiting.places.first_key_value());
        let first = first.min_by_key(|(place, _)| **place);
        first.map(|(place, called)| (*place, &**called))
    }

    /// Forgets the lines that a new one is no different from, once there are many.
    fn forget_idle(&mut self, now: Duration) {
        if self.lines.len() < self.forget_at {
            return;
        }
        self.lines.retain(|_, waiting| {
            !waiting.places.is_empty() || now.saturating_sub(waiting.used_at) < FULL_AFTER
        });
        self.forget_at = FEW_LINES.max(2 * self.lines.len());
    }
}

impl Waiting {
    fn first(&self) -> Option<Place> {
        self.places.first_key_value().map(|(place, _)| *place)
    }
}

#[cfg(test)]
mod tests;
