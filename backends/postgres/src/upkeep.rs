//! The removal of what nobody needs any more, by the connection that reads.

use std::time::Duration;

use tokio::time::sleep;
use tracing::warn;

use crate::asker::Asker;
use crate::attachments;
use crate::failure::Result;
use crate::queues;
use crate::records;
use crate::session::Session;
use crate::transactions::Forgotten;

/// The time between two looks for what to remove.
const INTERVAL: Duration = Duration::from_secs(60);

/// Starts a task that removes until the asker is gone.
pub(crate) fn start(asker: &Asker, forgotten: Forgotten) {
    let asker = asker.downgrade();
    tokio::spawn(async move {
        while let Some(asker) = asker.upgrade() {
            let forgotten = forgotten.clone();
            let begin = asker.ask(|session| Box::pin(begin(session, forgotten)));
            let mut done = begin.await.map(|()| true);
            while matches!(done, Ok(true)) {
                done = asker.ask(|session| Box::pin(remove_some(session))).await;
            }
            drop(asker);
            if let Err(failure) = done {
                warn!(?failure, "what is not needed any more was not removed");
            }
            sleep(INTERVAL).await;
        }
    });
}

async fn begin(session: &mut Session, forgotten: Forgotten) -> Result<()> {
    queues::add_up_totals(session).await?;
    forgotten.remove(session).await
}

/// Removes some of what nobody needs any more, and returns whether there may be more.
async fn remove_some(session: &mut Session) -> Result<bool> {
    let messages = queues::remove_dropped(session).await?;
    let attachments = attachments::remove_some(session).await?;
    Ok(records::sweep(session).await?.more || messages || attachments)
}
