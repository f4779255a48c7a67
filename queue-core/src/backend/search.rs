//! Finding messages by the ids of their events.

use super::browse::BrowsedMessage;
use super::contract::Backend;
use crate::envelope::MessageId;
use crate::error::{Operation, Result};
use crate::name::QueueName;
use crate::wire::Body;

/// Reads all pages of a queue. A message that moves from one page to a later one is returned as it was on the last.
pub(super) async fn by_browsing<B: Backend + ?Sized>(
    backend: &B,
    queue: &QueueName,
    id: &MessageId,
    max: u32,
) -> Result<Vec<BrowsedMessage>> {
    let capabilities = backend.capabilities();
    capabilities
        .limits(Operation::Browse, queue)
        .check_max(max)?;
    let (mut found, mut from) = (Vec::<BrowsedMessage>::new(), None);
    loop {
        let page = backend.browse(queue, from.as_ref(), capabilities.max_receive);
        let page = page.await?;
        for message in page.messages {
            if message.damage.is_some() || !Body::has_id(&message.body, id) {
                continue;
            }
            match found.iter_mut().find(|earlier| earlier.id == message.id) {
                Some(earlier) => *earlier = message,
                None => found.push(message),
            }
        }
        from = page.next;
        if from.is_none() || found.len() >= max as usize {
            found.truncate(max as usize);
            return Ok(found);
        }
    }
}
