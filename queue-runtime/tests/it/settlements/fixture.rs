//! Parcels with an invoice each, and the stage of the tests of their settlement.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use queue_core::backend::Backend;
use queue_runtime::backend::MemoryBackend;
use queue_runtime::error::Operation;
use queue_runtime::receive::{SettleError, SettleErrorKind};
use queue_runtime::testing::{Fault, FaultInjector, TokioClock};
use queue_runtime::{
    Delivery, Disposition, ErrorKind, ListenerEvent, ListenerHandle, Message, QueueService,
    Received,
};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;

use crate::support::remote::Remote;
use crate::support::{NEVER, count};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
pub(crate) struct Parcel {
    pub(crate) weight: usize,
}

#[derive(Debug, Serialize, Deserialize, Message)]
pub(crate) struct Invoice {
    pub(crate) parcel: u32,
}

/// The visibility timeout of what a stage accepts.
pub(crate) const LEASE: Duration = Duration::from_secs(2);
pub(crate) const MOMENT: Duration = Duration::from_millis(1);

pub(crate) fn with_invoice() -> Disposition {
    Disposition::complete().then(&Invoice { parcel: 1 })
}

/// Submits a parcel, and creates the queues that it may lead to.
pub(crate) async fn submit_parcel(service: &QueueService) {
    let submitted = service.submit(Parcel { weight: 1 }).await;
    submitted.expect("submitted");
    for queue in ["invoice", "parcel-poison"] {
        let queue = service.any_queue(queue).expect("a name");
        queue.create().await.expect("created");
    }
}

/// A consumer behind faults, and another one without, in paused time. One parcel is queued.
pub(crate) struct Stage {
    pub(crate) service: QueueService,
    pub(crate) other: QueueService,
    pub(crate) faults: FaultInjector,
}

/// A listener that completes each parcel with its invoice.
pub(crate) struct Listening {
    pub(crate) handle: ListenerHandle,
    pub(crate) events: broadcast::Receiver<ListenerEvent>,
    runs: Arc<AtomicUsize>,
}

impl Stage {
    /// On a backend that is atomic and tells a stale receipt from a missing message.
    pub(crate) async fn local() -> Self {
        Self::with(|faults| Arc::new(faults)).await
    }

    /// On a backend that is and does neither.
    pub(crate) async fn remote() -> Self {
        Self::with(|faults| Arc::new(Remote::over(faults))).await
    }

    pub(crate) async fn with(backend: impl FnOnce(FaultInjector) -> Arc<dyn Backend>) -> Self {
        let clock = TokioClock::new();
        let memory = Arc::new(MemoryBackend::new(Arc::new(clock.clone())));
        let faults = FaultInjector::new(memory.clone());
        let connect = async |backend: Arc<dyn Backend>| {
            let service = QueueService::with_backend(backend).clock(Arc::new(clock.clone()));
            let service = service.on_current_runtime().connect().await;
            service.expect("connects")
        };
        let service = connect(backend(faults.clone())).await;
        let other = connect(memory).await;
        submit_parcel(&other).await;
        Self {
            service,
            other,
            faults,
        }
    }

    /// The next call meets the fault, and its repeat is refused, so that the settlement ends without an answer.
    pub(crate) fn leave_unanswered(&self, operation: Operation, fault: Fault) {
        self.faults.fail_next(1, operation, fault);
        let refused = Fault::Refused(ErrorKind::Denied);
        self.faults.fail_next(1, operation, refused);
    }

    pub(crate) async fn accept(&self) -> Delivery<Parcel> {
        let accept = self.service.accept().visibility_timeout(LEASE);
        accept.await.expect("no error").expect("a message")
    }

    /// Accepts what is visible to the other consumer.
    pub(crate) async fn accept_elsewhere(&self) -> Delivery<Parcel> {
        let accepted = self.other.accept().await.expect("no error");
        accepted.expect("the lease has ended")
    }

    pub(crate) fn listen(&self) -> Listening {
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&runs);
        let listener = self.service.listener(move |_: Received<Parcel>| {
            counted.fetch_add(1, Ordering::SeqCst);
            async { with_invoice() }
        });
        let listener = listener.visibility_timeout(LEASE).handler_timeout(NEVER);
        let events = listener.events();
        let handle = listener.start().expect("starts");
        Listening {
            handle,
            events,
            runs,
        }
    }

    /// The numbers of parcels and of invoices that are stored.
    pub(crate) async fn stored(&self) -> (usize, usize) {
        let parcels = count(&self.other, "parcel").await;
        (parcels, count(&self.other, "invoice").await)
    }
}

impl Listening {
    /// How often the handler has been called.
    pub(crate) fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }
}

/// Returns the delivery of a settlement of which nobody knows whether it was carried out.
#[track_caller]
pub(crate) fn unknown<T: Debug>(settled: Result<T, SettleError<Parcel>>) -> Delivery<Parcel> {
    failed(settled, |problem| {
        matches!(problem, SettleErrorKind::Unknown(_))
    })
}

/// Returns the delivery of a settlement that came after the end of the lease.
#[track_caller]
pub(crate) fn lease_lost<T: Debug>(settled: Result<T, SettleError<Parcel>>) -> Delivery<Parcel> {
    failed(settled, |problem| {
        matches!(problem, SettleErrorKind::LeaseLost(_))
    })
}

/// Returns the delivery of a settlement that was not carried out.
#[track_caller]
pub(crate) fn not_done<T: Debug>(settled: Result<T, SettleError<Parcel>>) -> Delivery<Parcel> {
    failed(settled, |problem| {
        matches!(problem, SettleErrorKind::NotDone(_))
    })
}

#[track_caller]
fn failed<T: Debug>(
    settled: Result<T, SettleError<Parcel>>,
    is_expected: fn(&SettleErrorKind) -> bool,
) -> Delivery<Parcel> {
    let error = settled.expect_err("it fails");
    assert!(is_expected(&error.kind), "{:?}", error.kind);
    error.delivery
}
