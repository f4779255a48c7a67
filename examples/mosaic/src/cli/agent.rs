use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::storage::store::Store;
use crate::workflow::embedded::Embedded;
use crate::workflow::messages::SliceRequest;
use crate::workflow::roles::{Settings, Totals};
use queue_agent::{AgentBuilder, AgentHandle, InstanceTarget, Processes};
use queue_runtime::{Failure, QueueService};

use super::arguments::{Location, Scaling, or_cores};
use super::bars::QUIET;
use super::location::is_durable;

/// The pause between two looks of the agent at the queue.
const INTERVAL: Duration = Duration::from_secs(1);

/// All roles: in this process, or with processors that an agent starts.
pub(crate) struct Workers {
    pub(crate) roles: Embedded,
    agent: Option<AgentHandle>,
}

impl Workers {
    /// Starts the roles, with this number of processors or those of an agent, if asked for.
    pub(crate) fn start(
        (service, store): (&QueueService, &Store),
        (data, location): (&Path, &Location),
        (processors, scaling): (Option<u16>, &Scaling),
        settings: &Settings,
    ) -> Result<Self, Failure> {
        let processors = match &scaling.instances {
            Some(_) => 0,
            None => or_cores(processors),
        };
        let roles = Embedded::start(service, store, processors, settings)?;
        let one = Settings {
            tasks: 1,
            ..*settings
        };
        let agent = agent(service, scaling, (data, location), &one, Some(QUIET))?;
        Ok(Self { roles, agent })
    }

    /// Starts only the broker.
    pub(crate) fn broker(service: &QueueService, store: &Store, settings: &Settings) -> Self {
        let roles = Embedded::broker(service, store, settings);
        Self { roles, agent: None }
    }

    /// Waits up to `grace` for handlers to finish, then stops.
    pub(crate) async fn shutdown(&mut self, grace: Duration) -> Totals {
        let agent = self.agent.take();
        let agent = async {
            if let Some(agent) = agent {
                agent.shutdown().await;
            }
        };
        tokio::join!(self.roles.shutdown(grace), agent).0
    }
}

/// Starts an agent that runs processors, as many as the slices that wait need, if asked for.
pub(crate) fn agent(
    service: &QueueService,
    scaling: &Scaling,
    (data, location): (&Path, &Location),
    settings: &Settings,
    log: Option<&str>,
) -> Result<Option<AgentHandle>, Failure> {
    let Some(instances) = scaling.instances.clone() else {
        return Ok(None);
    };
    let mut command = processor(data, location, settings)?;
    if let (Some(log), Err(_)) = (log, std::env::var("RUST_LOG")) {
        command.env("RUST_LOG", log);
    }
    let policy = InstanceTarget::new(instances, scaling.within);
    let agent = AgentBuilder::new(service.queue::<SliceRequest>().any(), policy);
    let agent = agent.interval(INTERVAL).steady(scaling.steady);
    Ok(Some(agent.start(Processes::new(command))?))
}

/// The command of a processor. Locations may hold secrets, so they are in the command's environment.
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
