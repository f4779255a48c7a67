//! A rider: an entry of an audit log is put in one step with the end of each message.

use queue_runtime::envelope::Envelope;
use queue_runtime::receive::{Ended, Rider};
use queue_runtime::{FollowUp, Message, Received, testing};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize, Message)]
struct Payment {
    amount: i64,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
struct AuditEntry {
    kind: String,
    end: String,
}

/// Records how each message ended. Nothing is completed without its entry.
struct AuditLog;

impl Rider for AuditLog {
    fn ride(&self, message: &Envelope, ended: Ended<'_>) -> Option<FollowUp> {
        let end = match ended {
            Ended::Completed { .. } => "completed".to_owned(),
            Ended::Poisoned { reason, error, .. } => {
                format!("{reason}: {}", error.unwrap_or("no error"))
            }
            _ => "ended".to_owned(),
        };
        let kind = message.kind.clone();
        Some(FollowUp::new(&AuditEntry { kind, end }))
    }

    fn is_required(&self) -> bool {
        true
    }
}

#[tokio::test(start_paused = true)]
async fn each_payment_has_an_entry() {
    let service = testing::service().await;
    let payments = [7, -7].map(|amount| Payment { amount });
    service.submit_all(payments).await.expect("stored");
    let pay = async |payment: Received<Payment>| match payment.amount {
        ..0 => Err(queue_runtime::Failure::reject("a negative amount")),
        _ => Ok(()),
    };
    let listener = service.listener(pay).rider(AuditLog).tasks(1);
    let listener = listener.until_empty().start().expect("starts");
    assert_eq!(listener.drained().await.info.completed, 1);
    let entries = service
        .accept_many::<AuditEntry>(2)
        .await
        .expect("no error");
    let mut ends: Vec<_> = entries.iter().map(|entry| &*entry.end).collect();
    ends.sort_unstable();
    assert_eq!(ends, ["completed", "rejected: a negative amount"]);
}
