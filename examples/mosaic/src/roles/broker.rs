//! The job broker: records the response to each request.

use queue_runtime::{Failure, QueueService, Received, StartError};

use super::handling::Handling;
use super::role::{Role, Settings};
use crate::messages::ImageResponse;
use crate::records::{Records, ResponseRecord};
use crate::store::{Created, Store};

/// Starts a job broker.
///
/// # Errors
/// [`StartError`] if a setting is invalid.
pub fn broker(
    service: &QueueService,
    store: &Store,
    settings: &Settings,
) -> Result<Role, StartError> {
    let records = Records::new(store.clone());
    let listener = service.listener_with(records, record);
    let listener = settings.apply(listener).on_poison(|poisoned| {
        let request = &poisoned.envelope.request;
        tracing::error!(%request, "failed to record a response; the client will time out");
        None
    });
    Ok(Role::new("broker", vec![listener.start()?]))
}

/// Records the first response to a request, and ignores all others.
async fn record(records: Records, received: Received<ImageResponse>) -> Result<(), Failure> {
    let _handling = Handling::of(&received);
    let request = received.envelope().request.clone();
    let key = received.idempotency_key().to_string();
    let response = ResponseRecord {
        key,
        outcome: received.into_message().outcome,
    };
    let recorded = records.record_response(&request, response.clone()).await;
    let (held, created) = recorded?;
    match created {
        Created::New => tracing::info!(%request, "recorded the response"),
        Created::Existed if held.key == response.key => {
            tracing::info!(%request, "ignored a duplicate of the response");
        }
        Created::Existed => {
            tracing::warn!(%request, held = held.key, found = response.key, "ignored another response");
        }
    }
    Ok(())
}
