use queue_core::{Disposition, Failure, IntoDisposition};

/// What becomes of the messages of a batch. From [`IntoBatchDisposition`].
#[derive(Debug)]
pub struct BatchDisposition(pub(super) Returned);

#[derive(Debug)]
pub(super) enum Returned {
    /// All are completed.
    Completed,
    /// The batch failed as a whole.
    Failed(Failure),
    /// One for each message, in their order.
    Each(Vec<Disposition>),
}

/// A value that a handler of a [batch](crate::batch) can return.
///
/// `()` completes all messages. `Err` is a failure of the batch as a whole. A vector has what becomes of each message, in
/// their order: each item is what a handler of a single message can return. If it has another length than the batch, the
/// batch has failed as a whole.
///
/// ```
/// use queue_runtime::{Batch, Disposition, Message};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
///
/// async fn check(orders: Batch<Order>) -> Vec<Disposition> {
///     let check = |number| match number {
///         0 => Disposition::reject("orders are numbered from 1"),
///         _ => Disposition::complete(),
///     };
///     orders.iter().map(|order| check(order.number)).collect()
/// }
/// # let _ = queue_runtime::batch(check);
/// ```
#[diagnostic::on_unimplemented(
    message = "a handler of a batch cannot return `{Self}`",
    label = "not a disposition of a batch",
    note = "a handler of a batch returns `()`, a `Vec` of what handlers of single messages return, or a `Result` of either \
            whose error is an `std::error::Error + Send + Sync` or a `Failure`"
)]
pub trait IntoBatchDisposition {
    /// Converts the value.
    fn into_batch_disposition(self) -> BatchDisposition;
}

impl IntoBatchDisposition for () {
    fn into_batch_disposition(self) -> BatchDisposition {
        BatchDisposition(Returned::Completed)
    }
}

impl<D: IntoDisposition> IntoBatchDisposition for Vec<D> {
    fn into_batch_disposition(self) -> BatchDisposition {
        let each = self.into_iter().map(D::into_disposition);
        BatchDisposition(Returned::Each(each.collect()))
    }
}

impl<T: IntoBatchDisposition, E: Into<Failure>> IntoBatchDisposition for Result<T, E> {
    fn into_batch_disposition(self) -> BatchDisposition {
        match self {
            Ok(value) => value.into_batch_disposition(),
            Err(error) => BatchDisposition(Returned::Failed(error.into())),
        }
    }
}

impl BatchDisposition {
    /// Returns what becomes of the only message of a batch.
    pub(super) fn of_one(self) -> Disposition {
        match self.0 {
            Returned::Completed => Disposition::complete(),
            Returned::Failed(failure) => failure.into(),
            Returned::Each(mut each) => {
                let returned = each.len();
                let one = each.pop().filter(|_| returned == 1);
                one.unwrap_or_else(|| wrong_number(returned))
            }
        }
    }

    /// Returns what becomes of each of several messages, or `None` if the batch has failed as a whole.
    pub(super) fn of_several(self, messages: usize) -> Option<Vec<Disposition>> {
        match self.0 {
            Returned::Completed => Some((0..messages).map(|_| Disposition::complete()).collect()),
            Returned::Failed(failure) => {
                let each = (0..messages).map(|_| Disposition::from(failure.clone()));
                let each: Vec<_> = each.collect();
                let is_postponed = |one: &Disposition| matches!(one, Disposition::Postpone { .. });
                each.iter().all(is_postponed).then_some(each)
            }
            Returned::Each(each) => (each.len() == messages).then_some(each),
        }
    }
}

fn wrong_number(returned: usize) -> Disposition {
    let error = format!("the handler of a batch returned {returned} results for 1 message");
    Disposition::retry(error)
}
