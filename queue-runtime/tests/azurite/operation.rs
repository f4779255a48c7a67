//! The operations of a backend: how each is called, and the state that it leaves.

use std::time::Duration;

use queue_core::backend::{
    Backend, BackendExt as _, Created, Metadata, NewMessage, ReceivedMessage,
};
use queue_core::{Error, ErrorKind, Operation, Outcome, QueueName};

use crate::fault::Call;

/// The visibility timeout of messages, longer than any failure takes.
pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// All calls that a backend can make.
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

/// The state before a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Setup {
    Nothing,
    /// An empty queue with the metadata `note = as it was`.
    Queue,
    /// The same, with one message `as it was`.
    Message,
    /// The same, with the message leased.
    Lease,
}

/// The result of repeating a call that was executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    Done,
    QueueGone,
    LeaseGone,
}

/// The note of a queue and its messages with their dequeue counts (2 means 2 or more), or no queue.
pub(crate) type State = Option<(&'static str, &'static [(&'static str, usize)])>;

/// What is expected of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expectations {
    pub(crate) setup: Setup,
    pub(crate) repeat: Repeat,
    /// The states after it was executed once, and twice.
    pub(crate) states: [State; 2],
}

impl Call {
    pub(crate) fn expectations(self) -> Expectations {
        const AS_IT_WAS: State = Some(("as it was", &[("as it was", 1)]));
        const EMPTY: State = Some(("as it was", &[]));
        let (setup, repeat, states) = match self {
            Self::CreateQueue => (Setup::Nothing, Repeat::Done, [EMPTY; 2]),
            Self::DeleteQueue => (Setup::Message, Repeat::QueueGone, [None; 2]),
            Self::ListQueues | Self::Properties | Self::Peek => {
                (Setup::Message, Repeat::Done, [AS_IT_WAS; 2])
            }
            Self::SetMetadata => {
                let changed: State = Some(("changed", &[("as it was", 1)]));
                (Setup::Message, Repeat::Done, [changed; 2])
            }
            Self::Put => {
                let twice: State = Some(("as it was", &[("as it was", 1), ("as it was", 1)]));
                (Setup::Queue, Repeat::Done, [AS_IT_WAS, twice])
            }
            Self::Receive => {
                let received: State = Some(("as it was", &[("as it was", 2)]));
                (Setup::Message, Repeat::Done, [received; 2])
            }
            Self::Update => {
                let changed: State = Some(("as it was", &[("changed", 2)]));
                (Setup::Lease, Repeat::LeaseGone, [changed; 2])
            }
            Self::Delete => (Setup::Lease, Repeat::LeaseGone, [EMPTY; 2]),
            Self::Clear => (Setup::Lease, Repeat::Done, [EMPTY; 2]),
            Self::Other => unreachable!("no backend makes this call"),
        };
        Expectations {
            setup,
            repeat,
            states,
        }
    }

    /// Whether it fails if the queue does not exist.
    pub(crate) fn needs_a_queue(self) -> bool {
        !matches!(self, Self::CreateQueue | Self::ListQueues)
    }

    /// The operation that its errors name.
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
            Self::Other => unreachable!("no backend makes this call"),
        }
    }

    /// Makes the call, and checks what a reading call returns. `repeated` says that the call was executed
    /// before.
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
            // The message that the first receive leased may not be visible yet.
            Self::Receive => backend.receive(queue, 1, second).await.map(drop)?,
            Self::Peek => {
                let seen = backend.peek(queue, 1).await?;
                let bodies: Vec<_> = seen.iter().map(|message| &*message.body).collect();
                assert_eq!(bodies, [b"as it was"]);
            }
            Self::Update => {
                let body = Some("changed".into());
                let (id, receipt) = (&held().id, &held().receipt);
                let updated = backend.renew(queue, id, receipt, second, body);
                updated.await.map(drop)?;
            }
            Self::Delete => backend.delete(queue, &held().id, &held().receipt).await?,
            Self::Clear => backend.clear(queue).await?,
            Self::Other => unreachable!("no backend makes this call"),
        }
        Ok(())
    }
}

impl Setup {
    /// Creates this state. Returns the leased message.
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

impl Repeat {
    pub(crate) fn check(self, call: Call, answer: Result<(), Error>) {
        let error = match (self, answer) {
            (Self::Done, Ok(())) => return,
            (Self::Done, Err(error)) => panic!("{call:?} can be repeated: {error}"),
            (_, answer) => answer.expect_err("already executed"),
        };
        assert_eq!(error.outcome(), Outcome::NotDone, "{call:?}: {error}");
        match self {
            Self::QueueGone => assert_eq!(error.kind(), ErrorKind::QueueNotFound, "{call:?}"),
            _ => assert!(error.is_lease_gone(), "{call:?}: {error}"),
        }
    }
}

/// Checks the state of the queue; receives until it has all expected messages.
pub(crate) async fn check_state(
    call: Call,
    twice: bool,
    backend: &impl Backend,
    queue: &QueueName,
) {
    let properties = backend.properties(queue).await;
    let Some((noted, messages)) = call.expectations().states[usize::from(twice)] else {
        let error = properties.expect_err("no queue");
        assert_eq!(error.kind(), ErrorKind::QueueNotFound, "{call:?}: {error}");
        return;
    };
    let properties = properties.expect("properties");
    assert_eq!(properties.metadata, note(noted), "{call:?}");
    let count = properties.approximate_count;
    assert_eq!(count, messages.len(), "{call:?}");
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
