//! The meter of a service against a fake server: it counts each request that is sent, and no other.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use queue_runtime::clock::Clock;
use queue_runtime::meter::TransactionKind;
use queue_runtime::policy::{StorageLimit, StorageRetry};
use queue_runtime::testing::TokioClock;
use queue_runtime::{QueueService, Received};
use queue_tests::SECOND;
use queue_tests::orders::ShopOrder;
use tokio::time::sleep;

use crate::azure::responder::{Reply, Responder, answer, with};
use crate::azure::throttled::{self, Throttled};

const DEADLINE: Duration = Duration::from_secs(60);

/// The reply to each request: puts of messages find the service busy, and the second list fails.
fn reply(request: &str, lists: &AtomicUsize) -> String {
    let busy = "x-ms-error-code: ServerBusy\r\nRetry-After: 0\r\n";
    let list = "<EnumerationResults><Queues><Queue><Name>orders</Name></Queue></Queues>\
                <NextMarker/></EnumerationResults>";
    match request.split(' ').next() {
        Some("POST") => answer("503 Service Unavailable", busy, ""),
        Some("PUT") => answer("201 Created", "", ""),
        Some("GET") if request.contains("comp=list") => {
            match lists.fetch_add(1, Ordering::Relaxed) {
                0 => answer("200 OK", "", list),
                _ => answer("500 Internal Server Error", "", ""),
            }
        }
        Some("GET") if request.contains("comp=metadata") => {
            answer("200 OK", "x-ms-approximate-messages-count: 1\r\n", "")
        }
        Some("GET") => answer("200 OK", "", "<QueueMessagesList/>"),
        _ => answer("204 No Content", "", ""),
    }
}

#[test]
fn each_request_counts_and_only_once() {
    let lists = AtomicUsize::new(0);
    let responder = Responder::by(move |request| Reply::Send(reply(&request.first, &lists)));
    with(&responder.with_key(), DEADLINE, async |backend| {
        let service = QueueService::with_backend(Arc::new(backend));
        let connected = service.storage_retry(StorageRetry::never()).connect().await;
        let service = connected.expect("connected");
        let policy = StorageRetry::default().with_max_tries(3);
        let submit = service
            .submit(ShopOrder { number: 7 })
            .storage_retry(policy);
        submit.await.expect_err("the service is busy");
        let none = service.accept::<ShopOrder>().await.expect("an answer");
        assert!(none.is_none());
        let orders = service.any_queue("orders").expect("a name");
        orders.create().await.expect("created");
        orders.peek(5).await.expect("peeked");
        orders.clear().await.expect("cleared");
        orders.delete().await.expect("deleted");
        service.queues().await.expect("listed");
        service.queues().await.expect_err("the service fails");
        // Refused before it is sent: a week is the longest.
        let delay = Duration::from_secs(700_000);
        let late = service.submit(ShopOrder { number: 7 }).delay(delay);
        late.await.expect_err("refused");

        let read = service.meter();
        let (orders, total) = (read.queue("orders").expect("a name"), read.total());
        assert_eq!(orders.of(TransactionKind::Put), 3, "{orders}");
        assert_eq!(orders.of(TransactionKind::EmptyReceive), 1, "{orders}");
        assert_eq!(read.account().of(TransactionKind::ListQueues), 2);
        let requests = responder.requests();
        assert_eq!(total.total(), requests.len(), "{total}: {requests:#?}");
    });
}

#[test]
fn what_finds_no_connection_does_not_count() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    drop(listener);
    let url = format!("http://{address}/acct?sig=x");
    with(&url, DEADLINE, async |backend| {
        let service = QueueService::with_backend(Arc::new(backend));
        let connected = service.storage_retry(StorageRetry::never()).connect().await;
        let service = connected.expect("connected");
        let submit = service.submit(ShopOrder { number: 7 });
        submit.await.expect_err("nobody listens");
        service.queues().await.expect_err("nobody listens");
        let total = service.meter().total();
        assert_eq!(total.total(), 0, "{total}");
    });
}

/// What an idle listener costs on Azure in a day.
#[tokio::test(start_paused = true)]
async fn an_idle_listener_sends_the_receives_of_one_poller_and_nothing_else() {
    const DAY: u64 = 24 * 3600;

    let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
    let account = Throttled::start("idle", &clock).await;
    let azure = Arc::new(account.open(&clock).await);
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
