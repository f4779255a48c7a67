use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use queue_runtime::{QueueService, Received};
use tokio::sync::Notify;

use crate::Outcome;
use crate::workload::Parcel;

/// Messages per second.
pub(crate) struct Rates {
    pub(crate) submit: f64,
    pub(crate) accept: f64,
    pub(crate) listen: f64,
}

/// Submits, accepts and completes with so many tasks; then again through a listener with as many
/// messages in flight.
pub(crate) async fn run(path: &Path, messages: u32, tasks: u32) -> Outcome<Rates> {
    let service = QueueService::connect(&format!("sqlite:{}", path.display())).await?;
    let submit = submit(&service, messages, tasks).await?;
    let accept = accept(&service, messages, tasks).await?;
    self::submit(&service, messages, 256).await?;
    let listen = listen(&service, messages, tasks).await?;
    Ok(Rates {
        submit,
        accept,
        listen,
    })
}

async fn submit(service: &QueueService, messages: u32, tasks: u32) -> Outcome<f64> {
    let started = Instant::now();
    let workers: Vec<_> = (0..tasks)
        .map(|task| {
            let service = service.clone();
            tokio::spawn(async move {
                for number in (task..messages).step_by(tasks as usize) {
                    service.submit(Parcel::new(number)).await?;
                }
                Outcome::Ok(())
            })
        })
        .collect();
    for worker in workers {
        worker.await??;
    }
    Ok(f64::from(messages) / started.elapsed().as_secs_f64())
}

async fn accept(service: &QueueService, messages: u32, tasks: u32) -> Outcome<f64> {
    let accepted = Arc::new(AtomicU32::new(0));
    let started = Instant::now();
    let workers: Vec<_> = (0..tasks)
        .map(|_| {
            let (service, accepted) = (service.clone(), Arc::clone(&accepted));
            tokio::spawn(async move {
                while let Some(delivery) = service.accept::<Parcel>().await? {
                    delivery.complete().await?;
                    accepted.fetch_add(1, Ordering::Relaxed);
                }
                Outcome::Ok(())
            })
        })
        .collect();
    for worker in workers {
        worker.await??;
    }
    let elapsed = started.elapsed();
    let accepted = accepted.load(Ordering::Relaxed);
    if accepted != messages {
        return Err(format!("{accepted} of {messages} messages were accepted").into());
    }
    Ok(f64::from(messages) / elapsed.as_secs_f64())
}

async fn listen(service: &QueueService, messages: u32, in_flight: u32) -> Outcome<f64> {
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
    let elapsed = started.elapsed();
    if !report.graceful || left.load(Ordering::Relaxed) != 0 {
        return Err(format!("the listener did not finish: {report:?}").into());
    }
    Ok(f64::from(messages) / elapsed.as_secs_f64())
}
