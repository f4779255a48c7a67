use std::sync::Arc;
use std::time::Duration;

use queue_runtime::request::RequestErrorKind;
use tokio::task::JoinSet;

use super::Desk;
use crate::messages::{Answer, Question};

/// The requests that one process has in flight.
pub const AT_ONCE: usize = 8;

/// How a request ended, as a process prints it after the number of its question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// With the answer to another question.
    Mistaken,
    /// With the right answer.
    Answered,
    /// Without a reply in time.
    NoReply,
    /// The reply queue was deleted by others.
    Deleted,
    /// The storage failed, for example because other processes had locked it for too long.
    Failed,
}

/// What a process prints, before the number of the question.
pub const ASKED: &str = "asked";

impl End {
    /// All ends, with their names.
    pub const ALL: [(Self, &str); 5] = [
        (Self::Mistaken, "mistaken"),
        (Self::Answered, "answered"),
        (Self::NoReply, "no-reply"),
        (Self::Deleted, "deleted"),
        (Self::Failed, "failed"),
    ];

    fn name(self) -> &'static str {
        let found = Self::ALL.iter().find(|(end, _)| *end == self);
        found.expect("it is one of all").1
    }
}

/// Asks questions, several at a time, until the input ends; prints each before it is asked, and how it ended.
pub(super) async fn run(desk: Arc<Desk>, within: Duration) {
    let first = desk.number * 1_000_000;
    let mut asking = JoinSet::new();
    for number in first.. {
        if desk.is_stopping() {
            break;
        }
        if asking.len() >= AT_ONCE {
            asking.join_next().await.expect("some").expect("no panic");
        }
        println!("{ASKED} {number}");
        let desk = Arc::clone(&desk);
        asking.spawn(async move {
            let request = desk.service.request(Question { number });
            let end = match request.reply::<Answer>().timeout(within).await {
                Ok(reply) if reply.question == number => End::Answered,
                Ok(_) => End::Mistaken,
                Err(error) => match error.kind {
                    RequestErrorKind::NoReply { .. } => End::NoReply,
                    RequestErrorKind::ReplyQueueDeleted => End::Deleted,
                    RequestErrorKind::ReplyQueue(_)
                    | RequestErrorKind::NotSubmitted { .. }
                    | RequestErrorKind::Submit(_) => End::Failed,
                    problem => panic!("{problem}"),
                },
            };
            println!("{} {number}", end.name());
        });
    }
    while let Some(asked) = asking.join_next().await {
        asked.expect("no panic");
    }
    desk.service.delete_reply_queue().await;
}
