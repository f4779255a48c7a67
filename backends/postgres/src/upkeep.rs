//! The removal of what nobody needs any more, by the connection that reads.

use std::time::Duration;

use tokio::time::sleep;
use tracing::warn;

use crate::attachments;
use crate::failure::Result;
use crate::queues;
use crate::records;
use crate::session::{Asker, Session};
use crate::transactions::Forgotten;

/// The time between two looks for what to remove.
const INTERVAL: Duration = Duration::from_secs(60);

/// Starts a task that removes until the asker is gone.
pub(crate) fn start(asker: &Asker, forgotten: Forgotten) {
    let asker = asker.downgrade();
    tokio::spawn(async move {
        while let Some(asker) = asker.upgrade() {
            let forgotten = forgotten.clone();
            let remove = asker.ask(|session| Box::pin(remove_some(session, forgotten)));
            let removed = remove.await;
            drop(asker);
            match removed {
                Ok(true) => {}
                Ok(false) => sleep(INTERVAL).await,
                Err(failure) => {
                    warn!(?failure, "what is not needed any more was not removed");
                    sleep(INTERVAL).await;
                }
            }
        }
    });
}

/// Removes some of it, and returns whether there may be more.
async fn remove_some(session: &mut Session, forgotten: Forgotten) -> Result<bool> {
    let messages = queues::remove_dropped(session).await?;
    let attachments = attachments::remove_some(session).await?;
    queues::add_up_totals(session).await?;
    forgotten.remove(session).await?;
    Ok(records::sweep(session).await?.more || messages || attachments)
}
