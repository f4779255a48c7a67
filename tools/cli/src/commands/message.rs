//! One message, by its id: finding, editing and deleting it.

use std::io::{self, IsTerminal as _};
use std::process;

use clap::Args;
use queue_runtime::AnyQueue;
use queue_runtime::MessageId;
use queue_runtime::backend::MessageState;
use queue_runtime::service::Browsed;
use queue_runtime::wire::{Body, DEFAULT_MAX_PAYLOAD, Payload};
use serde_json::json;
use tempfile::NamedTempFile;

use crate::failure::{Exit, Failure, Result};
use crate::input::{self, Input};
use crate::output::{count, details, indented, note};
use crate::session::Session;

/// Find the messages with an id, and show everything about them. Not on Azure.
///
/// Copies of a message share its id.
#[derive(Debug, Args)]
pub(crate) struct Find {
    queue: String,

    /// The message id.
    id: MessageId,
}

/// Delete the messages with these ids, in any state. Not on Azure.
///
/// A consumer that handles such a message is told to stop at the next renewal of the lease, and may have completed the
/// message by then.
#[derive(Debug, Args)]
pub(crate) struct DeleteMessage {
    queue: String,

    /// The message ids.
    #[arg(required = true)]
    ids: Vec<MessageId>,
}

/// Replace the payload of a message; its id and its attempts stay. Not on Azure.
///
/// Without a new payload on the command line, the payload is opened in the editor that VISUAL or EDITOR names. A
/// message that a consumer holds cannot be changed.
#[derive(Debug, Args)]
pub(crate) struct Edit {
    queue: String,

    /// The message id.
    id: MessageId,

    /// The new payload, as JSON; `-` reads standard input.
    payload: Option<String>,
}

pub(crate) async fn find(arguments: &Find, session: &Session) -> Result<()> {
    let queue = session.queue(&arguments.queue)?;
    let now = now(&queue).await?;
    let output = &session.output;
    for (number, message) in existing(&queue, &arguments.id).await?.iter().enumerate() {
        if output.json {
            output.message(message)?;
            continue;
        }
        if number > 0 {
            output.line("\n")?;
        }
        for line in details(message, now, output.hides_payloads) {
            output.line(line)?;
        }
    }
    Ok(())
}

pub(crate) async fn delete(delete: &DeleteMessage, session: &Session) -> Result<()> {
    let queue = session.queue(&delete.queue)?;
    let mut found = Vec::<Browsed>::new();
    for id in &delete.ids {
        for message in existing(&queue, id).await? {
            // An id may be given twice.
            if found.iter().all(|other| other.id != message.id) {
                found.push(message);
            }
        }
    }
    let held = found
        .iter()
        .filter(|message| message.state == MessageState::Hidden);
    let held = match held.count() {
        0 => String::new(),
        held => format!(", of which {held} may be with a consumer"),
    };
    let (name, messages) = (queue.name(), count(found.len(), "message"));
    session.confirm(&format!("Delete {messages} of queue `{name}`{held}?"))?;
    let mut failed = None;
    let mut deleted = 0;
    for message in &found {
        match queue.delete_message(message).await {
            Ok(()) => deleted += 1,
            Err(error) => {
                let id = message
                    .body
                    .envelope()
                    .map_or("", |envelope| envelope.id.as_str());
                note(format!("message {id} is not deleted: {error}"));
                failed = Some(error);
            }
        }
    }
    if let (0, Some(error)) = (deleted, &failed) {
        return Err(error.clone().into());
    }
    let messages = count(deleted, "message");
    let value = json!({ "queue": name, "deleted_messages": deleted });
    let sentence = format!("deleted {messages} of queue `{name}`");
    session.output.done(&sentence, &value)?;
    failed.map_or(Ok(()), |error| Err(Failure::from(error).after(&sentence)))
}

pub(crate) async fn edit(edit: &Edit, session: &Session) -> Result<()> {
    let queue = session.queue(&edit.queue)?;
    let mut found = existing(&queue, &edit.id).await?;
    let (Some(message), true) = (found.pop(), found.is_empty()) else {
        let text = format!(
            "there are several copies of message {} on queue `{}`",
            edit.id,
            queue.name()
        );
        return Err(Failure::new(Exit::Failed, text).with_help("`queues find` shows them"));
    };
    let payload = match edit.payload.as_deref() {
        Some("-") => Input::all()?,
        Some(payload) => payload.as_bytes().to_vec(),
        None => {
            let (was, file) = (editable(&message)?, Edited::new()?);
            let edited = file.in_editor(&was)?;
            if edited.trim_ascii() == was.as_bytes().trim_ascii() {
                let text = "nothing was changed: the new payload equals the old payload";
                return Err(Failure::new(Exit::Declined, text));
            }
            let replaced = replace(edit, &queue, &message, edited, session).await;
            return replaced.map_err(|failure| file.keep(failure));
        }
    };
    replace(edit, &queue, &message, payload, session).await
}

async fn replace(
    edit: &Edit,
    queue: &AnyQueue,
    message: &Browsed,
    payload: Vec<u8>,
    session: &Session,
) -> Result<()> {
    let payload = input::json(&payload)?;
    let sizes = format!("{} bytes", payload.len());
    session.confirm(&format!(
        "Replace the payload of message {} by one of {sizes}?",
        edit.id
    ))?;
    queue.edit(message, Payload::Json(payload)).await?;
    let value = json!({ "queue": queue.name(), "id": edit.id });
    session.output.done(
        &format!("replaced the payload of message {}", edit.id),
        &value,
    )
}

/// Returns the messages with this id, of which there is at least one.
async fn existing(queue: &AnyQueue, id: &MessageId) -> Result<Vec<Browsed>> {
    let found = queue.find(id).await?;
    if found.is_empty() {
        let text = format!("no message with the id {id} is on queue `{}`", queue.name());
        return Err(Failure::new(Exit::NotFound, text).with_help(
            "the message may have been completed, or moved to the poison queue; messages in a pack have no place of their own",
        ));
    }
    Ok(found)
}

/// The storage's time.
async fn now(queue: &AnyQueue) -> Result<queue_runtime::Timestamp> {
    Ok(queue.browse(None, 1).await?.now)
}

/// Returns the payload of a message as a person can change it.
///
/// # Errors
/// If the payload is no JSON, or not in the message.
fn editable(message: &Browsed) -> Result<String> {
    let refused = |problem: String| Failure::usage(format!("{problem}, so it cannot be edited"));
    let Body::Event(event) = &message.body else {
        return Err(refused("the message is no event".to_owned()));
    };
    let mut event = event.clone();
    event
        .expand(DEFAULT_MAX_PAYLOAD)
        .map_err(|error| refused(format!("the payload cannot be expanded ({error})")))?;
    let Payload::Json(json) = &event.payload else {
        return Err(refused("the payload is no JSON in the message".to_owned()));
    };
    match std::str::from_utf8(json) {
        Ok(json) => Ok(indented(json) + "\n"),
        Err(_) => Err(refused("the payload is not UTF-8".to_owned())),
    }
}

/// A file in which a person changes a payload.
struct Edited(NamedTempFile);

impl Edited {
    fn new() -> Result<Self> {
        let file = tempfile::Builder::new()
            .prefix("queues-")
            .suffix(".json")
            .tempfile();
        Ok(Self(file.map_err(|error| editing(&error))?))
    }

    /// Has a person change the payload, and returns what is in the file then.
    fn in_editor(&self, payload: &str) -> Result<Vec<u8>> {
        let editor = ["VISUAL", "EDITOR"]
            .into_iter()
            .find_map(|name| std::env::var(name).ok());
        let editor = editor.filter(|editor| !editor.trim().is_empty());
        let Some(editor) = editor.filter(|_| io::stdin().is_terminal()) else {
            return Err(Failure::usage("no payload is given").with_help(
                "give the payload after the id, or `-` for standard input, or set EDITOR on a terminal",
            ));
        };
        std::fs::write(self.0.path(), payload).map_err(|error| editing(&error))?;
        let mut words = editor.split_whitespace();
        let program = words.next().unwrap_or_default();
        let ended = process::Command::new(program)
            .args(words)
            .arg(self.0.path())
            .status();
        let ended = ended.map_err(|error| {
            Failure::new(Exit::Failed, format!("failed to run `{editor}`: {error}"))
        })?;
        if !ended.success() {
            note("the editor has failed");
            return Err(Failure::new(Exit::Declined, "nothing was changed"));
        }
        std::fs::read(self.0.path()).map_err(|error| editing(&error))
    }

    /// Keeps the work of the person, which was not accepted.
    fn keep(self, failure: Failure) -> Failure {
        match self.0.keep() {
            Ok((_, path)) => {
                let path = path.display();
                failure.with_help(format!(
                    "what you wrote is in `{path}`; `queues edit QUEUE ID - < {path}` takes it"
                ))
            }
            Err(error) => failure.with_help(format!("what you wrote is lost: {error}")),
        }
    }
}

fn editing(error: &io::Error) -> Failure {
    Failure::new(Exit::Failed, format!("failed to edit: {error}"))
}
