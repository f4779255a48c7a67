use std::collections::VecDeque;
use std::time::Duration;

use clap::{Args, ValueEnum};
use queue_runtime::Timestamp;
use queue_runtime::internal::parse_duration;
use queue_runtime::service::{Browsed, HistoryEntry, HowEnded};
use serde_json::json;

use crate::failure::{Exit, Failure, Result};
use crate::output::table::{Table, number, text};
use crate::output::{HIDDEN, age, count, escape, note};
use crate::session::Session;

/// Show how messages of a queue ended whose types keep a history, the newest last. Reads the whole history. Not on Azure.
///
/// Messages that were cancelled, cleared, deleted or have expired leave no entry.
#[derive(Debug, Args)]
pub(crate) struct History {
    queue: String,

    /// The maximum number of entries.
    #[arg(long, short = 'n', default_value_t = 50, conflicts_with = "all")]
    count: usize,

    /// Show all entries.
    #[arg(long)]
    all: bool,

    /// Only messages that ended in this way.
    #[arg(long)]
    how: Option<How>,

    /// Only messages of this kind.
    #[arg(long)]
    kind: Option<String>,

    /// Only messages that ended within this time, such as `2h`.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    since: Option<Duration>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum How {
    /// The message was completed.
    Completed,
    /// The message was moved to the poison queue.
    Poisoned,
}

impl History {
    /// Returns what an entry says, if it is wanted.
    fn wanted(&self, message: &Browsed, now: Timestamp) -> Option<HistoryEntry> {
        let how = match self.how {
            None => None,
            Some(How::Completed) => Some(HowEnded::Completed),
            Some(How::Poisoned) => Some(HowEnded::Poisoned),
        };
        message.history().filter(|entry| {
            how.is_none_or(|how| entry.how == how)
                && self.kind.as_ref().is_none_or(|kind| entry.kind == *kind)
                && self.since.is_none_or(|since| ago(message, now) <= since)
        })
    }
}

fn ago(message: &Browsed, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(message.inserted_at)).unwrap_or_default()
}

pub(crate) async fn run(of: &History, session: &Session) -> Result<()> {
    let queue = session.queue(&of.queue)?.history();
    let queue = queue.map_err(|error| Failure::new(Exit::Usage, error.to_string()))?;
    let output = &session.output;
    let page = session.service.backend().capabilities().max_receive;
    let most = if of.all { usize::MAX } else { of.count };
    let (mut last, mut from, mut unread) = (VecDeque::new(), None, 0);
    loop {
        let browsed = queue.browse(from.as_ref(), page).await?;
        for message in &browsed.messages {
            unread += usize::from(message.history().is_none());
            if let Some(mut entry) = of.wanted(message, browsed.now) {
                if output.hides_payloads {
                    let shown = (!output.json).then(|| HIDDEN.to_owned());
                    entry.error = entry.error.and(shown);
                }
                last.push_back((message.inserted_at, ago(message, browsed.now), entry));
            }
            if last.len() > most {
                last.pop_front();
            }
        }
        from = browsed.next;
        if from.is_none() {
            break;
        }
    }
    if unread > 0 {
        note(format!(
            "{} of the queue cannot be read as entries, and {} left out",
            count(unread, "message"),
            if unread == 1 { "is" } else { "are" }
        ));
    }
    if output.json {
        return last
            .iter()
            .try_for_each(|(at, _, entry)| output.json(&json!({ "at": at, "entry": entry })));
    }
    if last.is_empty() {
        return output.line("there are no such entries");
    }
    let mut table = Table::new(["AGO", "HOW", "ATTEMPTS", "TOOK", "KIND", "ID", "ERROR"]);
    for (_, ago, entry) in &last {
        let how = match entry.how {
            HowEnded::Poisoned => "poisoned",
            _ => "completed",
        };
        let error = entry.error.as_deref().or(entry.reason.as_deref());
        table.row([
            number(age(*ago)),
            text(how),
            number(entry.attempts),
            number(format!("{:?}", entry.took)),
            text(escape(&entry.kind)),
            text(escape(entry.id.as_str())),
            text(escape(error.unwrap_or_default())),
        ]);
    }
    output.table(&table)
}
