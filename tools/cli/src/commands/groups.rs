use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use clap::Args;
use queue_runtime::Timestamp;
use queue_runtime::backend::{GroupLimit, MessageState};
use queue_runtime::service::Browsed;
use serde::Serialize;
use serde_json::json;

use crate::failure::Result;
use crate::output::table::{Table, number, text};
use crate::output::{HIDDEN, age, escape, state};
use crate::session::Session;

/// Show the groups of a queue with the most messages: how many there are, since when, and the first message, which the
/// others wait for; or set how many messages of each group are leased at once. Reads the whole queue. Not on Azure.
#[derive(Debug, Args)]
pub(crate) struct Groups {
    queue: String,

    /// The maximum number of groups.
    #[arg(long, short = 'n', default_value_t = 20)]
    count: usize,

    /// Set how many messages of each group are leased at once, to all processes together: a number, `unlimited`, or `order`,
    /// which is one at a time in the order of the submissions. Between `order` and the others, it can only change while no
    /// message with a group is on the queue.
    #[arg(long, value_name = "NUMBER")]
    limit: Option<GroupLimit>,
}

/// The messages of a group.
#[derive(Debug, Serialize)]
struct Group {
    group: String,
    messages: usize,
    /// When the oldest message was put.
    oldest: Timestamp,
    first: First,
}

/// The message that the others of its group wait for.
#[derive(Debug, Serialize)]
struct First {
    id: String,
    state: MessageState,
    visible_at: Timestamp,
    received: usize,
}

pub(crate) async fn run(of: &Groups, session: &Session) -> Result<()> {
    let queue = session.queue(&of.queue)?;
    let output = &session.output;
    if let Some(limit) = of.limit {
        let before = queue.set_group_limit(limit).await?;
        if output.json {
            let set = json!({ "limit": limit.to_string(), "before": before.to_string() });
            return output.json(&set);
        }
        return output.line(format!("limit of each group: {limit} (was: {before})"));
    }
    let page = session.service.backend().capabilities().max_receive;
    let (mut groups, mut from) = (HashMap::<String, Group>::new(), None);
    let now = loop {
        let browsed = queue.browse(from.as_ref(), page).await?;
        for message in &browsed.messages {
            let envelope = message.body.envelope();
            if let Some(group) = envelope.and_then(|envelope| envelope.group.as_deref()) {
                match groups.get_mut(group) {
                    Some(known) => known.add(message),
                    None => drop(groups.insert(group.to_owned(), Group::of(group, message))),
                }
            }
        }
        from = browsed.next;
        if from.is_none() {
            break browsed.now;
        }
    };
    let mut groups: Vec<Group> = groups.into_values().collect();
    groups.sort_by(|a, b| (Reverse(a.messages), &a.group).cmp(&(Reverse(b.messages), &b.group)));
    groups.truncate(of.count);
    if output.json {
        if output.hides_payloads {
            groups
                .iter_mut()
                .for_each(|group| group.group = HIDDEN.to_owned());
        }
        return groups.iter().try_for_each(|group| output.json(group));
    }
    if groups.is_empty() {
        return output.line("no message has a group");
    }
    output.line(format!(
        "limit of each group: {}",
        queue.group_limit().await?
    ))?;
    let mut table = Table::new(["GROUP", "MESSAGES", "OLDEST", "FIRST", "RECEIVED", "ID"]);
    let since = |at: Timestamp| age(Duration::try_from(now.duration_since(at)).unwrap_or_default());
    for Group {
        group,
        messages,
        oldest,
        first,
    } in &groups
    {
        let shown = if output.hides_payloads {
            HIDDEN.to_owned()
        } else {
            escape(group)
        };
        table.row([
            text(shown),
            number(messages),
            number(since(*oldest)),
            text(state(first.state)),
            number(first.received),
            text(escape(&first.id)),
        ]);
    }
    output.table(&table)
}

impl Group {
    fn of(group: &str, message: &Browsed) -> Self {
        Self {
            group: group.to_owned(),
            messages: 1,
            oldest: message.inserted_at,
            first: First::of(message),
        }
    }

    /// Adds a message. Those that lie behind come after the first in a page.
    fn add(&mut self, message: &Browsed) {
        self.messages += 1;
        self.oldest = self.oldest.min(message.inserted_at);
        if self.first.state == MessageState::Behind && message.state != MessageState::Behind {
            self.first = First::of(message);
        }
    }
}

impl First {
    fn of(message: &Browsed) -> Self {
        let id = message
            .body
            .envelope()
            .map(|envelope| envelope.id.to_string());
        Self {
            id: id.unwrap_or_default(),
            state: message.state,
            visible_at: message.visible_at,
            received: message.dequeue_count,
        }
    }
}
