//! The removal of what nobody needs any more, by the connection that reads.

use std::time::Duration;

use tokio::time::sleep;
use tracing::warn;

use crate::asker::Asker;
use crate::attachments;
use crate::failure::{Failure, Result};
use crate::queues;
use crate::records;
use crate::session::{Session, column};
use crate::transactions::{self, Forgotten};
use crate::values::Parameter;

/// The time between two looks for what to remove.
const INTERVAL: Duration = Duration::from_secs(60);

/// Whether there may be something to do, so that a process at rest asks one thing in a minute.
const IS_DUE: &str = "SELECT EXISTS (SELECT FROM dropped) OR EXISTS (SELECT FROM left_behind)
    OR EXISTS (SELECT FROM totals OFFSET $1)
    OR EXISTS (SELECT FROM tokens WHERE at < (SELECT now_us() - $2))
    OR EXISTS (SELECT FROM records
        WHERE ends_at <= (SELECT now_us()) AND (value IS NOT NULL OR ends_at <= (SELECT now_us() - $3)))";

/// Starts a task that removes until the asker is gone.
pub(crate) fn start(asker: &Asker, forgotten: Forgotten) {
    let asker = asker.downgrade();
    tokio::spawn(async move {
        while let Some(asker) = asker.upgrade() {
            let forgotten = forgotten.clone();
            let mut done = asker
                .ask(|session| Box::pin(begin(session, forgotten)))
                .await;
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

/// Adds up totals and forgets tokens if there is anything to do, which it returns.
async fn begin(session: &mut Session, forgotten: Forgotten) -> Result<bool> {
    if forgotten.is_empty() && !is_due(session).await? {
        return Ok(false);
    }
    queues::add_up_totals(session).await?;
    forgotten.remove(session).await?;
    Ok(true)
}

async fn is_due(session: &mut Session) -> Result<bool> {
    let parameters: [Parameter<'_>; 3] = [&queues::FEW, &transactions::KEPT, &records::ABANDONED];
    let rows = session.query(IS_DUE, &parameters).await?;
    let row = rows.first().ok_or(Failure::Corrupt("no answer"))?;
    column(row, 0)
}

/// Removes some of what nobody needs any more, and returns whether there may be more.
async fn remove_some(session: &mut Session) -> Result<bool> {
    let messages = queues::remove_dropped(session).await?;
    let attachments = attachments::remove_some(session).await?;
    Ok(records::sweep(session).await?.more || messages || attachments)
}
