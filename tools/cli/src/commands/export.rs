use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use queue_runtime::error::Outcome;
use queue_runtime::internal::parse_duration;
use queue_runtime::service::{ExportFile, ExportedMessage, Left, TakenOff};
use queue_runtime::{AnyQueue, Timestamp};
use serde_json::json;

use crate::failure::{Exit, Failure, Result};
use crate::output::{Bar, count, escape_json, note};
use crate::session::Session;

/// How long messages are leased that are written and then deleted.
const LEASE: Duration = Duration::from_secs(300);

/// The bytes of lines from which the next messages are read in smaller portions.
const LARGE: u64 = 16 * 1024 * 1024;

/// Copy the messages of a queue to a file, one line of JSON each, or move the messages to the file.
///
/// Without --move, messages in any state are copied, and nothing is changed; not on Azure. With --move,
/// which works on every storage, visible messages are received, written and synced to the disk, and only deleted if the
/// file is still at its path, with all written lines. If a move is interrupted, messages of the file may be on the
/// queue too, with the same ids; no message is lost. One process at a time writes a file.
#[derive(Debug, Args)]
pub(crate) struct Export {
    queue: String,

    /// The new file; `-`, the default, is standard output.
    #[arg(default_value = "-")]
    file: PathBuf,

    /// Delete each message from the queue once the message is in the file and synced.
    #[arg(long = "move")]
    moves: bool,

    /// Only messages that were put on this queue at least this long ago, such as `30d`: on a poison queue, those that were
    /// given up then. With --move, those that a consumer holds are left. Not on Azure.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    older_than: Option<Duration>,

    /// Add to a file that an earlier call has written. A torn last line is cut off: the message of that line is still
    /// on the queue.
    #[arg(long)]
    append: bool,
}

pub(crate) async fn run(export: &Export, session: &Session) -> Result<()> {
    if session.output.hides_payloads {
        let text = "an export holds whole messages, so --hide-payloads cannot be obeyed";
        return Err(Failure::usage(text));
    }
    let queue = session.queue(&export.queue)?;
    let total = queue.properties().await?.approximate_count;
    if export.moves {
        return moving(export, &queue, total, session).await;
    }
    let mut target = Target::open(export)?;
    let bar = Bar::new("copying", Some(total));
    let mut page = Portion::new(session);
    let (mut copied, mut left) = (0, Vec::new());
    let mut from = None;
    loop {
        let exported = queue.export(from.as_ref(), page.messages).await;
        let exported = exported.map_err(|error| without_browsing(error.into()));
        let written = exported.and_then(|mut page| {
            let now = page.now;
            page.messages.retain(|message| export.takes(message, now));
            Ok((target.write(&page.messages)?, page))
        });
        let (bytes, exported) =
            written.map_err(|failure| failure.after_part(copied, "message", "copied"))?;
        page.adapt(bytes);
        copied += exported.messages.len();
        bar.add(exported.messages.len());
        left.extend(exported.left);
        from = exported.next;
        if from.is_none() {
            break;
        }
    }
    drop(bar);
    target.keep()?;
    report(export, session, "copied", copied, 0, &left)
}

async fn moving(export: &Export, queue: &AnyQueue, total: usize, session: &Session) -> Result<()> {
    if export.file == Path::new("-") {
        let text =
            "--move needs a file, which can be synced to the disk before messages are deleted";
        return Err(Failure::usage(text));
    }
    let name = queue.name();
    let file = export.file.display();
    session.confirm(&match export.older_than {
        Some(_) => format!("Move the older messages of queue `{name}` to `{file}`?"),
        None => {
            let about = count(total, "message");
            format!("Move about {about} of queue `{name}` to `{file}`?")
        }
    })?;
    let mut target = Target::open(export)?;
    let bar = Bar::new("moving", Some(total));
    let mut batch = Portion::new(session);
    let mut moved = Moved::default();
    let ended = match export.older_than {
        Some(_) => move_older(export, queue, &mut target, &mut batch, &mut moved, &bar).await,
        None => move_all(queue, &mut target, &mut batch, &mut moved, &bar).await,
    };
    drop(bar);
    let ended = match moved.off.deleted + moved.unknown {
        0 => ended,
        _ => target.keep_moved().and(ended),
    };
    let TakenOff { deleted, lost, .. } = moved.off;
    let reported = report(export, session, "moved", deleted, lost, &moved.left);
    ended.map_err(|failure| failure.after_part(deleted, "message", "moved"))?;
    reported?;
    let rest = queue.properties().await?.approximate_count;
    if rest > 0 && export.older_than.is_none() {
        note(format!(
            "about {} stay on queue `{name}`: delayed, held by a consumer, or put meanwhile",
            count(rest, "message")
        ));
    }
    Ok(())
}

/// What was moved until now.
#[derive(Default)]
struct Moved {
    off: TakenOff,
    /// Messages of which it is not known whether they were deleted.
    unknown: usize,
    left: Vec<Left>,
}

async fn move_all(
    queue: &AnyQueue,
    target: &mut Target,
    batch: &mut Portion,
    moved: &mut Moved,
    bar: &Bar,
) -> Result<()> {
    loop {
        let mut taken = queue.take(batch.messages, LEASE).await?;
        if taken.is_empty() {
            return Ok(());
        }
        moved.left.append(&mut taken.left);
        let written = target.write(&taken.messages);
        match written.and_then(|bytes| target.keep().map(|()| bytes)) {
            Ok(bytes) => batch.adapt(bytes),
            Err(failure) => {
                if let Err(error) = taken.hand_back().await {
                    note(format!(
                        "failed to hand messages back, which stay invisible for {} s: {error}",
                        LEASE.as_secs()
                    ));
                }
                return Err(failure);
            }
        }
        let (off, failed) = match taken.delete().await {
            Ok(off) => (off, None),
            Err(error) => (error.so_far, Some(error)),
        };
        moved.off.deleted += off.deleted;
        moved.off.lost += off.lost;
        bar.add(off.deleted);
        if let Some(error) = failed {
            moved.unknown = error.unknown;
            return Err(error.into());
        }
    }
}

impl Export {
    /// Whether a message is old enough.
    fn takes(&self, message: &ExportedMessage, now: Timestamp) -> bool {
        self.older_than
            .is_none_or(|age| message.is_older_than(age, now))
    }
}

/// Moves the messages that are old enough, which no receive selects.
async fn move_older(
    export: &Export,
    queue: &AnyQueue,
    target: &mut Target,
    batch: &mut Portion,
    moved: &mut Moved,
    bar: &Bar,
) -> Result<()> {
    let mut from = None;
    loop {
        let exported = queue.export(from.as_ref(), batch.messages).await?;
        let mut messages = exported.messages;
        messages.retain(|message| export.takes(message, exported.now) && !message.was_hidden());
        moved.left.extend(exported.left);
        let bytes = target.write(&messages)?;
        target.keep()?;
        batch.adapt(bytes);
        for message in &messages {
            match queue.delete_exported(message).await {
                Ok(()) => moved.off.deleted += 1,
                Err(error) if error.is_lease_gone() => moved.off.lost += 1,
                Err(error) => {
                    moved.unknown = usize::from(error.outcome() == Outcome::Unknown);
                    return Err(error.into());
                }
            }
            bar.add(1);
        }
        from = exported.next;
        if from.is_none() {
            return Ok(());
        }
    }
}

/// How many messages are read at once: fewer if they are large, so that memory stays bounded.
struct Portion {
    messages: usize,
    most: usize,
}

impl Portion {
    fn new(session: &Session) -> Self {
        let most = session.service.backend().capabilities().max_receive;
        let messages = most.min(32);
        Self { messages, most }
    }

    /// Takes account of the bytes of the last portion.
    fn adapt(&mut self, bytes: u64) {
        self.messages = match bytes {
            0..LARGE => (self.messages * 2).min(self.most),
            LARGE.. => (self.messages / 4).max(1),
        };
    }
}

fn report(
    export: &Export,
    session: &Session,
    done: &str,
    messages: usize,
    lost: usize,
    left: &[Left],
) -> Result<()> {
    for Left {
        storage_id,
        problem,
        ..
    } in left
    {
        note(format!("left message {}: {problem}", storage_id.as_str()));
    }
    if lost > 0 {
        note(format!(
            "{} were received by consumers before they could be deleted; their copies are in the file",
            count(lost, "message")
        ));
    }
    let to = export.file.display().to_string();
    if to == "-" {
        note(format!("{done} {}", count(messages, "message")));
    } else {
        let sentence = format!("{done} {} to `{to}`", count(messages, "message"));
        let value = json!({ "queue": export.queue, "file": to, done: messages, "lost": lost, "left": left });
        session.output.done(&sentence, &value)?;
    }
    if left.is_empty() {
        return Ok(());
    }
    let text = format!("{} cannot be exported", count(left.len(), "message"));
    let failure = Failure::new(Exit::Partial, text);
    Err(if session.service.payloads().is_some() {
        failure
    } else {
        failure.with_help("payloads that lie in a store are read if --payload-folder or --payload-container names it")
    })
}

fn without_browsing(failure: Failure) -> Failure {
    if !failure.is(Exit::Unsupported) {
        return failure;
    }
    failure.with_help("`export --move FILE` receives the messages, and works on every storage")
}

/// Where lines are written.
enum Target {
    File(ExportFile),
    /// Standard output.
    Output,
}

impl Target {
    fn open(export: &Export) -> Result<Self> {
        let path = &export.file;
        if path == Path::new("-") {
            return Ok(Self::Output);
        }
        if !export.append {
            let file = ExportFile::create(path).map_err(Failure::of_export)?;
            return Ok(Self::File(file));
        }
        let file = ExportFile::append(path).map_err(Failure::of_export)?;
        if file.cut() > 0 {
            note(format!(
                "cut off a torn last line of {} bytes from `{}`: an interrupted export leaves its message on the queue",
                file.cut(),
                path.display()
            ));
        }
        Ok(Self::File(file))
    }

    /// Writes messages, a line each. Returns the bytes.
    fn write(&mut self, messages: &[ExportedMessage]) -> Result<u64> {
        let Self::File(file) = self else {
            let mut bytes = 0;
            for message in messages {
                let line = serde_json::to_string(message).map_err(io::Error::from)?;
                bytes += line.len() as u64;
                // Escaped JSON is safe on a terminal, and means the same.
                writeln!(io::stdout().lock(), "{}", escape_json(&line))?;
            }
            return Ok(bytes);
        };
        file.write(messages).map_err(Failure::of_export)
    }

    /// Makes sure that what was written is where the file was named.
    fn keep(&self) -> Result<()> {
        match self {
            Self::File(file) => file.keep().map_err(Failure::of_export),
            Self::Output => Ok(io::stdout().lock().flush()?),
        }
    }

    /// Makes sure once more that the file is there, after messages were deleted from their queue; if not, writes them
    /// again beside it.
    fn keep_moved(&mut self) -> Result<()> {
        let kept = self.keep();
        let Self::File(file) = self else {
            return kept;
        };
        kept.map_err(|failure| {
            if file.is_at_path().unwrap_or(true) {
                return failure;
            }
            // The file's folder may be gone too.
            let folders = [file.path().with_file_name(""), std::env::temp_dir()];
            let name = format!("rescued-{}.jsonl", std::process::id());
            let rescued = folders
                .iter()
                .find_map(|folder| file.rescue(folder.join(&name)).ok());
            failure.with_help(match rescued {
                Some(rescued) => {
                    format!("the output is in `{}` now", rescued.path().display())
                }
                None => "the output is lost: it could not be written to another file".to_owned(),
            })
        })
    }
}
