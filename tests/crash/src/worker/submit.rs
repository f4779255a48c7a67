use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use queue_core::idempotency::ResultStore;
use queue_core::internal::error_chain;
use queue_core::{Outcome, RetryAdvice};
use queue_runtime::send::SubmitErrorKind;
use rand::seq::SliceRandom as _;
use tokio::task::JoinSet;

use super::{Desk, Kept};
use crate::duplicates::DONE;
use crate::messages::{LEASE, Reminder};
use crate::sabotage::Bug;

/// The submissions that one process has in flight.
const AT_ONCE: usize = 8;

/// What a process prints before it submits, before the key.
pub const BEGUN: &str = "begun";

/// What a process prints, before the key, if it does not know whether it has put a message, and submits it again.
pub const UNKNOWN: &str = "unknown";

/// What a process prints for each answer, before the key, the id of its message and whether it is a duplicate.
pub const ANSWERED: &str = "answered";

/// Longer than a run.
const PERIOD: Duration = Duration::from_secs(24 * 3600);

/// Submits one message for each key that it is told, several at a time and in a random order. A line on the standard
/// input has the first key and the keys' number.
pub(super) async fn run(desk: Arc<Desk>, kept: Kept, file: &Path, bug: Option<Bug>) {
    let store = match (kept, bug) {
        (Kept::File, _) => None,
        (Kept::Folder, Some(Bug::BeginsAlways)) => {
            let own = file.with_file_name(desk.number.to_string());
            Some(kept.open(&desk, &own.join("unused")))
        }
        (Kept::Folder, _) => Some(kept.open(&desk, file)),
    };
    let mut input = desk.input.clone();
    while input.changed().await.is_ok() {
        let line = input.borrow_and_update().clone();
        let mut submitting = JoinSet::new();
        for number in shuffled(&desk, &line) {
            if submitting.len() >= AT_ONCE {
                let submitted = submitting.join_next().await;
                submitted.expect("some").expect("no panic");
            }
            submitting.spawn(submit(Arc::clone(&desk), store.clone(), number));
        }
        submitting.join_all().await;
        println!("{DONE} {line}");
    }
}

fn shuffled(desk: &Desk, line: &str) -> Vec<u64> {
    let (first, count) = line.split_once(' ').expect("two numbers");
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let first = number(first);
    let mut numbers: Vec<_> = (first..first + number(count)).collect();
    let mut random = desk.random.lock().unwrap_or_else(PoisonError::into_inner);
    numbers.shuffle(&mut *random);
    numbers
}

/// Submits the message until there is an answer.
async fn submit(desk: Arc<Desk>, store: Option<Arc<dyn ResultStore>>, number: u64) {
    println!("{BEGUN} {number}");
    loop {
        let submit = desk.service.submit(Reminder { number });
        let submit = match &store {
            None => submit.unique_for(PERIOD),
            // Copies are possible, and have the same id.
            Some(store) => submit
                .id(format!("reminder-{number}"))
                .unique_in(store, PERIOD),
        };
        let problem = match submit.await {
            Ok(answer) => {
                return println!("{ANSWERED} {number} {} {}", answer.id, answer.duplicate);
            }
            Err(error) => error.kind,
        };
        match &problem {
            // Other processes have locked the file or held the key for too long.
            SubmitErrorKind::Storage(error) if error.retry() != RetryAdvice::Permanent => {
                if error.outcome() == Outcome::Unknown {
                    println!("{UNKNOWN} {number}");
                }
            }
            _ => panic!("{}", error_chain(&problem)),
        }
        tokio::time::sleep(LEASE / 20).await;
    }
}
