//! What a message waits for, leased, before its handler is called, by rules that the listener does not have itself: its
//! [`Door`]s.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::future::ready;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt as _;
use queue_core::clock::BoxFuture;
use queue_core::internal::LockExt as _;
use queue_core::wire::Body;
use queue_core::{Envelope, Failure, Message};

use crate::kernel::panic::{CaughtPanic, catch, catch_async};
use crate::kernel::receive::Incoming;

/// What leased messages wait for before their handler is called, besides the limits that a listener has itself: a
/// maintenance window, a free licence, a turn. For [`ListenerBuilder::door`](crate::ListenerBuilder::door).
///
/// A message that waits keeps its lease, and a place in half of the room in flight. A message that finds no place there,
/// or has waited for a visibility timeout, is put back for up to 30 s; one that waits when its listener stops is put back
/// in its place. Neither counts the attempt. Bare bodies cannot record that, and wait as long as it takes.
///
/// ```
/// use queue_runtime::listener::{Arriving, Door, Wait};
/// use queue_runtime::{Failure, Message, Received, testing};
/// use tokio::sync::watch;
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// # async fn ship(_: Received<Order>) {}
///
/// /// Orders wait while the warehouse is closed.
/// struct Warehouse(watch::Receiver<bool>);
///
/// impl Door for Warehouse {
///     fn arrive(&self, _: &Arriving<'_>) -> Result<Option<Wait>, Failure> {
///         let mut is_open = self.0.clone();
///         Ok(Some(Wait::until(async move {
///             // An error says that nobody can open it any more.
///             let _ = is_open.wait_for(|is_open| *is_open).await;
///         })))
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let service = testing::service().await;
/// # service.submit(Order { number: 7 }).await?;
/// let (open, is_open) = watch::channel(false);
/// let listener = service.listener(ship).door(Warehouse(is_open)).start()?;
/// # tokio::time::sleep(std::time::Duration::from_secs(5)).await;
/// # assert_eq!((listener.info().completed, listener.info().parked), (0, 1));
/// open.send(true)?;
/// # assert_eq!(testing::drain([&listener]).await?.completed(), 1);
/// # Ok(())
/// # }
/// ```
pub trait Door: Send + Sync + 'static {
    /// Returns what this message waits for, if for anything. Called once the message is received, and must be quick.
    ///
    /// # Errors
    /// The failure of the message's attempt. A panic is a failed attempt, too, also one of what the message waits for.
    fn arrive(&self, message: &Arriving<'_>) -> Result<Option<Wait>, Failure>;

    /// Whether [`arrive`](Self::arrive) needs the payload. A message whose payload is stored elsewhere, or compressed, then
    /// arrives when that has been read, and others before their attempt begins. The default is no.
    fn needs_payload(&self) -> bool {
        false
    }

    /// Whether messages are let in in the order of their receives. They arrive in that order then, by one
    /// [task](crate::ListenerBuilder::tasks) at a time, and a message that has a place to wait is not put back, however long
    /// it waits. The default is no.
    fn keeps_order(&self) -> bool {
        false
    }

    /// Called before any message arrives, when a listener starts: once for each type of its messages. `shared` is the same for
    /// all doors of the listener.
    fn start(&self, shared: &SharedState) {
        let _ = shared;
    }
}

/// A message that arrives at a [`Door`].
#[derive(Debug, Clone, Copy)]
pub struct Arriving<'a> {
    envelope: &'a Envelope,
    body: &'a Body,
}

impl<'a> Arriving<'a> {
    pub(super) fn new(incoming: &'a Incoming) -> Self {
        Self {
            envelope: &incoming.envelope,
            body: &incoming.body,
        }
    }

    /// Returns the message's envelope.
    pub fn envelope(&self) -> &'a Envelope {
        self.envelope
    }

    /// Decodes the message. `None` if that fails, or the payload is not there; see [`Door::needs_payload`].
    pub fn decode<M: Message>(&self) -> Option<M> {
        self.body.decode().ok()
    }
}

/// How a message waits before a [`Door`]. Dropped unfinished if the message gives up.
pub struct Wait {
    pub(super) opens: BoxFuture<'static, Result<Pass, Failure>>,
    /// What is kept from the arrival on.
    pub(super) held: Option<Pass>,
    /// How many messages are before this one, if they are let in one after the other.
    pub(super) line: Option<usize>,
}

/// What is kept for a message until its handler has ended.
pub(crate) type Pass = Box<dyn Send>;

impl Wait {
    /// The message is let in when `opens` completes. What that returns, such as a permit, is dropped when the handler has
    /// ended, or the message is put back.
    pub fn until<T: Send + 'static>(opens: impl Future<Output = T> + Send + 'static) -> Self {
        Self {
            opens: Box::pin(async move {
                let opened = catch_async(opens).await;
                let opened = opened.map_err(|panic| panicked(&panic))?;
                Ok(Box::new(opened) as Pass)
            }),
            held: None,
            line: None,
        }
    }

    /// Has the message wait as long as the handler may run, in a line, if half of the room in flight has room for the
    /// messages `before` it. `turn` is dropped when the handler has ended, or the message is put back.
    pub fn in_line(mut self, before: usize, turn: impl Send + 'static) -> Self {
        self.line = Some(before);
        self.held = Some(Box::new(turn));
        self
    }
}

impl Wait {
    /// Whether the message is let in now.
    pub(super) fn is_over(&mut self) -> bool {
        let Some(pass) = self.opens.as_mut().now_or_never() else {
            return false;
        };
        self.opens = Box::pin(ready(pass));
        true
    }
}

impl fmt::Debug for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wait")
            .field("line", &self.line)
            .finish_non_exhaustive()
    }
}

/// What the [`Door`]s of one listener share, one value of each type.
#[derive(Debug, Default)]
pub struct SharedState(Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>);

impl SharedState {
    /// Returns the value of this type, which is the default at first.
    pub fn get<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        let mut values = self.0.hold();
        let value = values
            .entry(TypeId::of::<T>())
            .or_insert_with(|| Arc::<T>::default());
        Arc::clone(value).downcast().expect("it is of its type")
    }
}

/// The doors of the messages of one type, in their order.
#[derive(Clone, Default)]
pub(crate) struct Doors {
    doors: Vec<(Option<&'static str>, Arc<dyn Door>)>,
    /// Held while a message arrives: it has the same place in all lines of a listener.
    arriving: Arc<Mutex<()>>,
    need_payload: bool,
    keep_order: bool,
}

impl Doors {
    pub(crate) fn add(&mut self, door: impl Door) {
        self.push((None, Arc::new(door)));
    }

    /// Adds a door in place of an earlier one of this name.
    pub(crate) fn set(&mut self, name: &'static str, door: impl Door) {
        self.doors.retain(|(other, _)| *other != Some(name));
        self.push((Some(name), Arc::new(door)));
    }

    fn push(&mut self, door: (Option<&'static str>, Arc<dyn Door>)) {
        self.need_payload |= door.1.needs_payload();
        self.keep_order |= door.1.keeps_order();
        self.doors.push(door);
    }

    /// Returns these doors, and then those of the listener.
    pub(super) fn then(mut self, listener: &Self) -> Self {
        for door in &listener.doors {
            self.push(door.clone());
        }
        self.arriving = Arc::clone(&listener.arriving);
        self
    }

    pub(super) fn start(&self, shared: &SharedState) {
        self.doors.iter().for_each(|(_, door)| door.start(shared));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.doors.is_empty()
    }

    pub(super) fn need_payload(&self) -> bool {
        self.need_payload
    }

    pub(super) fn keep_order(&self) -> bool {
        self.keep_order
    }

    /// Has a message arrive at each door. What it waits for comes first where it has a place in a line: holding anything else,
    /// it would keep those before it from that.
    ///
    /// # Errors
    /// The failure of its attempt.
    pub(super) fn arrive(&self, message: &Arriving<'_>) -> Result<Vec<Wait>, Failure> {
        let arrive = |(_, door): &(_, Arc<dyn Door>)| {
            let arrived = catch(|| door.arrive(message));
            let arrived = arrived.unwrap_or_else(|panic| Err(panicked(&panic)));
            arrived.transpose()
        };
        let _arriving = self.arriving.hold();
        let waits = self.doors.iter().filter_map(arrive);
        let mut waits = waits.collect::<Result<Vec<_>, _>>()?;
        waits.sort_by_key(|wait| wait.line.is_none());
        Ok(waits)
    }
}

fn panicked(panic: &CaughtPanic) -> Failure {
    format!("a door of the listener panicked: {panic}").into()
}
