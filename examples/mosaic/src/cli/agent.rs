use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use mosaic::workflow::messages::SliceRequest;
use mosaic::workflow::roles::Settings;
use queue_agent::{AgentBuilder, AgentHandle, InstanceTarget, Processes};
use queue_runtime::{Failure, QueueService};

use super::arguments::{Location, Scaling};
use super::location::is_durable;

/// The pause between two looks of the agent at the queue.
const INTERVAL: Duration = Duration::from_secs(1);

/// Starts an agent that runs processors, as many as the slices that wait need, if that is asked for.
pub(crate) fn agent(
    service: &QueueService,
    scaling: &Scaling,
    data: &Path,
    location: &Location,
    settings: &Settings,
    log: Option<&str>,
) -> Result<Option<AgentHandle>, Failure> {
    let Some(instances) = scaling.instances.clone() else {
        return Ok(None);
    };
    let mut command = processor(data, location, settings)?;
    if let Some(log) = log
        && std::env::var_os("RUST_LOG").is_none()
    {
        command.env("RUST_LOG", log);
    }
    let policy = InstanceTarget::new(instances, scaling.within);
    let agent = AgentBuilder::new(service.queue::<SliceRequest>().any(), policy);
    let agent = agent.interval(INTERVAL).steady(scaling.steady);
    Ok(Some(agent.start(Processes::new(command))?))
}

/// The command of a processor. Locations may hold secrets, so they are in its environment.
fn processor(data: &Path, location: &Location, settings: &Settings) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["role", "processor"]);
    if location.data.is_some() || !is_durable(location) {
        command.arg("--data").arg(data);
    }
    for (name, value) in [
        ("QUEUE_URL", &location.queue),
        ("BLOBS_URL", &location.blobs),
    ] {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    if let Some(client_id) = &location.client_id {
        command.args(["--client-id", client_id]);
    }
    command.args(["--tasks", &settings.tasks.to_string()]);
    let pace = humantime::format_duration(settings.pace);
    command.arg(format!("--pace={pace}"));
    if let Some(timeout) = settings.visibility_timeout {
        let timeout = humantime::format_duration(timeout);
        command.arg(format!("--visibility-timeout={timeout}"));
    }
    if let Some(attempts) = settings.poison_threshold {
        command.args(["--poison-threshold", &attempts.to_string()]);
    }
    Ok(command)
}
