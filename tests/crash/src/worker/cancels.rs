use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use queue_runtime::{Disposition, Received};

use super::Desk;
use crate::cancels::Cancellable;
use crate::ledger::moment;

/// Handles messages that are cancelled meanwhile, until the end of the input. Writes a line to a file when a handler
/// begins, and prints one when it ends. The file outlives the process that is killed.
pub(super) async fn run(desk: &Arc<Desk>, log: &Path) {
    let log = Arc::new(Mutex::new(File::create(log).expect("a file")));
    let working = Arc::clone(desk);
    let handler = move |job: Received<Cancellable>| {
        let (desk, log) = (Arc::clone(&working), Arc::clone(&log));
        async move {
            let line = format!("{} {}\n", job.number, moment());
            let written = log
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .write_all(line.as_bytes());
            written.expect("written");
            let dice = desk.dice();
            let work = Duration::from_millis(u64::from(dice % 5) * 4);
            tokio::select! {
                () = tokio::time::sleep(work) => {}
                () = job.cancelled() => {}
            }
            println!("handled");
            match dice {
                0..20 => Disposition::retry("by chance"),
                20..26 => Disposition::reject("by chance"),
                26..34 => Disposition::retry_after(Duration::from_millis(300), "by chance"),
                _ => Disposition::complete(),
            }
        }
    };
    desk.listen(handler).await;
}
