use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use queue_runtime::{ListenerEventKind, ListenerHandle, MessageId, Queue, Received, RetryPolicy};
use tokio::sync::broadcast::error::RecvError;
use tokio::task::JoinHandle;

use super::{Desk, packs, work};
use crate::ledger::{Event, Lease};
use crate::messages::{LEASE, Named, Order, Receipt};

/// Longer than any handler, on the slowest machine too.
pub(super) const GRACE: Duration = Duration::from_secs(30);

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
    /// In all ways in which an item of a pack can end.
    Packs,
    /// One at a time. A deadly one ends the process.
    Alone,
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

fn start<M: Named>(
    desk: &Arc<Desk>,
    queue: Queue<M>,
    style: Style,
) -> (ListenerHandle, JoinHandle<()>) {
    let held = Held::default();
    let (holding, working) = (Arc::clone(&held), Arc::clone(desk));
    let handler = move |received: Received<M>| {
        let (held, desk) = (Arc::clone(&holding), Arc::clone(&working));
        async move {
            let lease = work::lease(&received);
            let entry = (received.name().to_owned(), lease);
            let id = received.envelope().id.clone();
            lock(&held).entry(id).or_default().begun.push(entry);
            match style {
                Style::Usual => work::on(&desk, &received).await,
                Style::Packs => packs::on(&desk, &received).await,
                Style::Alone => packs::alone(&desk, &received),
            }
        }
    };
    let listener = queue
        .listener(handler)
        .max_in_flight(8)
        .retry(RetryPolicy::fixed(Duration::from_millis(50)))
        .create_queue();
    let listener = match style {
        Style::Usual => listener,
        Style::Packs => listener.handler_timeout(2 * LEASE).max_pack_hold(3 * LEASE),
        Style::Alone => listener.max_in_flight(1).poison_threshold(packs::ATTEMPTS),
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
