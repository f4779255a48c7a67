//! Accounts, whose messages are handled one at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use queue_runtime::testing::{self, TestService};
use queue_runtime::{Message, Received};
use queue_tests::SECOND;
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "bank", kind = "deposit")]
pub(crate) struct Deposit {
    pub(crate) account: u32,
    pub(crate) number: u32,
}

/// Which messages of each account were handled, and how many at a time.
#[derive(Clone, Default)]
pub(crate) struct Accounts(Arc<Mutex<HashMap<u32, Account>>>);

#[derive(Debug, Clone, Default)]
pub(crate) struct Account {
    running: usize,
    pub(crate) most: usize,
    pub(crate) begun: Vec<u32>,
}

impl Accounts {
    pub(crate) fn begin(&self, account: u32, number: u32) {
        let mut accounts = self.0.lock().expect("free");
        let account = accounts.entry(account).or_default();
        account.running += 1;
        account.most = account.most.max(account.running);
        account.begun.push(number);
    }

    pub(crate) fn end(&self, account: u32) {
        let mut accounts = self.0.lock().expect("free");
        accounts.entry(account).or_default().running -= 1;
    }

    pub(crate) async fn handle(&self, account: u32, number: u32) {
        self.begin(account, number);
        tokio::time::sleep(SECOND).await;
        self.end(account);
    }

    pub(crate) fn of(&self, account: u32) -> Account {
        let accounts = self.0.lock().expect("free");
        accounts.get(&account).cloned().unwrap_or_default()
    }
}

pub(crate) async fn deposit(accounts: Accounts, deposit: Received<Deposit>) {
    accounts.handle(deposit.account, deposit.number).await;
}

/// Four accounts, with their messages in turn.
pub(crate) async fn with_deposits(each: u32) -> TestService {
    let service = testing::service().await;
    let deposits = (0..each * 4).map(|at| Deposit {
        account: at % 4,
        number: at / 4,
    });
    service.submit_all(deposits).await.expect("stored");
    service
}
