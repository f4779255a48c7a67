use std::future::Future;
use std::time::Duration;

use queue_core::backend::{BackendExt as _, NewMessage, PopReceipt, StorageId};
use queue_core::{Error, ErrorKind, Operation, Outcome, QueueName, Result, RetryAdvice};

use super::fault::Fault;
use super::fault_injector::FaultInjector;

/// One call to a fault injector, and the fault that was chosen for it.
pub(super) struct Call<'a> {
    injector: &'a FaultInjector,
    operation: Operation,
    queue: Option<&'a QueueName>,
    fault: Option<Fault>,
}

impl<'a> Call<'a> {
    /// Counts the call and chooses its fault.
    pub(super) fn begin(
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

    pub(super) fn is_duplicated(&self) -> bool {
        self.fault == Some(Fault::Duplicated)
    }

    pub(super) fn loses_answer(&self) -> bool {
        self.fault == Some(Fault::AnswerLost)
    }

    /// Returns the number of messages to receive if the call asks for `max`.
    pub(super) fn receives(&self, max: u32) -> u32 {
        match self.fault {
            Some(Fault::Surplus(more)) => {
                self.record();
                max.saturating_add(more)
            }
            _ => max,
        }
    }

    /// Hides the messages of puts for longer, if that is the call's fault.
    pub(super) fn hide_longer<'m>(&self, puts: impl IntoIterator<Item = &'m mut NewMessage>) {
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
    pub(super) async fn answer<T>(&self, carry_out: impl Future<Output = T>) -> Result<T> {
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
    pub(super) fn lost(&self, what: &str) -> Error {
        self.record();
        self.error(ErrorKind::Unreachable, format!("injected fault: {what}"))
            .with_outcome(Outcome::Unknown)
    }

    /// Carries out the puts once more. Records the fault if there were any.
    pub(super) async fn duplicate<I>(&self, puts: I)
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
    pub(super) async fn take_away(&self, queue: &QueueName, id: &StorageId, receipt: &PopReceipt) {
        let Some(Fault::LeaseLost(held_for)) = &self.fault else {
            return;
        };
        let backend = self.injector.inner();
        let visible = backend.update(queue, id, receipt, Duration::ZERO, None);
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
            let release = backend.hand_back(queue, &other.id, &other.receipt, None);
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
        // Subscribed before it is recorded, so that a release after that is not missed.
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
