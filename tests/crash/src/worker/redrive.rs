use std::time::Duration;

use queue_runtime::ErrorKind;
use queue_runtime::service::redrive::RedriveOutcome;

use super::Desk;
use crate::ledger::PROGRESS;
use crate::messages::{CrashOrder, Receipt};

const PAUSE: Duration = Duration::from_millis(20);

/// Redrives the poison queues again and again.
pub(super) async fn run(desk: &Desk) {
    let queues = [
        desk.service.queue::<CrashOrder>().any().name().to_string(),
        desk.service.queue::<Receipt>().any().name().to_string(),
    ];
    while !desk.is_stopping() {
        for queue in &queues {
            let poison = desk.service.any_queue(format!("{queue}-poison"));
            let redrive = poison.expect("a name").redrive().each(|step| {
                if matches!(step.outcome, RedriveOutcome::Redriven(_)) {
                    println!("{PROGRESS}");
                }
            });
            let done = redrive.run().await.map_err(|stopped| stopped.error);
            match done {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::QueueNotFound => {}
                // The file was locked too long, for example by a stopped process, or the server has crashed.
                Err(error)
                    if matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unreachable) => {}
                Err(error) => panic!("{error}"),
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}
