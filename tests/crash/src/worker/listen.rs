use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use queue_runtime::{
    Batch, Disposition, Failure, Handler, ListenerEventKind, ListenerHandle, Message, MessageId,
    Queue, Received, RetryPolicy, batch,
};
use tokio::sync::broadcast::error::RecvError;
use tokio::task::JoinHandle;

use super::keys::{self, Keys};
use super::{Desk, packs, work};
use crate::ledger::{Event, Lease};
use crate::messages::{CrashOrder, LEASE, Named, Receipt};

/// Longer than any handler, on the slowest machine too.
pub(super) const GRACE: Duration = Duration::from_secs(30);

/// How long a message waits for others of its batch.
const TOGETHER: Duration = Duration::from_millis(20);

/// The runs of messages in a listener that may still be settled.
type Held = Arc<Mutex<HashMap<MessageId, Runs>>>;

/// The runs of a message, usually one. Several copies of a message may run at once, and others may be settled without a
/// run. Events do not tell copies apart.
#[derive(Debug, Default)]
struct Runs(Vec<Run>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Run {
    /// Distinguishes the run from all others of the process: copies may have been inserted at the same moment.
    number: u64,
    name: String,
    lease: Lease,
    /// Whether the message is to be completed, once its handler has ended.
    completes: Option<bool>,
    /// Whether an event may have told that the run was not settled. The listener completes a message whose handler has
    /// succeeded without another run when it receives it again, which the process cannot tell from the settlement of
    /// this run.
    is_doubtful: bool,
}

/// A run, until its handler has ended.
struct Running {
    held: Held,
    id: MessageId,
    number: u64,
    completes: bool,
}

/// How messages are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// As `work` does.
    Usual,
    /// As `work` does, several at a time; some batches fail as a whole.
    Batches,
    /// In all ways in which an item of a pack can end.
    Packs,
    /// One at a time; a deadly message ends the process.
    Alone,
    /// Messages of one key one at a time, if the listener knows the keys.
    Keys { are_known: bool },
}

impl Desk {
    /// Runs a listener whose messages are retried soon, and seldom become poison, until the end of the input.
    pub(super) async fn listen<M: Message>(&self, handler: impl Handler<M>) {
        let listener = self.service.listener(handler);
        let listener = listener
            .max_in_flight(8)
            .retry(RetryPolicy::fixed(Duration::from_millis(20)))
            .poison_threshold(1_000)
            .start()
            .expect("the settings are valid");
        self.stopping().await;
        listener.shutdown(GRACE).await;
    }
}

/// Runs listeners for orders and receipts, shuts them down at the end of the input, and reports what they have used.
pub(super) async fn run(desk: Arc<Desk>, style: Style) {
    let (orders, noting_orders) = start(&desk, desk.service.queue::<CrashOrder>(), style);
    let (receipts, noting_receipts) = start(&desk, desk.service.queue::<Receipt>(), style);
    desk.stopping().await;
    tokio::join!(orders.shutdown(GRACE), receipts.shutdown(GRACE));
    for noting in [noting_orders, noting_receipts] {
        noting.await.expect("no panic");
    }
    #[cfg(target_os = "linux")]
    println!("{}", crate::usage::Usage::of_this_process());
}

fn start<M: Named + Sync>(
    desk: &Arc<Desk>,
    queue: Queue<M>,
    style: Style,
) -> (ListenerHandle, JoinHandle<()>) {
    let (held, keys) = (Held::default(), Keys::default());
    let (holding, working) = (Arc::clone(&held), Arc::clone(desk));
    let handler = move |received: Received<M>| {
        let (held, desk, keys) = (Arc::clone(&holding), Arc::clone(&working), keys.clone());
        async move {
            let running = Running::begin(&held, &received);
            let returned = match style {
                Style::Usual | Style::Batches => work::on(&desk, &received).await,
                Style::Packs => packs::on(&desk, &received).await,
                Style::Alone => packs::alone(&desk, &received),
                Style::Keys { .. } => keys::on(&desk, &keys, &received).await,
            };
            running.end(&returned);
            returned
        }
    };
    let (holding, working) = (Arc::clone(&held), Arc::clone(desk));
    let together = move |batch: Batch<M>| {
        let (held, desk) = (Arc::clone(&holding), Arc::clone(&working));
        async move { several(&held, &desk, &batch).await }
    };
    let listener = match style {
        Style::Batches => queue.listener(batch(together).size(4).max_wait(TOGETHER)),
        _ => queue.listener(handler),
    };
    let listener = listener
        .max_in_flight(8)
        .retry(RetryPolicy::fixed(Duration::from_millis(50)))
        .create_queue();
    let listener = match style {
        Style::Usual | Style::Batches => listener,
        Style::Packs => listener.handler_timeout(2 * LEASE).max_pack_hold(3 * LEASE),
        Style::Alone => {
            let listener = listener.max_in_flight(1).poison_threshold(packs::ATTEMPTS);
            // A process that stands still for a lease would pay for that with an attempt.
            listener.visibility_timeout(10 * LEASE)
        }
        Style::Keys { are_known } => {
            // Of two dequeue tasks, either may be the first to start what it has received.
            let listener = listener.max_in_flight(64).tasks(1);
            if are_known {
                listener.one_at_a_time_by(keys::key)
            } else {
                listener
            }
        }
    };
    let mut events = listener.events();
    let listener = listener.start().expect("the settings are valid");
    let desk = Arc::clone(desk);
    let noting = tokio::spawn(async move {
        loop {
            match events.recv().await {
                Ok(event) => note(&desk, &held, &event.kind),
                // An entry less to check.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            }
        }
    });
    (listener, noting)
}

impl Running {
    /// Notes that a run of a message begins. In batches, a run may begin several times.
    fn begin<M: Named>(held: &Held, received: &Received<M>) -> Self {
        static BEGUN: AtomicU64 = AtomicU64::new(0);
        let number = BEGUN.fetch_add(1, Relaxed);
        let id = received.envelope().id.clone();
        let run = Run {
            number,
            name: received.name().to_owned(),
            lease: work::lease(received),
            completes: None,
            is_doubtful: false,
        };
        let mut runs = lock(held);
        runs.entry(id.clone()).or_default().0.push(run);
        Self {
            held: Arc::clone(held),
            id,
            number,
            completes: false,
        }
    }

    fn end(mut self, returned: &Disposition) {
        self.completes = matches!(returned, Disposition::Complete(_));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut held = lock(&self.held);
        let Some(Runs(runs)) = held.get_mut(&self.id) else {
            return;
        };
        if let Some(run) = runs.iter_mut().find(|run| run.number == self.number) {
            run.completes = Some(self.completes);
        }
    }
}

impl Runs {
    /// Returns what an event says of the runs. A run counts as completed only if no other can be meant; any that may have
    /// ended without completion counts as not settled, as far as the process knows.
    fn settle(&mut self, event: Event) -> Vec<(Event, Run)> {
        let Self(runs) = self;
        let completed = |run: &Run| run.completes == Some(true);
        if event == Event::Completed {
            let mut of = (0..runs.len()).filter(|at| completed(&runs[*at]));
            if let (Some(one), None) = (of.next(), of.next())
                && !runs[one].is_doubtful
            {
                return vec![(event, runs.swap_remove(one))];
            }
        }
        let event = match event {
            Event::Poisoned if runs.len() == 1 => event,
            _ => Event::Unsettled,
        };
        let ended = runs.iter().map(|run| (event, run.clone())).collect();
        // A run that is to be completed may have been meant, or not.
        runs.retain(|run| run.completes != Some(false));
        for run in runs.iter_mut().filter(|run| completed(run)) {
            run.is_doubtful = true;
        }
        ended
    }
}

/// Handles a batch, unless it fails as a whole.
async fn several<M: Named + Sync>(
    held: &Held,
    desk: &Desk,
    batch: &Batch<M>,
) -> Result<Vec<Disposition>, Failure> {
    let running = batch.iter().map(|received| Running::begin(held, received));
    let running: Vec<_> = running.collect();
    if batch.len() > 1 && desk.dice() < 20 {
        return Err(Failure::retry("the batch failed by chance"));
    }
    let each = batch.iter().map(|received| work::on(desk, received));
    let returned = join_all(each).await;
    let ended = running.into_iter().zip(&returned);
    ended.for_each(|(running, returned)| running.end(returned));
    Ok(returned)
}

fn note(desk: &Desk, held: &Held, event: &ListenerEventKind) {
    let (id, event) = match event {
        ListenerEventKind::Completed { id, .. } => (id, Event::Completed),
        ListenerEventKind::Poisoned { id, .. } => (id, Event::Poisoned),
        ListenerEventKind::NotSettled { id, .. }
        | ListenerEventKind::Retried { id, .. }
        | ListenerEventKind::Released { id }
        | ListenerEventKind::Postponed { id, .. } => (id, Event::Unsettled),
        _ => return,
    };
    let ended = {
        let mut held = lock(held);
        let Some(runs) = held.get_mut(id) else {
            return;
        };
        let ended = runs.settle(event);
        if runs.0.is_empty() {
            held.remove(id);
        }
        ended
    };
    for (event, run) in ended {
        desk.ledger.write(event, &run.name, run.lease);
    }
}

fn lock(held: &Held) -> MutexGuard<'_, HashMap<MessageId, Runs>> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Event::{Completed, Poisoned, Unsettled};

    /// A run of a copy that was inserted then.
    fn run(inserted: i64, completes: Option<bool>) -> Run {
        Run {
            number: 0,
            name: "a".to_owned(),
            lease: Lease {
                inserted,
                dequeued: 1,
            },
            completes,
            is_doubtful: false,
        }
    }

    /// What an event says of which copies, and which may still be settled.
    fn settled(runs: &[Run], event: Event) -> (Vec<(Event, i64)>, Vec<i64>) {
        let mut runs = Runs(runs.to_vec());
        let said = runs.settle(event).into_iter();
        let said = said.map(|(event, run)| (event, run.lease.inserted));
        (
            said.collect(),
            runs.0.iter().map(|run| run.lease.inserted).collect(),
        )
    }

    #[test]
    fn an_event_is_of_the_only_run_that_it_can_be_of() {
        let [running, done, failed] = [(1, None), (2, Some(true)), (3, Some(false))]
            .map(|(inserted, completes)| run(inserted, completes));
        let one = settled(&[running.clone(), done.clone(), failed.clone()], Completed);
        assert_eq!(one, (vec![(Completed, 2)], vec![1, 3]));
        assert_eq!(
            settled(std::slice::from_ref(&failed), Unsettled),
            (vec![(Unsettled, 3)], vec![])
        );
        assert_eq!(
            settled(std::slice::from_ref(&failed), Poisoned),
            (vec![(Poisoned, 3)], vec![])
        );
        let others = settled(&[running, failed], Completed);
        assert_eq!(others, (vec![(Unsettled, 1), (Unsettled, 3)], vec![1]));
    }

    #[test]
    fn an_event_that_may_be_of_another_copy_says_nothing_for_certain() {
        let both = [run(1, Some(true)), run(2, Some(true))];
        let unsettled = vec![(Unsettled, 1), (Unsettled, 2)];
        for event in [Completed, Unsettled, Poisoned] {
            assert_eq!(settled(&both, event), (unsettled.clone(), vec![1, 2]));
        }
        // A copy that was not handled may have been released.
        let one = settled(&both[..1], Unsettled);
        assert_eq!(one, (vec![(Unsettled, 1)], vec![1]));
    }

    #[test]
    fn a_completion_after_a_failed_settlement_may_be_of_a_later_receive_without_a_run() {
        let mut runs = Runs(vec![run(1, Some(true))]);
        for event in [Unsettled, Completed] {
            let said = runs.settle(event);
            let said: Vec<_> = said.iter().map(|(event, _)| *event).collect();
            assert_eq!(said, [Unsettled]);
        }
    }
}
