use clap::Args;

use crate::failure::Result;
use crate::output::{Listed, listing};
use crate::session::Session;

/// Show the first visible messages of a queue, without receiving them.
///
/// Works on every storage. Nothing is changed, and no attempt is counted.
#[derive(Debug, Args)]
pub(crate) struct Peek {
    queue: String,

    /// The number of messages: at most 32 on Azure, 256 on other storages.
    #[arg(long, short = 'n', default_value_t = 10)]
    count: usize,
}

pub(crate) async fn run(peek: &Peek, session: &Session) -> Result<()> {
    let messages = session.queue(&peek.queue)?.peek(peek.count).await?;
    let output = &session.output;
    if output.json {
        return messages
            .iter()
            .try_for_each(|message| output.message(message));
    }
    if messages.is_empty() {
        return output.line("no message is visible");
    }
    let listed = messages.iter().map(|message| Listed {
        body: &message.body,
        dequeue_count: message.dequeue_count,
        state: Some(queue_runtime::backend::MessageState::Visible),
        age: None,
    });
    output.table(&listing(listed, output.hides_payloads))
}
