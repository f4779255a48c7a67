//! Records in a ledger what a process does with packs, and aborts it at points that are about them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use queue_core::backend::{
    ApplyError, Backend, ItemSet, NewMessage, Op, OpOutcomes, Ops, ReceivedMessage, StorageId,
};
use queue_core::internal::forward_backend;
use queue_core::wire::{Body, Pack, Payload};
use queue_core::{QueueName, Result};

use super::Marks;
use crate::ledger::{Entry, Event, Lease, Ledger, moment};
use crate::messages::{CrashOrder, Receipt};
use crate::sabotage::{Bug, Point};

/// A backend whose use of packs is recorded.
#[derive(Debug)]
pub struct Observed {
    inner: Arc<dyn Backend>,
    ledger: Arc<Ledger>,
    marks: Marks,
    bug: Option<Bug>,
    open: Mutex<HashMap<StorageId, Opened>>,
}

/// A pack that was received.
#[derive(Debug, Clone)]
struct Opened {
    lease: Lease,
    /// The names of the items, deleted ones included.
    names: Vec<String>,
    /// Whether an earlier receive ended without a record, so that the pack is split.
    is_split: bool,
}

/// An item that becomes a message of its own.
struct Leaving {
    name: String,
    /// The receive of the pack, if this process has one.
    lease: Lease,
    /// Whether the pack is split.
    is_split: bool,
    /// Whether the item stays on its queue.
    stays: bool,
}

impl Observed {
    /// Observes a backend.
    #[must_use]
    pub fn new(
        inner: Arc<dyn Backend>,
        ledger: Arc<Ledger>,
        marks: Marks,
        bug: Option<Bug>,
    ) -> Self {
        Self {
            inner,
            ledger,
            marks,
            bug,
            open: Mutex::default(),
        }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<StorageId, Opened>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pass(&self, point: Option<Point>) {
        if let Some(point) = point {
            point.pass(self.bug);
        }
    }

    fn leaving(&self, queue: &QueueName, message: &NewMessage) -> Option<Leaving> {
        let name = message.moved.then(|| name(&message.body)).flatten()?;
        let open = self.open();
        let with_it = open.values().filter(|pack| pack.names.contains(&name));
        let pack = with_it.max_by_key(|pack| pack.lease);
        let (lease, is_split) = pack
            .map(|pack| (pack.lease, pack.is_split))
            .unwrap_or_default();
        let stays = !queue.as_str().ends_with("-poison");
        Some(Leaving {
            name,
            lease,
            is_split,
            stays,
        })
    }

    /// The points around puts of messages, of which these leave a pack.
    fn points<'a>(
        leaving: &[Leaving],
        puts: impl IntoIterator<Item = &'a NewMessage>,
    ) -> Option<(Point, Point)> {
        let is_pack = |message: &NewMessage| Pack::find(&message.body).is_some();
        if puts.into_iter().any(is_pack) {
            return Some((Point::BeforePackPut, Point::AfterPackPut));
        }
        let first = leaving.iter().find(|one| one.stays)?;
        Some(if first.is_split {
            (Point::BeforeSplit, Point::AfterSplit)
        } else {
            (Point::BeforeLeaving, Point::AfterLeaving)
        })
    }

    fn note_leaving(&self, event: Event, leaving: &[Leaving]) {
        let at = moment();
        let which = leaving
            .iter()
            .filter(|one| event == Event::Moving || one.stays);
        let entries = which.map(|one| Entry {
            at,
            event,
            name: one.name.clone(),
            lease: one.lease,
        });
        self.ledger.note(&entries.collect::<Vec<_>>());
    }

    /// Records packs that were received; returns whether there are any.
    fn opened(&self, received: &[ReceivedMessage]) -> bool {
        let (mut entries, mut any) = (Vec::new(), false);
        for message in received {
            let Some(Contents {
                names,
                mut deleted,
                explained,
            }) = contents(&message.body)
            else {
                continue;
            };
            any = true;
            deleted.insert_all(&message.deleted_items);
            let lease = Lease {
                inserted: message.inserted_at.as_microsecond(),
                dequeued: message.dequeue_count,
            };
            let there = (0..).zip(&names).filter(|(at, _)| !deleted.contains(*at));
            entries.extend(there.map(|(_, name)| Entry {
                at: moment(),
                event: Event::Opened,
                name: name.clone(),
                lease,
            }));
            let opened = Opened {
                lease,
                names,
                is_split: message.dequeue_count > explained + 1,
            };
            self.open().insert(message.id.clone(), opened);
        }
        self.ledger.note(&entries);
        any
    }

    /// Carries out the write of a body, passes the points of a pack's, and notes what the pack says then.
    async fn write<T, E>(
        &self,
        id: &StorageId,
        body: Option<&Bytes>,
        gives_back: bool,
        write: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let pack = self.open().get(id).cloned();
        let written = body.and_then(contents).map(|contents| contents.deleted);
        let points = match &written {
            Some(_) if gives_back => Some((Point::BeforeGiveBack, Point::AfterGiveBack)),
            Some(marks) if !marks.is_empty() => Some((Point::BeforeMark, Point::AfterMark)),
            _ => None,
        };
        let began = moment();
        self.pass(points.map(|points| points.0));
        let done = write.await?;
        self.pass(points.map(|points| points.1));
        if let Some(pack) = pack
            && self.marks == Marks::InHeader
        {
            let marks = written.unwrap_or_default();
            let entry = |(at, name): (u32, String)| {
                let (at, event) = if marks.contains(at) {
                    (moment(), Event::Marked)
                } else {
                    (began, Event::Kept)
                };
                Entry {
                    at,
                    event,
                    name,
                    lease: pack.lease,
                }
            };
            let entries = (0..).zip(pack.names).map(entry);
            self.ledger.note(&entries.collect::<Vec<_>>());
        }
        Ok(done)
    }
}

/// What a pack says.
struct Contents {
    names: Vec<String>,
    deleted: ItemSet,
    /// The number of earlier receives of which the pack knows how they ended.
    explained: usize,
}

fn contents(body: &Bytes) -> Option<Contents> {
    let event = Pack::find(body)?;
    let Payload::Pack(pack) = &event.payload else {
        return None;
    };
    let items = pack.open().expect("a pack of ours");
    let names = items.iter().map(|item| name(item).expect("one of ours"));
    let attempts = &event.envelope.attempts;
    Some(Contents {
        names: names.collect(),
        deleted: pack.deleted().clone(),
        explained: attempts.failures + attempts.forgiven,
    })
}

fn name(body: &Bytes) -> Option<String> {
    let body = Body::read(body, usize::MAX);
    let order = body.decode::<CrashOrder>().map(|order| order.name);
    let receipt = || body.decode::<Receipt>().map(|receipt| receipt.name);
    order.or_else(|_| receipt()).ok()
}

#[async_trait]
impl Backend for Observed {
    forward_backend!(self => self.inner; all but receive apply);

    async fn receive(
        &self,
        queue: &QueueName,
        max: usize,
        visibility: Duration,
    ) -> Result<Vec<ReceivedMessage>> {
        let received = self.inner.receive(queue, max, visibility).await?;
        if self.opened(&received) {
            self.pass(Some(Point::AfterPackReceive));
        }
        Ok(received)
    }

    async fn apply(&self, mut ops: Ops) -> Result<OpOutcomes, ApplyError> {
        let update = match &mut ops[..] {
            [
                Op::Renew {
                    id,
                    visibility,
                    body,
                    ..
                },
            ] => Some((id, *visibility, body)),
            [
                Op::PutBack {
                    id, place, body, ..
                },
            ] => Some((id, place.delay(), body)),
            _ => None,
        };
        if let Some((id, visibility, body)) = update {
            let forgets = self.bug == Some(Bug::ForgetsMarks) && !visibility.is_zero();
            if forgets && self.open().get(id).is_some() {
                *body = None;
            }
            let (id, body) = (id.clone(), body.clone());
            let update = self.inner.apply(ops);
            let gives_back = visibility.is_zero();
            return self.write(&id, body.as_ref(), gives_back, update).await;
        }
        if matches!(ops[..], [Op::Put { .. }, Op::Swap { .. }]) {
            return self.inner.apply(ops).await;
        }
        let puts = ops.iter().filter_map(|op| match op {
            Op::Put { queue, message } => Some((queue, message)),
            _ => None,
        });
        let leaving = puts
            .clone()
            .filter_map(|(queue, message)| self.leaving(queue, message));
        let leaving: Vec<Leaving> = leaving.collect();
        let settles = |op: &Op| matches!(op, Op::DeleteItems { .. });
        let points = match Self::points(&leaving, puts.map(|(_, message)| message)) {
            None if ops.iter().any(settles) => {
                Some((Point::BeforeItemSettled, Point::AfterItemSettled))
            }
            points => points,
        };
        self.note_leaving(Event::Moving, &leaving);
        self.pass(points.map(|points| points.0));
        let outcomes = self.inner.apply(ops).await?;
        self.note_leaving(Event::Moved, &leaving);
        self.pass(points.map(|points| points.1));
        Ok(outcomes)
    }
}
