//! What an idle listener costs on Azure in a day.

use std::sync::Arc;

use queue_runtime::clock::Clock;
use queue_runtime::meter::TransactionKind;
use queue_runtime::policy::StorageLimit;
use queue_runtime::testing::TokioClock;
use queue_runtime::{QueueService, Received};
use queue_tests::SECOND;
use queue_tests::orders::ShopOrder;
use tokio::time::sleep;

use crate::azure::throttled::{self, open, stub};

#[tokio::test(start_paused = true)]
async fn an_idle_listener_sends_the_receives_of_one_poller_and_nothing_else() {
    const DAY: u64 = 24 * 3600;

    let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
    let stub = stub("idle", &clock);
    let azure = Arc::new(open(&stub, &clock).await);
    let service = QueueService::with_backend(azure);
    let service = throttled::connect(service, &clock, StorageLimit::new()).await;
    let listener = service.listener(async |_: Received<ShopOrder>| ());
    let listener = listener.start().expect("starts");
    // The pauses have grown by then.
    sleep(120 * SECOND).await;
    let before = service.meter();
    sleep(DAY as u32 * SECOND).await;
    let used = service.meter().since(&before).total();
    let receives = used.of(TransactionKind::EmptyReceive);
    assert_eq!(used.total(), receives, "{used}");
    // 30 s times 0.8 to 1.2, extended to the next quarter of a second: 2,870 on average.
    assert!((2_750..=2_950).contains(&receives), "{used}");
    println!("idle for a day: {used}");
    listener.shutdown(60 * SECOND).await;
}
