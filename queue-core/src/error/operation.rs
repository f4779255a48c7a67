/// A storage operation.
///
/// ```
/// use queue_core::{Error, ErrorKind, Operation};
///
/// let error = Error::new(ErrorKind::Throttled, Operation::Receive);
/// assert_eq!(error.operation(), Operation::Receive);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names are those of methods")]
pub enum Operation {
    Open,
    CreateQueue,
    DeleteQueue,
    ListQueues,
    Properties,
    SetMetadata,
    Put,
    Receive,
    Peek,
    Browse,
    Update,
    Delete,
    Clear,
    Apply,
    Backup,
    /// An operation of a [`ResultStore`](crate::idempotency::ResultStore).
    Results,
    /// A read of an attachment, or of a [`PayloadStore`](crate::payload_store::PayloadStore).
    FetchData,
    /// A call that changes a [`PayloadStore`](crate::payload_store::PayloadStore).
    StoreData,
    /// A listing of a [`PayloadStore`](crate::payload_store::PayloadStore).
    ListData,
}

impl Operation {
    /// Whether the operation changes nothing, so that a repetition is always safe.
    ///
    /// ```
    /// use queue_core::Operation;
    ///
    /// assert!(Operation::Peek.only_reads());
    /// assert!(!Operation::Receive.only_reads(), "it leases messages");
    /// ```
    #[must_use]
    pub fn only_reads(self) -> bool {
        matches!(
            self,
            Self::ListQueues
                | Self::Properties
                | Self::Peek
                | Self::Browse
                | Self::FetchData
                | Self::ListData
        )
    }

    /// Verb phrases: for an operation on no queue in particular, and for one with the queue's name to follow.
    pub(super) fn phrases(self) -> (&'static str, &'static str) {
        match self {
            Self::Open => ("open the storage", "open the storage of"),
            Self::CreateQueue => ("create a queue", "create"),
            Self::DeleteQueue => ("delete a queue", "delete"),
            Self::ListQueues => ("list queues", "list queues like"),
            Self::Properties => ("read the properties of a queue", "read the properties of"),
            Self::SetMetadata => ("set the metadata of a queue", "set the metadata of"),
            Self::Put => ("put a message", "put a message on"),
            Self::Receive => ("receive messages", "receive from"),
            Self::Peek => ("peek at messages", "peek at"),
            Self::Browse => ("browse messages", "browse"),
            Self::Update => ("update a message", "update a message on"),
            Self::Delete => ("delete a message", "delete a message from"),
            Self::Clear => ("clear a queue", "clear"),
            Self::Apply => ("apply operations", "apply operations to"),
            Self::Backup => ("back up the storage", "back up"),
            Self::Results => ("use the result store", "use the result store of"),
            Self::FetchData => (
                "fetch the data of a message",
                "fetch the data of a message on",
            ),
            Self::StoreData => (
                "store the data of a message",
                "store the data of a message on",
            ),
            Self::ListData => ("list stored data", "list the stored data of"),
        }
    }
}
