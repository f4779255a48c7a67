//! How messages are received: by hand, as a stream, or by listeners.

use std::sync::Arc;

use queue_core::Message;

use super::queue_service::QueueService;
use crate::listener::{ListenerBuilder, ListenerHandle, Router};
use crate::receive::{Accept, AcceptMany, Handler, HandlerWith, Messages, MissingQueue};

impl QueueService {
    /// Accepts one message from its type's queue, which is created if it does not exist. Configure the [`Accept`], then
    /// `.await` it.
    #[must_use = "nothing is accepted until this is awaited"]
    pub fn accept<M: Message>(&self) -> Accept<M> {
        self.queue::<M>().accept()
    }

    /// Accepts up to `max` messages from their type's queue, which is created if it does not exist: as many as there are,
    /// without waiting for more. It takes one receive for each
    /// [`max_receive`](crate::backend::Capabilities::max_receive) of the storage: 32 messages on Azure, 256 on SQLite.
    ///
    /// Each message is leased, renewed and settled on its own; [`complete_all`](crate::Delivery::complete_all) completes several at the cost of one
    /// where the storage allows that.
    ///
    /// ```
    /// use queue_runtime::{Delivery, Message, testing};
    /// # use serde::{Deserialize, Serialize};
    /// #
    /// # #[derive(Debug, Serialize, Deserialize, Message)]
    /// # struct Order {
    /// #     number: u32,
    /// # }
    /// #
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # async fn insert(_: impl Iterator<Item = u32>) -> Result<(), std::io::Error> { Ok(()) }
    /// let service = testing::service().await;
    /// service.submit_all((1..=100).map(|number| Order { number })).await?;
    ///
    /// let orders = service.accept_many::<Order>(64).await?;
    /// assert_eq!(orders.len(), 64);
    /// insert(orders.iter().map(|order| order.number)).await?;
    /// Delivery::complete_all(orders).await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "nothing is accepted until this is awaited"]
    pub fn accept_many<M: Message>(&self, max: u32) -> AcceptMany<M> {
        self.queue::<M>().accept_many(max)
    }

    /// Returns an endless stream of the messages of the type's queue, which is created if it does not exist. Up to `max`
    /// messages are received at once and wait in the stream. See [`Messages`]; for other settings,
    /// [`accept_many`](Self::accept_many) and [`into_stream`](crate::AcceptMany::into_stream).
    #[must_use = "nothing is accepted until the stream is polled"]
    pub fn messages<M: Message>(&self, max: u32) -> Messages<M> {
        self.queue::<M>().messages(max)
    }

    /// Returns a builder of a listener that handles the messages of the type's queue, which is created if it does not
    /// exist.
    // The compiler shows the line of the bound, and the comment on it, with each handler that does not fit.
    pub fn listener<M, H>(&self, handler: H) -> ListenerBuilder<M>
    where
        M: Message,
        H: Handler<M>, // with the application's state as first argument: `listener_with(state, handler)`
    {
        self.queue::<M>().listener(handler)
    }

    /// Returns a builder of a listener whose handler gets a clone of `state` with each message. A clone should
    /// cost little: put what is large behind an [`Arc`].
    ///
    /// ```
    /// use std::sync::Arc;
    /// use queue_runtime::{Message, Received, testing};
    /// use serde::{Deserialize, Serialize};
    /// use tokio::sync::Mutex;
    ///
    /// #[derive(Serialize, Deserialize, Message)]
    /// struct Payment {
    ///     amount: u64,
    /// }
    ///
    /// #[derive(Clone)]
    /// struct Shop {
    ///     revenue: Arc<Mutex<u64>>,
    /// }
    ///
    /// async fn book(shop: Shop, payment: Received<Payment>) {
    ///     *shop.revenue.lock().await += payment.amount;
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let service = testing::service().await;
    /// let shop = Shop { revenue: Arc::default() };
    /// service.submit_all([Payment { amount: 7 }, Payment { amount: 9 }]).await?;
    ///
    /// let listener = service.listener_with(shop.clone(), book).until_empty().start()?;
    /// assert_eq!(listener.drained().await.info.completed, 2);
    /// assert_eq!(*shop.revenue.lock().await, 16);
    /// # Ok(())
    /// # }
    /// ```
    pub fn listener_with<S, M, H>(&self, state: S, handler: H) -> ListenerBuilder<M>
    where
        M: Message,
        H: HandlerWith<S, M>,
    {
        self.queue::<M>().listener_with(state, handler)
    }

    /// Returns a builder of a listener for messages of several types on the queue with this name. See [`Router`].
    ///
    /// The queue is created if it does not exist and is the own queue of one of the types, or
    /// [`create_queue`](Router::create_queue) says so.
    pub fn router(&self, queue: &str) -> Router {
        let (context, listeners) = (&self.context, &self.running.listeners);
        let (context, listeners) = (Arc::clone(context), Arc::clone(listeners));
        Router::new(
            context,
            listeners,
            queue.parse(),
            MissingQueue::Report,
            None,
        )
    }

    /// Returns handles to the listeners of this service and its clones that have not stopped, in the order in which they
    /// were started.
    ///
    /// ```
    /// use std::time::Duration;
    /// use queue_runtime::{Message, Received, testing};
    /// # use serde::{Deserialize, Serialize};
    /// #
    /// # #[derive(Debug, Serialize, Deserialize, Message)]
    /// # #[message(queue = "orders")]
    /// # struct Order {
    /// #     number: u32,
    /// # }
    /// #
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # async fn ship(_: Received<Order>) {}
    /// let service = testing::service().await;
    /// service.listener(ship).start()?; // it runs without its handle
    ///
    /// let orders = service.listeners().remove(0);
    /// assert_eq!(orders.queue().as_str(), "orders");
    /// orders.shutdown(Duration::from_secs(30)).await;
    /// assert!(service.listeners().is_empty());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn listeners(&self) -> Vec<ListenerHandle> {
        self.running.listeners.running()
    }
}
