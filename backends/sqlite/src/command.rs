//! The requests to the writer, and its answers.

use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use queue_core::QueueName;
use queue_core::backend::{Attachment, Created, NewMessage, Swap, SwapOutcome, Token};
use queue_core::idempotency::{Forgotten, Swept, WorkKey};
use smallvec::SmallVec;
use tokio::sync::oneshot;

use crate::failure::{Failure, Result};
use crate::rows::attachments::{Staging, parts};
use crate::rows::stored::{Attaching, Stored};
use crate::rows::tables::{Step, StepDone, Steps};

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
        max: usize,
        visibility: Duration,
    },
    /// Stages the attachment of a message that will be put.
    Stage(Staging),
    Apply(Steps),
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

/// A request to the table of results.
#[derive(Debug)]
pub(super) enum ResultsRequest {
    Swap(Swap),
    Sweep,
    Forget(WorkKey),
}

#[derive(Debug)]
pub(super) enum Answer {
    Done,
    Created(Created),
    Received(Vec<Stored>),
    Applied(SmallVec<[StepDone; 1]>),
    Swapped(SwapOutcome),
    Swept(Swept),
    Forgotten(Forgotten),
    Ended(bool),
    Staged(i64),
}

/// Sends a request to the writer, and returns its answer.
pub(super) async fn ask(commands: &Sender<Command>, request: Request) -> Result<Answer> {
    let (command, answered) = Command::new(request);
    commands.send(command).map_err(|_| Failure::Closed)?;
    answered.await.unwrap_or(Err(Failure::Lost))
}

/// Returns the put of a message. `room` is shared by the messages that are put together: an attachment with more bytes
/// is staged.
pub(super) async fn put(
    commands: &Sender<Command>,
    queue: &QueueName,
    mut message: NewMessage,
    room: &mut usize,
) -> Result<Step> {
    let data = match message.attachment {
        Some(Attachment::New(data)) if data.len() > *room => data,
        attachment => {
            if let Some(Attachment::New(data)) = &attachment {
                *room -= data.len();
            }
            message.attachment = attachment;
            return Ok(Step::put(queue.clone(), message));
        }
    };
    message.attachment = None;
    let stage = async |staging| match ask(commands, Request::Stage(staging)).await? {
        Answer::Staged(id) => Ok(id),
        other => mismatched(&other),
    };
    let (queue, size) = (queue.clone(), data.len());
    let begin = Staging::Begin {
        queue: queue.clone(),
        size,
    };
    let id = stage(begin).await?;
    for (number, data) in parts(&data) {
        if let Err(failure) = stage(Staging::Part { id, number, data }).await {
            discard(commands, [id]);
            return Err(failure);
        }
    }
    let mut step = Step::put(queue, message);
    if let Step::Put { parcel, .. } = &mut step {
        parcel.attachment = Some(Attaching::Staged(id));
    }
    Ok(step)
}

/// Gives up what was staged for messages that were not put, so that it does not stay for an hour. A message's
/// attachment stays.
pub(super) fn discard(commands: &Sender<Command>, staged: impl IntoIterator<Item = i64>) {
    for id in staged {
        let (command, _) = Command::new(Request::Stage(Staging::Discard { id }));
        // A writer that has ended leaves the discarding to the next writer.
        drop(commands.send(command));
    }
}

impl Command {
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

/// Panics on an answer that belongs to another request.
pub(super) fn mismatched(answer: &Answer) -> ! {
    unreachable!("the writer answered another request: {answer:?}")
}

/// By how many messages an operation changes the file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) puts: usize,
    pub(super) removals: usize,
    /// The bytes of attachments.
    pub(super) bytes: u64,
}

impl Change {
    /// Refuses an operation that adds messages while too little is free. An operation that also removes a message, such
    /// as a completion with several follow-ups, needs only half of `min_free`.
    pub(super) fn check(self, left: u64, min_free: u64) -> Result<()> {
        let needed = match self {
            Self { puts, removals, .. } if puts <= removals && self.bytes == 0 => 0,
            Self { removals: 0, .. } => min_free.saturating_add(self.bytes),
            _ => (min_free / 2).saturating_add(self.bytes),
        };
        if left < needed {
            Err(Failure::LowSpace { left, needed })
        } else {
            Ok(())
        }
    }

    pub(super) fn of(request: &Request) -> Self {
        let steps = match request {
            Request::Stage(staging) => {
                let bytes = match staging {
                    Staging::Begin { size, .. } => *size,
                    Staging::Part { data, .. } => data.len(),
                    Staging::Discard { .. } => return Self::default(),
                };
                return Self {
                    puts: 1,
                    removals: 0,
                    bytes: bytes as u64,
                };
            }
            Request::Apply(steps) => &steps[..],
            _ => &[],
        };
        Self::of_steps(steps)
    }

    pub(super) fn of_steps(steps: &[Step]) -> Self {
        let bytes = |step: &Step| match step {
            Step::Put { parcel, .. } => match &parcel.attachment {
                Some(Attaching::Whole(data)) => data.len() as u64,
                _ => 0,
            },
            _ => 0,
        };
        Self {
            puts: steps.iter().filter(|step| step.is_put()).count(),
            removals: steps
                .iter()
                .filter(|step| matches!(step, Step::Delete { .. } | Step::DeleteItems { .. }))
                .count(),
            bytes: steps.iter().map(bytes).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use queue_core::backend::Swap;
    use queue_core::idempotency::WorkKey;

    use super::*;
    use crate::rows::stored::Parcel;

    #[test]
    fn a_conditional_put_needs_as_much_as_another() {
        let put = || Step::Put {
            queue: QueueName::from_static("orders"),
            parcel: Parcel {
                message: NewMessage::new("an order"),
                salt: 0,
                checksum: 0,
                attachment: None,
            },
        };
        let swap = Swap::new(WorkKey::new("order", "7"), "", Duration::ZERO);
        let swap = || Step::Swap {
            queue: QueueName::from_static("orders"),
            swap: swap.clone(),
        };
        let puts = |steps| Change::of(&Request::Apply(Steps::from_vec(steps))).puts;
        assert_eq!(puts(vec![put()]), 1);
        assert_eq!(puts(vec![put(), swap()]), 1);
        assert_eq!(puts(vec![swap()]), 0);
    }

    #[test]
    fn an_attachment_needs_more_than_its_message() {
        let mut message = NewMessage::new("an order");
        message.attachment = Some(Attachment::New("a film".into()));
        let put = Step::put(QueueName::from_static("orders"), message);
        let change = Change::of_steps(&[put]);
        assert_eq!((change.puts, change.bytes), (1, 6));
        let part = Staging::Part {
            id: 1,
            number: 0,
            data: "a film".into(),
        };
        for change in [change, Change::of(&Request::Stage(part))] {
            change.check(106, 100).expect("room for it");
            change.check(105, 100).expect_err("not for all of it");
        }
        let settled = Change {
            removals: 1,
            ..change
        };
        settled
            .check(56, 100)
            .expect("half is enough for a settlement");
        settled.check(55, 100).expect_err("and its follow-up");
    }

    #[test]
    fn only_what_adds_messages_needs_free_space() {
        let check = |puts, removals, free| {
            let bytes = 0;
            let change = Change {
                puts,
                removals,
                bytes,
            };
            change.check(free, 100)
        };
        for (puts, removals, needed) in [
            (0, 0, 0),
            (0, 1, 0),
            (1, 1, 0),
            (2, 1, 50),
            (1, 0, 100),
            (7, 0, 100),
        ] {
            check(puts, removals, needed).expect("enough is free");
            let Some(less) = u64::checked_sub(needed, 1) else {
                continue;
            };
            let refused = check(puts, removals, less).expect_err("too little is free");
            assert!(
                matches!(refused, Failure::LowSpace { left, needed: n } if (left, n) == (less, needed)),
                "{refused:?}"
            );
        }
    }
}
