//! The rate of a queue, for the services of several processes on one database.

use std::time::{Duration, Instant};

use queue_runtime::Received;
use queue_runtime::policy::Rate;
use queue_tests::orders::ShopOrder;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::bank::Bank;

const MESSAGES: u32 = 150;
const BURST: usize = 10;
const LISTENERS: usize = 3;

async fn tell(handled: UnboundedSender<u32>, order: Received<ShopOrder>) {
    handled.send(order.number).expect("the test goes on");
}

/// A slow machine handles the messages later, never earlier.
#[tokio::test(flavor = "multi_thread")]
async fn services_on_a_database_share_a_rate() {
    let bank = Bank::open().await;
    let mut services = Vec::new();
    for _ in 0..LISTENERS {
        services.push(bank.other_service().await);
    }
    let orders = services[0].queue::<ShopOrder>().any();
    orders.create().await.expect("created");
    let rate = Rate::per_second(100).burst(BURST);
    orders.set_rate(Some(rate)).await.expect("set");
    let numbers = (0..MESSAGES).map(|number| ShopOrder { number });
    services[0].submit_all(numbers).await.expect("submitted");

    let (send, mut handled) = unbounded_channel();
    let began = Instant::now();
    let listeners = services.iter().map(|service| {
        let listener = service.listener_with(send.clone(), tell);
        listener.start().expect("starts")
    });
    let listeners: Vec<_> = listeners.collect();
    let mut numbers = Vec::new();
    for _ in 0..MESSAGES {
        numbers.push(handled.recv().await.expect("handled"));
    }
    let took = began.elapsed();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..MESSAGES));
    // Each listener may hold what the rate gives in 50 ms.
    let at_once = BURST + 5 * LISTENERS;
    let least = Duration::from_millis(10) * (MESSAGES - at_once as u32 - 1);
    assert!(took >= least, "{took:?} for {MESSAGES}");
    for listener in listeners {
        listener.shutdown(Duration::from_secs(60)).await;
    }
}
