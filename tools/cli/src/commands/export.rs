use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use queue_runtime::AnyQueue;
use queue_runtime::service::{ArchivedMessage, Left};
use serde_json::json;

use crate::failure::{Exit, Failure, Result};
use crate::output::{Bar, count, escape_json, note};
use crate::session::Session;

/// How long messages are leased that are written and then deleted.
const LEASE: Duration = Duration::from_secs(300);

/// The bytes of lines that are written at once.
const WRITTEN_AT_ONCE: usize = 1024 * 1024;

/// The bytes of lines from which the next messages are read in smaller portions.
const LARGE: usize = 16 * 1024 * 1024;

/// Copy the messages of a queue to a file, one line of JSON each, or move them there.
///
/// Without --move, messages in any state are copied, and nothing is changed: in memory and on SQLite. With --move, which
/// works on every storage, visible messages are received, written and synced to the disk, and only then deleted. If that is
/// interrupted, messages that are in the file may be on the queue too, with the same ids; none is lost.
#[derive(Debug, Args)]
pub(crate) struct Export {
    queue: String,

    /// The file, which must not exist; `-`, the default, is standard output.
    #[arg(default_value = "-")]
    file: PathBuf,

    /// Delete each message from the queue once it is in the file and synced.
    #[arg(long = "move")]
    moves: bool,

    /// Add to a file that an earlier call has written. A torn last line is cut off: its message is still on the queue.
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
        let archived = queue.archive(from.as_ref(), page.messages).await;
        let archived = archived.map_err(|error| without_browsing(error.into()))?;
        page.adapt(target.write(&archived.messages)?);
        copied += archived.messages.len() as u64;
        bar.add(archived.messages.len() as u64);
        left.extend(archived.left);
        from = archived.next;
        if from.is_none() {
            break;
        }
    }
    drop(bar);
    target.sync()?;
    report(export, session, "copied", copied, 0, &left)
}

async fn moving(export: &Export, queue: &AnyQueue, total: u64, session: &Session) -> Result<()> {
    if export.file == Path::new("-") {
        let text =
            "--move needs a file, which can be synced to the disk before messages are deleted";
        return Err(Failure::usage(text));
    }
    let name = queue.name();
    let about = count(total, "message");
    let file = export.file.display();
    session.confirm(&format!(
        "Move about {about} of queue `{name}` to `{file}`?"
    ))?;
    let mut target = Target::open(export)?;
    let bar = Bar::new("moving", Some(total));
    let mut batch = Portion::new(session);
    let mut moved = Moved::default();
    let ended = move_all(queue, &mut target, &mut batch, &mut moved, &bar).await;
    drop(bar);
    let Moved {
        messages,
        lost,
        left,
    } = moved;
    let reported = report(export, session, "moved", messages, lost, &left);
    if let Err(failure) = ended {
        let done = format!("{} were moved", count(messages, "message"));
        return Err(match messages {
            0 => failure,
            _ => failure.after(&done),
        });
    }
    reported?;
    let rest = queue.properties().await?.approximate_count;
    if rest > 0 {
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
    messages: u64,
    lost: u64,
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
        match written.and_then(|bytes| target.sync().map(|()| bytes)) {
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
        let off = taken.delete().await?;
        moved.messages += off.deleted;
        moved.lost += off.lost;
        bar.add(off.deleted);
    }
}

/// How many messages are read at once: fewer if they are large, so that memory stays bounded.
struct Portion {
    messages: u32,
    most: u32,
}

impl Portion {
    fn new(session: &Session) -> Self {
        let most = session.service.backend().capabilities().max_receive;
        let messages = most.min(32);
        Self { messages, most }
    }

    /// Takes account of the bytes of the last portion.
    fn adapt(&mut self, bytes: usize) {
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
    messages: u64,
    lost: u64,
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
    let text = format!("{} cannot be exported", count(left.len() as u64, "message"));
    Err(Failure::new(Exit::Partial, text))
}

fn without_browsing(failure: Failure) -> Failure {
    if !failure.is(Exit::Unsupported) {
        return failure;
    }
    failure.with_help("`export --move FILE` receives the messages, and works on every storage")
}

/// The file that lines are written to.
struct Target {
    path: PathBuf,
    file: Option<File>,
}

impl Target {
    fn open(export: &Export) -> Result<Self> {
        let path = export.file.clone();
        if path == Path::new("-") {
            return Ok(Self { path, file: None });
        }
        let failed = |error: io::Error| failed("open", &path, &error);
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let exists = path.exists();
        let file = if export.append {
            options.create(true).truncate(false)
        } else {
            options.create_new(true)
        };
        let mut file = match file.open(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let help = "name another one, or --append to it";
                return Err(failed(error).with_help(help));
            }
            file => file.map_err(failed)?,
        };
        if exists {
            cut(&path, &mut file)?;
        } else {
            // The name is durable before the first message is deleted.
            let parent = path
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty());
            let parent = File::open(parent.unwrap_or(Path::new(".")));
            parent
                .and_then(|parent| parent.sync_all())
                .map_err(failed)?;
        }
        Ok(Self {
            path,
            file: Some(file),
        })
    }

    /// Writes messages, a line each. Returns the bytes.
    fn write(&mut self, messages: &[ArchivedMessage]) -> Result<usize> {
        let mut bytes = 0;
        // One write for many lines.
        let mut lines = String::new();
        for message in messages {
            let line = serde_json::to_string(message).map_err(|error| {
                Failure::new(Exit::Failed, format!("failed to write JSON: {error}"))
            })?;
            bytes += line.len();
            lines.push_str(&line);
            lines.push('\n');
            if lines.len() >= WRITTEN_AT_ONCE {
                self.append(&lines)?;
                lines.clear();
            }
        }
        self.append(&lines)?;
        Ok(bytes)
    }

    fn append(&mut self, lines: &str) -> Result<()> {
        match &mut self.file {
            // It may be a terminal, and means the same.
            None => Ok(io::stdout()
                .lock()
                .write_all(escape_json(lines).as_bytes())?),
            Some(file) => file
                .write_all(lines.as_bytes())
                .map_err(|error| failed("write", &self.path, &error)),
        }
    }

    fn sync(&self) -> Result<()> {
        match &self.file {
            None => Ok(io::stdout().lock().flush()?),
            Some(file) => file
                .sync_all()
                .map_err(|error| failed("sync", &self.path, &error)),
        }
    }
}

/// Cuts off a torn last line, which an interrupted export has left, and moves to the end.
///
/// # Errors
/// If the file is not one that an export has written.
fn cut(path: &Path, file: &mut File) -> Result<()> {
    let failed = |error: io::Error| failed("read", path, &error);
    let mut first = Vec::new();
    let mut reader = BufReader::new(&*file);
    reader.read_until(b'\n', &mut first).map_err(failed)?;
    let is_ours = |line: &[u8]| serde_json::from_slice::<ArchivedMessage>(line).is_ok();
    let is_torn =
        |line: &[u8]| line.starts_with(b"{\"queue\":") || b"{\"queue\":".starts_with(line);
    let whole = first.ends_with(b"\n");
    if !(whole && is_ours(&first) || !whole && is_torn(&first)) {
        let text = format!("`{}` is not a file of an export", path.display());
        return Err(Failure::usage(text).with_help("name another file"));
    }
    let length = file.metadata().map_err(failed)?.len();
    let (mut end, mut block) = (length, vec![0; 64 * 1024]);
    let keep = loop {
        if end == 0 {
            break 0;
        }
        let begin = end.saturating_sub(block.len() as u64);
        let block = &mut block[..(end - begin) as usize];
        file.seek(SeekFrom::Start(begin)).map_err(failed)?;
        file.read_exact(block).map_err(failed)?;
        if let Some(at) = block.iter().rposition(|byte| *byte == b'\n') {
            break begin + at as u64 + 1;
        }
        end = begin;
    };
    if keep < length {
        note(format!(
            "cut off a torn last line of {} bytes from `{}`; its message is on the queue",
            length - keep,
            path.display()
        ));
        file.set_len(keep).map_err(failed)?;
        file.sync_all().map_err(failed)?;
    }
    file.seek(SeekFrom::End(0)).map_err(failed)?;
    Ok(())
}

fn failed(operation: &str, path: &Path, error: &io::Error) -> Failure {
    let text = format!("failed to {operation} `{}`: {error}", path.display());
    Failure::new(Exit::Failed, text)
}
