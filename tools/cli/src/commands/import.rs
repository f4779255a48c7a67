use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use clap::Args;
use queue_runtime::service::ArchivedMessage;
use serde_json::json;

use crate::failure::{Exit, Failure, Result};
use crate::output::{Bar, count, note};
use crate::session::Session;

/// The most messages that are put together, and the bytes of their lines.
const BATCH: usize = 512;
const BATCH_BYTES: usize = 4 * 1024 * 1024;

/// Put the messages of a file that `export` has written on their queues, which are created if they are missing.
///
/// Messages keep their ids, attempts and poison records. Importing a file twice puts copies with the same ids, which
/// consumers that recognise copies handle once. A torn last line is left out: an interrupted `export --move` has left its
/// message on the queue. One that lacks only the line end is put, and may be a copy.
#[derive(Debug, Args)]
pub(crate) struct Import {
    /// The file; `-` is standard input.
    file: PathBuf,

    /// Put all messages on this queue instead of those that they came from.
    #[arg(long)]
    queue: Option<String>,

    /// Begin at this line, where an earlier call has stopped.
    #[arg(long, value_name = "LINE", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    from_line: u64,
}

/// Messages of one queue that are put together, and the numbers of their lines.
#[derive(Default)]
struct Batch {
    queue: String,
    messages: Vec<ArchivedMessage>,
    lines: Vec<u64>,
    bytes: usize,
}

pub(crate) async fn run(import: &Import, session: &Session) -> Result<()> {
    let mut reader = open(&import.file)?;
    let bar = Bar::new("importing", None);
    let mut imported = BTreeMap::new();
    let (mut batch, mut line, mut number) = (Batch::default(), Vec::new(), 0);
    let mut torn = false;
    loop {
        line.clear();
        let read = match reader.read_until(b'\n', &mut line) {
            Ok(read) => read,
            Err(error) => {
                put(&mut batch, session, &mut imported, &bar).await?;
                let failure = failed(&import.file, &error).of(&format!("line {}", number + 1));
                return Err(failure.with_help(resume(number + 1)));
            }
        };
        if read == 0 {
            break;
        }
        number += 1;
        if number < import.from_line || line.trim_ascii().is_empty() {
            continue;
        }
        let message: ArchivedMessage = match serde_json::from_slice(&line) {
            Ok(message) => message,
            Err(_) if !line.ends_with(b"\n") => {
                torn = true;
                break;
            }
            Err(error) => {
                put(&mut batch, session, &mut imported, &bar).await?;
                let text = format!("line {number} is not a message of an export: {error}");
                return Err(Failure::new(Exit::Partial, text).with_help(resume(number)));
            }
        };
        let queue = import.queue.as_deref().unwrap_or(&message.queue);
        let is_full = batch.messages.len() >= BATCH || batch.bytes >= BATCH_BYTES;
        if !batch.messages.is_empty() && (is_full || batch.queue != queue) {
            put(&mut batch, session, &mut imported, &bar).await?;
        }
        if batch.queue != queue {
            batch.queue = queue.to_owned();
            let created = async { Ok(session.queue(queue)?.create().await?) };
            created.await.map_err(|failure: Failure| {
                failure
                    .of(&format!("line {number}"))
                    .with_help(resume(number))
            })?;
        }
        batch.bytes += line.len();
        batch.messages.push(message);
        batch.lines.push(number);
    }
    put(&mut batch, session, &mut imported, &bar).await?;
    drop(bar);
    if torn {
        note(format!(
            "left out line {number}, which is torn: an interrupted export has left its message on the queue"
        ));
    }
    let total = imported.values().sum();
    let sentence = match imported.len() {
        1 => {
            let queue = imported.keys().next().map_or("", String::as_str);
            format!("imported {} to queue `{queue}`", count(total, "message"))
        }
        queues => format!("imported {} to {queues} queues", count(total, "message")),
    };
    let value =
        json!({ "imported": total, "queues": imported, "torn_line": torn.then_some(number) });
    session.output.done(&sentence, &value)
}

async fn put(
    batch: &mut Batch,
    session: &Session,
    imported: &mut BTreeMap<String, u64>,
    bar: &Bar,
) -> Result<()> {
    let Some(&first) = batch.lines.first() else {
        return Ok(());
    };
    let restored = session.queue(&batch.queue)?.restore(&batch.messages).await;
    if let Err(error) = restored {
        let line = batch.lines.get(error.restored).copied().unwrap_or(first);
        let failure = Failure::from(error.error).of(&format!("line {line}"));
        return Err(failure.with_help(resume(line)));
    }
    let messages = batch.messages.len() as u64;
    *imported.entry(batch.queue.clone()).or_default() += messages;
    bar.add(messages);
    batch.messages.clear();
    batch.lines.clear();
    batch.bytes = 0;
    Ok(())
}

fn resume(line: u64) -> String {
    format!(
        "the lines before {line} are imported; go on with --from-line {line}, or {} to leave it out",
        line + 1
    )
}

fn open(path: &Path) -> Result<Box<dyn BufRead>> {
    if path == Path::new("-") {
        return Ok(Box::new(BufReader::new(io::stdin())));
    }
    let file = File::open(path).map_err(|error| failed(path, &error))?;
    Ok(Box::new(BufReader::with_capacity(256 * 1024, file)))
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    let text = format!("failed to read `{}`: {error}", path.display());
    match error.kind() {
        io::ErrorKind::NotFound => Failure::new(Exit::NotFound, text),
        _ => Failure::new(Exit::Failed, text),
    }
}
