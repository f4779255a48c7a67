use clap::{Args, ValueEnum};
use queue_runtime::backend::{MessageState, PageMark};
use queue_runtime::service::Browsed;

use crate::failure::Result;
use crate::output::{Listed, listing, note};
use crate::session::Session;

/// Show the messages of a queue in any state, page by page, without changing anything. Not on Azure.
///
/// Messages come in the order in which they become visible. On Azure, `peek` shows the first visible messages.
#[derive(Debug, Args)]
pub(crate) struct Browse {
    queue: String,

    /// The maximum number of messages.
    #[arg(long, short = 'n', default_value_t = 50, conflicts_with = "all")]
    count: usize,

    /// Show all messages.
    #[arg(long)]
    all: bool,

    /// Begin at this mark, which an earlier page has printed at its end.
    #[arg(long, value_name = "MARK")]
    from: Option<String>,

    /// Only messages in this state.
    #[arg(long)]
    state: Option<State>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum State {
    /// The message can be received.
    Visible,
    /// The message was put with a delay that is not over.
    Delayed,
    /// A consumer has received the message, or has put the message back for later.
    Held,
    /// The message waits for others of its group.
    Behind,
}

impl State {
    fn fits(self, message: &Browsed) -> bool {
        let state = match self {
            Self::Visible => MessageState::Visible,
            Self::Delayed => MessageState::Delayed,
            Self::Held => MessageState::Hidden,
            Self::Behind => MessageState::Behind,
        };
        message.state == state
    }
}

pub(crate) async fn run(browse: Browse, session: &Session) -> Result<()> {
    let queue = session.queue(&browse.queue)?;
    let output = &session.output;
    let page = session.service.backend().capabilities().max_receive;
    let mut left = if browse.all { usize::MAX } else { browse.count };
    let mut from = browse.from.map(PageMark::new);
    let mut shown = 0;
    while left > 0 {
        let most = left.min(page);
        let browsed = queue.browse(from.as_ref(), most).await?;
        let fits = |message: &&Browsed| browse.state.is_none_or(|state| state.fits(message));
        let messages: Vec<_> = browsed.messages.iter().filter(fits).collect();
        if output.json {
            for message in &messages {
                output.message(message)?;
            }
        } else if !messages.is_empty() {
            let listed = messages
                .iter()
                .map(|message| Listed::browsed(message, browsed.now));
            output.table(&listing(listed, output.hides_payloads))?;
        }
        shown += messages.len();
        left = left.saturating_sub(messages.len());
        from = browsed.next;
        if from.is_none() {
            break;
        }
    }
    if shown == 0 && !output.json {
        output.line("there are no such messages")?;
    }
    if let Some(from) = from {
        let from = from.as_str();
        note(format!(
            "there are more; go on with --from '{from}', or use --all"
        ));
    }
    Ok(())
}
