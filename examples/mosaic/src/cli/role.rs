use std::future::pending;
use std::io;
use std::time::Duration;

use mosaic::workflow::roles::{Settings, broker, controller, processor};
use queue_runtime::{Failure, StopSignals};
use tokio::sync::oneshot;

use super::arguments::{Kind, Role, or_cores};
use super::location::open;
use crate::supervisor::{self, Instances, another};

/// The time that handlers have to finish after the signal to stop.
const GRACE: Duration = Duration::from_secs(20);

/// Runs one role until a signal to stop. A second one ends the time that handlers have to finish.
pub(crate) async fn role(arguments: Role) -> Result<(), Failure> {
    if arguments.scaling.instances.is_some() && arguments.role != Kind::Processor {
        return Err("`--instances` is for the role `processor` only".into());
    }
    let settings = Settings {
        tasks: or_cores(arguments.tasks),
        visibility_timeout: arguments.visibility_timeout,
        poison_threshold: arguments.poison_threshold,
        pace: arguments.pace,
        instances: arguments.scaling.target(),
    };
    let data = arguments.location.folder();
    let (service, store) = open(&data, &arguments.location).await?;
    let mut signals = StopSignals::new()?;
    let role = match arguments.role {
        Kind::Broker => broker(&service, &store, &settings)?,
        Kind::Controller => controller(&service, &store, &settings)?,
        Kind::Processor => processor(&service, &store, &settings)?,
    };
    let mut instances = Instances::new(another(&data, &arguments.location, &settings)?);
    tokio::select! {
        () = signals.next() => {}
        () = end_of_input(arguments.until_end_of_input) => {}
        never = instances.keep(|| role.wanted_instances().unwrap_or(1)) => match never {},
    }
    let stopping =
        async { tokio::join!(service.shutdown(GRACE), instances.stop(supervisor::GRACE)) };
    let stopped = tokio::select! {
        (stopped, ()) = stopping => stopped,
        () = signals.next() => service.shutdown(Duration::ZERO).await,
    };
    role.end(stopped);
    Ok(())
}

/// Waits for the end of the standard input, if that is to stop the process.
async fn end_of_input(is_awaited: bool) {
    if !is_awaited {
        return pending().await;
    }
    let (sender, ended) = oneshot::channel();
    // A thread of its own: the runtime would wait for a read on one of its threads.
    std::thread::spawn(move || {
        // An error is an end, too.
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        let _ = sender.send(());
    });
    // It is not dropped before it has sent.
    let _ = ended.await;
}
