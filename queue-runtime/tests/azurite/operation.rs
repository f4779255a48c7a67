//! The operations of a backend: how each is called, and what it leaves behind.

use std::time::Duration;

use queue_core::backend::{Backend, Created, Metadata, NewMessage, ReceivedMessage};
use queue_core::{Error, ErrorKind, Operation, Outcome, QueueName};

use crate::fault::Call;

/// How long messages are leased: every failure comes sooner.
pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// The calls that are harmed: all that a backend can make.
pub(crate) const CALLS: [Call; 11] = [
    Call::CreateQueue,
    Call::DeleteQueue,
    Call::ListQueues,
    Call::Properties,
    Call::SetMetadata,
    Call::Put,
    Call::Receive,
    Call::Peek,
    Call::Update,
    Call::Delete,
    Call::Clear,
];

/// What there is before a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    Nothing,
    /// A queue without messages, whose note is `as it was`.
    Queue,
    /// The same with a message `as it was`.
    Message,
    /// The same, and the message is leased.
    Lease,
}

/// What a call answers after one like it was carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Again {
    Done,
    QueueGone,
    LeaseGone,
}

/// A queue's note and its messages with their dequeue counts, or no queue. Two stands for more, too.
pub(crate) type Left = Option<(&'static str, &'static [(&'static str, u32)])>;

/// What is known of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Course {
    pub(crate) before: Before,
    pub(crate) again: Again,
    /// After it was carried out once, or twice.
    pub(crate) left: [Left; 2],
}

impl Call {
    pub(crate) fn course(self) -> Course {
        const AS_IT_WAS: Left = Some(("as it was", &[("as it was", 1)]));
        const EMPTY: Left = Some(("as it was", &[]));
        let (before, again, left) = match self {
            Self::CreateQueue => (Before::Nothing, Again::Done, [EMPTY; 2]),
            Self::DeleteQueue => (Before::Message, Again::QueueGone, [None; 2]),
            Self::ListQueues | Self::Properties | Self::Peek => {
                (Before::Message, Again::Done, [AS_IT_WAS; 2])
            }
            Self::SetMetadata => {
                let changed: Left = Some(("changed", &[("as it was", 1)]));
                (Before::Message, Again::Done, [changed; 2])
            }
            Self::Put => {
                let twice: Left = Some(("as it was", &[("as it was", 1), ("as it was", 1)]));
                (Before::Queue, Again::Done, [AS_IT_WAS, twice])
            }
            Self::Receive => {
                let received: Left = Some(("as it was", &[("as it was", 2)]));
                (Before::Message, Again::Done, [received; 2])
            }
            Self::Update => {
                let changed: Left = Some(("as it was", &[("changed", 2)]));
                (Before::Lease, Again::LeaseGone, [changed; 2])
            }
            Self::Delete => (Before::Lease, Again::LeaseGone, [EMPTY; 2]),
            Self::Clear => (Before::Lease, Again::Done, [EMPTY; 2]),
            Self::Other => unreachable!("no backend makes it"),
        };
        Course {
            before,
            again,
            left,
        }
    }

    /// Whether it fails where there is no queue.
    pub(crate) fn needs_a_queue(self) -> bool {
        !matches!(self, Self::CreateQueue | Self::ListQueues)
    }

    /// What errors call it.
    pub(crate) fn operation(self) -> Operation {
        match self {
            Self::CreateQueue => Operation::CreateQueue,
            Self::DeleteQueue => Operation::DeleteQueue,
            Self::ListQueues => Operation::ListQueues,
            Self::Properties => Operation::Properties,
            Self::SetMetadata => Operation::SetMetadata,
            Self::Put => Operation::Put,
            Self::Receive => Operation::Receive,
            Self::Peek => Operation::Peek,
            Self::Update => Operation::Update,
            Self::Delete => Operation::Delete,
            Self::Clear => Operation::Clear,
            Self::Other => unreachable!("no backend makes it"),
        }
    }

    /// Makes the call. What only looks must see what there is; `repeated` says that a call like this
    /// was carried out before.
    pub(crate) async fn make(
        self,
        backend: &impl Backend,
        queue: &QueueName,
        held: Option<&ReceivedMessage>,
        repeated: bool,
    ) -> Result<(), Error> {
        let second = Duration::from_secs(1);
        let held = || held.expect("a leased message");
        match self {
            Self::CreateQueue => {
                let created = backend.create_queue(queue, &note("as it was")).await?;
                let existed = created == Created::Existed;
                assert_eq!(existed, repeated, "{created:?}");
            }
            Self::DeleteQueue => backend.delete_queue(queue).await?,
            Self::ListQueues => {
                let names = backend.list_queues(queue.as_str()).await?;
                assert_eq!(names, std::slice::from_ref(queue));
            }
            Self::Properties => {
                let properties = backend.properties(queue).await?;
                assert_eq!(properties.metadata, note("as it was"));
                assert_eq!(properties.approximate_count, 1);
            }
            Self::SetMetadata => backend.set_metadata(queue, &note("changed")).await?,
            Self::Put => {
                let put = backend.put(queue, NewMessage::new("as it was"));
                put.await.map(drop)?;
            }
            // What the first one leased may not be visible yet.
            Self::Receive => backend.receive(queue, 1, second).await.map(drop)?,
            Self::Peek => {
                let seen = backend.peek(queue, 1).await?;
                let bodies: Vec<_> = seen.iter().map(|message| &*message.body).collect();
                assert_eq!(bodies, [b"as it was"]);
            }
            Self::Update => {
                let body = Some("changed".into());
                let (id, receipt) = (&held().id, &held().receipt);
                let updated = backend.update(queue, id, receipt, second, body);
                updated.await.map(drop)?;
            }
            Self::Delete => backend.delete(queue, &held().id, &held().receipt).await?,
            Self::Clear => backend.clear(queue).await?,
            Self::Other => unreachable!("no backend makes it"),
        }
        Ok(())
    }
}

impl Before {
    /// Makes a queue so; gives the message that is leased.
    pub(crate) async fn arrange(
        self,
        backend: &impl Backend,
        queue: &QueueName,
    ) -> Option<ReceivedMessage> {
        if self == Self::Nothing {
            return None;
        }
        let created = backend.create_queue(queue, &note("as it was")).await;
        created.expect("create");
        if self == Self::Queue {
            return None;
        }
        let put = backend.put(queue, NewMessage::new("as it was")).await;
        put.expect("put");
        if self == Self::Message {
            return None;
        }
        let received = backend.receive(queue, 1, LEASE).await.expect("receive");
        received.into_iter().next()
    }
}

impl Again {
    pub(crate) fn check(self, call: Call, answer: Result<(), Error>) {
        let error = match (self, answer) {
            (Self::Done, Ok(())) => return,
            (Self::Done, Err(error)) => panic!("{call:?} may be repeated: {error}"),
            (_, answer) => answer.expect_err("it was done before"),
        };
        assert_eq!(error.outcome(), Outcome::NotDone, "{call:?}: {error}");
        match self {
            Self::QueueGone => assert_eq!(error.kind(), ErrorKind::QueueNotFound, "{call:?}"),
            _ => assert!(error.is_lease_gone(), "{call:?}: {error}"),
        }
    }
}

/// Waits for as many messages as a call leaves when it was carried out, and looks at all there is.
pub(crate) async fn check_left(call: Call, twice: bool, backend: &impl Backend, queue: &QueueName) {
    let properties = backend.properties(queue).await;
    let Some((noted, messages)) = call.course().left[usize::from(twice)] else {
        let error = properties.expect_err("no queue");
        assert_eq!(error.kind(), ErrorKind::QueueNotFound, "{call:?}: {error}");
        return;
    };
    let properties = properties.expect("properties");
    assert_eq!(properties.metadata, note(noted), "{call:?}");
    let count = properties.approximate_count;
    assert_eq!(count, messages.len() as u64, "{call:?}");
    let mut found = Vec::new();
    while found.len() < messages.len() {
        let received = backend.receive(queue, 32, LEASE).await.expect("receive");
        found.extend(received.iter().map(|message| {
            let body = String::from_utf8_lossy(&message.body).into_owned();
            (body, message.dequeue_count.min(2))
        }));
    }
    let found: Vec<_> = found.iter().map(|(body, n)| (&**body, *n)).collect();
    assert_eq!(found, messages, "{call:?}");
}

fn note(text: &str) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.insert("note", text).expect("allowed");
    metadata
}
