//! The listeners of the roles.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use queue_runtime::receive::Poisoned;
use queue_runtime::{
    Batch, Disposition, Failure, FollowUp, ListenerHandle, QueueService, Received, StartError,
    batch, blocking,
};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::books::{self, Books};
use crate::messages::{FailedRecord, PricedItem, UsageRecord, WorkItem};
use crate::role::RECORDS;
use crate::{Kind, tariff};

/// Records that a worker prices together, and has in flight: while some are written, others are priced.
const BATCH: usize = 100;
const IN_FLIGHT: usize = 4 * BATCH;

/// Work items that are divided at the same time.
const ITEMS: usize = 2;

/// The connections of a worker to a simulated rating service, and how long that takes for a record.
const CONNECTIONS: usize = 8;
const RATING: Duration = Duration::from_millis(5);

/// Starts the listeners of a role.
pub(crate) fn start(
    kind: Kind,
    service: &QueueService,
    books: &Arc<Books>,
) -> Result<Vec<ListenerHandle>, StartError> {
    let (own, other) = (Arc::clone(books), Arc::clone(books));
    let invoice = move |priced: Received<PricedItem>| {
        own.transaction(|tx| {
            books::invoice(tx, priced.item)?;
            own.complete(tx, &priced)
        })
    };
    let fail = move |failed: Received<FailedRecord>| {
        other.transaction(|tx| {
            books::fail(tx, failed.item, &failed.reason)?;
            other.complete(tx, &failed)
        })
    };
    let rating = Arc::new(Semaphore::new(CONNECTIONS));
    let worker = (service.clone(), Arc::clone(books), rating);
    match kind {
        Kind::Initiator => {
            let listener = service.listener_with(Arc::clone(books), divide);
            Ok(vec![listener.max_in_flight(ITEMS).start()?])
        }
        Kind::Worker => {
            let listener = service.listener_with(worker, batch(price).size(BATCH));
            let listener = listener.max_in_flight(IN_FLIGHT).objective(RECORDS);
            Ok(vec![listener.on_poison(failed).start()?])
        }
        Kind::Controller => {
            let failures = service.listener(blocking(fail)).start()?;
            Ok(vec![failures, service.listener(blocking(invoice)).start()?])
        }
        Kind::Agent => Ok(Vec::new()),
    }
}

/// Opens the item before its records exist, so that whoever has a record finds the item.
async fn divide(books: Arc<Books>, work: Received<WorkItem>) -> Result<(), Failure> {
    let records: Vec<_> = UsageRecord::of(&work).collect();
    let submit = work.submit_all(records);
    let open = move || books.transaction(|tx| books::open(tx, &work));
    spawn_blocking(open).await??;
    submit.await?;
    Ok(())
}

type Worker = (QueueService, Arc<Books>, Arc<Semaphore>);

/// Prices all records at the same time, and then enters them in one transaction.
async fn price(worker: Worker, records: Batch<UsageRecord>) -> Result<Vec<Disposition>, Failure> {
    let (service, books, rating) = worker;
    let price = async |record: &Received<UsageRecord>| {
        let _connection = rating.acquire().await;
        tokio::time::sleep(RATING).await;
        tariff::price(&record.usage.meter, record.usage.quantity)
    };
    let prices = join_all(records.iter().map(price)).await;
    let with_queues = books.with_queues;
    let (own, entering) = (service.clone(), prices.clone());
    let enter = move || {
        let priced = records.iter().zip(entering);
        let priced = priced.filter_map(|(record, price)| Some((record, price.ok()?)));
        let priced: Vec<_> = priced.collect();
        books.transaction(|tx| {
            let complete = books::enter(tx, &priced)?;
            for (record, _) in &priced {
                books.complete(tx, record)?;
            }
            for item in complete.iter().filter(|_| with_queues) {
                own.submit_within(tx, PricedItem { item: *item })?;
            }
            Ok(complete)
        })
    };
    let complete = spawn_blocking(enter).await??;
    if !with_queues {
        // The records are acknowledged after this: if it fails, they come again, and find the item complete.
        for item in complete {
            service.submit(PricedItem { item }).await?;
        }
    }
    let settled = prices.into_iter().map(|price| match price {
        Ok(_) => Disposition::complete(),
        Err(reason) => Disposition::reject(reason),
    });
    Ok(settled.collect())
}

/// Tells the controller of a record that was moved to the poison queue, for whatever reason. The item is known from the request
/// id, also if the body does not decode.
fn failed(poisoned: Poisoned<UsageRecord>) -> Option<FollowUp> {
    let item = poisoned.envelope.request_id.as_str().parse().ok()?;
    let id = poisoned.message.map(|record| record.id.to_string());
    let (id, record) = (id.unwrap_or_default(), poisoned.record);
    let why = (record.error).unwrap_or_else(|| record.reason.as_str().to_owned());
    let reason = format!("record {id}: {why}");
    Some(FollowUp::new(&FailedRecord { item, reason }))
}
