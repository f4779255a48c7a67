//! Submitting several messages in one step.

use std::fmt;
use std::future::IntoFuture;

use queue_core::backend::{BackendExt, Op, OpOutcome};
use queue_core::clock::BoxFuture;
use queue_core::{ErrorKind, InvalidId, RequestId};

use crate::service::QueueService;
use crate::submit::{Packed, Submit, SubmitProblem, Submitted};

/// The submission of several messages: await it.
///
/// # Errors
/// [`SubmitAllError`] says how many were submitted. Where the backend is atomic that is none, unless
/// the outcome of the failure is unknown: then it is none or all.
///
/// # Cancel safety
/// As [`Submit`]'s.
#[must_use = "a submission does nothing until it is awaited"]
pub struct SubmitAll<M> {
    service: QueueService,
    submissions: Vec<Submit<M>>,
    request: Option<Result<RequestId, InvalidId>>,
}

/// The failure of a submission of several messages.
#[derive(Debug, thiserror::Error)]
#[error("submit message {} of several: {problem}", submitted.len() + 1)]
#[non_exhaustive]
pub struct SubmitAllError {
    /// The messages that are known to have been submitted, in their order.
    pub submitted: Vec<Submitted>,
    /// What went wrong with the next one.
    pub problem: SubmitProblem,
}

impl<M> SubmitAll<M> {
    pub(crate) fn new(service: QueueService, submissions: Vec<Submit<M>>) -> Self {
        Self {
            service,
            submissions,
            request: None,
        }
    }

    /// Sets the request id of all of them. By default each has its own.
    pub fn request(mut self, request: impl Into<String>) -> Self {
        self.request = Some(RequestId::new(request));
        self
    }

    async fn send(self) -> Result<Vec<Submitted>, SubmitAllError> {
        let refused = |problem| SubmitAllError {
            submitted: Vec::new(),
            problem,
        };
        let mut ops = Vec::with_capacity(self.submissions.len());
        let mut targets = Vec::with_capacity(self.submissions.len());
        for submission in self.submissions {
            let submission = submission.of_request(self.request.clone());
            let (packed, _) = submission.pack().map_err(|error| refused(error.problem))?;
            let Packed {
                queue,
                id,
                request,
                new,
            } = packed;
            ops.push(Op::Put {
                queue: queue.clone(),
                message: new,
            });
            targets.push((id, request, queue));
        }
        let Some((_, _, queue)) = targets.first() else {
            return Ok(Vec::new());
        };
        let backend = &self.service.shared.backend;
        let applied = match backend.apply(ops.clone()).await {
            Err(failed)
                if failed.error.kind() == ErrorKind::QueueNotFound
                    && failed.completed.is_empty() =>
            {
                let created = backend.ensure_queue(queue).await;
                created.map_err(|error| refused(SubmitProblem::Storage(error)))?;
                backend.apply(ops).await
            }
            applied => applied,
        };
        let (outcomes, failure) = match applied {
            Ok(outcomes) => (outcomes, None),
            Err(failed) => (failed.completed, Some(failed.error)),
        };
        let submitted = targets
            .into_iter()
            .zip(outcomes)
            .filter_map(|((id, request, queue), outcome)| match outcome {
                OpOutcome::Put(receipt) => Some(Submitted {
                    id,
                    request,
                    queue,
                    visible_at: receipt.visible_at,
                }),
                _ => None,
            })
            .collect();
        match failure {
            None => Ok(submitted),
            Some(error) => Err(SubmitAllError {
                submitted,
                problem: SubmitProblem::Storage(error),
            }),
        }
    }
}

impl<M: Send + 'static> IntoFuture for SubmitAll<M> {
    type Output = Result<Vec<Submitted>, SubmitAllError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

impl<M> fmt::Debug for SubmitAll<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubmitAll")
            .field("messages", &self.submissions.len())
            .finish_non_exhaustive()
    }
}
