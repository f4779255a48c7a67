use std::time::Duration;

use mosaic::roles::{Settings, broker, controller, processor};
use queue_runtime::Failure;

use super::arguments::{Kind, Role, or_cores};
use super::location::open;

/// The time that handlers have to finish after the signal to stop.
const GRACE: Duration = Duration::from_secs(20);

/// Runs one role until a signal to stop. A second one ends the time that handlers have to finish.
pub(crate) async fn role(arguments: Role) -> Result<(), Failure> {
    let settings = Settings {
        tasks: or_cores(arguments.tasks),
        visibility_timeout: arguments.visibility_timeout,
        poison_threshold: arguments.poison_threshold,
        pace: arguments.pace,
    };
    let (service, store) = open(&arguments.location.folder(), &arguments.location).await?;
    let shutdown = service.shutdown_on_signal(GRACE)?;
    let role = match arguments.role {
        Kind::Broker => broker(&service, &store, &settings)?,
        Kind::Controller => controller(&service, &store, &settings)?,
        Kind::Processor => processor(&service, &store, &settings)?,
    };
    role.until_shutdown(shutdown).await;
    Ok(())
}
