//! What an idle listener asks Azurite for, in five real minutes.

use std::time::Duration;

use queue_runtime::Received;
use queue_runtime::meter::TransactionKind;
use queue_tests::orders::ShopOrder;

use crate::case::patient;
use crate::fault::Call;
use crate::proxy::Proxy;
use crate::server::{SERVER, runtime};

/// The pauses grow from a second to 30, of which a fifth may be taken off: 4 receives in the first 15 seconds at most, and
/// one in 24 after that.
const MOST: usize = 20;

#[test]
fn an_idle_listener_sends_the_receives_of_one_poller_and_nothing_else() {
    runtime().block_on(async {
        let proxy = Proxy::open(&SERVER).await;
        let service = patient(&proxy.connection_string()).await;
        let service = service.connect().await.expect("connect");
        let queue = service.queue_named("left-alone").expect("a name");
        let listener = queue
            .listener(async |_: Received<ShopOrder>| ())
            .create_queue();
        let listener = listener.start().expect("starts");
        let guard = listener.clone().stop_on_drop();
        while listener.info().last_success.is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let (before, seen) = (service.meter(), proxy.seen(Call::Receive).len());
        tokio::time::sleep(Duration::from_secs(300)).await;
        let used = service.meter().since(&before).total();
        let receives = used.of(TransactionKind::EmptyReceive);
        println!("idle for five minutes: {used}");
        assert_eq!(used.total(), receives, "{used}");
        assert!((1..=MOST).contains(&receives), "{used}");
        // One may be under way.
        let seen = proxy.seen(Call::Receive).len() - seen;
        assert!(seen.abs_diff(receives) <= 1, "{seen} seen, {used}");
        drop(guard);
    });
}
