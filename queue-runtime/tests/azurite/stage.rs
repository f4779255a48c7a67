//! A service that uses a proxy, and its messages.

use std::io;
use std::time::Duration;

use queue_runtime::{Delivery, ListenerEvent, ListenerEventKind, Queue, QueueService};
use queue_tests::azurite::Azurite;
use queue_tests::orders::ShopOrder;
use tokio::sync::broadcast;

use crate::case::patient;
use crate::proxy::{GUARD, Proxy};
use crate::server::{ACCOUNT, SERVER, connection_string};

/// A visibility timeout that is short enough to wait for. Half of it exceeds the pauses of a busy machine.
pub(crate) const LEASE: Duration = Duration::from_secs(40);

/// A service that uses a proxy, and one that does not.
pub(crate) struct Stage {
    pub(crate) proxy: Proxy,
    pub(crate) proxied: QueueService,
    pub(crate) direct: QueueService,
    pub(crate) queue: &'static str,
}

impl Stage {
    pub(crate) async fn on(queue: &'static str) -> Self {
        let proxy = Proxy::open(&SERVER).await;
        let service = async |url: &str| patient(url).await.connect().await.expect("connect");
        Self {
            proxied: service(&proxy.connection_string()).await,
            direct: service(&connection_string()).await,
            proxy,
            queue,
        }
    }

    /// Returns the queue of the service that uses the proxy.
    pub(crate) fn proxied(&self) -> Queue<ShopOrder> {
        let queue = self.proxied.queue_named(self.queue);
        queue.expect("a name")
    }

    pub(crate) async fn submit(&self, number: u32) {
        let queue = self
            .direct
            .queue_named::<ShopOrder>(self.queue)
            .expect("a name");
        queue.submit(ShopOrder { number }).await.expect("submit");
    }

    pub(crate) async fn accept(&self, service: &QueueService) -> Delivery<ShopOrder> {
        let queue = service
            .queue_named::<ShopOrder>(self.queue)
            .expect("a name");
        let accepted = queue.accept().visibility_timeout(LEASE).wait(GUARD).await;
        accepted.expect("accept").expect("a message")
    }

    pub(crate) async fn count(&self) -> usize {
        let queue = self.direct.any_queue(self.queue).expect("a name");
        let properties = queue.properties().await.expect("properties");
        properties.approximate_count
    }
}

pub(crate) async fn next(
    events: &mut broadcast::Receiver<ListenerEvent>,
    mut wanted: impl FnMut(&ListenerEventKind) -> bool,
) -> ListenerEventKind {
    let found = async {
        loop {
            let event = events.recv().await.expect("the listener runs");
            if wanted(&event.kind) {
                return event.kind;
            }
        }
    };
    let found = tokio::time::timeout(GUARD, found).await;
    found.expect("in time")
}

/// Starts a service that keeps its messages when it stops.
pub(crate) fn durable() -> Azurite {
    Azurite::durable(&[ACCOUNT]).unwrap_or_else(|error| panic!("{error}"))
}

/// Stops, starts or restarts the service, which blocks a thread.
pub(crate) async fn changed(
    mut server: Azurite,
    change: fn(&mut Azurite) -> Result<(), io::Error>,
) -> Azurite {
    let changed = tokio::task::spawn_blocking(move || change(&mut server).map(|()| server));
    let changed = changed.await.expect("no panic");
    changed.unwrap_or_else(|error| panic!("{error}"))
}

/// Polls until the queue is empty; the service has no notification for it.
pub(crate) async fn until_empty(queue: &Queue<ShopOrder>) {
    let queue = queue.any();
    let empty = async {
        while queue
            .properties()
            .await
            .expect("properties")
            .approximate_count
            > 0
        {
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    };
    let emptied = tokio::time::timeout(GUARD, empty).await;
    emptied.expect("in time");
}
