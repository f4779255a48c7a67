use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use queue_core::backend::ReceivedMessage;
use queue_core::disposition::error_chain;
use queue_core::{DecodeError, Disposition, MessageId};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::crew::Crew;
use super::event::ListenerEvent;
use super::state::Counters;
use crate::dispose::{Fate, dispose, fail, panic_text, release, undecodable};
use crate::handler::ErasedHandler;
use crate::intake::{Incoming, Intake, Route, take_in};
use crate::policy::IdlePolicy;
use crate::service::{QueueService, Shared};
use crate::settle::SettleFailure;
use crate::terms::{Overrides, Terms};

/// How long a handler that was told to stop gets to reach an `await`.
const CANCEL_GRACE: Duration = Duration::from_secs(1);
/// How many handlers may block their threads for ever before they take up room in flight.
const MAX_STUCK: usize = 256;

/// What the parts of one listener share.
pub(super) struct Core {
    pub(super) service: QueueService,
    pub(super) route: Route,
    pub(super) overrides: Overrides,
    pub(super) handler: Arc<dyn ErasedHandler>,
    pub(super) idle: Arc<dyn IdlePolicy>,
    pub(super) batch: u32,
    pub(super) create_queue: bool,
    pub(super) permits: Arc<Semaphore>,
    pub(super) crew: Crew,
    /// The application's runtime, which handlers run inside.
    pub(super) runtime: Handle,
    pub(super) paused: watch::Receiver<bool>,
    /// Whether the queue is known to be missing.
    pub(super) missing: AtomicBool,
    /// No more receives.
    pub(super) stop: CancellationToken,
    /// No more handling: hand back what is left.
    pub(super) abort: CancellationToken,
    pub(super) tracker: TaskTracker,
    pub(super) counters: Counters,
    pub(super) events: broadcast::Sender<ListenerEvent>,
}

/// How a handler's run ended.
enum Ran {
    Answered(Disposition),
    Undecodable(DecodeError),
    Panicked(String),
    /// It was told to stop and was dropped at an `await`.
    CutOff(Stop),
    /// It was told to stop and still blocks its thread.
    Stuck(Stop, oneshot::Receiver<Ran>),
}

/// Why a handler was told to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    TimedOut,
    LeaseLost,
    Aborted,
}

/// Handles one message, from its receipt to its settlement.
pub(super) async fn run(
    core: Arc<Core>,
    message: ReceivedMessage,
    terms: Terms,
    asked_at: Duration,
    permit: OwnedSemaphorePermit,
) {
    core.counters.took_in();
    let shared = core.shared();
    // A handler that is told to stop when its time is up gets some grace, and the lease must outlast it.
    let renew_for = terms.handler_timeout.saturating_add(2 * CANCEL_GRACE);
    let incoming = Incoming::new(shared, &core.route, terms, message, asked_at, renew_for);
    let (id, mut attempt) = (incoming.envelope.id.clone(), incoming.attempt);
    let mut kept_permit = Some(permit);
    let fate = if core.stop.is_cancelled() {
        release(shared, &incoming).await
    } else {
        match take_in(shared, &core.route, incoming).await {
            Intake::Run(incoming) => {
                attempt = incoming.attempt;
                let incoming = Arc::new(incoming);
                let fate = handle(&core, &incoming, &mut kept_permit).await;
                incoming.lease.abandon();
                fate
            }
            Intake::Done { attempts, fate } => {
                attempt = attempts;
                fate
            }
        }
    };
    core.counters.let_go();
    core.report(id, attempt, fate);
}

async fn handle(
    core: &Arc<Core>,
    incoming: &Arc<Incoming>,
    permit: &mut Option<OwnedSemaphorePermit>,
) -> Result<Fate, SettleFailure> {
    let (shared, route) = (core.shared(), &core.route);
    match run_handler(core, incoming).await {
        Ran::Answered(disposition) => {
            // With follow-ups, both they and the deletion may be missing; only another run of the
            // handler makes them good.
            let done = matches!(&disposition, Disposition::Complete(more) if more.is_empty());
            let fate = dispose(shared, route, incoming, disposition).await;
            if done && fate.is_err() {
                shared.remembered.insert(&route.queue, incoming.lease.id());
            }
            fate
        }
        Ran::Undecodable(error) => undecodable(shared, route, incoming, &error).await,
        Ran::Panicked(text) => {
            fail(
                shared,
                route,
                incoming,
                None,
                &format!("the handler panicked: {text}"),
            )
            .await
        }
        Ran::CutOff(stop) => stopped(core, incoming, stop, "").await,
        Ran::Stuck(stop, end) => {
            watch_stuck(core, incoming, end, permit.take());
            stopped(core, incoming, stop, " and blocks its thread").await
        }
    }
}

/// Settles a message whose handler was told to stop and gave no answer.
async fn stopped(
    core: &Core,
    incoming: &Incoming,
    stop: Stop,
    remark: &str,
) -> Result<Fate, SettleFailure> {
    let (shared, route) = (core.shared(), &core.route);
    match stop {
        Stop::Aborted => release(shared, incoming).await,
        Stop::LeaseLost => Err(SettleFailure::LeaseLost(lease_lost(incoming))),
        Stop::TimedOut => {
            let timeout = incoming.terms.handler_timeout;
            let error = format!("the handler timed out after {timeout:?}{remark}");
            fail(shared, route, incoming, None, &error).await
        }
    }
}

/// Runs the handler on a thread of its own and stops it when its time is up.
async fn run_handler(core: &Core, incoming: &Arc<Incoming>) -> Ran {
    let cancel = core.abort.child_token();
    let (done, mut end) = oneshot::channel();
    let job = {
        let (handler, service) = (Arc::clone(&core.handler), core.service.clone());
        let (incoming, cancel) = (Arc::clone(incoming), cancel.clone());
        let runtime = core.runtime.clone();
        move || {
            let ran = call(&*handler, &service, &incoming, &cancel, &runtime);
            // Nobody waits any more if the listener's tasks were dropped with the service.
            let _ = done.send(ran);
        }
    };
    if let Err(error) = core.crew.run(job) {
        let error = format!("start a thread for the handler: {error}");
        return Ran::Answered(Disposition::retry(error));
    }
    let clock = &core.shared().clock;
    let stop = tokio::select! {
        ran = &mut end => return ran.unwrap_or(Ran::CutOff(Stop::Aborted)),
        () = clock.sleep(incoming.terms.handler_timeout) => Stop::TimedOut,
        () = incoming.lease.lost().cancelled() => Stop::LeaseLost,
        () = core.abort.cancelled() => Stop::Aborted,
    };
    cancel.cancel();
    tokio::select! {
        ran = &mut end => match ran {
            Ok(Ran::CutOff(_)) | Err(_) => Ran::CutOff(stop),
            Ok(answered) => answered,
        },
        () = clock.sleep(CANCEL_GRACE) => Ran::Stuck(stop, end),
    }
}

/// What runs on the handler's thread.
fn call(
    handler: &dyn ErasedHandler,
    service: &QueueService,
    incoming: &Incoming,
    cancel: &CancellationToken,
    runtime: &Handle,
) -> Ran {
    let run = || {
        let _inside = runtime.enter();
        let running = match handler.start(service, incoming, cancel.clone()) {
            Ok(running) => running,
            Err(error) => return Ran::Undecodable(error),
        };
        runtime.block_on(async {
            tokio::select! {
                biased;
                disposition = running => Ran::Answered(disposition),
                // Unless this token was cancelled for a reason that is known there, it is its parent.
                () = cancel.cancelled() => Ran::CutOff(Stop::Aborted),
            }
        })
    };
    catch_unwind(AssertUnwindSafe(run))
        .unwrap_or_else(|panic| Ran::Panicked(panic_text(&*panic).to_owned()))
}

/// Counts a handler that blocks its thread until it ends. Beyond [`MAX_STUCK`] it keeps its room in
/// flight, so that a handler that always blocks ends in a standstill that is reported rather than in
/// threads without number.
fn watch_stuck(
    core: &Arc<Core>,
    incoming: &Incoming,
    end: oneshot::Receiver<Ran>,
    permit: Option<OwnedSemaphorePermit>,
) {
    let stuck = core.counters.stuck.fetch_add(1, Ordering::Relaxed) + 1;
    let id = incoming.envelope.id.clone();
    tracing::error!(queue = %core.route.queue, %id, stuck, "a handler blocks its thread");
    core.publish(|| ListenerEvent::HandlerStuck { id });
    let kept = permit.filter(|_| stuck > MAX_STUCK);
    let watched = Arc::clone(core);
    core.shared().engine.spawn(async move {
        // An error says that the thread is gone, which ends it as well.
        let _ = end.await;
        watched.counters.stuck.fetch_sub(1, Ordering::Relaxed);
        drop(kept);
    });
}

fn lease_lost(incoming: &Incoming) -> queue_core::Error {
    queue_core::Error::new(
        queue_core::ErrorKind::ReceiptMismatch,
        queue_core::Operation::Update,
    )
    .with_queue(incoming.lease.queue())
    .with_detail("the lease was lost while the message was handled")
}

impl Core {
    pub(super) fn shared(&self) -> &Shared {
        &self.service.shared
    }

    /// Tells whoever subscribed; the event is made only if somebody did.
    pub(super) fn publish(&self, event: impl FnOnce() -> ListenerEvent) {
        if self.events.receiver_count() > 0 {
            // An error says that the last subscriber has just gone.
            let _ = self.events.send(event());
        }
    }

    fn report(&self, id: MessageId, attempt: u32, fate: Result<Fate, SettleFailure>) {
        let counters = &self.counters;
        let queue = &self.route.queue;
        match fate {
            Ok(Fate::Completed) => {
                counters.completed.fetch_add(1, Ordering::Relaxed);
                self.publish(|| ListenerEvent::Completed { id, attempt });
            }
            Ok(Fate::Retried { after }) => {
                counters.retried.fetch_add(1, Ordering::Relaxed);
                self.publish(|| ListenerEvent::Retried { id, attempt, after });
            }
            Ok(Fate::Poisoned(reason)) => {
                counters.poisoned.fetch_add(1, Ordering::Relaxed);
                self.publish(|| ListenerEvent::Poisoned {
                    id,
                    reason,
                    attempts: attempt,
                });
            }
            Ok(Fate::Released) => {
                counters.released.fetch_add(1, Ordering::Relaxed);
                self.publish(|| ListenerEvent::Released { id });
            }
            Ok(Fate::Parked { after }) => {
                counters.released.fetch_add(1, Ordering::Relaxed);
                tracing::info!(%queue, %id, ?after, "put a newer message back for a newer program");
                self.publish(|| ListenerEvent::Parked { id, after });
            }
            Err(SettleFailure::LeaseLost(error)) => {
                counters.unsettled.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%queue, %id, %error, "the lease was lost");
                self.publish(|| ListenerEvent::LeaseLost { id });
            }
            Err(SettleFailure::Expired(error)) => {
                counters.unsettled.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%queue, %id, %error, "a message expired while it was handled");
                self.publish(|| ListenerEvent::Expired { id });
            }
            Err(SettleFailure::Unknown(error) | SettleFailure::NotDone(error)) => {
                counters.unsettled.fetch_add(1, Ordering::Relaxed);
                let error = error_chain(&error);
                tracing::warn!(%queue, %id, error, "failed to settle a message");
                self.publish(|| ListenerEvent::NotSettled { id, error });
            }
        }
    }
}
