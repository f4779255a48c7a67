use clap::Args;
use queue_runtime::QueueName;
use queue_runtime::service::ExportedMessage;
use serde_json::json;

use crate::failure::{Exit, Failure, Result};
use crate::output::{count, escape, note};
use crate::session::Session;

/// How many messages are read at once.
const PAGE: usize = 32;

/// How often all queues are searched at most until a search finds nothing: a message that is received or moved during a search
/// may be missed.
const SEARCHES: usize = 5;

/// Find the messages that contain a text, such as a person's e-mail address, on all queues, and with --delete, delete them.
/// Not on Azure.
///
/// The text is looked for in payloads, errors, keys and client ids of messages in any state: also on poison queues and in
/// histories, and in payloads that are compressed, in packs or stored elsewhere. Upper and lower case differ. A consumer that
/// holds such a message is told to stop at the next renewal of its lease. Not searched: exported files, backups, and what
/// `queues results` lists.
#[derive(Debug, Args)]
pub(crate) struct Erase {
    /// The text, of at least 4 characters.
    #[arg(long = "match", value_name = "TEXT")]
    text: String,

    /// Delete the messages. Without it, nothing is changed.
    #[arg(long)]
    delete: bool,
}

/// What a search of all queues has found.
#[derive(Default)]
struct Searched {
    messages: usize,
    deleted: usize,
    /// The messages that cannot be searched.
    unread: usize,
}

pub(crate) async fn run(erase: &Erase, session: &Session) -> Result<()> {
    let mut first = Searched::default();
    search(erase, false, session, &mut first).await?;
    let messages = count(first.messages, "message");
    if !erase.delete {
        note(format!(
            "{messages} with the text; nothing was deleted, as --delete does"
        ));
        return all_read(&first);
    }
    if first.messages > 0 {
        session.confirm(&format!("Delete {messages}?"))?;
    }
    let (mut deleted, mut last) = (0, first);
    for _ in 0..SEARCHES {
        if last.messages == 0 {
            break;
        }
        last = Searched::default();
        let searched = search(erase, true, session, &mut last).await;
        deleted += last.deleted;
        searched.map_err(|failure| failure.after_part(deleted, "message", "deleted"))?;
    }
    let left = last.messages - last.deleted;
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

/// Searches all queues, and lists or deletes what it finds.
async fn search(
    erase: &Erase,
    deletes: bool,
    session: &Session,
    found: &mut Searched,
) -> Result<()> {
    let service = &session.service;
    for name in service.queues().await? {
        let queue = service.any_queue(name.clone())?;
        let mut from = None;
        loop {
            let page = match queue.search(&erase.text, from.as_ref(), PAGE).await {
                Ok(page) => page,
                // Such as that of replies to a process that has ended meanwhile.
                Err(error) if error.is_queue_gone() => break,
                Err(error) => return Err(error.into()),
            };
            for left in &page.left {
                let (id, problem) = (left.storage_id.as_str(), &left.problem);
                note(format!(
                    "message {id} of queue `{name}` is not searched: {problem}"
                ));
            }
            found.unread += page.left.len();
            for message in &page.messages {
                found.messages += 1;
                if !deletes {
                    list(&name, message, session)?;
                    continue;
                }
                match queue.delete_exported(message).await {
                    Ok(()) => found.deleted += 1,
                    // It was received or put back meanwhile, or is gone.
                    Err(error) if error.is_lease_gone() => {}
                    Err(error) => return Err(error.into()),
                }
            }
            from = page.next;
            if from.is_none() {
                break;
            }
        }
    }
    Ok(())
}

fn list(queue: &QueueName, message: &ExportedMessage, session: &Session) -> Result<()> {
    let (id, storage_id) = (message.message_id(), &message.storage_id);
    if session.output.json {
        let line = json!({ "queue": queue, "id": id, "storage_id": storage_id });
        return session.output.json(&line);
    }
    let id = id.as_ref().unwrap_or(storage_id);
    session.output.line(escape(&format!("{queue}  {id}")))
}

fn all_read(found: &Searched) -> Result<()> {
    if found.unread == 0 {
        return Ok(());
    }
    let text = format!("{} cannot be searched", count(found.unread, "message"));
    let help =
        "payloads that lie in a store are read if --payload-folder or --payload-container names it";
    Err(Failure::new(Exit::Partial, text).with_help(help))
}
