//! Completions of many callers that put messages along, such as follow-ups, in few statements: those of all together, in
//! place of a savepoint and two statements for each.

use std::collections::HashSet;

use queue_core::QueueName;
use queue_core::backend::{NewMessage, Op, OpOutcome};

use crate::failure::Result;
use crate::messages::{self, Handle};
use crate::runs::attachment_of;
use crate::session::Session;
use crate::settlements::{Change, settle};
use crate::writer::{Answer, Done, Failed, Job, Work};

/// Puts, and the deletion of the message that they come from.
struct Completion<'a> {
    /// The position of the request in its batch.
    at: usize,
    puts: Vec<(&'a QueueName, &'a NewMessage)>,
    message: (&'a QueueName, Handle),
}

impl<'a> Completion<'a> {
    /// The completion that a request asks for, if it is one whose messages have no attachments.
    fn of(at: usize, job: &'a Job) -> Option<Self> {
        let Work::Apply(ops) = &job.work else {
            return None;
        };
        let (last, puts) = ops.split_last()?;
        let Op::Delete {
            queue, id, receipt, ..
        } = last
        else {
            return None;
        };
        let puts = puts.iter().map(|op| match op {
            Op::Put { queue, message } if attachment_of(op).is_none() => Some((queue, message)),
            _ => None,
        });
        Some(Self {
            at,
            puts: puts
                .collect::<Option<_>>()
                .filter(|puts: &Vec<_>| !puts.is_empty())?,
            message: (queue, Handle::parse(id, receipt)),
        })
    }
}

/// Carries out the completions among requests that are not answered yet, if there are several, each of another message. The
/// deletions come first: a completion that is refused has put nothing. If a put is refused, all that were not are undone, and
/// left to be carried out one by one. Fails only if the transaction did.
pub(crate) async fn complete_together(
    session: &mut Session,
    batch: &[Job],
    answers: &mut [Option<Answer>],
) -> Result<()> {
    let mut messages = HashSet::new();
    let open = batch.iter().enumerate().zip(&*answers);
    let open = open.filter(|(_, answer)| answer.is_none());
    let completions = open.filter_map(|((at, job), _)| Completion::of(at, job));
    let completions: Vec<Completion<'_>> = completions
        .filter(|completion| messages.insert(completion.message.1.seq))
        .collect();
    if completions.len() < 2 {
        return Ok(());
    }
    let deletions = completions.iter().map(|completion| {
        let (queue, handle) = completion.message;
        (queue, handle, Change::Delete)
    });
    session.command("SAVEPOINT completions").await?;
    let deleted = settle(session, &deletions.collect::<Vec<_>>()).await?;
    let mut completed = Vec::new();
    for (completion, deleted) in completions.into_iter().zip(deleted) {
        match deleted {
            Ok(_) => completed.push(completion),
            Err(failure) => {
                let index = completion.puts.len();
                answers[completion.at] = Some(Err(Failed { index, failure }));
            }
        }
    }
    let puts = completed.iter().flat_map(|one| one.puts.iter().copied());
    let puts: Vec<_> = puts.collect();
    let receipts = match &puts[..] {
        [] => Vec::new(),
        puts => messages::put(session, puts).await?,
    };
    let receipts: Result<Vec<_>> = receipts.into_iter().collect();
    let Ok(receipts) = receipts else {
        let undo = "ROLLBACK TO completions; RELEASE completions";
        return session.command(undo).await;
    };
    session.command("RELEASE completions").await?;
    let mut receipts = receipts.into_iter();
    for completion in completed {
        let of_completion = receipts.by_ref().take(completion.puts.len());
        let outcomes = of_completion.map(|(_, receipt)| OpOutcome::Put(receipt));
        let outcomes = outcomes.chain([OpOutcome::Deleted]).collect();
        answers[completion.at] = Some(Ok(Done::Applied(outcomes)));
    }
    Ok(())
}
