use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use queue_runtime::{QueueService, Received};
use tokio::sync::Notify;

use crate::Outcome;
use crate::tasks::{all_of, rate, side_by_side};
use crate::workload::Parcel;

/// Messages per second, submitted by so many tasks.
pub(crate) async fn submit(service: &QueueService, messages: u32, tasks: u32) -> Outcome<f64> {
    let started = Instant::now();
    side_by_side(tasks, |task| {
        let service = service.clone();
        async move {
            for number in (task..messages).step_by(tasks as usize) {
                service.submit(Parcel::new(number)).await?;
            }
            Ok(0)
        }
    })
    .await?;
    Ok(rate(messages, started))
}

/// Messages per second, accepted and completed by so many tasks.
pub(crate) async fn accept(service: &QueueService, messages: u32, tasks: u32) -> Outcome<f64> {
    let started = Instant::now();
    let accepted = side_by_side(tasks, |_| {
        let service = service.clone();
        async move {
            let mut accepted = 0;
            while let Some(delivery) = service.accept::<Parcel>().await? {
                delivery.complete().await?;
                accepted += 1;
            }
            Ok(accepted)
        }
    })
    .await?;
    all_of(messages, accepted, started)
}

/// Messages per second, through a listener with so many in flight.
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
