//! The requests to the threads of a backend, and their answers.

use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use bytes::Bytes;
use queue_core::QueueName;
use queue_core::backend::{Created, NewMessage, Swap, Token};
use queue_core::idempotency::{Claim, ClaimOutcome, ClaimStatus, Owner, Swept, WorkKey};
use tokio::sync::oneshot;

use super::failure::{Failure, Result};
use super::reader::Reader;
use super::receipt::Handle;

/// A request to the writer, and the channel for its answer, which is sent after the commit.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) request: Request,
    pub(super) since: Instant,
    pub(super) reply: oneshot::Sender<Result<Answer>>,
}

#[derive(Debug)]
pub(super) enum Request {
    Create {
        queue: QueueName,
        metadata: String,
    },
    Remove {
        queue: QueueName,
    },
    SetMetadata {
        queue: QueueName,
        metadata: String,
    },
    Clear {
        queue: QueueName,
    },
    Receive {
        queue: QueueName,
        max: u32,
        visibility: Duration,
    },
    Step(Step),
    Apply(Vec<Step>),
    /// Puts a message, if there is one, and records a value in place of another.
    PutIf {
        step: Option<Step>,
        swap: Swap,
    },
    /// Registers a process that waits for messages, or renews its registration.
    Register {
        port: Port,
    },
    /// Withdraws a registration.
    Withdraw {
        port: Port,
    },
    Results(ResultsRequest),
    /// Answered when no other connection writes any more: whether a completion with this token was committed.
    Ended {
        token: Option<Token>,
    },
    /// Executed after all earlier requests; answered when the file is closed.
    Close,
}

/// A port of this machine at which a process waits for datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Port {
    /// A random number of the process, without which it ignores a datagram.
    pub(super) token: i64,
    pub(super) number: u16,
}

/// A change to one message, or to a recorded value.
#[derive(Debug)]
pub(super) enum Step {
    Put {
        queue: QueueName,
        parcel: Parcel,
    },
    Update {
        queue: QueueName,
        handle: Handle,
        visibility: Duration,
        /// The new body and its checksum.
        body: Option<(Bytes, i64)>,
    },
    Delete {
        queue: QueueName,
        handle: Handle,
    },
    Swap {
        queue: QueueName,
        swap: Swap,
    },
}

/// A message to put.
#[derive(Debug)]
pub(super) struct Parcel {
    pub(super) message: NewMessage,
    pub(super) salt: i64,
    pub(super) checksum: i64,
}

/// A request to the table of results.
#[derive(Debug)]
pub(super) enum ResultsRequest {
    Begin(WorkKey, Owner, Duration),
    Renew(WorkKey, Claim, Duration),
    Finish(WorkKey, Claim, Bytes, Duration),
    Release(WorkKey, Claim),
    Sweep,
}

#[derive(Debug)]
pub(super) enum Answer {
    Done,
    Created(Created),
    Received(Vec<Claimed>),
    Step(StepDone),
    Applied(Vec<StepDone>),
    /// A swap with a message, without one, or none because of what is recorded.
    Swapped(Option<StepDone>),
    Differs(Option<Bytes>),
    Begun(ClaimOutcome),
    Standing(ClaimStatus),
    Swept(Swept),
    Ended(bool),
}

#[derive(Debug)]
pub(super) enum StepDone {
    Put(Placed),
    Updated { visible_at: i64, nonce: i64 },
    Deleted,
    Swapped,
}

/// The last message of a page of a queue: when it becomes visible, and its row.
pub(super) type PageEnd = (i64, i64);

/// A message that was put.
#[derive(Debug)]
pub(super) struct Placed {
    pub(super) seq: i64,
    pub(super) salt: i64,
    pub(super) nonce: i64,
    pub(super) inserted_at: i64,
    pub(super) visible_at: i64,
    pub(super) expires_at: Option<i64>,
}

/// A message that was received.
#[derive(Debug)]
pub(super) struct Claimed {
    pub(super) placed: Placed,
    pub(super) received_at: i64,
    pub(super) dequeue_count: u32,
    /// The body, or why it cannot be read.
    pub(super) body: Result<Bytes, &'static str>,
    /// The checksum of the body that was put. `None` if it cannot be read.
    pub(super) checksum: Option<i64>,
}

/// A request to the reader.
pub(super) enum Query {
    /// Reads, and sends what it has read to who waits for it.
    Read(Box<dyn FnOnce(&Reader) + Send>),
    /// Closes the connection.
    Close(oneshot::Sender<()>),
}

/// Sends a request to the writer, and returns its answer.
pub(super) async fn ask(commands: &Sender<Command>, request: Request) -> Result<Answer> {
    let (reply, answered) = oneshot::channel();
    let command = Command {
        request,
        since: Instant::now(),
        reply,
    };
    commands.send(command).map_err(|_| Failure::Closed)?;
    answered.await.unwrap_or(Err(Failure::Lost))
}

impl Command {
    /// Sends the answer if the caller still waits for it.
    pub(super) fn answer(self, answer: Result<Answer>) {
        drop(self.reply.send(answer));
    }

    pub(super) fn fail(self, failure: &Failure) {
        self.answer(Err(failure.clone()));
    }
}

impl Request {
    /// Whether it puts messages and does nothing else.
    pub(super) fn only_puts(&self) -> bool {
        match self {
            Self::Step(step) => step.is_put(),
            Self::Apply(steps) => steps.iter().all(Step::is_put),
            _ => false,
        }
    }

    /// Returns the queues whose messages it reads or changes.
    pub(super) fn queues(&self) -> Vec<&QueueName> {
        match self {
            Self::Receive { queue, .. } => vec![queue],
            Self::Step(step)
            | Self::PutIf {
                step: Some(step), ..
            } => vec![step.queue()],
            Self::Apply(steps) => {
                let mut queues: Vec<_> = steps.iter().map(Step::queue).collect();
                queues.sort();
                queues.dedup();
                queues
            }
            _ => Vec::new(),
        }
    }
}

impl Step {
    pub(super) fn is_put(&self) -> bool {
        matches!(self, Self::Put { .. })
    }

    pub(super) fn queue(&self) -> &QueueName {
        match self {
            Self::Put { queue, .. }
            | Self::Update { queue, .. }
            | Self::Delete { queue, .. }
            | Self::Swap { queue, .. } => queue,
        }
    }
}
