use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use queue_core::MessageId;
use queue_core::internal::LockExt as _;
use queue_core::wire::Body;
use tokio::sync::{Notify, oneshot};

/// The requests that wait for a reply on one queue.
#[derive(Debug)]
pub(super) struct Waiting {
    /// `None` once the queue is given up.
    requests: Mutex<Option<HashMap<String, oneshot::Sender<Body>>>>,
    added: Notify,
}

/// A request's place among those that wait. It is given up when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    waiting: Arc<Waiting>,
    id: MessageId,
    reply: oneshot::Receiver<Body>,
}

/// Why a request cannot wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// The queue is given up.
    Closed,
    /// [`MAX_WAITING`] requests wait already.
    Full,
}

/// The most requests of one service that wait at a time.
pub(super) const MAX_WAITING: usize = 10_000;

impl Waiting {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            requests: Mutex::new(Some(HashMap::new())),
            added: Notify::new(),
        })
    }

    pub(super) fn add(self: &Arc<Self>, id: &MessageId) -> Result<Place, Refused> {
        let (sender, reply) = oneshot::channel();
        let mut requests = self.requests.hold();
        let requests = requests.as_mut().ok_or(Refused::Closed)?;
        if requests.len() >= MAX_WAITING {
            return Err(Refused::Full);
        }
        requests.insert(id.to_string(), sender);
        self.added.notify_one();
        Ok(Place {
            waiting: Arc::clone(self),
            id: id.clone(),
            reply,
        })
    }

    /// Hands a reply to the request that waits for it. Returns whether one does.
    pub(super) fn answer(&self, id: &str, reply: Body) -> bool {
        let request = self
            .requests
            .hold()
            .as_mut()
            .and_then(|requests| requests.remove(id));
        request.is_some_and(|request| request.send(reply).is_ok())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.hold().as_ref().is_none_or(HashMap::is_empty)
    }

    /// Completes when a request has been added since the last time.
    pub(super) async fn added(&self) {
        self.added.notified().await;
    }

    /// Refuses further requests, unless some wait. Returns whether it does.
    pub(super) fn close_if_empty(&self) -> bool {
        let mut requests = self.requests.hold();
        if requests.as_ref().is_none_or(HashMap::is_empty) {
            *requests = None;
        }
        requests.is_none()
    }

    /// Refuses further requests, and tells those that wait that no reply will come.
    pub(super) fn close(&self) {
        *self.requests.hold() = None;
    }
}

impl Place {
    /// Waits for the reply. Returns `None` if the queue is given up.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(super) async fn reply(&mut self) -> Option<Body> {
        (&mut self.reply).await.ok()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(requests) = self.waiting.requests.hold().as_mut() {
            requests.remove(self.id.as_str());
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn id(text: &str) -> MessageId {
        MessageId::new(text).expect("an id")
    }

    fn body(text: &'static str) -> Body {
        Body::Bare(Bytes::from_static(text.as_bytes()))
    }

    #[tokio::test]
    async fn each_reply_goes_to_its_request_once() {
        let waiting = Waiting::new();
        let mut first = waiting.add(&id("1")).expect("open");
        let mut second = waiting.add(&id("2")).expect("open");
        assert!(waiting.answer("2", body("two")));
        assert!(!waiting.answer("2", body("a copy")), "answered before");
        assert!(waiting.answer("1", body("one")));
        assert_eq!(first.reply().await, Some(body("one")));
        assert_eq!(second.reply().await, Some(body("two")));
        assert!(waiting.is_empty());
    }

    #[tokio::test]
    async fn a_request_that_is_dropped_waits_no_more() {
        let waiting = Waiting::new();
        let request = waiting.add(&id("1")).expect("open");
        assert!(!waiting.is_empty() && !waiting.close_if_empty());
        drop(request);
        assert!(!waiting.answer("1", body("late")));
        assert!(waiting.close_if_empty());
        assert_eq!(waiting.add(&id("2")).err(), Some(Refused::Closed));
    }

    #[tokio::test]
    async fn those_that_wait_learn_that_the_queue_is_given_up() {
        let waiting = Waiting::new();
        let mut request = waiting.add(&id("1")).expect("open");
        waiting.close();
        assert_eq!(request.reply().await, None);
        assert_eq!(waiting.add(&id("2")).err(), Some(Refused::Closed));
    }

    #[test]
    fn the_number_that_wait_is_bounded() {
        let waiting = Waiting::new();
        let add = |n: usize| waiting.add(&id(&n.to_string()));
        let mut places: Vec<_> = (0..MAX_WAITING).map(|n| add(n).expect("room")).collect();
        assert_eq!(add(MAX_WAITING).err(), Some(Refused::Full));
        places.pop();
        assert!(add(MAX_WAITING).is_ok());
    }
}
