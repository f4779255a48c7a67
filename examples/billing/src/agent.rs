//! The process that starts and stops workers.

use std::time::Duration;

use queue_agent::{AgentBuilder, AgentEventKind, InstanceTarget, Processes};
use queue_runtime::{Failure, QueueService};
use tokio::task::spawn_blocking;

use crate::messages::UsageRecord;
use crate::role::{RECORDS_WITHIN, until_end_of_input};
use crate::{Kind, Place, processes};

/// Runs workers until the end of the standard input, and prints which are started and have ended.
pub(crate) async fn agent(service: &QueueService, place: &Place) -> Result<(), Failure> {
    let policy = InstanceTarget::new(1..=usize::from(place.workers), RECORDS_WITHIN);
    let workers = Processes::new(processes::command(Kind::Worker, place)?);
    let agent = AgentBuilder::new(service.queue::<UsageRecord>().any(), policy)
        .interval(Duration::from_millis(500))
        .steady(Duration::from_secs(30))
        .longest_pause(Duration::from_secs(1))
        .lock_timeout(Duration::from_secs(2));
    let agent = agent.start(workers)?;
    let mut events = agent.events();
    let mut ended = spawn_blocking(until_end_of_input);
    loop {
        let event = tokio::select! {
            event = events.recv() => event?,
            ended = &mut ended => {
                ended?;
                break;
            }
        };
        match event.kind {
            AgentEventKind::Started { id } => println!("started {id}"),
            AgentEventKind::Stopped { id, .. } => println!("stopped {id}"),
            AgentEventKind::Died { id, .. } => println!("died {id}"),
            AgentEventKind::Scaled { from, to, why } => {
                eprintln!("{from} to {to} workers: {why}");
            }
            AgentEventKind::ObjectiveBroken => eprintln!("the records are late"),
            AgentEventKind::ObjectiveKept => eprintln!("the records are in time again"),
            _ => {}
        }
    }
    agent.shutdown().await;
    Ok(())
}
