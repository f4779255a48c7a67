//! The settings of the queues, in their metadata: an operator can change them there while the roles run.

use queue_runtime::backend::Metadata;
use queue_runtime::settings::{DEFAULT_TIMEOUT, POISON_THRESHOLD};
use queue_runtime::{Error, ErrorKind, Message, QueueService};

use crate::workflow::messages::{ImageRequest, ImageResponse, SliceRequest, SliceResponse};

/// Creates the four queues, each with the number of attempts after which a message is poison, and with the visibility
/// timeout in seconds. Existing queues keep the settings that they have.
///
/// # Errors
/// The backend's error.
pub async fn create_queues(service: &QueueService) -> Result<(), Error> {
    create::<ImageRequest>(service, 5, 60).await?;
    create::<SliceRequest>(service, 5, 60).await?;
    create::<SliceResponse>(service, 5, 60).await?;
    // Without a response, its client waits in vain.
    create::<ImageResponse>(service, 10, 30).await
}

async fn create<M: Message>(
    service: &QueueService,
    attempts: u32,
    timeout: u32,
) -> Result<(), Error> {
    let mut metadata = Metadata::new();
    for (name, value) in [(POISON_THRESHOLD, attempts), (DEFAULT_TIMEOUT, timeout)] {
        let set = metadata.insert(name, &value.to_string());
        set.expect("a number is valid metadata");
    }
    match service.queue::<M>().any().create_with(&metadata).await {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::QueueExists => Ok(()),
        Err(error) => Err(error),
    }
}
