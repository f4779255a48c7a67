use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use queue_runtime::{QueueService, Received};
use tokio::sync::Notify;

use crate::Outcome;
use crate::tasks::{rate, submit_with, take_with};
use crate::workload::Parcel;

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

pub(crate) async fn accept(service: &QueueService, messages: u32, tasks: u32) -> Outcome<f64> {
    let service = service.clone();
    let take = move || {
        let service = service.clone();
        async move {
            let Some(delivery) = service.accept::<Parcel>().await? else {
                return Ok(false);
            };
            delivery.complete().await?;
            Ok(true)
        }
    };
    take_with(messages, tasks, take).await
}

/// Handles the messages in a listener with this many in flight. Returns messages per second.
pub(crate) async fn listen(service: &QueueService, messages: u32, in_flight: u32) -> Outcome<f64> {
    let (left, done) = (Arc::new(AtomicU32::new(messages)), Arc::new(Notify::new()));
    let (handled, finished) = (Arc::clone(&left), Arc::clone(&done));
    let started = Instant::now();
    let listener = service
        .listener(move |_: Received<Parcel>| {
            if handled.fetch_sub(1, Ordering::Relaxed) == 1 {
                finished.notify_one();
            }
            async {}
        })
        .max_in_flight(in_flight as usize)
        .start()?;
    done.notified().await;
    let report = listener.shutdown(Duration::from_secs(60)).await;
    let rate = rate(messages, started);
    if !report.graceful || left.load(Ordering::Relaxed) != 0 {
        return Err(format!("the listener did not finish: {report:?}").into());
    }
    Ok(rate)
}
