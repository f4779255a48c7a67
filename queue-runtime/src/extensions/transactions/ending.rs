//! How a message ends whose transaction has failed: what is not its own failure puts it back.

use std::time::Duration;

use queue_core::{Disposition, Error, ErrorKind, Failure};

use crate::kernel::lease::Completer;
use crate::kernel::receive::{Received, put_back_after};
use crate::kernel::settlement::SettleErrorKind;

/// Refuses a message that the function has completed itself.
pub(super) fn refuse_promised<M>(received: &Received<M>) -> Result<(), Disposition> {
    let completer = received.completer.as_ref();
    if completer.is_some_and(Completer::is_promised) {
        let why = "the function has completed the message itself; a handler of `in_transaction` returns what follows instead";
        return Err(Disposition::retry(why));
    }
    Ok(())
}

/// Returns how a message ends that could not be completed in its transaction.
pub(super) fn not_completed<M>(
    received: &Received<M>,
    problem: SettleErrorKind,
    is_outage: IsOutage,
) -> Disposition {
    match &problem {
        // A follow-up that can never be stored.
        SettleErrorKind::NotDone(error)
            if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::TooLarge) =>
        {
            Disposition::reject(problem)
        }
        // The message is somebody else's by now, which says nothing of what the handler depends on.
        SettleErrorKind::LeaseLost(_) | SettleErrorKind::Expired(_) => {
            put_back(received, problem.into())
        }
        _ => failed_with(received, problem.into(), is_outage),
    }
}

/// Whether an error says nothing of the message: any other would have met it.
pub(super) type IsOutage = fn(&(dyn std::error::Error + 'static)) -> bool;

/// Returns how the message ends: an outage of the storage is not its own failure.
pub(super) fn failed_with<M>(
    received: &Received<M>,
    failure: Failure,
    is_outage: IsOutage,
) -> Disposition {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(failure.error());
    while let Some(error) = source {
        if is_outage(error) {
            return put_back(received, failure);
        }
        source = error.source();
    }
    failure.into()
}

pub(super) fn put_back<M>(received: &Received<M>, failure: Failure) -> Disposition {
    let (envelope, error) = (received.envelope(), failure.chain());
    let (id, mut after) = (&envelope.id, put_back_after(envelope));
    if received.expires_at().is_some() {
        after = after.min(Duration::from_secs(1));
    }
    tracing::warn!(%id, error, ?after, "a transaction has failed for a reason that is not the message's; it is put back");
    Failure::postpone(after, error).into()
}

pub(super) fn is_of_the_storage(error: &Error) -> bool {
    !error.is_lease_gone()
        && !matches!(
            error.kind(),
            ErrorKind::Corrupt
                // It was noted that the transaction began, so the function has made its connection read-only.
                | ErrorKind::Denied
                | ErrorKind::InvalidInput
                | ErrorKind::QueueNotFound
                | ErrorKind::TooLarge
                | ErrorKind::Unsupported
        )
}
