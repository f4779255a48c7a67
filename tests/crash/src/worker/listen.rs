use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use queue_runtime::{
    Batch, Disposition, Failure, ListenerEventKind, ListenerHandle, MessageId, Queue, Received,
    RetryPolicy, batch,
};
use tokio::sync::broadcast::error::RecvError;
use tokio::task::JoinHandle;

use super::keys::{self, Keys};
use super::{Desk, packs, work};
use crate::ledger::{Event, Lease};
use crate::messages::{LEASE, Named, Order, Receipt};

/// Longer than any handler, on the slowest machine too.
pub(super) const GRACE: Duration = Duration::from_secs(30);

/// How long a message waits for others of its batch.
const TOGETHER: Duration = Duration::from_millis(20);

/// The messages that a listener has received.
type Held = Arc<Mutex<HashMap<MessageId, Runs>>>;

/// The runs of a message, usually one. Several copies of it may run at once, and events do not tell them apart.
#[derive(Debug, Default)]
struct Runs {
    begun: Vec<(String, Lease)>,
    ended: usize,
}

/// How messages are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// As `work` does.
    Usual,
    /// The same, several at a time. Some batches fail as a whole.
    Batches,
    /// In all ways in which an item of a pack can end.
    Packs,
    /// One at a time. A deadly one ends the process.
    Alone,
    /// Those of one key one at a time, if the listener knows the keys.
    Keys { are_known: bool },
}

/// Runs listeners for orders and receipts, and shuts them down at the end of the input. Then reports what they have
/// used.
pub(super) async fn run(desk: Arc<Desk>, style: Style) {
    let (orders, noting_orders) = start(&desk, desk.service.queue::<Order>(), style);
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
            begin(&held, &received);
            match style {
                Style::Usual | Style::Batches => work::on(&desk, &received).await,
                Style::Packs => packs::on(&desk, &received).await,
                Style::Alone => packs::alone(&desk, &received),
                Style::Keys { .. } => keys::on(&desk, &keys, &received).await,
            }
        }
    };
    let (holding, working) = (Arc::clone(&held), Arc::clone(desk));
    let together = move |batch: Batch<M>| {
        let (held, desk) = (Arc::clone(&holding), Arc::clone(&working));
        async move { several(&held, &desk, &batch).await }
    };
    let listener = match style {
        Style::Batches => queue.listener(batch(together).size(4).within(TOGETHER)),
        _ => queue.listener(handler),
    };
    let listener = listener
        .max_in_flight(8)
        .retry(RetryPolicy::fixed(Duration::from_millis(50)))
        .create_queue();
    let listener = match style {
        Style::Usual | Style::Batches => listener,
        Style::Packs => listener.handler_timeout(2 * LEASE).max_pack_hold(3 * LEASE),
        Style::Alone => listener.max_in_flight(1).poison_threshold(packs::ATTEMPTS),
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

/// Notes that a run of a message begins, which may be called several times in its batches.
fn begin<M: Named>(held: &Held, received: &Received<M>) {
    let entry = (received.name().to_owned(), work::lease(received));
    let id = received.envelope().id.clone();
    let mut held = lock(held);
    let runs = held.entry(id).or_default();
    if !runs.begun.contains(&entry) {
        runs.begun.push(entry);
    }
}

/// Handles a batch, unless it fails as a whole.
async fn several<M: Named + Sync>(
    held: &Held,
    desk: &Desk,
    batch: &Batch<M>,
) -> Result<Vec<Disposition>, Failure> {
    batch.iter().for_each(|received| begin(held, received));
    if batch.len() > 1 && desk.dice() < 20 {
        return Err(Failure::retry("the batch failed by chance"));
    }
    let each = batch.iter().map(|received| work::on(desk, received));
    Ok(join_all(each).await)
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
    // Each settlement is of one run. A message that is settled without one, because it is poison before that, or because
    // its work was done by a run that could not settle it, has no entry: its lease is not that of an earlier run.
    let begun = {
        let mut held = lock(held);
        let Some(runs) = held.get_mut(id) else {
            return;
        };
        runs.ended += 1;
        let begun = runs.begun.clone();
        if runs.ended >= begun.len() {
            held.remove(id);
        }
        begun
    };
    let is_certain = begun.len() == 1;
    for (name, lease) in begun {
        let event = if is_certain { event } else { Event::Unsettled };
        desk.ledger.write(event, &name, lease);
    }
}

fn lock(held: &Held) -> MutexGuard<'_, HashMap<MessageId, Runs>> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}
