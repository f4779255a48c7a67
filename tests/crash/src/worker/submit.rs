use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use queue_core::idempotency::IdempotencyStore;
use queue_runtime::SubmitProblem;
use rand::seq::SliceRandom as _;
use tokio::task::JoinSet;

use super::{Desk, Kept};
use crate::duplicates::DONE;
use crate::messages::{LEASE, Reminder};

/// The submissions that one process has in flight.
pub const AT_ONCE: usize = 8;

/// What a process prints for each answer, before the key, the id of its message and whether it is a duplicate.
pub const ANSWERED: &str = "answered";

/// Longer than a run.
const PERIOD: Duration = Duration::from_secs(24 * 3600);

/// Submits one message for each key that it is told, several at a time and in a random order. A line on the standard
/// input has the first key and their number.
pub(super) async fn run(desk: Arc<Desk>, kept: Kept, file: &Path) {
    let store = match kept {
        Kept::File => None,
        Kept::Folder => Some(kept.open(&desk, file)),
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
async fn submit(desk: Arc<Desk>, store: Option<Arc<dyn IdempotencyStore>>, number: u64) {
    loop {
        let submit = desk.service.submit(Reminder { number });
        let submit = match &store {
            None => submit.unique_for(PERIOD),
            // Copies are possible, and have the same id.
            Some(store) => submit
                .id(format!("reminder-{number}"))
                .unique_in(store, PERIOD),
        };
        match submit.await {
            Ok(answer) => {
                return println!("{ANSWERED} {number} {} {}", answer.id, answer.duplicate);
            }
            // Others have locked the file or held the key for too long. The message may have been put.
            Err(error) => match error.problem {
                SubmitProblem::Storage(_) => tokio::time::sleep(LEASE / 20).await,
                problem => panic!("failed to {problem}"),
            },
        }
    }
}
