use std::fmt;
use std::str::FromStr;

use super::{Kept, Settle};

/// What a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Submits orders.
    Produce,
    /// Submits orders in packs.
    Pack,
    /// Handles orders and receipts with listeners.
    Listen,
    /// Handles messages with listeners, in all ways in which an item of a pack can end.
    Unpack,
    /// Handles messages with listeners, one at a time, and aborts at a deadly one.
    UnpackAlone,
    /// Handles orders with a listener until a signal to stop.
    Serve,
    /// Handles messages several at a time.
    Batch,
    /// Handles messages of one key one at a time, with 64 in flight.
    Keys,
    /// Handles messages of groups.
    Groups,
    /// Handles messages that are cancelled meanwhile.
    Cancels,
    /// Handles orders and receipts with `accept`.
    Accept,
    /// Handles orders and receipts with `accept_many`.
    AcceptMany,
    /// Redrives the poison queues.
    Redrive,
    /// Sends requests, and waits for their replies for so many seconds.
    Ask(u64),
    /// Replies to requests.
    Answer,
    /// Orders transfers between accounts.
    CrashOrder,
    /// Handles transfers and their receipts.
    Transfer,
    /// Does the work of keys once, with results kept here.
    Once(Kept),
    /// Submits messages once by key, which is recorded here.
    Submit(Kept),
    /// Runs schedules.
    Schedule,
    /// Works on a job, and kills itself after each portion.
    Portions,
    /// Holds an order, and settles it when told to.
    Hold(Settle),
    /// Submits a fixed number of large orders, and ends.
    Fill,
    /// Completes a fixed number of orders, and ends.
    Consume,
    /// Submits and completes a few orders, and ends.
    Errand,
    /// Does an errand in an application's database, which it adopts.
    Adopt,
    /// Fills a disk with orders, completes them while it is full, and ends.
    FullDisk,
    /// Handles large orders until there are none, reports what that has used, and ends.
    #[cfg(target_os = "linux")]
    Bulk,
    /// Completes so many orders, reports what that has used, and ends.
    #[cfg(target_os = "linux")]
    Drain(u32),
    /// Works for so many rounds under faults, reports what it uses, and ends.
    #[cfg(target_os = "linux")]
    Soak(u32),
}

impl Role {
    /// Whether the role's processes submit nothing, and handle messages.
    #[must_use]
    pub fn consumes(self) -> bool {
        matches!(
            self,
            Self::Listen
                | Self::Batch
                | Self::Keys
                | Self::Unpack
                | Self::Accept
                | Self::AcceptMany
        )
    }

    /// Whether what the role's processes do with packs is recorded.
    pub(super) fn meets_packs(self) -> bool {
        matches!(self, Self::Pack | Self::Unpack | Self::UnpackAlone)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Produce => f.write_str("produce"),
            Self::Pack => f.write_str("pack"),
            Self::Listen => f.write_str("listen"),
            Self::Unpack => f.write_str("unpack"),
            Self::UnpackAlone => f.write_str("unpack-alone"),
            Self::Serve => f.write_str("serve"),
            Self::Accept => f.write_str("accept"),
            Self::AcceptMany => f.write_str("accept-many"),
            Self::Batch => f.write_str("batch"),
            Self::Keys => f.write_str("keys"),
            Self::Groups => f.write_str("groups"),
            Self::Cancels => f.write_str("cancels"),
            Self::Redrive => f.write_str("redrive"),
            Self::Ask(seconds) => write!(f, "ask-{seconds}"),
            Self::Answer => f.write_str("answer"),
            Self::CrashOrder => f.write_str("order"),
            Self::Transfer => f.write_str("transfer"),
            Self::Fill => f.write_str("fill"),
            Self::Consume => f.write_str("consume"),
            Self::Errand => f.write_str("errand"),
            Self::Adopt => f.write_str("adopt"),
            Self::FullDisk => f.write_str("full-disk"),
            Self::Once(kept) => write!(f, "once-{kept}"),
            Self::Submit(kept) => write!(f, "submit-{kept}"),
            Self::Schedule => f.write_str("schedule"),
            Self::Portions => f.write_str("portions"),
            Self::Hold(settle) => write!(f, "hold-{settle}"),
            #[cfg(target_os = "linux")]
            Self::Bulk => f.write_str("bulk"),
            #[cfg(target_os = "linux")]
            Self::Drain(orders) => write!(f, "drain-{orders}"),
            #[cfg(target_os = "linux")]
            Self::Soak(rounds) => write!(f, "soak-{rounds}"),
        }
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        if let Some((role, count)) = name.split_once('-')
            && let Ok(count) = count.parse::<u32>()
        {
            match role {
                "ask" => return Ok(Self::Ask(count.into())),
                #[cfg(target_os = "linux")]
                "drain" => return Ok(Self::Drain(count)),
                #[cfg(target_os = "linux")]
                "soak" => return Ok(Self::Soak(count)),
                _ => {}
            }
        }
        let holds = Settle::ALL.map(Self::Hold);
        let roles = [
            Self::Produce,
            Self::Pack,
            Self::Listen,
            Self::Unpack,
            Self::UnpackAlone,
            Self::Serve,
            Self::Accept,
            Self::AcceptMany,
            Self::Batch,
            Self::Keys,
            Self::Groups,
            Self::Cancels,
            Self::Redrive,
            Self::Answer,
            Self::CrashOrder,
            Self::Transfer,
            Self::Fill,
            Self::Consume,
            Self::Errand,
            Self::Adopt,
            Self::FullDisk,
            Self::Schedule,
            Self::Portions,
            #[cfg(target_os = "linux")]
            Self::Bulk,
        ];
        let found = roles
            .into_iter()
            .chain(holds)
            .chain(Kept::ALL.map(Self::Once))
            .chain(Kept::ALL.map(Self::Submit))
            .find(|role| role.to_string() == name);
        found.ok_or_else(|| format!("unknown role `{name}`"))
    }
}
