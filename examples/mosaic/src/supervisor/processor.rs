use std::io;
use std::path::Path;
use std::process::Command;

use mosaic::workflow::roles::Settings;

use crate::cli::{Location, is_durable};

/// The command of another processor, which stops at the end of its standard input. Locations may hold secrets, so they
/// are in its environment.
pub(crate) fn another(
    data: &Path,
    location: &Location,
    settings: &Settings,
) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["role", "processor", "--until-end-of-input"]);
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
    if let Some(client) = &location.client {
        command.args(["--client", client]);
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
