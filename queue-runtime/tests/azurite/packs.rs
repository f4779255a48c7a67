//! Packs on Azurite: what they cost, and what becomes of their items.

use std::time::Duration;

use queue_runtime::meter::TransactionKind;
use queue_runtime::{Disposition, Message, Received, RetryPolicy};
use queue_tests::orders;
use serde::{Deserialize, Serialize};

use crate::case::patient;
use crate::fault::Call;
use crate::proxy::Proxy;
use crate::server::{SERVER, connection_string, runtime};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "packed-orders", visibility_timeout = "1m")]
struct PackedOrder(orders::DetailedOrder);

const ORDERS: u32 = 1_000;

/// The largest number of requests to submit, receive and delete a message of 1 KiB.
const MOST_EACH: f64 = 0.1;

#[test]
fn a_packed_message_costs_a_tenth_of_a_request_at_most() {
    runtime().block_on(async {
        let proxy = Proxy::open(&SERVER).await;
        let service = patient(&proxy.connection_string()).await;
        let service = service.connect().await.expect("connect");
        let all = || orders::detailed_orders(ORDERS, 7).map(PackedOrder);
        let bytes: usize = all().map(|order| json_length(&order)).sum();
        let mean = bytes / ORDERS as usize;
        assert!((900..=1_100).contains(&mean), "{mean} bytes");
        service
            .any_queue("packed-orders")
            .expect("a name")
            .create()
            .await
            .expect("created");
        let submitted = service.submit_all(all()).packed().await;
        assert_eq!(submitted.expect("submitted").len(), ORDERS as usize);
        let listener = service
            .listener(async |_: Received<PackedOrder>| ())
            .until_empty();
        let drained = listener.start().expect("starts").drained().await;
        assert_eq!(drained.info.completed, ORDERS as usize);
        let metered = service.meter().queue("packed-orders").expect("a name");
        let mut requests = 0;
        for (call, kinds) in [
            (Call::Put, &[TransactionKind::Put][..]),
            (
                Call::Receive,
                &[TransactionKind::Receive, TransactionKind::EmptyReceive],
            ),
            (Call::Update, &[TransactionKind::Update]),
            (Call::Delete, &[TransactionKind::Delete]),
        ] {
            let seen = proxy.seen(call).len();
            let counted: usize = kinds.iter().map(|kind| metered.of(*kind)).sum();
            assert_eq!(seen, counted, "{call:?}");
            requests += seen;
        }
        let each = requests as f64 / f64::from(ORDERS);
        println!("{mean} bytes of JSON; {requests} requests for {ORDERS} messages: {each} each");
        assert!(each <= MOST_EACH, "{each} requests a message");
    });
}

fn json_length(order: &PackedOrder) -> usize {
    order.encode().expect("JSON").len()
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "packed-jobs", visibility_timeout = "1m", poison_threshold = 2)]
struct Job {
    number: u32,
}

#[test]
fn items_fail_and_are_retried_alone_while_their_pack_is_renewed() {
    runtime().block_on(async {
        let service = patient(&connection_string()).await;
        let service = service.connect().await.expect("connect");
        let jobs = (0..60).map(|number| Job { number });
        service.submit_all(jobs).packed().await.expect("submitted");
        let listener = service
            .listener(async |job: Received<Job>| match job.number % 6 {
                0 => Disposition::retry("always"),
                1 if job.attempt() == 1 => Disposition::retry("once"),
                // Together longer than the lease of the pack.
                2 => {
                    tokio::time::sleep(Duration::from_secs(30)).await;
                    Disposition::complete()
                }
                _ => Disposition::complete(),
            })
            .max_in_flight(4)
            .retry(RetryPolicy::fixed(Duration::from_secs(1)))
            .until_empty();
        let info = listener.start().expect("starts").drained().await.info;
        assert_eq!((info.completed, info.poisoned, info.retried), (50, 10, 20));
    });
}
