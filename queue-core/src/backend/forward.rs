//! [`Backend`] for smart pointers to a backend, and the forwarding of single methods.

use std::sync::Arc;

use super::contract::Backend;

/// Implements methods of [`Backend`](crate::backend::Backend) by those of another backend, within an impl:
/// `forward_backend!(self => self.inner; all but receive apply);` for a layer that changes two methods.
///
/// A layer whose promises each new method could break lists what it forwards, as in
/// `forward_backend!(self => self.inner; peek clear);`, and has the lint `clippy::missing_trait_methods` report what it
/// neither forwards nor implements. The default of a method that is not forwarded would bypass the inner backend's own
/// method.
///
/// `#[async_trait]` does not see into a macro, so the methods are what it would make of an `async fn`.
#[macro_export]
macro_rules! forward_backend {
    (@capabilities $self:ident, $inner:expr) => {
        fn capabilities(&$self) -> &$crate::backend::Capabilities {
            $inner.capabilities()
        }
    };
    (@queue_uri $self:ident, $inner:expr) => {
        fn queue_uri(&$self, queue: &$crate::QueueName) -> ::std::string::String {
            $inner.queue_uri(queue)
        }
    };
    (@notifier $self:ident, $inner:expr) => {
        fn notifier(&$self) -> Option<::std::sync::Arc<dyn $crate::notify::Notifier>> {
            $inner.notifier()
        }
    };
    (@results $self:ident, $inner:expr) => {
        fn results(&$self) -> Option<::std::sync::Arc<dyn $crate::idempotency::ResultStore>> {
            $inner.results()
        }
    };
    (@payload_store $self:ident, $inner:expr) => {
        fn payload_store(
            &$self,
            container: &str,
        ) -> $crate::Result<Option<::std::sync::Arc<dyn $crate::payload_store::PayloadStore>>> {
            $inner.payload_store(container)
        }
    };
    (@sharded $self:ident, $inner:expr) => {
        fn sharded(&$self) -> Option<&dyn $crate::backend::Sharded> {
            $inner.sharded()
        }
    };
    (@transactions $self:ident, $inner:expr) => {
        fn transactions(&$self) -> Option<::std::sync::Arc<dyn $crate::backend::Transactions>> {
            $inner.transactions()
        }
    };
    (@introduce $self:ident, $inner:expr) => {
        fn introduce(&$self, client: &$crate::ClientId) {
            $inner.introduce(client);
        }
    };
    (@create_queue $self:ident, $inner:expr) => {
        $crate::forward_backend! { @async $self, $inner;
            create_queue<'q, 'm>(queue: &'q $crate::QueueName, metadata: &'m $crate::backend::Metadata)
                -> $crate::Result<$crate::backend::Created> }
    };
    (@delete_queue $self:ident, $inner:expr) => {
        $crate::forward_backend! { @async $self, $inner;
            delete_queue<'q>(queue: &'q $crate::QueueName) -> $crate::Result<()> }
    };
    (@list_queues $self:ident, $inner:expr) => {
        $crate::forward_backend! { @async $self, $inner;
            list_queues<'p>(prefix: &'p str) -> $crate::Result<Vec<$crate::QueueName>> }
    };
    (@properties $self:ident, $inner:expr) => {
        $crate::forward_backend! { @async $self, $inner;
            properties<'q>(queue: &'q $crate::QueueName)
                -> $crate::Result<$crate::backend::QueueProperties> }
    };
    (@metadata $self:ident, $inner:expr) => {
        $crate::forward_backend! { @async $self, $inner;
            metadata<'q>(queue: &'q $crate::QueueName) -> $crate::Result<$crate::backend::Metadata> }
    };
    (@set_metadata $self:ident, $inner:expr) => {
        $crate::forward_backend! { @async $self, $inner;
            set_metadata<'q, 'm>(queue: &'q $crate::QueueName, metadata: &'m $crate::backend::Metadata)
                -> $crate::Result<()> }
    };
    (@receive $self:ident, $inner:expr) => {
        $crate::forward_backend! { @async $self, $inner;
            receive<'q>(queue: &'q $crate::QueueName, max: usize, visibility: ::std::time::Duration)
                -> $crate::Result<Vec<$crate::backend::ReceivedMessage>> }
    };
    (@peek $self:ident, $inner:expr) => {
        $crate::forward_backend! { @async $self, $inner;
            peek<'q>(queue: &'q $crate::QueueName, max: usize)
                -> $crate::Result<Vec<$crate::backend::PeekedMessage>> }
    };
    (@browse $self:ident, $inner:expr) => {
        $crate::forward_backend! { @async $self, $inner;
            browse<'q, 'f>(
                queue: &'q $crate::QueueName,
                from: Option<&'f $crate::backend::PageMark>,
                max: usize
            ) -> $crate::Result<$crate::backend::Page> }
    };
    (@find $self:ident, $inner:expr) => {
        $crate::forward_backend! { @async $self, $inner;
            find<'q, 'i>(queue: &'q $crate::QueueName, id: &'i $crate::MessageId, max: usize)
                -> $crate::Result<Vec<$crate::backend::BrowsedMessage>> }
    };
    (@locate $self:ident, $inner:expr) => {
        $crate::forward_backend! { @async $self, $inner;
            locate<'i>(id: &'i $crate::MessageId, max: usize)
                -> $crate::Result<Vec<$crate::backend::Located>> }
    };
    (@attachment $self:ident, $inner:expr) => {
        $crate::forward_backend! { @async $self, $inner;
            attachment<'q, 'i, 'p>(
                queue: &'q $crate::QueueName,
                id: &'i $crate::backend::StorageId,
                stored: Option<&'p $crate::wire::StoredPayload>,
                from: u64
            ) -> $crate::Result<$crate::backend::AttachmentPart> }
    };
    (@clear $self:ident, $inner:expr) => {
        $crate::forward_backend! { @async $self, $inner;
            clear<'q>(queue: &'q $crate::QueueName) -> $crate::Result<()> }
    };
    (@apply $self:ident, $inner:expr) => {
        $crate::forward_backend! { @async $self, $inner;
            apply<>(ops: $crate::backend::Ops)
                -> $crate::Result<$crate::backend::OpOutcomes, $crate::backend::ApplyError> }
    };
    (@async $self:ident, $inner:expr;
        $method:ident<$($life:lifetime),*>($($argument:ident: $type:ty),*) -> $output:ty
    ) => {
        fn $method<'s, $($life,)* 'async_trait>(
            &'s $self,
            $($argument: $type),*
        ) -> $crate::clock::BoxFuture<'async_trait, $output>
        where
            's: 'async_trait,
            $($life: 'async_trait,)*
            Self: 'async_trait,
        {
            $inner.$method($($argument),*)
        }
    };
    (@unless capabilities [capabilities $($but:ident)*] $self:ident, $inner:expr) => {};
    (@unless queue_uri [queue_uri $($but:ident)*] $self:ident, $inner:expr) => {};
    (@unless sharded [sharded $($but:ident)*] $self:ident, $inner:expr) => {};
    (@unless notifier [notifier $($but:ident)*] $self:ident, $inner:expr) => {};
    (@unless results [results $($but:ident)*] $self:ident, $inner:expr) => {};
    (@unless payload_store [payload_store $($but:ident)*] $self:ident, $inner:expr) => {};
    (@unless transactions [transactions $($but:ident)*] $self:ident, $inner:expr) => {};
    (@unless introduce [introduce $($but:ident)*] $self:ident, $inner:expr) => {};
    (@unless create_queue [create_queue $($but:ident)*] $self:ident, $inner:expr) => {};
    (@unless delete_queue [delete_queue $($but:ident)*] $self:ident, $inner:expr) => {};
    (@unless list_queues [list_queues $($but:ident)*] $self:ident, $inner:expr) => {};
    (@unless properties [properties $($but:ident)*] $self:ident, $inner:expr) => {};
    (@unless metadata [metadata $($but:ident)*] $self:ident, $inner:expr) => {};
    (@unless set_metadata [set_metadata $($but:ident)*] $self:ident, $inner:expr) => {};
    (@unless receive [receive $($but:ident)*] $self:ident, $inner:expr) => {};
    (@unless peek [peek $($but:ident)*] $self:ident, $inner:expr) => {};
    (@unless attachment [attachment $($but:ident)*] $self:ident, $inner:expr) => {};
    (@unless browse [browse $($but:ident)*] $self:ident, $inner:expr) => {};
    (@unless find [find $($but:ident)*] $self:ident, $inner:expr) => {};
    (@unless locate [locate $($but:ident)*] $self:ident, $inner:expr) => {};
    (@unless clear [clear $($but:ident)*] $self:ident, $inner:expr) => {};
    (@unless apply [apply $($but:ident)*] $self:ident, $inner:expr) => {};
    (@unless $method:ident [$other:ident $($but:ident)*] $self:ident, $inner:expr) => {
        $crate::forward_backend! { @unless $method [$($but)*] $self, $inner }
    };
    (@unless $method:ident [] $self:ident, $inner:expr) => {
        $crate::forward_backend! { @$method $self, $inner }
    };
    (@but $but:tt $self:ident, $inner:expr; $($method:ident)*) => {
        $($crate::forward_backend! { @unless $method $but $self, $inner })*
    };
    ($self:ident => $inner:expr; all but $($but:ident)*) => {
        $crate::forward_backend! { @but [$($but)*] $self, $inner;
            capabilities queue_uri sharded notifier results payload_store transactions introduce create_queue
            delete_queue list_queues properties metadata set_metadata receive peek attachment browse find locate clear apply }
    };
    ($self:ident => $inner:expr; $($method:ident)*) => {
        $($crate::forward_backend! { @$method $self, $inner })*
    };
}

/// Implements [`Backend`] for a pointer, with all methods of the backend behind it.
macro_rules! forward_pointer {
    ($pointer:ident) => {
        // Fails if a method is missing in the list behind `all but`.
        #[deny(clippy::missing_trait_methods)]
        impl<B: Backend + ?Sized> Backend for $pointer<B> {
            forward_backend!(self => (**self); all but);
        }
    };
}

forward_pointer!(Arc);
forward_pointer!(Box);
