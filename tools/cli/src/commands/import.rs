use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use queue_runtime::error::Outcome;
use queue_runtime::internal::as_count;
use queue_runtime::service::{ExportFile, ExportedMessage};
use serde::de::IgnoredAny;
use serde_json::json;

use crate::failure::{Exit, Failure, Result};
use crate::input::{Input, other_than_text};
use crate::output::{Bar, count, note};
use crate::session::Session;

/// The most messages that are put together, and the bytes of their lines.
const BATCH: usize = 512;
const BATCH_BYTES: usize = 4 * 1024 * 1024;

/// Put the messages of a file that `export` has written on their queues, which are created if they are missing.
///
/// Messages keep their ids, attempts and poison records. Importing a file twice puts copies with the same ids, which
/// consumers that recognise copies handle once. A last line that ends too early is left out, as an interrupted export
/// leaves it. A last line that lacks only the line end is imported, and may be a copy. A file or a line that no export
/// has written is an error that tells its form.
#[derive(Debug, Args)]
pub(crate) struct Import {
    /// The file of an export; `-` is standard input.
    file: PathBuf,

    /// Put all messages on this queue instead of the queues that the file names.
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
    messages: Vec<ExportedMessage>,
    lines: Vec<u64>,
    bytes: usize,
}

/// What was put until now, of which queue.
#[derive(Default)]
struct Imported {
    queues: BTreeMap<String, usize>,
}

impl Imported {
    fn total(&self) -> usize {
        self.queues.values().sum()
    }

    /// Says which line has failed, what was done before it, and how to go on.
    fn stopped_at(&self, line: u64, failure: Failure) -> Failure {
        let done = self.total();
        let failure = failure.of(&format!("line {line}"));
        if done == 0 && line == 1 {
            return failure;
        }
        let next = line + 1;
        failure.after_part(done, "message", "imported").with_help(format!(
            "the lines before {line} are imported; go on with --from-line {line}, or {next} to leave out line {line}"
        ))
    }
}

pub(crate) async fn run(import: &Import, session: &Session) -> Result<()> {
    let mut input = Input::open(&import.file)?.of_text()?;
    let bar = Bar::new("importing", None);
    let mut imported = Imported::default();
    let (mut batch, mut line, mut number) = (Batch::default(), Vec::new(), 0);
    // Whether an export has begun the file, and its last line if that ends too early.
    let (mut began, mut torn) = (false, None);
    loop {
        match input.next_line(&mut line) {
            Ok(true) => number += 1,
            Ok(false) => break,
            Err(failure) => {
                put(&mut batch, session, &mut imported, &bar).await?;
                return Err(imported.stopped_at(number + 1, failure));
            }
        }
        let is_skipped = number < import.from_line;
        if line.trim_ascii().is_empty() || is_skipped && began {
            continue;
        }
        let message: ExportedMessage = match serde_json::from_slice(&line) {
            Ok(message) => message,
            Err(_) if is_skipped => continue,
            Err(_) if began && !line.ends_with(b"\n") && ExportFile::is_torn(&line) => {
                torn = Some(number);
                break;
            }
            Err(error) => {
                put(&mut batch, session, &mut imported, &bar).await?;
                let text = format!("not a message of an export: {}", what_is(&line, &error));
                return Err(imported.stopped_at(number, Failure::new(Exit::Failed, text)));
            }
        };
        began = true;
        if is_skipped {
            continue;
        }
        let queue = import.queue.as_deref().unwrap_or(&message.queue);
        let is_full = batch.messages.len() >= BATCH || batch.bytes >= BATCH_BYTES;
        if !batch.messages.is_empty() && (is_full || batch.queue != queue) {
            put(&mut batch, session, &mut imported, &bar).await?;
        }
        if batch.queue != queue {
            batch.queue = queue.to_owned();
            let created = async { Ok(session.queue(queue)?.create().await?) };
            created
                .await
                .map_err(|failure: Failure| imported.stopped_at(number, failure))?;
        }
        batch.bytes += line.len();
        batch.messages.push(message);
        batch.lines.push(number);
    }
    put(&mut batch, session, &mut imported, &bar).await?;
    drop(bar);
    if number + 1 < import.from_line {
        let text = format!(
            "{} has only {}",
            input.name(),
            count(as_count(number), "line")
        );
        return Err(Failure::new(Exit::Failed, text));
    }
    if !began {
        let text = format!("there is no message of an export in {}", input.name());
        return Err(Failure::new(Exit::Failed, text)
            .with_help("an export of an empty queue has none either"));
    }
    if let Some(torn) = torn {
        note(format!(
            "left out line {torn}, which is torn: its message is still where it came from if an export was interrupted, and not \
             if this file is a copy that was cut off"
        ));
    }
    let total = imported.total();
    let sentence = match imported.queues.len() {
        1 => {
            let queue = imported.queues.keys().next().map_or("", String::as_str);
            format!("imported {} to queue `{queue}`", count(total, "message"))
        }
        queues => format!("imported {} to {queues} queues", count(total, "message")),
    };
    let value = json!({ "imported": total, "queues": imported.queues, "torn_line": torn });
    session.output.done(&sentence, &value)
}

async fn put(
    batch: &mut Batch,
    session: &Session,
    imported: &mut Imported,
    bar: &Bar,
) -> Result<()> {
    let Some(&first) = batch.lines.first() else {
        return Ok(());
    };
    let ended = session.queue(&batch.queue)?.import(&batch.messages).await;
    let messages = match &ended {
        Ok(()) => batch.messages.len(),
        Err(error) => error.imported,
    };
    if messages > 0 {
        *imported.queues.entry(batch.queue.clone()).or_default() += messages;
        bar.add(messages);
    }
    if let Err(error) = ended {
        let line = batch.lines.get(error.imported).copied().unwrap_or(first);
        let is_unknown = error.outcome() == Outcome::Unknown;
        let failure = imported.stopped_at(line, error.error.into());
        return Err(if is_unknown {
            failure.after("this line and the next ones may be imported too")
        } else {
            failure
        });
    }
    batch.messages.clear();
    batch.lines.clear();
    batch.bytes = 0;
    Ok(())
}

/// Says what a line is that is no message of an export.
fn what_is(line: &[u8], error: &serde_json::Error) -> String {
    if let Some(what) = other_than_text(line) {
        return format!("it is {what}");
    }
    let (begin, is_ended) = (line.trim_ascii(), line.ends_with(b"\n"));
    match serde_json::from_slice::<IgnoredAny>(line) {
        _ if begin.starts_with(b"[") => {
            "a JSON array begins there, and an export has a message in each line".to_owned()
        }
        Ok(_) => format!("it is JSON of another program ({error})"),
        Err(error) if error.is_eof() && is_ended => {
            "its JSON takes several lines, and an export has a message in each line".to_owned()
        }
        Err(_) if ExportFile::is_torn(line) => "the file ends within its first line".to_owned(),
        Err(error) => format!("it is no JSON ({error})"),
    }
}
