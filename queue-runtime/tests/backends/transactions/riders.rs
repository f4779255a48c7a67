//! What the application has travel with a settlement is in the transaction that completes the message.

use queue_runtime::FollowUp;
use queue_runtime::envelope::Envelope;
use queue_runtime::receive::{Ended, Rider};

use crate::transactions::bank::{Bank, Deposit, begin, notice};

struct Audit;

impl Rider for Audit {
    fn ride(&self, _: &Envelope, ended: Ended<'_>) -> Option<FollowUp> {
        assert!(matches!(ended, Ended::Completed { attempts: 1, .. }));
        Some(FollowUp::new(&notice("audited")))
    }
}

#[tokio::test]
async fn an_entry_is_there_if_the_transaction_is_committed() {
    let mut bank = Bank::open().await;
    let deposit = Deposit {
        number: 1,
        amount: 1,
    };
    bank.service.submit(deposit).await.expect("stored");
    for commits in [false, true] {
        let deposit = bank.service.accept::<Deposit>().rider(Audit).await;
        let deposit = deposit.expect("no error").expect("it is there");
        let tx = begin(&mut bank.connection);
        let completing = deposit.complete_within(&tx, []).expect("written");
        if commits {
            tx.commit().expect("committed");
            completing.confirm().await.expect("it was committed");
        } else {
            tx.rollback().expect("rolled back");
            let error = completing.confirm().await.expect_err("it was rolled back");
            error.delivery.release().await.expect("it is leased");
        }
        bank.assert(0, usize::from(!commits), usize::from(commits))
            .await;
    }
}
