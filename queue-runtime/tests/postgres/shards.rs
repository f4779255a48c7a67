//! A queue over shards on two servers.

use std::sync::Arc;

use queue_runtime::backend::{Backend, PostgresBackend};
use queue_runtime::clock::SystemClock;
use queue_runtime::sharded::Shards;
use queue_runtime::{QueueService, Received};
use queue_tests::orders::ShopOrder;
use queue_tests::postgres::PostgresServer;
use tokio::sync::mpsc::unbounded_channel;

use crate::bank::GUARD;

const ORDERS: u32 = 200;

async fn open(server: &PostgresServer) -> Arc<PostgresBackend> {
    let opened = PostgresBackend::open(server.url(), Arc::new(SystemClock::new())).await;
    Arc::new(opened.expect("opens"))
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_server_stopped_the_other_goes_on_and_nothing_is_lost() {
    let mut servers = [(); 2].map(|()| PostgresServer::start().expect("it starts"));
    let [first, second] = [open(&servers[0]).await, open(&servers[1]).await];
    let backends: [Arc<dyn Backend>; 2] = [first, Arc::clone(&second) as _];
    let service = QueueService::sharded(backends, Shards::new(4));
    let service = service.connect().await.expect("connects");
    let orders = (0..ORDERS).map(|number| ShopOrder { number });
    service.submit_all(orders).await.expect("submitted");
    let client = queue_runtime::postgres::connect(&*second).await;
    let count = "SELECT count(*) FROM queues.messages";
    let counted = client.expect("a connection").query_one(count, &[]).await;
    let on_second: i64 = counted.expect("counted").get(0);
    let on_first = i64::from(ORDERS) - on_second;
    assert!(on_first > 0 && on_second > 0, "{on_first} and {on_second}");

    servers[1].stop().expect("it stops");
    let (send, mut handled) = unbounded_channel();
    let listener = service.listener(move |order: Received<ShopOrder>| {
        let told = send.send(order.number);
        async move { told.expect("the test goes on") }
    });
    let listener = listener.start().expect("starts");
    let mut receive = async |numbers: &mut Vec<u32>, until: usize| {
        while numbers.len() < until {
            let one = tokio::time::timeout(GUARD, handled.recv()).await;
            numbers.push(one.expect("in time").expect("the listener goes on"));
        }
    };
    let mut numbers = Vec::new();
    receive(&mut numbers, on_first as usize).await;
    let further = service.submit(ShopOrder { number: ORDERS }).await;
    further.expect("a shard of the other server takes it");

    servers[1].crash().expect("it starts again");
    receive(&mut numbers, ORDERS as usize + 1).await;
    listener.shutdown(GUARD).await;
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..=ORDERS), "each is handled once");
}
