//! Submitting several messages with one operation.

use std::fmt;
use std::future::IntoFuture;
use std::sync::Arc;

use queue_core::backend::{BackendExt, Op, OpOutcome};
use queue_core::clock::BoxFuture;
use queue_core::{ErrorKind, InvalidId, MessageId, RequestId};

use super::submit::{Outgoing, Submit, SubmitError, SubmitProblem, Submitted};
use crate::context::Context;

/// A pending submission of several messages. Configure it, then `.await` it.
///
/// ```
/// use queue_runtime::{Message, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = testing::service().await;
/// let orders = (1..=3).map(|number| Order { number });
/// let submitted = service.submit_all(orders).request("import-42").await?;
/// assert_eq!(submitted.len(), 3);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`SubmitAllError`] tells which messages were submitted. If the backend is atomic, none were, unless the
/// outcome is unknown: then either none or all were.
///
/// # Cancel safety
/// If the future is dropped before it completes, any of the messages may have been submitted.
#[must_use = "a submission does nothing until it is awaited"]
pub struct SubmitAll<M> {
    context: Arc<Context>,
    submissions: Vec<Submit<M>>,
    request: Option<Result<RequestId, InvalidId>>,
}

/// An error of submitting several messages. It returns those that were not submitted.
///
/// If the outcome [is unknown](Self::is_unknown), any of [`rest`](Self::rest) may have been submitted.
/// Submitting them again with the same ids is safe for consumers that deduplicate by id or key.
///
/// ```
/// # use queue_runtime::{Message, Operation, testing::{self, Fault}};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (service, faults) = testing::service_with_faults().await;
/// # faults.fail_next(1, Operation::Apply, Fault::AnswerLost);
/// if let Err(error) = service.submit_all([Order { number: 7 }, Order { number: 8 }]).await {
///     eprintln!("failed to {error}; submitting the rest one by one");
///     for (id, order) in error.rest {
///         let submit = service.submit(order);
///         match id {
///             Some(id) => submit.id(id.as_str()).await?,
///             None => submit.await?,
///         };
///     }
/// }
/// # assert_eq!(faults.injected(Operation::Apply), 1);
/// # Ok(())
/// # }
/// ```
#[non_exhaustive]
pub struct SubmitAllError<M> {
    /// The messages that were certainly submitted, in the order in which they were given.
    pub submitted: Vec<Submitted>,
    /// The other messages, in the order in which they were given. The ids are `None` if no message was sent
    /// to the storage.
    pub rest: Vec<(Option<MessageId>, M)>,
    /// The cause.
    pub problem: SubmitProblem,
}

impl<M> SubmitAll<M> {
    pub(crate) fn new(context: Arc<Context>, submissions: Vec<Submit<M>>) -> Self {
        Self {
            context,
            submissions,
            request: None,
        }
    }

    /// Sets the request id of all the messages. By default each has a different one.
    pub fn request(mut self, request: impl Into<String>) -> Self {
        self.request = Some(RequestId::new(request));
        self
    }

    async fn send(self) -> Result<Vec<Submitted>, SubmitAllError<M>> {
        let Self {
            context,
            submissions,
            request,
        } = self;
        let mut outgoing = Vec::with_capacity(submissions.len());
        let mut messages = Vec::with_capacity(submissions.len());
        let mut submissions = submissions.into_iter();
        while let Some(submission) = submissions.next() {
            match submission.of_request(request.clone()).encode() {
                Ok((one, message)) => {
                    outgoing.push(one);
                    messages.push(message);
                }
                Err(SubmitError {
                    message, problem, ..
                }) => {
                    let messages = messages.into_iter().chain([message]);
                    let rest = messages.chain(submissions.map(Submit::into_message));
                    let rest = rest.map(|message| (None, message)).collect();
                    return Err(SubmitAllError {
                        submitted: Vec::new(),
                        rest,
                        problem,
                    });
                }
            }
        }
        let failed =
            |submitted: Vec<Submitted>, outgoing: &[Outgoing], messages: Vec<M>, problem| {
                let ids = outgoing.iter().map(|outgoing| Some(outgoing.id.clone()));
                let rest = ids.zip(messages).skip(submitted.len()).collect();
                SubmitAllError {
                    submitted,
                    rest,
                    problem,
                }
            };
        let puts = outgoing.iter().map(|outgoing| Op::Put {
            queue: outgoing.queue.clone(),
            message: outgoing.new.clone(),
        });
        let ops: Vec<Op> = puts.collect();
        let backend = &context.backend;
        let mut applied = backend.apply(ops.clone()).await;
        if let Err(refused) = &applied
            && refused.error.kind() == ErrorKind::QueueNotFound
            && refused.completed.is_empty()
        {
            if let Err(error) = backend.create_missing(refused.error.clone()).await {
                let problem = SubmitProblem::Storage(error);
                return Err(failed(Vec::new(), &outgoing, messages, problem));
            }
            applied = backend.apply(ops).await;
        }
        let (outcomes, error) = match applied {
            Ok(outcomes) => (outcomes, None),
            Err(failed) => (failed.completed, Some(failed.error)),
        };
        let submitted = outgoing
            .iter()
            .zip(outcomes)
            .filter_map(|(outgoing, outcome)| match outcome {
                OpOutcome::Put(receipt) => Some(outgoing.submitted(receipt.visible_at)),
                _ => None,
            })
            .collect();
        match error {
            None => Ok(submitted),
            Some(error) => Err(failed(
                submitted,
                &outgoing,
                messages,
                SubmitProblem::Storage(error),
            )),
        }
    }
}

impl<M: Send + 'static> IntoFuture for SubmitAll<M> {
    type Output = Result<Vec<Submitted>, SubmitAllError<M>>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

impl<M> SubmitAllError<M> {
    /// Returns whether messages in [`rest`](Self::rest) may have been submitted despite the error.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.problem.is_unknown()
    }
}

impl<M> fmt::Debug for SubmitAllError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubmitAllError")
            .field("submitted", &self.submitted)
            .field("rest", &self.rest.len())
            .field("problem", &self.problem)
            .finish()
    }
}

impl<M> fmt::Display for SubmitAllError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.submitted.len() + self.rest.len();
        write!(f, "submit {} of {all} messages", self.rest.len())
    }
}

impl<M> std::error::Error for SubmitAllError<M> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.problem)
    }
}

impl<M> fmt::Debug for SubmitAll<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubmitAll")
            .field("messages", &self.submissions.len())
            .finish_non_exhaustive()
    }
}
