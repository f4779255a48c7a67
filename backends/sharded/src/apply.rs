//! Several operations, on any shards.

use std::mem;

use queue_core::backend::{ApplyError, Atomicity, Backend as _, Op, OpOutcome, OpOutcomes};
use queue_core::{Operation, Outcome, QueueName, Result};

use crate::backend::ShardedBackend;
use crate::descriptor::Descriptor;
use crate::placement::{
    Keyless, message_receipt, no_such_id, of_shard, own_receipt, shard_name, shard_of_message,
    translate_attachment,
};

/// An operation as it goes to an account.
#[derive(Debug, Clone)]
struct Placed {
    op: Op,
    /// The account, by its position.
    account: usize,
    shard: u32,
    /// The queue of the shard.
    queue: QueueName,
}

/// How often operations are placed because a shard of theirs is not there any more.
const TRIES: usize = 3;

impl ShardedBackend {
    pub(crate) async fn apply_to_shards(&self, ops: &[Op]) -> Result<OpOutcomes, ApplyError> {
        let mut descriptor = if ops.iter().any(|op| matches!(op, Op::Put { .. })) {
            let current = self.topology.for_puts().await;
            current.map_err(|error| ApplyError::nothing_done(0, error))?
        } else {
            self.topology.known()
        };
        let mut outcomes = OpOutcomes::with_capacity(ops.len());
        let mut tries = 0;
        while outcomes.len() < ops.len() {
            let done = outcomes.len();
            let placed = self.place_all(&descriptor, &ops[done..]);
            let placed = placed.map_err(|refused| refused.after(mem::take(&mut outcomes)))?;
            let Err((at, mut failed)) = self.carry_out(&placed, &mut outcomes).await else {
                break;
            };
            let index = done + at;
            let Placed {
                queue, shard, op, ..
            } = &placed[at];
            tries += 1;
            let may_be_elsewhere = matches!(op, Op::Put { .. }) && failed.error.is_queue_gone();
            if !may_be_elsewhere || tries == TRIES {
                failed.error = self.of_shard(failed.error, queue, *shard).await;
                (failed.index, failed.completed) = (index, outcomes.into_vec());
                return Err(failed);
            }
            let current = self.missing_shard(queue, *shard, &descriptor, failed.error);
            descriptor = match current.await {
                Ok(current) => current,
                Err(error) => return Err(ApplyError::new(index, outcomes, error)),
            };
        }
        Ok(outcomes)
    }

    fn place_all(&self, descriptor: &Descriptor, ops: &[Op]) -> Result<Vec<Placed>, ApplyError> {
        let operation = Op::operation(ops);
        let mut received = ops.iter().filter_map(Op::received);
        let home = received.find_map(|(_, id, _)| Some(shard_of_message(id)?.0));
        let puts = ops.iter().filter(|op| matches!(op, Op::Put { .. })).count();
        let keyless = Keyless::of(puts, descriptor.active, home, &self.turns);
        let mut before = 0;
        let mut placed = Vec::with_capacity(ops.len());
        for (index, op) in ops.iter().enumerate() {
            let one = self.place_op(descriptor, (operation, op), keyless, &mut before);
            placed.push(one.map_err(|error| ApplyError::nothing_done(index, error))?);
        }
        Ok(placed)
    }

    /// Places an operation; `before` counts the puts before it.
    fn place_op(
        &self,
        descriptor: &Descriptor,
        (operation, op): (Operation, &Op),
        keyless: Keyless,
        before: &mut usize,
    ) -> Result<Placed> {
        let mut op = op.clone();
        let (shard, queue) = match &mut op {
            Op::Put { queue, message } => {
                let shard = keyless.shard(*before, descriptor.active);
                *before += 1;
                let shard = self.place(descriptor, message).unwrap_or(shard);
                translate_attachment(message)?;
                (shard, queue)
            }
            // What is recorded is not on a queue, and its queue is for errors only.
            Op::Swap { queue, .. } => {
                return Ok(Placed {
                    queue: queue.clone(),
                    account: 0,
                    shard: 0,
                    op,
                });
            }
            other => {
                let (queue, id, receipt) = other.received_mut().expect("it is on a message");
                let (shard, own) =
                    shard_of_message(id).ok_or_else(|| no_such_id(queue, operation))?;
                self.shard(descriptor, queue, shard, operation)?;
                *receipt = own_receipt(queue, shard, receipt, operation)?;
                *id = own;
                (shard, queue)
            }
        };
        let logical = queue.clone();
        *queue = shard_name(&logical, shard, operation)?;
        Ok(Placed {
            account: usize::from(descriptor.places[shard as usize]),
            shard,
            queue: logical,
            op,
        })
    }

    /// Carries out operations in order, those in a row that are on one account together. On failure returns the position of
    /// the operation that failed; those before it are done, and none after it, unless all are one step.
    async fn carry_out(
        &self,
        placed: &[Placed],
        outcomes: &mut OpOutcomes,
    ) -> Result<(), (usize, ApplyError)> {
        let mut start = 0;
        while start < placed.len() {
            let account = placed[start].account;
            let alike = placed[start..]
                .iter()
                .take_while(|one| one.account == account);
            let run = &placed[start..start + alike.count()];
            let mut failed = match self.apply_run(account, run).await {
                Ok(done) => {
                    outcomes.extend(done);
                    start += run.len();
                    continue;
                }
                Err(failed) => failed,
            };
            let at = start + failed.index;
            let atomicity = self.accounts[account].capabilities().atomicity;
            if atomicity != Atomicity::Atomic || self.is_one_account() {
                outcomes.extend(shard_outcomes(run, mem::take(&mut failed.completed)));
                return Err((at, failed));
            }
            // Nothing of the run was done, and what is before the failed operation has to be.
            let is_known = failed.error.outcome() == Outcome::NotDone;
            if at == start || !is_known {
                return Err((start, failed));
            }
            return match self.apply_run(account, &run[..failed.index]).await {
                Ok(done) => {
                    outcomes.extend(done);
                    Err((at, failed))
                }
                Err(other) => Err((start, other)),
            };
        }
        Ok(())
    }

    async fn apply_run(&self, account: usize, run: &[Placed]) -> Result<OpOutcomes, ApplyError> {
        let ops = run.iter().map(|placed| placed.op.clone()).collect();
        let done = self.accounts[account].apply(ops).await?;
        for placed in run {
            if matches!(placed.op, Op::Put { .. }) {
                self.rounds.has_messages(&placed.queue, placed.shard);
            }
        }
        Ok(shard_outcomes(run, done))
    }
}

/// Returns the outcomes of operations on shards with the messages' ids in the logical queue.
fn shard_outcomes(run: &[Placed], outcomes: impl IntoIterator<Item = OpOutcome>) -> OpOutcomes {
    let outcomes = run
        .iter()
        .zip(outcomes)
        .map(|(placed, outcome)| match outcome {
            OpOutcome::Put(put) => OpOutcome::Put(of_shard(placed.shard, put)),
            OpOutcome::Updated(mut lease) => {
                lease.receipt = message_receipt(placed.shard, &lease.receipt);
                OpOutcome::Updated(lease)
            }
            other => other,
        });
    outcomes.collect()
}
