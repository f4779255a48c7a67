//! The job broker: records the response to each request.

use queue_runtime::{Failure, QueueService, Received, StartError};

use super::handling::Handling;
use super::results::Results;
use super::role::{Role, Settings};
use crate::storage::records::{Records, ResponseRecord};
use crate::storage::store::Store;
use crate::workflow::messages::ImageResponse;

/// Starts a job broker.
///
/// # Errors
/// [`StartError`] if a setting is invalid.
pub fn broker(
    service: &QueueService,
    store: &Store,
    settings: &Settings,
) -> Result<Role, StartError> {
    let results = Results::new(service, store, settings);
    let sweeping = results.clone().keep_swept();
    let broker = Broker {
        records: Records::new(store.clone()),
        results,
    };
    let listener = service.listener_with(broker, Broker::handle);
    let listener = settings.apply(listener).on_poison(|poisoned| {
        let request = &poisoned.envelope.request;
        tracing::error!(%request, "failed to record a response; the client will time out");
        None
    });
    let listener = listener.start()?.stop_on_drop();
    Ok(Role::new("broker", vec![listener]).with_upkeep(sweeping))
}

#[derive(Debug, Clone)]
struct Broker {
    records: Records,
    results: Results,
}

impl Broker {
    /// Records the first response to a request, and ignores all others.
    async fn handle(self, received: Received<ImageResponse>) -> Result<(), Failure> {
        let _handling = Handling::of(&received);
        let request = received.envelope().request.clone();
        if self.records.is_answered(&request).await? {
            return Ok(());
        }
        let response = ResponseRecord {
            outcome: received.into_message().outcome,
        };
        let first = async { Ok(response) };
        let held = self.results.once("respond", &request, first).await?;
        self.records.record_response(&request, &held).await?;
        tracing::info!(%request, "recorded the response");
        Ok(())
    }
}
