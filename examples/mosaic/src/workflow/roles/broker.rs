//! The job broker: records the response to each request. Unlike the other roles, the broker accepts its messages
//! itself, one at a time, without a listener.

use std::time::Duration;

use queue_runtime::receive::Settled;
use queue_runtime::{Delivery, Failure, QueueService};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::role::{Handling, Role, Settings, Totals};
use crate::storage::records::Records;
use crate::storage::store::Store;
use crate::workflow::messages::ImageResponse;

/// The longest time that one `accept` waits for a message.
const WAIT: Duration = Duration::from_secs(600);
/// The pause after an `accept` that has failed, which has itself tried for a while.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest time that recording a response may take; its message is then tried again.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Starts a job broker.
pub fn broker(service: &QueueService, store: &Store, settings: &Settings) -> Role {
    let broker = Broker {
        service: service.clone(),
        settings: *settings,
        records: Records::new(store.clone()),
    };
    Role::accepting("broker", |stop| broker.run(stop))
}

#[derive(Debug)]
struct Broker {
    service: QueueService,
    settings: Settings,
    records: Records,
}

impl Broker {
    async fn run(self, mut stop: watch::Receiver<bool>) -> Totals {
        let mut totals = Totals::default();
        loop {
            let accept = self.settings.accept::<ImageResponse>(&self.service);
            let accept = accept.wait(WAIT).on_poison(|poisoned| {
                let request = &poisoned.envelope.request_id;
                tracing::error!(%request, "failed to record a response; the client will time out");
                None
            });
            let accepted = tokio::select! {
                // What `accept` has received by then is handed back.
                _ = stop.wait_for(|stop| *stop) => return totals,
                accepted = accept => accepted,
            };
            match accepted {
                Ok(Some(delivery)) => totals += self.handle(delivery).await,
                Ok(None) => {}
                Err(error) => {
                    let error = Failure::retry(error).chain();
                    tracing::warn!(error, "failed to accept a response; will try again");
                    sleep(PAUSE).await;
                }
            }
        }
    }

    async fn handle(&self, delivery: Delivery<ImageResponse>) -> Totals {
        let _handling = Handling::of(&delivery);
        let settled = match timeout(TIMEOUT, self.record(&delivery)).await {
            Ok(recorded) => delivery.settle(recorded).await,
            Err(late) => delivery.retry(late).await,
        };
        let mut totals = Totals::default();
        match settled {
            Ok(Settled::Completed) => totals.completed = 1,
            Ok(Settled::Poisoned(_)) => totals.poisoned = 1,
            Ok(_) => totals.retried = 1,
            Err(error) => {
                let error = Failure::retry(error).chain();
                tracing::warn!(error, "failed to settle a response; it will come again");
                totals.retried = 1;
            }
        }
        totals
    }

    /// Records the first response to a request, and ignores all others.
    async fn record(&self, delivery: &Delivery<ImageResponse>) -> Result<(), Failure> {
        let request = &delivery.envelope().request_id;
        if self.records.is_answered(request).await? {
            return Ok(());
        }
        let outcome = delivery.message().outcome.clone();
        self.records.record(request, outcome).await?;
        tracing::info!(%request, "recorded the response");
        Ok(())
    }
}
