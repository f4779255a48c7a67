use std::collections::BTreeMap;

use clap::Args;
use queue_runtime::service::ExportedMessage;
use queue_runtime::{AnyQueue, QueueName};
use serde_json::json;

use crate::failure::{Exit, Failure, Result};
use crate::output::table::{Table, number, text};
use crate::output::{count, note};
use crate::session::Session;

/// How many messages are read at once.
const PAGE: usize = 32;

/// How often all queues are searched at most until a search finds nothing: a message that is received or moved during a search
/// may be missed.
const SEARCHES: usize = 5;

/// Find the messages that contain a text, such as a person's e-mail address, on all queues, and with --delete, delete them.
/// Not on Azure.
///
/// The text is looked for in ids, attributes, errors and payloads of messages in any state: also on poison queues and in
/// histories, and in payloads that are compressed, in packs or stored elsewhere. Upper and lower case differ. A consumer that
/// holds such a message is told to stop at the next renewal of its lease. Not searched: exported files, backups, and what
/// `queues results` lists.
#[derive(Debug, Args)]
pub(crate) struct Erase {
    /// The text, of at least 3 characters.
    #[arg(long = "match", value_name = "TEXT")]
    text: String,

    /// Delete the messages. Without it, nothing is changed.
    #[arg(long)]
    delete: bool,
}

/// What a search of all queues has found.
#[derive(Default)]
struct Found {
    /// The number of messages on each queue.
    by_queue: BTreeMap<QueueName, usize>,
    deleted: usize,
    /// The messages that cannot be searched, on each queue.
    unread: usize,
}

impl Found {
    fn messages(&self) -> usize {
        self.by_queue.values().sum()
    }
}

pub(crate) async fn run(erase: &Erase, session: &Session) -> Result<()> {
    let first = search(erase, false, session).await?;
    if !erase.delete {
        shown(&first, session)?;
        return all_read(&first);
    }
    if first.messages() > 0 {
        let (messages, queues) = (first.messages(), first.by_queue.len());
        let (messages, queues) = (count(messages, "message"), count(queues, "queue"));
        session.confirm(&format!("Delete {messages} of {queues}?"))?;
    }
    let (mut deleted, mut last) = (0, first);
    for _ in 0..SEARCHES {
        if last.messages() == 0 {
            break;
        }
        let searched = search(erase, true, session).await;
        last = searched.map_err(|failure| failure.after_part(deleted, "message", "deleted"))?;
        deleted += last.deleted;
    }
    let left = last.messages() - last.deleted;
    let sentence = format!(
        "deleted {}; not searched: exported files, backups, and the results of work that is done once",
        count(deleted, "message")
    );
    let value =
        json!({ "deleted_messages": deleted, "left_messages": left, "not_searched": last.unread });
    session.output.done(&sentence, &value)?;
    if left > 0 {
        let text = format!(
            "{} changed each time that they were found; run the command again",
            count(left, "message")
        );
        return Err(Failure::new(Exit::Partial, text));
    }
    all_read(&last)
}

/// Searches all queues, and deletes what it finds.
async fn search(erase: &Erase, deletes: bool, session: &Session) -> Result<Found> {
    let service = &session.service;
    let mut found = Found::default();
    for name in service.queues().await? {
        let queue = service.any_queue(name.clone())?;
        let mut from = None;
        loop {
            let page = queue.search(&erase.text, from.as_ref(), PAGE).await?;
            for left in &page.left {
                let (id, problem) = (left.storage_id.as_str(), &left.problem);
                note(format!(
                    "message {id} of queue `{name}` is not searched: {problem}"
                ));
            }
            found.unread += page.left.len();
            for message in &page.messages {
                *found.by_queue.entry(name.clone()).or_default() += 1;
                if deletes {
                    found.deleted += usize::from(delete(&queue, message).await?);
                } else if session.output.json {
                    let id = message.message_id();
                    let storage_id = &message.storage_id;
                    let line = json!({ "queue": name, "id": id, "storage_id": storage_id });
                    session.output.json(&line)?;
                }
            }
            from = page.next;
            if from.is_none() {
                break;
            }
        }
    }
    Ok(found)
}

/// Returns false if the message was received or put back meanwhile, or is gone.
async fn delete(queue: &AnyQueue, message: &ExportedMessage) -> Result<bool> {
    match queue.delete_exported(message).await {
        Ok(()) => Ok(true),
        Err(error) if error.is_lease_gone() => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn shown(found: &Found, session: &Session) -> Result<()> {
    if session.output.json {
        return Ok(());
    }
    if found.by_queue.is_empty() {
        return session.output.line("no message contains the text");
    }
    let mut table = Table::new(["QUEUE", "MESSAGES"]);
    for (queue, messages) in &found.by_queue {
        table.row([text(queue.as_str()), number(messages)]);
    }
    session.output.table(&table)?;
    note("nothing was deleted; --delete deletes them");
    Ok(())
}

fn all_read(found: &Found) -> Result<()> {
    if found.unread == 0 {
        return Ok(());
    }
    let text = format!("{} cannot be searched", count(found.unread, "message"));
    let help =
        "payloads that lie in a store are read if --payload-folder or --payload-container names it";
    Err(Failure::new(Exit::Partial, text).with_help(help))
}
