//! Receives of one batch, which share a read or a claim.

use queue_core::QueueName;
use queue_core::store_clock::after;

use super::batch::Answers;
use super::command::{Answer, Command, Request};
use super::failure::Result;
use super::tables::Tables;

/// A receive and its share of a claim.
struct Waiting {
    index: usize,
    max: usize,
    until: i64,
}

impl Tables<'_> {
    /// Answers the receives of a batch that find nothing and returns the others. Takes no write lock, so that
    /// idle pollers of many processes do not block each other.
    pub(super) fn answer_idle_receives(
        &mut self,
        batch: Vec<Command>,
        now: &Result<i64>,
    ) -> Vec<Command> {
        let mut checked: Vec<(QueueName, bool)> = Vec::new();
        let mut busy = Vec::new();
        for command in batch {
            let Request::Receive { queue, .. } = &command.request else {
                busy.push(command);
                continue;
            };
            if command.reply.is_closed() {
                continue;
            }
            let known = checked.iter().find(|(name, _)| name == queue);
            let visible = match (known, now) {
                (Some(&(_, visible)), _) => Ok(visible),
                (None, Ok(now)) => self.any_visible(queue, *now),
                (None, Err(failure)) => Err(failure.clone()),
            };
            if let Ok(visible) = visible {
                checked.push((queue.clone(), visible));
            }
            match visible {
                Ok(true) => busy.push(command),
                Ok(false) => command.answer(Ok(Answer::Received(Vec::new()))),
                // Left to the transaction, which waits for the lock and reads around damage.
                Err(failure) if failure.is_busy() || failure.is_damage() => busy.push(command),
                Err(failure) => command.fail(&failure),
            }
        }
        busy
    }

    fn any_visible(&mut self, queue: &QueueName, now: i64) -> Result<bool> {
        let id = self.queues.id(queue)?;
        self.messages.any_visible(id, now)
    }

    /// Answers all receives of a batch, those of one queue with one claim.
    pub(super) fn answer_receives(
        &mut self,
        batch: &[Command],
        answers: &mut Answers,
        now: i64,
    ) -> Result<()> {
        let mut by_queue: Vec<(&QueueName, Vec<Waiting>)> = Vec::new();
        for (index, command) in batch.iter().enumerate() {
            let Request::Receive {
                queue,
                max,
                visibility,
            } = &command.request
            else {
                continue;
            };
            if command.reply.is_closed() {
                answers[index] = Some(Ok(Answer::Done));
                continue;
            }
            let waiting = Waiting {
                index,
                max: *max as usize,
                until: after(now, *visibility),
            };
            match by_queue.iter_mut().find(|(name, _)| *name == queue) {
                Some((_, several)) => several.push(waiting),
                None => by_queue.push((queue, vec![waiting])),
            }
        }
        for (queue, waiting) in by_queue {
            self.receive(queue, &waiting, answers, now)?;
        }
        Ok(())
    }

    fn receive(
        &mut self,
        queue: &QueueName,
        waiting: &[Waiting],
        answers: &mut Answers,
        now: i64,
    ) -> Result<()> {
        let id = match self.queues.id(queue) {
            Ok(id) => id,
            Err(failure) if failure.is_refusal() => {
                for one in waiting {
                    answers[one.index] = Some(Err(failure.clone()));
                }
                return Ok(());
            }
            Err(failure) => return Err(failure),
        };
        let max = waiting.iter().map(|one| one.max).sum();
        let mut leases = waiting
            .iter()
            .flat_map(|one| std::iter::repeat_n(one.until, one.max));
        let Some(claimed) = self.messages.claim(id, &mut leases, max, now)? else {
            return Ok(());
        };
        let mut claimed = claimed.into_iter();
        for one in waiting {
            let received = claimed.by_ref().take(one.max).collect();
            answers[one.index] = Some(Ok(Answer::Received(received)));
        }
        Ok(())
    }
}
