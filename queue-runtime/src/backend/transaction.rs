use std::any::Any;

/// A transaction of the application's own connection to the storage, in which messages are submitted and completed.
///
/// With the feature `sqlite`, `rusqlite::Transaction` is one. A custom [`Backend`](super::Backend) with
/// [`Transactions`](super::Transactions) implements it for the transactions of its database, and gets the connection there:
///
/// ```
/// use std::any::Any;
/// use queue_runtime::backend::OpenTransaction;
///
/// struct Connection;
///
/// struct Transaction<'c> {
///     connection: &'c Connection,
/// }
///
/// impl OpenTransaction for Transaction<'_> {
///     fn connection(&self) -> &dyn Any {
///         self.connection
///     }
/// }
///
/// let connection = Connection;
/// let transaction = Transaction { connection: &connection };
/// assert!(transaction.connection().is::<Connection>());
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a transaction of a storage",
    label = "not a transaction",
    note = "with `sqlite:PATH`, it is a `rusqlite::Transaction` of the version in `queue_runtime::rusqlite`"
)]
pub trait OpenTransaction {
    /// Returns the connection, of the type that the backend documents.
    fn connection(&self) -> &dyn Any;
}

#[cfg(feature = "sqlite")]
impl OpenTransaction for queue_sqlite::rusqlite::Transaction<'_> {
    fn connection(&self) -> &dyn Any {
        let connection: &queue_sqlite::rusqlite::Connection = self;
        connection
    }
}
