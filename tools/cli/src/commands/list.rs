use clap::Args;
use comfy_table::Cell;
use futures_util::{StreamExt as _, stream};
use queue_runtime::QueueName;

use crate::commands::properties::{Figures, figures};
use crate::failure::Result;
use crate::output::table::{alarming, number, text};
use crate::output::{Table, escape};
use crate::session::Session;

/// How many queues are read at once.
pub(crate) const AT_ONCE: usize = 8;

/// List the queues: how many messages each has, and its poison queue.
#[derive(Debug, Args)]
pub(crate) struct List {
    /// Only queues whose names begin with this text.
    #[arg(default_value = "")]
    prefix: String,

    /// Also list the reply queues of programs that make requests.
    #[arg(long, short)]
    all: bool,
}

pub(crate) async fn run(list: &List, session: &Session) -> Result<()> {
    let queues = names(session, &list.prefix, list.all).await?;
    let mut read = stream::iter(queues)
        .map(|queue| figures(session, queue))
        .buffered(AT_ONCE);
    let mut table = Table::new(["QUEUE", "MESSAGES", "POISON", "OLDEST", "STATE"]);
    while let Some(figures) = read.next().await {
        // The queue was deleted meanwhile.
        let Some(figures) = figures? else { continue };
        if session.output.json {
            session.output.json(&figures)?;
        } else {
            table.row(row(&figures));
        }
    }
    if session.output.json {
        return Ok(());
    }
    if table.is_empty() {
        return session.output.line("there are no such queues");
    }
    session.output.table(&table)
}

fn row(figures: &Figures) -> [Cell; 5] {
    let poison = match figures.poison {
        None => text(""),
        Some(0) => number(0),
        Some(poison) => alarming(poison),
    };
    [
        text(escape(figures.queue.as_str())),
        number(figures.messages),
        poison,
        number(figures.oldest_shown()),
        text(state(figures)),
    ]
}

pub(crate) fn state(figures: &Figures) -> String {
    let paused = figures.paused.as_ref();
    paused.map_or_else(String::new, |paused| escape(&paused.to_string()))
}

/// Returns the names of the queues, without those for replies unless `all`.
pub(crate) async fn names(session: &Session, prefix: &str, all: bool) -> Result<Vec<QueueName>> {
    let mut queues = session.service.queues_like(prefix).await?;
    queues.retain(|queue| all || !queue.is_reply_queue());
    Ok(queues)
}
