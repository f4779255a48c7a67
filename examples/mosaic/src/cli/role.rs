use std::num::NonZeroUsize;
use std::time::Duration;

use crate::workflow::roles::{Settings, broker, controller, processor};
use queue_runtime::Failure;
use queue_runtime::service::StopSignals;

use super::agent::agent as processors;
use super::arguments::{Kind, Role, or_cores};
use super::location::open;

/// The time that handlers have to finish after the signal to stop.
const GRACE: Duration = Duration::from_secs(20);

/// Runs one role until a signal to stop. A second signal ends the time that handlers have to finish.
pub(crate) async fn role(arguments: Role) -> Result<(), Failure> {
    if arguments.scaling.instances.is_some() && arguments.role != Kind::Processor {
        return Err("`--instances` is for the role `processor` only".into());
    }
    let settings = Settings {
        tasks: or_cores(arguments.tasks),
        visibility_timeout: arguments.visibility_timeout,
        poison_threshold: arguments.poison_threshold.map(NonZeroUsize::get),
        pace: arguments.scaling.pace,
    };
    let data = arguments.location.folder();
    let mut signals = StopSignals::new()?;
    let (service, store) = tokio::select! {
        opened = open(&data, &arguments.location) => opened?,
        _ = signals.next() => return Ok(()),
    };
    let location = &arguments.location;
    let agent = processors(
        &service,
        &arguments.scaling,
        (&data, location),
        &settings,
        None,
    )?;
    if let Some(agent) = agent {
        signals.next().await;
        tokio::select! {
            () = agent.shutdown() => {}
            _ = signals.next() => {}
        }
        return Ok(());
    }
    let mut role = match arguments.role {
        Kind::Broker => broker(&service, &store, &settings),
        Kind::Controller => controller(&service, &store, &settings)?,
        Kind::Processor => processor(&service, &store, &settings)?,
    };
    let attached = queue_agent::attach(&service)?;
    tokio::select! {
        _ = signals.next() => {}
        () = attached.stopped() => {}
        failure = role.failed() => return Err(failure),
    }
    tracing::info!("stopping; another signal hands back what is still in flight");
    tokio::select! {
        _ = role.shutdown(GRACE) => {}
        _ = signals.next() => {
            role.shutdown(Duration::ZERO).await;
        }
    }
    service.shutdown(Duration::ZERO).await;
    Ok(())
}
