use std::time::Duration;

use async_trait::async_trait;
use queue_core::backend::{
    ApplyError, Atomicity, AttachmentPart, Backend, BackendExt as _, BrowsedMessage, Created,
    Located, Metadata, NewMessage, Op, OpOutcome, OpOutcomes, Ops, Page, PageMark, PeekedMessage,
    PopReceipt, PutBackPlace, QueueProperties, ReceivedMessage, StorageId,
};
use queue_core::internal::forward_backend;
use queue_core::wire::StoredPayload;
use queue_core::{Error, ErrorKind, MessageId, Operation, Outcome, QueueName, Result, RetryAdvice};

use super::fault::Fault;
use super::fault_injector::FaultInjector;

#[async_trait]
#[warn(
    clippy::missing_trait_methods,
    reason = "a default method would not reach the wrapped backend's own"
)]
impl Backend for FaultInjector {
    forward_backend!(self => self.inner(); capabilities queue_uri sharded notifier results payload_store introduce
        transactions);

    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created> {
        let call = Call::begin(self, Operation::CreateQueue, Some(queue));
        call.answer(self.inner().create_queue(queue, metadata))
            .await?
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<()> {
        let call = Call::begin(self, Operation::DeleteQueue, Some(queue));
        call.answer(self.inner().delete_queue(queue)).await?
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>> {
        let call = Call::begin(self, Operation::ListQueues, None);
        call.answer(self.inner().list_queues(prefix)).await?
    }

    async fn properties(&self, queue: &QueueName) -> Result<QueueProperties> {
        let call = Call::begin(self, Operation::Properties, Some(queue));
        call.answer(self.inner().properties(queue)).await?
    }

    async fn metadata(&self, queue: &QueueName) -> Result<Metadata> {
        let call = Call::begin(self, Operation::Properties, Some(queue));
        call.answer(self.inner().metadata(queue)).await?
    }

    async fn set_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<()> {
        let call = Call::begin(self, Operation::SetMetadata, Some(queue));
        call.answer(self.inner().set_metadata(queue, metadata))
            .await?
    }

    async fn receive(
        &self,
        queue: &QueueName,
        max: usize,
        visibility: Duration,
    ) -> Result<Vec<ReceivedMessage>> {
        let call = Call::begin(self, Operation::Receive, Some(queue));
        let max = call.receives(max);
        let received = call.answer(self.inner().receive(queue, max, visibility));
        let received = received.await??.into_iter();
        Ok(received.map(|one| self.skew().received(one)).collect())
    }

    async fn peek(&self, queue: &QueueName, max: usize) -> Result<Vec<PeekedMessage>> {
        let call = Call::begin(self, Operation::Peek, Some(queue));
        let peeked = call.answer(self.inner().peek(queue, max)).await??;
        let peeked = peeked.into_iter();
        Ok(peeked.map(|one| self.skew().peeked(one)).collect())
    }

    async fn attachment(
        &self,
        queue: &QueueName,
        id: &StorageId,
        stored: Option<&StoredPayload>,
        from: u64,
    ) -> Result<AttachmentPart> {
        let call = Call::begin(self, Operation::FetchData, Some(queue));
        call.answer(self.inner().attachment(queue, id, stored, from))
            .await?
    }

    async fn browse(&self, queue: &QueueName, from: Option<&PageMark>, max: usize) -> Result<Page> {
        let call = Call::begin(self, Operation::Browse, Some(queue));
        let page = call.answer(self.inner().browse(queue, from, max)).await??;
        Ok(self.skew().page(page))
    }

    async fn find(
        &self,
        queue: &QueueName,
        id: &MessageId,
        max: usize,
    ) -> Result<Vec<BrowsedMessage>> {
        let call = Call::begin(self, Operation::Browse, Some(queue));
        let found = call.answer(self.inner().find(queue, id, max)).await??;
        let found = found.into_iter();
        Ok(found.map(|one| self.skew().browsed(one)).collect())
    }

    async fn locate(&self, id: &MessageId, max: usize) -> Result<Vec<Located>> {
        let call = Call::begin(self, Operation::Browse, None);
        let mut located = call.answer(self.inner().locate(id, max)).await??;
        for one in &mut located {
            one.message = self.skew().browsed(one.message.clone());
        }
        Ok(located)
    }

    async fn clear(&self, queue: &QueueName) -> Result<()> {
        let call = Call::begin(self, Operation::Clear, Some(queue));
        call.answer(self.inner().clear(queue)).await?
    }

    async fn apply(&self, mut ops: Ops) -> Result<OpOutcomes, ApplyError> {
        let operation = Op::operation(&ops);
        let queue = ops.first().map(|op| op.queue().clone());
        let queue = queue.filter(|_| operation != Operation::Apply);
        let call = Call::begin(self, operation, queue.as_ref());
        call.hide_longer(ops.iter_mut().filter_map(|op| match op {
            Op::Put { message, .. } => Some(message),
            _ => None,
        }));
        for (queue, id, receipt) in ops.iter().filter_map(Op::received) {
            call.take_away(queue, id, receipt).await;
        }
        let again = if call.is_duplicated() {
            puts(&ops)
        } else {
            Vec::new()
        };
        let skewed = |mut failed: ApplyError| {
            let completed = failed.completed.into_iter();
            failed.completed = completed.map(|one| self.skew().outcome(one)).collect();
            failed
        };
        if call.loses_answer() {
            let answer = self.inner().apply(ops).await;
            let error = call.lost("the answer was lost");
            let atomicity = self.capabilities().atomicity;
            return Err(skewed(last_answer_lost(answer, atomicity, error)));
        }
        let answer = call.answer(self.inner().apply(ops)).await;
        let answer = answer.map_err(|error| ApplyError::nothing_done(0, error))?;
        match answer {
            Ok(outcomes) => {
                call.duplicate(again).await;
                let outcomes = outcomes.into_iter();
                Ok(outcomes.map(|one| self.skew().outcome(one)).collect())
            }
            Err(failed) => Err(skewed(failed)),
        }
    }
}

/// Returns the error of an [`apply`](Backend::apply) whose last answer was lost. If the operations are not
/// atomic, each has a separate answer, so only the outcome of the last one is unknown.
fn last_answer_lost(
    answer: Result<OpOutcomes, ApplyError>,
    atomicity: Atomicity,
    error: Error,
) -> ApplyError {
    let (index, mut completed) = match answer {
        Ok(mut outcomes) => {
            let swapped = matches!(outcomes.pop(), Some(OpOutcome::Swapped));
            let index = outcomes.len();
            // The put is one step with the swap.
            if swapped && matches!(outcomes.last(), Some(OpOutcome::Put(_))) {
                outcomes.pop();
            }
            (index, outcomes)
        }
        Err(failed) => (failed.index, failed.completed.into()),
    };
    if atomicity == Atomicity::Atomic {
        completed.clear();
    }
    ApplyError::new(index, completed, error)
}

/// Returns the puts that a request which is carried out twice carries out twice.
fn puts(ops: &[Op]) -> Vec<(QueueName, NewMessage)> {
    let next = ops.iter().skip(1).map(Some).chain([None]);
    let put = |(op, next): (&Op, Option<&Op>)| match op {
        // Put once more, its condition is not met.
        Op::Put { .. } if matches!(next, Some(Op::Swap { .. })) => None,
        Op::Put { queue, message } => Some((queue.clone(), message.clone())),
        _ => None,
    };
    ops.iter().zip(next).filter_map(put).collect()
}

/// One call to a fault injector, and the fault that was chosen for it.
struct Call<'a> {
    injector: &'a FaultInjector,
    operation: Operation,
    queue: Option<&'a QueueName>,
    fault: Option<Fault>,
}

impl<'a> Call<'a> {
    /// Counts the call and chooses its fault.
    fn begin(
        injector: &'a FaultInjector,
        operation: Operation,
        queue: Option<&'a QueueName>,
    ) -> Self {
        let fault = injector.count(operation);
        Self {
            injector,
            operation,
            queue,
            fault,
        }
    }

    fn is_duplicated(&self) -> bool {
        self.fault == Some(Fault::Duplicated)
    }

    fn loses_answer(&self) -> bool {
        self.fault == Some(Fault::AnswerLost)
    }

    /// Returns the number of messages to receive if the call asks for `max`.
    fn receives(&self, max: usize) -> usize {
        match self.fault {
            Some(Fault::Surplus(more)) => {
                self.record();
                max.saturating_add(more)
            }
            _ => max,
        }
    }

    /// Hides the messages of puts for longer, if that is the call's fault.
    fn hide_longer<'m>(&self, puts: impl IntoIterator<Item = &'m mut NewMessage>) {
        let Some(Fault::VisibleLater(by)) = &self.fault else {
            return;
        };
        let mut hidden = 0;
        for message in puts {
            message.delay = message.delay.saturating_add(*by);
            hidden += 1;
        }
        if hidden > 0 {
            self.record();
        }
    }

    /// Returns the result of `carry_out`, or the injected error in its place.
    async fn answer<T>(&self, carry_out: impl Future<Output = T>) -> Result<T> {
        match &self.fault {
            None
            | Some(
                Fault::Duplicated
                | Fault::VisibleLater(_)
                | Fault::LeaseLost(_)
                | Fault::Surplus(_),
            ) => Ok(carry_out.await),
            Some(Fault::Panics) => {
                self.record();
                panic!("injected fault: the backend panics")
            }
            Some(Fault::Delayed(by)) => {
                self.record();
                tokio::time::sleep(*by).await;
                Ok(carry_out.await)
            }
            Some(Fault::Stalled) => {
                self.stall().await;
                Ok(carry_out.await)
            }
            Some(Fault::AnswerStalled) => {
                let answer = carry_out.await;
                self.stall().await;
                Ok(answer)
            }
            Some(Fault::AnswerLost) => {
                drop(carry_out.await);
                Err(self.lost("the answer was lost"))
            }
            Some(Fault::RequestLost) => Err(self.lost("the request was lost")),
            Some(Fault::Refused(kind)) => Err(self.refused(*kind)),
            Some(Fault::Throttled(after)) => {
                let error = self.refused(ErrorKind::Throttled);
                Err(error.with_retry(RetryAdvice::Throttled(*after)))
            }
        }
    }

    /// Records the fault, and returns the error of a call without an answer.
    fn lost(&self, what: &str) -> Error {
        self.record();
        self.error(ErrorKind::Unreachable, format!("injected fault: {what}"))
            .with_outcome(Outcome::Unknown)
    }

    /// Carries out the puts once more, and records the fault if there were any.
    async fn duplicate<I>(&self, puts: I)
    where
        I: IntoIterator<Item = (QueueName, NewMessage), IntoIter: Send>,
    {
        let mut duplicates = 0;
        for (queue, message) in puts {
            let put = self.injector.inner().put(&queue, message);
            duplicates += usize::from(put.await.is_ok());
        }
        if duplicates > 0 {
            self.record();
        }
    }

    /// Has another client receive the message, if the call's fault is a lost lease.
    async fn take_away(&self, queue: &QueueName, id: &StorageId, receipt: &PopReceipt) {
        let Some(Fault::LeaseLost(held_for)) = &self.fault else {
            return;
        };
        let backend = self.injector.inner();
        let at_once = PutBackPlace::After(Duration::ZERO);
        let visible = backend.put_back(queue, id, receipt, at_once, None);
        if visible.await.is_err() {
            return;
        }
        let mut ahead = Vec::new();
        while let Ok(received) = backend.receive(queue, 1, *held_for).await {
            match received.into_iter().next() {
                Some(message) if message.id == *id => {
                    self.record();
                    break;
                }
                Some(message) => ahead.push(message),
                None => break,
            }
        }
        for other in ahead {
            let kept = PutBackPlace::Kept;
            let release = backend.put_back(queue, &other.id, &other.receipt, kept, None);
            // A message that cannot be released becomes visible again after `held_for`.
            let _ = release.await;
        }
    }

    fn refused(&self, kind: ErrorKind) -> Error {
        self.record();
        let error = self.error(kind, "injected fault".to_owned());
        match kind {
            ErrorKind::Unreachable => error.unsent(),
            _ => error,
        }
    }

    fn error(&self, kind: ErrorKind, detail: String) -> Error {
        let error = Error::new(kind, self.operation).with_detail(detail);
        match self.queue {
            Some(queue) => error.with_queue(queue),
            None => error,
        }
    }

    async fn stall(&self) {
        // Subscribed before the fault is recorded, so that a release after that is not missed.
        let mut release = self.injector.next_release();
        self.record();
        let released = release.changed().await;
        released.expect("the injector holds the sender");
    }

    fn record(&self) {
        if let Some(fault) = self.fault.clone() {
            self.injector.record(self.operation, fault);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_of_several_operations_is_unknown_where_each_is_answered() {
        let error = || Error::new(ErrorKind::Unreachable, Operation::Apply);
        let done = |count| OpOutcomes::from(vec![OpOutcome::Deleted; count]);
        for (atomicity, completed) in [(Atomicity::InOrder, 2), (Atomicity::Atomic, 0)] {
            let lost = last_answer_lost(Ok(done(3)), atomicity, error());
            assert_eq!((lost.index, lost.completed.len()), (2, completed));
        }
        let failed = ApplyError::new(1, done(1), error());
        let lost = last_answer_lost(Err(failed), Atomicity::InOrder, error());
        assert_eq!((lost.index, lost.completed.len()), (1, 1));
    }
}
