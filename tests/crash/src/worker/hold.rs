use std::fmt;
use std::time::Duration;

use queue_runtime::Disposition;
use queue_runtime::receive::SettleErrorKind;

use super::Desk;
use crate::messages::CrashOrder;

/// Printed once the message is held.
pub const HELD: &str = "held";

/// The line that tells the process to settle.
pub const GO: &str = "go";

/// How the process settles its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settle {
    /// Deletes the message.
    Complete,
    /// Deletes the message and submits a follow-up.
    FollowUp,
    /// Puts the message back.
    Retry,
    /// Moves the message to the poison queue.
    Reject,
}

impl Settle {
    /// All ways.
    pub const ALL: [Self; 4] = [Self::Complete, Self::FollowUp, Self::Retry, Self::Reject];
}

impl fmt::Display for Settle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Complete => "complete",
            Self::FollowUp => "follow-up",
            Self::Retry => "retry",
            Self::Reject => "reject",
        })
    }
}

/// Accepts an order, waits for [`GO`], settles it, and prints the result.
pub(super) async fn run(desk: &Desk, settle: Settle) {
    // Without `wait`: a consumer that waits registers for wake-ups, and a process that is stopped while it commits
    // holds the lock of the file.
    let accepted = desk.service.accept::<CrashOrder>().await;
    let delivery = accepted.expect("the storage works").expect("an order");
    println!("{HELD}");
    let mut input = desk.input.clone();
    let told = input.wait_for(|line| line == GO).await.is_ok();
    assert!(
        told,
        "the input ended before the process was told to settle"
    );
    let disposition = match settle {
        Settle::Complete => Disposition::complete(),
        Settle::FollowUp => Disposition::complete().then(&CrashOrder::named("follow-up")),
        Settle::Retry => Disposition::retry_after(Duration::ZERO, "told to"),
        Settle::Reject => Disposition::reject("told to"),
    };
    match delivery.settle(disposition).await {
        Ok(settled) => println!("{settled:?}"),
        Err(error) => match error.kind {
            SettleErrorKind::LeaseLost(_) => println!("LeaseLost"),
            problem => println!("{problem:?}"),
        },
    }
    desk.stopping().await;
}
