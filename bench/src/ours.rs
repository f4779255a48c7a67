use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use queue_instructions::Parcel;
use queue_runtime::listener::Router;
use queue_runtime::{Delivery, ListenerHandle, Message, QueueService, Received, StartError};
use tokio::sync::Notify;

use crate::Outcome;
use crate::tasks::{rate, submit_with, take_most, take_with};

pub(crate) async fn submit(service: &QueueService, messages: u32, tasks: u32) -> Outcome<f64> {
    let service = service.clone();
    let submit = move |number| {
        let service = service.clone();
        async move {
            service.submit(Parcel::new(number)).await?;
            Ok(())
        }
    };
    submit_with(messages, tasks, submit).await
}

/// Submits messages with `batch` in each call, one call after the other. Returns messages per second.
pub(crate) async fn submit_all(service: &QueueService, messages: u32, batch: u32) -> Outcome<f64> {
    let started = Instant::now();
    for first in (0..messages).step_by(batch as usize) {
        let numbers = first..messages.min(first + batch);
        service.submit_all(numbers.map(Parcel::new)).await?;
    }
    Ok(rate(messages, started))
}

pub(crate) async fn accept(service: &QueueService, messages: u32, tasks: u32) -> Outcome<f64> {
    let service = service.clone();
    take_with(messages, tasks, move || accept_one(service.clone())).await
}

/// Accepts and completes until the queue is empty, but at most `each` messages in each task; returns how many.
pub(crate) async fn accept_most(service: &QueueService, each: u32, tasks: u32) -> Outcome<u32> {
    let service = service.clone();
    take_most(each, tasks, move || accept_one(service.clone())).await
}

async fn accept_one(service: QueueService) -> Outcome<u32> {
    let Some(delivery) = service.accept::<Parcel>().await? else {
        return Ok(0);
    };
    delivery.complete().await?;
    Ok(1)
}

/// Accepts and completes up to `max` messages at a time.
pub(crate) async fn accept_many(
    service: &QueueService,
    messages: u32,
    tasks: u32,
    max: u32,
) -> Outcome<f64> {
    let service = service.clone();
    let take = move || {
        let service = service.clone();
        async move {
            let deliveries = service.accept_many::<Parcel>(max as usize).await?;
            let taken = deliveries.len();
            Delivery::complete_all(deliveries).await?;
            Ok(u32::try_from(taken)?)
        }
    };
    take_with(messages, tasks, take).await
}

/// Handles the messages in a listener with this many in flight. Returns messages per second.
pub(crate) async fn listen(service: &QueueService, messages: u32, in_flight: u32) -> Outcome<f64> {
    handle_all(messages, |handled| {
        let listener = service.listener(move |_: Received<Parcel>| {
            handled();
            async {}
        });
        listener.max_in_flight(in_flight as usize).start()
    })
    .await
}

/// Handles the messages in a router of twenty types, of which theirs is the last.
pub(crate) async fn route(service: &QueueService, messages: u32, in_flight: u32) -> Outcome<f64> {
    let router = others(service.router(Parcel::TYPE.queue())?);
    handle_all(messages, move |handled| {
        let router = router.handle(move |_: Received<Parcel>| {
            handled();
            async {}
        });
        router.max_in_flight(in_flight as usize).start()
    })
    .await
}

/// Starts a listener that calls what it is given for each message, and waits until it has handled so many.
pub(crate) async fn handle_all(
    messages: u32,
    start: impl FnOnce(Box<dyn Fn() + Send + Sync>) -> Result<ListenerHandle, StartError>,
) -> Outcome<f64> {
    let (left, done) = (Arc::new(AtomicU32::new(messages)), Arc::new(Notify::new()));
    let (handled, finished) = (Arc::clone(&left), Arc::clone(&done));
    let started = Instant::now();
    let listener = start(Box::new(move || {
        if handled.fetch_sub(1, Ordering::Relaxed) == 1 {
            finished.notify_one();
        }
    }))?;
    done.notified().await;
    let report = listener.shutdown(Duration::from_secs(60)).await;
    let rate = rate(messages, started);
    if !report.graceful || left.load(Ordering::Relaxed) != 0 {
        return Err(format!("the listener did not finish: {report:?}").into());
    }
    Ok(rate)
}

/// Adds handlers of nineteen types.
macro_rules! others {
    ($($name:ident)*) => {
        $(
            #[derive(Debug, serde::Serialize, serde::Deserialize, Message)]
            struct $name;
        )*

        fn others(router: Router) -> Router {
            router$(.handle(async |_: Received<$name>| ()))*
        }
    };
}

others! {
    ParcelA ParcelB ParcelC ParcelD ParcelE ParcelF ParcelG ParcelH ParcelI ParcelJ ParcelK ParcelL ParcelM ParcelN
    ParcelO ParcelP ParcelQ ParcelR ParcelS
}
