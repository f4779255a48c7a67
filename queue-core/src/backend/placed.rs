//! Writes within a transaction of the one storage over which a backend spreads its queues.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::messages::{NewMessage, PopReceipt, PutReceipt, StorageId};
use super::queues::Metadata;
use super::transactions::{Completion, StorageTransaction, Transactions, Writes, Written};
use crate::error::{Error, Result};
use crate::name::QueueName;

/// How a backend places its queues and messages on the one storage beneath it, for transactions of that storage; from
/// [`Transactions::placement`].
pub trait Placement: fmt::Debug + Send + Sync {
    /// The engine of the storage.
    fn engine(&self) -> Arc<dyn Transactions>;

    /// The queue of the storage whose metadata says where messages are put.
    fn directory(&self) -> &QueueName;

    /// Returns messages with the queues of the storage on which they are put, by `directory` as the application's
    /// transaction sees it. `home` is the message that is completed together with the messages put, if there is one.
    ///
    /// # Errors
    /// If `directory` cannot be read, or a queue's name is invalid.
    fn place(
        &self,
        directory: &Metadata,
        puts: &[(QueueName, NewMessage)],
        home: Option<&StorageId>,
    ) -> Result<Vec<(QueueName, NewMessage)>>;

    /// Returns the queues of the storage that are created together with this queue, itself included. No queues are
    /// created for a [reply queue](QueueName::is_reply_queue).
    ///
    /// # Errors
    /// If the directory cannot be read.
    fn siblings(&self, directory: &Metadata, queue: &QueueName) -> Result<Vec<QueueName>>;

    /// Returns the queue, the id and the receipt that a message has in the storage.
    ///
    /// # Errors
    /// [`ErrorKind::MessageNotFound`](crate::ErrorKind::MessageNotFound) and
    /// [`ErrorKind::ReceiptMismatch`](crate::ErrorKind::ReceiptMismatch) if the backend cannot have given out `id` or
    /// `receipt`.
    fn locate(
        &self,
        queue: &QueueName,
        id: &StorageId,
        receipt: &PopReceipt,
    ) -> Result<(QueueName, StorageId, PopReceipt)>;

    /// Returns the receipt of a put on a queue of the storage as the backend gives it out.
    fn receipt(&self, queue: &QueueName, receipt: PutReceipt) -> PutReceipt;

    /// Returns an error of the storage as the backend reports it.
    fn error(&self, error: Error) -> Error;
}

impl dyn Transactions {
    /// Writes within a transaction of the engine `E`: through the placement, if there is one.
    ///
    /// # Errors
    /// Returns the writes if the storage has another engine.
    ///
    /// # Cancel safety
    /// The cancel safety of [`StorageTransaction::write`].
    pub fn write<E, T, W>(
        self: Arc<Self>,
        transaction: T,
        writes: W,
    ) -> Result<T::Output<W::Output>, W>
    where
        E: Transactions,
        T: StorageTransaction<E>,
        W: Writes,
    {
        let Some(placement) = self.placement() else {
            return match self.downcast() {
                Some(engine) => Ok(transaction.write(engine, writes)),
                None => Err(writes),
            };
        };
        match placement.engine().downcast() {
            Some(engine) => Ok(transaction.write(engine, Placed::new(placement, writes))),
            None => Err(writes),
        }
    }
}

/// Writes of a backend over the storage, as the storage's own engine carries them out.
struct Placed<W> {
    placement: Arc<dyn Placement>,
    writes: W,
    /// The places, known once the directory was read, or from the start if nothing is put.
    places: Option<Placing>,
}

struct Placing {
    directory: Metadata,
    puts: Vec<(QueueName, NewMessage)>,
    completed: Option<(QueueName, StorageId, PopReceipt)>,
}

impl<W: Writes> Placed<W> {
    fn new(placement: Arc<dyn Placement>, writes: W) -> Self {
        let mut placed = Self {
            placement,
            writes,
            places: None,
        };
        // Without puts, places do not matter; an error is found again with the directory.
        if placed.writes.puts().is_empty()
            && let Ok(completed) = placed.locate()
        {
            placed.places = Some(Placing {
                directory: Metadata::new(),
                puts: Vec::new(),
                completed,
            });
        }
        placed
    }

    fn locate(&self) -> Result<Option<(QueueName, StorageId, PopReceipt)>> {
        let locate =
            |Completion {
                 queue, id, receipt, ..
             }: Completion<'_>| { self.placement.locate(queue, id, &receipt) };
        self.writes.completion().map(locate).transpose()
    }

    fn place(&self, directory: Metadata) -> Result<Placing> {
        let completion = self.writes.completion();
        let home = completion.map(|completion| completion.id);
        let puts = self.placement.place(&directory, self.writes.puts(), home)?;
        Ok(Placing {
            directory,
            puts,
            completed: self.locate()?,
        })
    }

    fn end(self, result: Result<Written>) -> ControlFlow<W::Output, Self> {
        let Self {
            placement, writes, ..
        } = self;
        match writes.written(result) {
            ControlFlow::Break(output) => ControlFlow::Break(output),
            ControlFlow::Continue(changed) => ControlFlow::Continue(Self::new(placement, changed)),
        }
    }
}

impl<W: Writes> Writes for Placed<W> {
    type Output = W::Output;

    fn directory(&self) -> Option<&QueueName> {
        let is_wanted = self.places.is_none();
        is_wanted.then(|| self.placement.directory())
    }

    fn directed(mut self, directory: Result<Metadata>) -> ControlFlow<W::Output, Self> {
        match directory.and_then(|directory| self.place(directory)) {
            Ok(places) => {
                self.places = Some(places);
                ControlFlow::Continue(self)
            }
            Err(error) => self.end(Err(error)),
        }
    }

    fn puts(&self) -> &[(QueueName, NewMessage)] {
        self.places.as_ref().map_or(&[], |places| &places.puts)
    }

    fn siblings(&self, queue: &QueueName) -> Result<Vec<QueueName>> {
        match &self.places {
            Some(places) => self.placement.siblings(&places.directory, queue),
            None => Ok(vec![queue.clone()]),
        }
    }

    fn completion(&self) -> Option<Completion<'_>> {
        let (queue, id, receipt) = self.places.as_ref()?.completed.as_ref()?;
        let mut completion = self.writes.completion()?;
        (completion.queue, completion.id) = (queue, id);
        completion.receipt = receipt.clone();
        Some(completion)
    }

    fn written(self, result: Result<Written>) -> ControlFlow<W::Output, Self> {
        let placement = &self.placement;
        let result = match result {
            Ok(Written { receipts, mark }) => {
                let queues = self.puts().iter().map(|(queue, _)| queue);
                let receipts = queues.zip(receipts);
                let receipts = receipts.map(|(queue, receipt)| placement.receipt(queue, receipt));
                Ok(Written::new(receipts.collect(), mark))
            }
            Err(error) => Err(placement.error(error)),
        };
        self.end(result)
    }
}
