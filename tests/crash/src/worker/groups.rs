use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use queue_runtime::{Disposition, Received};

use super::Desk;
use crate::groups::Step;
use crate::ledger::moment;

/// Handles steps until the end of the input. Writes a line to a file when a handler begins and when it ends, and prints
/// one when it ends. The file outlives the process that is killed.
pub(super) async fn run(desk: &Arc<Desk>, log: &Path) {
    let log = Arc::new(Mutex::new(File::create(log).expect("a file")));
    let working = Arc::clone(desk);
    let handler = move |step: Received<Step>| {
        let (desk, log) = (Arc::clone(&working), Arc::clone(&log));
        async move {
            // With a planted bug there is none.
            let fence = step.fence().unwrap_or_else(moment);
            let note = |what: &str| {
                let Step { group, number } = *step;
                let line = format!("{what} {group} {number} {fence} {}\n", moment());
                let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
                log.write_all(line.as_bytes()).expect("written");
            };
            note("begin");
            let dice = desk.dice();
            tokio::time::sleep(Duration::from_millis(u64::from(dice % 5))).await;
            note("end");
            println!("handled");
            match dice {
                0..10 => Disposition::retry("by chance"),
                10..12 => Disposition::retry_after(Duration::from_millis(80), "by chance"),
                _ => Disposition::complete(),
            }
        }
    };
    desk.listen(handler).await;
}
