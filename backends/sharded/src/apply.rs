//! Several operations, on any shards.

use queue_core::backend::{ApplyError, Atomicity, Backend as _, Op, OpOutcome, check_ops};
use queue_core::{Error, Operation, Outcome, QueueName, Result};

use crate::backend::ShardedBackend;
use crate::descriptor::Descriptor;
use crate::placement::{
    Keyless, message_receipt, of_shard, own_receipt, shard_name, shard_of_message,
    translate_attachment,
};

/// An operation as it goes to an account.
#[derive(Debug, Clone)]
struct Placed {
    op: Op,
    /// The account, by its position.
    account: usize,
    shard: u32,
    /// The queue of which that is a shard.
    queue: QueueName,
}

/// How often operations are placed because a shard of theirs is not there any more.
const TRIES: usize = 3;

impl ShardedBackend {
    pub(crate) async fn apply_to_shards(&self, ops: Vec<Op>) -> Result<Vec<OpOutcome>, ApplyError> {
        check_ops(&self.capabilities, &ops, |_| Ok(()))?;
        let refused = |error| ApplyError::new(0, Vec::new(), error);
        let mut descriptor = self.topology.for_puts().await.map_err(refused)?;
        let mut outcomes = Vec::with_capacity(ops.len());
        let mut tries = 0;
        while outcomes.len() < ops.len() {
            let done = outcomes.len();
            let placed = self.place_all(&descriptor, &ops[done..]);
            let placed = placed.map_err(|mut refused| {
                refused.index += done;
                refused.completed.append(&mut outcomes);
                refused
            })?;
            let Err((at, error)) = self.carry_out(&placed, &mut outcomes).await else {
                break;
            };
            let index = done + at;
            let Placed {
                queue, shard, op, ..
            } = &placed[at];
            tries += 1;
            let may_be_elsewhere = matches!(op, Op::Put { .. }) && error.is_queue_gone();
            if !may_be_elsewhere || tries == TRIES {
                let error = self.of_shard(error, queue, *shard).await;
                return Err(ApplyError::new(index, outcomes, error));
            }
            let current = self.missing_shard(queue, *shard, &descriptor, error);
            descriptor = match current.await {
                Ok(current) => current,
                Err(error) => return Err(ApplyError::new(index, outcomes, error)),
            };
        }
        Ok(outcomes)
    }

    fn place_all(&self, descriptor: &Descriptor, ops: &[Op]) -> Result<Vec<Placed>, ApplyError> {
        let home = ops.iter().find_map(|op| match op {
            Op::Update { id, .. }
            | Op::PutBack { id, .. }
            | Op::Delete { id, .. }
            | Op::DeleteItems { id, .. } => shard_of_message(id).map(|(shard, _)| shard),
            _ => None,
        });
        let puts = ops.iter().filter(|op| matches!(op, Op::Put { .. })).count();
        let keyless = Keyless::of(puts, descriptor.active, home, &self.turns);
        let mut before = 0;
        let mut placed = Vec::with_capacity(ops.len());
        for (index, op) in ops.iter().enumerate() {
            let one = self.place_op(descriptor, op, keyless, &mut before);
            placed.push(one.map_err(|error| ApplyError::new(index, Vec::new(), error))?);
        }
        Ok(placed)
    }

    /// Places an operation. `before` counts the puts before it.
    fn place_op(
        &self,
        descriptor: &Descriptor,
        op: &Op,
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
            Op::Update {
                queue, id, receipt, ..
            }
            | Op::PutBack {
                queue, id, receipt, ..
            }
            | Op::Delete {
                queue, id, receipt, ..
            }
            | Op::DeleteItems {
                queue, id, receipt, ..
            } => {
                let (shard, _, own) = self.shard_of(queue, id, Operation::Apply)?;
                *receipt = own_receipt(queue, shard, receipt, Operation::Apply)?;
                *id = own;
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
            other => unreachable!("an operation that this version does not know: {other:?}"),
        };
        let logical = queue.clone();
        *queue = shard_name(&logical, shard, Operation::Apply)?;
        Ok(Placed {
            account: usize::from(descriptor.places[shard as usize]),
            shard,
            queue: logical,
            op,
        })
    }

    /// Carries out operations in order, those in a row that are on one account together. On failure returns the position of
    /// the one that failed; those before it are done, and none after it, unless all are one step.
    async fn carry_out(
        &self,
        placed: &[Placed],
        outcomes: &mut Vec<OpOutcome>,
    ) -> Result<(), (usize, Error)> {
        let mut start = 0;
        while start < placed.len() {
            let account = placed[start].account;
            let alike = placed[start..]
                .iter()
                .take_while(|one| one.account == account);
            let run = &placed[start..start + alike.count()];
            let failed = match self.apply_run(account, run).await {
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
                outcomes.extend(shard_outcomes(run, failed.completed));
                return Err((at, failed.error));
            }
            // Nothing of the run was done, and what is before the failed one has to be.
            let is_known = failed.error.outcome() == Outcome::NotDone;
            if at == start || !is_known {
                return Err((start, failed.error));
            }
            return match self.apply_run(account, &run[..failed.index]).await {
                Ok(done) => {
                    outcomes.extend(done);
                    Err((at, failed.error))
                }
                Err(other) => Err((start, other.error)),
            };
        }
        Ok(())
    }

    async fn apply_run(
        &self,
        account: usize,
        run: &[Placed],
    ) -> Result<Vec<OpOutcome>, ApplyError> {
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

/// Returns the outcomes of operations on shards with the ids that messages have here.
fn shard_outcomes(run: &[Placed], outcomes: Vec<OpOutcome>) -> Vec<OpOutcome> {
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
