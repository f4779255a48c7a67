//! One operation within its deadline, and its state that the SDK's pipeline must not see or does not know: the pop
//! receipt, which it would log, and whether the request was sent.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use azure_core::http::{ClientMethodOptions, Context};
use queue_clock::KnownTimer;
use queue_core::backend::PopReceipt;
use queue_core::internal::{LockExt as _, debug_fields};
use queue_core::{Clock, Operation};

use super::failure::Failure;

/// Runs operations within their deadlines.
///
/// An operation that has missed its deadline gets twice as long the next time, so that one that is slow for a
/// reason, such as a large reply on a slow link, succeeds in the end. An answer within the first deadline restores
/// the deadline.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) clock: Arc<dyn Clock>,
    deadline: Duration,
    /// How often the deadline of an operation has been doubled.
    doubled: Mutex<HashMap<Operation, u32>>,
    timer: KnownTimer,
}

/// How often a deadline is doubled at most.
const MOST_DOUBLED: u32 = 3;

impl Caller {
    pub(super) fn new(clock: Arc<dyn Clock>, deadline: Duration) -> Self {
        Self {
            clock,
            deadline,
            doubled: Mutex::default(),
            timer: KnownTimer::default(),
        }
    }

    /// Runs one operation up to the last byte of its reply, or fails at the deadline.
    pub(super) async fn call<T, F>(
        &self,
        operation: Operation,
        receipt: Option<PopReceipt>,
        call: impl FnOnce(ClientMethodOptions<'static>) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = azure_core::Result<T>> + Send,
    {
        self.transfer(operation, receipt, 0, call).await
    }

    /// Runs an operation that moves this many bytes as [`call`](Self::call) does: it may take a second longer for each
    /// MiB.
    pub(super) async fn transfer<T, F>(
        &self,
        operation: Operation,
        receipt: Option<PopReceipt>,
        bytes: usize,
        call: impl FnOnce(ClientMethodOptions<'static>) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = azure_core::Result<T>> + Send,
    {
        if !self.timer.has_timer(&*self.clock) {
            return Err(Failure::NoTimer);
        }
        let state = Arc::new(CallState::new(receipt));
        let mut context = Context::new();
        context.insert(Arc::clone(&state));
        let answer = call(ClientMethodOptions { context });
        let doubled = self
            .doubled
            .hold()
            .get(&operation)
            .copied()
            .unwrap_or_default();
        let more = Duration::from_secs(bytes.div_ceil(1024 * 1024) as u64);
        let deadline = self.deadline.saturating_add(more);
        let deadline = deadline.saturating_mul(1 << doubled);
        let asked_at = self.clock.monotonic();
        tokio::select! {
            biased;
            answer = answer => {
                if self.clock.monotonic().saturating_sub(asked_at) < self.deadline {
                    self.doubled.hold().remove(&operation);
                }
                answer.map_err(Failure::from_sdk)
            }
            () = self.clock.sleep(deadline) => {
                self.missed(operation, doubled);
                Err(Failure::Deadline { after: deadline, sent: state.is_sent() })
            }
        }
    }

    /// Doubles the deadline of an operation, unless a concurrent call has done so.
    fn missed(&self, operation: Operation, doubled: u32) {
        let mut all = self.doubled.hold();
        let current = all.entry(operation).or_default();
        if *current == doubled {
            *current = (doubled + 1).min(MOST_DOUBLED);
        }
    }
}

/// The state of one call, carried by the pipeline's context to the transport.
pub(super) struct CallState {
    /// The receipt that replaces [`RECEIPT_PLACEHOLDER`].
    pub(super) receipt: Option<PopReceipt>,
    sent: AtomicBool,
}

/// A placeholder for the pop receipt in a URL, until the transport replaces it.
pub(super) const RECEIPT_PLACEHOLDER: &str = "held-back";

/// The header that carries an update's new receipt, under a name that no log treats as harmless.
pub(super) const NEW_RECEIPT_HEADER: &str = "x-held-back";

impl CallState {
    pub(super) fn new(receipt: Option<PopReceipt>) -> Self {
        Self {
            receipt,
            sent: AtomicBool::new(false),
        }
    }

    /// Records that the request may reach the service from now on.
    pub(super) fn mark_sent(&self) {
        self.sent.store(true, Ordering::Release);
    }

    pub(super) fn is_sent(&self) -> bool {
        self.sent.load(Ordering::Acquire)
    }
}

debug_fields!(CallState {});

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;
    use queue_clock::TokioClock;

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(10);

    fn caller() -> Caller {
        Caller::new(Arc::new(TokioClock::new()), DEADLINE)
    }

    /// Returns how many seconds a call takes whose answer comes after this time.
    async fn taken(caller: &Caller, operation: Operation, answer_after: u64) -> u64 {
        let started = caller.clock.monotonic();
        let pause = caller.clock.sleep(Duration::from_secs(answer_after));
        let call = caller.call(operation, None, async move |_| {
            pause.await;
            Ok(())
        });
        let answered = call.await.is_ok();
        let took = (caller.clock.monotonic() - started).as_secs();
        assert_eq!(answered, took == answer_after, "{took}");
        took
    }

    #[test]
    fn without_a_timer_nothing_is_sent() {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let error = runtime.expect("up").block_on(async {
            let caller = caller();
            let called = caller.call(Operation::Put, None, async |_| Ok(()));
            called.await.expect_err("no timer")
        });
        assert!(matches!(error, Failure::NoTimer), "{error:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_deadline_doubles_until_the_operation_succeeds() {
        let caller = caller();
        for deadline in [10, 20, 40, 80, 80] {
            assert_eq!(taken(&caller, Operation::Clear, 1000).await, deadline);
        }
        assert_eq!(taken(&caller, Operation::Clear, 70).await, 70);
        assert_eq!(taken(&caller, Operation::Clear, 1000).await, 80);
        assert_eq!(taken(&caller, Operation::Put, 1000).await, 10);
        assert_eq!(taken(&caller, Operation::Clear, 9).await, 9);
        assert_eq!(taken(&caller, Operation::Clear, 1000).await, 10);
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_calls_that_miss_it_double_it_once() {
        let caller = caller();
        let calls = (0..8).map(|_| taken(&caller, Operation::Receive, 1000));
        assert_eq!(join_all(calls).await, [10; 8]);
        assert_eq!(taken(&caller, Operation::Receive, 1000).await, 20);
    }
}
