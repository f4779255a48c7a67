//! A handler is a function: a test makes a message by hand, calls it and compares what it returns. A test of a workflow
//! has queues in memory and paused time, in which an hour passes at once.
//!
//! `cargo test -p tour --test handler`

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use queue_runtime::{Disposition, Failure, Message, Received, testing};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
struct Order {
    number: u32,
    item: String,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
struct Invoice {
    order: u32,
}

/// What the handler works with: a test gives it another one than the program.
#[derive(Default)]
struct Stock {
    teapots: AtomicU32,
}

impl Stock {
    fn take(&self) -> Result<(), Failure> {
        let less = |teapots: u32| teapots.checked_sub(1);
        let taken = self
            .teapots
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        let hour = Duration::from_secs(3600);
        taken
            .map(drop)
            .map_err(|_| Failure::retry_after(hour, "no teapot is left"))
    }
}

async fn ship(stock: Arc<Stock>, order: Received<Order>) -> Result<Disposition, Failure> {
    if order.item != "teapot" {
        return Err(Failure::reject(format!("we sell no {}", order.item)));
    }
    stock.take()?;
    Ok(Disposition::complete().then(&Invoice {
        order: order.number,
    }))
}

fn order(item: &str) -> Order {
    Order {
        number: 7,
        item: item.to_owned(),
    }
}

#[tokio::test]
async fn what_is_shipped_gets_an_invoice() {
    let stock = Arc::new(Stock { teapots: 1.into() });
    let shipped = ship(stock, testing::received(order("teapot")).build()).await;
    let invoice = Disposition::complete().then(&Invoice { order: 7 });
    assert_eq!(shipped.expect("there is one"), invoice);
}

#[tokio::test]
async fn an_unknown_item_is_rejected() {
    let refused = ship(Arc::default(), testing::received(order("samovar")).build()).await;
    assert_eq!(
        refused.expect_err("no teapot"),
        Failure::reject("we sell no samovar")
    );
}

#[tokio::test(start_paused = true)]
async fn an_order_waits_until_a_teapot_comes() {
    let service = testing::service().await;
    let stock = Arc::new(Stock::default());
    let listener = service
        .listener_with(stock.clone(), ship)
        .start()
        .expect("it starts");
    service.submit(order("teapot")).await.expect("submitted");

    let began = Instant::now();
    tokio::time::sleep(Duration::from_secs(60)).await;
    stock.teapots.store(1, Ordering::Relaxed);
    let drained = testing::drain([&listener]).await.expect("drained");
    assert_eq!((drained.completed(), drained.listeners[0].retried), (1, 1));
    assert!(began.elapsed() >= Duration::from_secs(3600));
    assert_eq!(service.submitted::<Invoice>(), [Invoice { order: 7 }]);
}
