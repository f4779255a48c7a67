//! The requests to the writer, and its answers.

use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use bytes::Bytes;
use queue_core::QueueName;
use queue_core::backend::{
    Attachment, Created, ItemSet, NewMessage, Op, OpOutcome, PopReceipt, StorageId, Swap, Token,
};
use queue_core::idempotency::{Claim, ClaimOutcome, ClaimStatus, Forgotten, Owner, Swept, WorkKey};
use tokio::sync::oneshot;

use super::attachments::{Attaching, Staging};
use super::checksum::checksum;
use super::failure::{Failure, Result};
use super::receipt::{self, Handle};
use super::stored::{Placed, Stored};

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
    /// Stages the attachment of a message that will be put.
    Stage(Staging),
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
        /// `None` if it goes back to its place.
        visibility: Option<Duration>,
        /// The new body and its checksum.
        body: Option<(Bytes, i64)>,
    },
    Delete {
        queue: QueueName,
        handle: Handle,
    },
    DeleteItems {
        queue: QueueName,
        handle: Handle,
        items: ItemSet,
        of: u32,
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
    pub(super) attachment: Option<Attaching>,
}

/// A request to the table of results.
#[derive(Debug)]
pub(super) enum ResultsRequest {
    Begin(WorkKey, Owner, Duration),
    Renew(WorkKey, Claim, Duration),
    Finish(WorkKey, Claim, Bytes, Duration),
    Release(WorkKey, Claim),
    Sweep,
    Forget(WorkKey),
}

#[derive(Debug)]
pub(super) enum Answer {
    Done,
    Created(Created),
    Received(Vec<Stored>),
    Step(StepDone),
    Applied(Vec<StepDone>),
    /// A swap with a message, without one, or none because of what is recorded.
    Swapped(Option<StepDone>),
    Differs(Option<Bytes>),
    Begun(ClaimOutcome),
    Standing(ClaimStatus),
    Swept(Swept),
    Forgotten(Forgotten),
    Ended(bool),
    Staged(i64),
}

#[derive(Debug)]
pub(super) enum StepDone {
    Put(Placed),
    Updated { visible_at: i64, nonce: i64 },
    Deleted,
    Swapped,
}

/// Sends a request to the writer, and returns its answer.
pub(super) async fn ask(commands: &Sender<Command>, request: Request) -> Result<Answer> {
    let (command, answered) = Command::new(request);
    commands.send(command).map_err(|_| Failure::Closed)?;
    answered.await.unwrap_or(Err(Failure::Lost))
}

impl Command {
    /// Returns a command with this request, and the channel of its answer.
    pub(super) fn new(request: Request) -> (Self, oneshot::Receiver<Result<Answer>>) {
        let (reply, answered) = oneshot::channel();
        let since = Instant::now();
        let command = Self {
            request,
            since,
            reply,
        };
        (command, answered)
    }

    /// Sends the answer if the caller still waits for it.
    pub(super) fn answer(self, answer: Result<Answer>) {
        drop(self.reply.send(answer));
    }

    pub(super) fn fail(self, failure: &Failure) {
        self.answer(Err(failure.clone()));
    }
}

/// For an answer that belongs to another request.
pub(super) fn mismatched(answer: &Answer) -> ! {
    unreachable!("the writer answered another request: {answer:?}")
}

impl Step {
    pub(super) fn put(queue: QueueName, mut message: NewMessage) -> Self {
        // By the last bit, a test that asks what was submitted knows what was only moved.
        let salt = rand::random::<i64>() & !1 | i64::from(message.moved);
        let attachment = message
            .attachment
            .take()
            .map(|attachment| match attachment {
                Attachment::New(data) => Attaching::Whole(data),
                Attachment::Of { queue, id } => {
                    let (seq, salt) = receipt::parse_id(&id);
                    Attaching::Of { queue, seq, salt }
                }
            });
        let parcel = Parcel {
            salt,
            checksum: checksum(salt, &message.body),
            message,
            attachment,
        };
        Self::Put { queue, parcel }
    }

    pub(super) fn update(
        queue: QueueName,
        id: &StorageId,
        receipt: &PopReceipt,
        visibility: Option<Duration>,
        body: Option<Bytes>,
    ) -> Self {
        let handle = Handle::parse(id, receipt);
        Self::Update {
            queue,
            handle,
            visibility,
            body: body.map(|body| {
                let checksum = checksum(handle.salt, &body);
                (body, checksum)
            }),
        }
    }

    pub(super) fn from_op(op: Op) -> Self {
        match op {
            Op::Put { queue, message } => Self::put(queue, message),
            Op::Update {
                queue,
                id,
                receipt,
                visibility,
                body,
            } => Self::update(queue, &id, &receipt, Some(visibility), body),
            Op::PutBack {
                queue,
                id,
                receipt,
                body,
            } => Self::update(queue, &id, &receipt, None, body),
            Op::Delete {
                queue, id, receipt, ..
            } => Self::Delete {
                queue,
                handle: Handle::parse(&id, &receipt),
            },
            Op::DeleteItems {
                queue,
                id,
                receipt,
                items,
                of,
            } => Self::DeleteItems {
                queue,
                handle: Handle::parse(&id, &receipt),
                items,
                of,
            },
            Op::Swap { queue, swap } => Self::Swap { queue, swap },
            _ => unreachable!("`apply` checks the operations before it sends them"),
        }
    }

    /// The attachment that is staged for the message that is put, if one is.
    pub(super) fn staged(&self) -> Option<i64> {
        match self {
            Self::Put { parcel, .. } => match parcel.attachment {
                Some(Attaching::Staged(id)) => Some(id),
                _ => None,
            },
            _ => None,
        }
    }

    pub(super) fn is_put(&self) -> bool {
        matches!(self, Self::Put { .. })
    }

    pub(super) fn queue(&self) -> &QueueName {
        match self {
            Self::Put { queue, .. }
            | Self::Update { queue, .. }
            | Self::Delete { queue, .. }
            | Self::DeleteItems { queue, .. }
            | Self::Swap { queue, .. } => queue,
        }
    }
}

/// The number and the salt of a message.
pub(super) type MessageRef = (i64, i64);

impl StepDone {
    /// The message that was put, if it was a put.
    pub(super) fn put(&self) -> Option<MessageRef> {
        match self {
            Self::Put(placed) => Some((placed.seq, placed.salt)),
            _ => None,
        }
    }

    pub(super) fn into_outcome(self) -> OpOutcome {
        match self {
            Self::Put(placed) => OpOutcome::Put(placed.into_receipt()),
            Self::Updated { visible_at, nonce } => {
                OpOutcome::Updated(receipt::lease(visible_at, nonce))
            }
            Self::Deleted => OpOutcome::Deleted,
            Self::Swapped => OpOutcome::Swapped,
        }
    }
}
