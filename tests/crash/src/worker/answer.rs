use std::sync::Arc;
use std::time::Duration;

use queue_runtime::{Disposition, Received, RetryPolicy};

use super::Desk;
use crate::messages::{Answer, Question};

/// Longer than any handler, on the slowest machine too.
const GRACE: Duration = Duration::from_secs(30);

/// Answers questions until the input ends.
pub(super) async fn run(desk: Arc<Desk>) {
    let answering = Arc::clone(&desk);
    let handler = move |question: Received<Question>| {
        let desk = Arc::clone(&answering);
        async move {
            match desk.dice() {
                0..4 => return Disposition::retry("failed by chance"),
                // Long enough to be killed in.
                4..7 => tokio::time::sleep(Duration::from_millis(300)).await,
                _ => {}
            }
            let question = question.number;
            Disposition::reply(&Answer { question })
        }
    };
    let listener = desk
        .service
        .listener(handler)
        .max_in_flight(8)
        .retry(RetryPolicy::fixed(Duration::from_millis(50)))
        // However often the processes that hold a message are killed.
        .poison_threshold(1_000_000)
        .create_queue();
    let listener = listener.start().expect("the settings are valid");
    desk.stopping().await;
    listener.shutdown(GRACE).await;
}
