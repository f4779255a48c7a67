use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use futures_util::{StreamExt as _, stream};
use queue_runtime::envelope::{ClientId, Envelope, MessageId, RequestId};
use queue_runtime::internal::parse_duration;
use queue_runtime::send::UntypedMessage;
use queue_runtime::wire::Payload;
use serde_json::json;

use crate::failure::{Exit, Failure, Result};
use crate::input::{self, Input};
use crate::output::{Bar, count};
use crate::session::Session;

/// How many messages are under way at once.
const AT_ONCE: usize = 64;

/// Submit one message, or one for each line of a file.
///
/// queues submit orders --kind shop.order '{"number": 7}'
///
/// queues submit orders --kind shop.order --file orders.jsonl --batch 2026-11-26
#[derive(Debug, Args)]
pub(crate) struct Submit {
    queue: String,

    /// The payload, as JSON; `-`, the default, reads standard input.
    #[arg(conflicts_with = "file")]
    payload: Option<String>,

    /// The kind of the message, as its type declares it: by default the name of the type in `kebab-case`.
    #[arg(long, required_unless_present = "bare", conflicts_with = "bare")]
    kind: Option<String>,

    /// A file with a JSON payload in each line, one for each message; `-` for standard input.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// Give the messages of a file the ids `NAME-LINE`, so that consumers recognise the copies of a repeated call.
    #[arg(long, value_name = "NAME", requires = "file")]
    batch: Option<String>,

    /// Submit the payload alone, without an envelope, for a consumer without this library.
    #[arg(long)]
    bare: bool,

    /// The message id; by default a new id.
    #[arg(long, value_parser = parse_id, conflicts_with_all = ["file", "bare"])]
    id: Option<MessageId>,

    /// The id of the request that the message belongs to; by default a new id.
    #[arg(long, value_parser = parse_request_id, conflicts_with = "bare")]
    request_id: Option<RequestId>,

    /// The group of the message: messages of a group are handled in order, one at a time. Not on Azure.
    #[arg(long, conflicts_with = "bare")]
    group: Option<String>,

    /// The version of the payload.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "bare")]
    payload_version: u32,

    /// How long the message stays invisible.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = parse_duration)]
    delay: Duration,

    /// The time after which the message expires; by default the message never expires.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    ttl: Option<Duration>,
}

fn parse_id(text: &str) -> Result<MessageId, String> {
    MessageId::new(text).map_err(|error| error.to_string())
}

fn parse_request_id(text: &str) -> Result<RequestId, String> {
    RequestId::new(text).map_err(|error| error.to_string())
}

impl Submit {
    /// Returns the message with this payload, of this line of a file.
    fn message(
        &self,
        session: &Session,
        payload: &[u8],
        line: Option<u64>,
    ) -> Result<UntypedMessage> {
        let message = match &self.kind {
            None => UntypedMessage::bare(payload.to_vec()),
            Some(kind) => {
                let id = self.id(line)?;
                let request_id = self.request_id.clone().unwrap_or_else(RequestId::random);
                let client_id: ClientId = session.service.client_id().clone();
                let mut envelope = Envelope::new(id, client_id, request_id, kind.as_str());
                envelope.version = self.payload_version;
                envelope.group = self.group.as_deref().map(Box::from);
                UntypedMessage::event(envelope, Payload::Json(input::json(payload)?))
            }
        };
        let message = message.delay(self.delay);
        Ok(match self.ttl {
            Some(ttl) => message.time_to_live(ttl),
            None => message,
        })
    }

    fn id(&self, line: Option<u64>) -> Result<MessageId> {
        match (&self.batch, line, &self.id) {
            (Some(batch), Some(line), _) => MessageId::new(format!("{batch}-{line}"))
                .map_err(|error| Failure::usage(format!("--batch: {error}"))),
            (_, _, Some(id)) => Ok(id.clone()),
            _ => Ok(MessageId::random()),
        }
    }
}

pub(crate) async fn run(submit: Submit, session: &Session) -> Result<()> {
    match &submit.file {
        Some(file) => lines(&submit, file, session).await,
        None => one(&submit, session).await,
    }
}

async fn one(submit: &Submit, session: &Session) -> Result<()> {
    let payload = match submit.payload.as_deref() {
        None | Some("-") => Input::all()?.trim_ascii().to_vec(),
        Some(payload) => payload.as_bytes().to_vec(),
    };
    let queue = session.queue(&submit.queue)?;
    let message = submit.message(session, &payload, None)?;
    let submitted = queue.submit(message).await?;
    let id = &submitted.id;
    let what = if submit.bare {
        "a bare body".to_owned()
    } else {
        format!("message {id}")
    };
    let sentence = format!("submitted {what} to queue `{}`", queue.name());
    let value = json!({ "queue": queue.name(), "id": (!submit.bare).then_some(id) });
    session.output.done(&sentence, &value)
}

async fn lines(submit: &Submit, file: &Path, session: &Session) -> Result<()> {
    let queue = session.queue(&submit.queue)?;
    let bar = Bar::new("submitting", None);
    let input = Input::open(file)?;
    let input = if submit.bare { input } else { input.of_text()? };
    let mut under_way = stream::iter(lines_of(input))
        .map(async |line| {
            let (number, payload) = line?;
            let of_line = |failure: Failure| failure.of(&format!("line {number}"));
            let message = submit
                .message(session, &payload, Some(number))
                .map_err(of_line)?;
            let submitted = queue.submit(message).await;
            submitted.map(drop).map_err(|error| {
                Failure::new(Exit::Failed, format!("{error:?}")).of(&format!("line {number}"))
            })
        })
        // Of two puts at once, either may be the first.
        .buffered(if submit.group.is_some() { 1 } else { AT_ONCE });
    let mut submitted = 0;
    while let Some(ended) = under_way.next().await {
        if let Err(failure) = ended {
            let help = match submit.batch {
                Some(_) => {
                    "correct it and repeat the command: the copies have the same ids".to_owned()
                }
                None => format!(
                    "up to {AT_ONCE} lines after it may have been submitted too; --batch makes a repeated call safe for \
                     consumers that recognise copies"
                ),
            };
            let failure = failure.after_part(submitted, "message", "submitted");
            return Err(failure.with_help(help));
        }
        submitted += 1;
        bar.add(1);
    }
    drop(bar);
    let sentence = format!(
        "submitted {} to queue `{}`",
        count(submitted, "message"),
        queue.name()
    );
    let value = json!({ "queue": queue.name(), "submitted": submitted });
    session.output.done(&sentence, &value)
}

/// Returns the numbers and contents of the lines that are not empty.
fn lines_of(mut input: Input) -> impl Iterator<Item = Result<(u64, Bytes)>> {
    let mut line = Vec::new();
    let next = move || match input.next_line(&mut line) {
        Ok(true) => Some(Ok(Bytes::copy_from_slice(line.trim_ascii()))),
        Ok(false) => None,
        Err(failure) => Some(Err(failure)),
    };
    let numbered = std::iter::from_fn(next).zip(1..);
    let numbered = numbered.map(|(line, number)| Ok((number, line?)));
    numbered.filter(|line| line.as_ref().is_ok_and(|(_, line)| !line.is_empty()) || line.is_err())
}
