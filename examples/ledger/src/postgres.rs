//! The ledger on PostgreSQL, where transactions of handlers are async, and several run side by side.

use std::sync::Arc;

use queue_runtime::postgres::tokio_postgres::{Client, Error, GenericClient};
use queue_runtime::postgres::{Ended, Tx};
use queue_runtime::{Disposition, Failure, QueueService, Received};

use crate::{Receipt, Transfer};

/// Creates the tables, with the same balance in each account.
///
/// # Errors
/// PostgreSQL's errors, for example because the tables exist.
pub async fn create(client: &Client, accounts: &[&str], balance: i64) -> Result<(), Error> {
    client
        .batch_execute(
            "CREATE TABLE accounts (name text PRIMARY KEY, balance bigint NOT NULL CHECK (balance >= 0));
             CREATE TABLE orders (number bigint PRIMARY KEY, confirmed bigint NOT NULL DEFAULT 0);
             CREATE TABLE entries (number bigint NOT NULL, debit text, credit text, amount bigint)",
        )
        .await?;
    for account in accounts {
        let open = "INSERT INTO accounts VALUES ($1, $2)";
        client.execute(open, &[account, &balance]).await?;
    }
    Ok(())
}

/// Records an order and asks for its transfer.
///
/// # Errors
/// The errors of PostgreSQL and of the submission. Unless the commit itself failed, nothing was written.
pub async fn order(
    service: &QueueService,
    client: &mut Client,
    transfer: &Transfer,
) -> Result<(), Failure> {
    let tx = client.transaction().await?;
    let record = "INSERT INTO orders (number) VALUES ($1)";
    tx.execute(record, &[&transfer.number]).await?;
    service.submit_within(&tx, transfer.clone()).await?;
    Ok(tx.commit().await?)
}

/// Handles a transfer in a transaction: enters it, and sends its receipt.
///
/// # Errors
/// PostgreSQL's errors. If the account that is paid does not exist, the transfer is rejected.
pub async fn transfer(tx: Tx, transfer: Arc<Received<Transfer>>) -> Result<Ended, Failure> {
    enter(&tx, &transfer).await?;
    let number = transfer.number;
    Ok(tx.end(Disposition::complete().then(&Receipt { number })))
}

/// Moves the money, unless the account that pays has too little or does not exist, and makes an entry.
async fn enter(tx: &Tx, transfer: &Transfer) -> Result<(), Failure> {
    let Transfer {
        number,
        from,
        to,
        amount,
    } = transfer;
    // In the order of their names, so that two transfers do not wait for each other.
    let lock = "SELECT FROM accounts WHERE name IN ($1, $2) ORDER BY name FOR NO KEY UPDATE";
    tx.query(lock, &[from, to]).await?;
    let pay = "UPDATE accounts SET balance = balance - $2 WHERE name = $1 AND balance >= $2";
    if tx.execute(pay, &[from, amount]).await? == 0 {
        let refuse = "INSERT INTO entries (number) VALUES ($1)";
        tx.execute(refuse, &[number]).await?;
        return Ok(());
    }
    let receive = "UPDATE accounts SET balance = balance + $2 WHERE name = $1";
    if tx.execute(receive, &[to, amount]).await? == 0 {
        return Err(Failure::reject(format!(
            "there is no account `{to}` to be paid"
        )));
    }
    let entry = "INSERT INTO entries VALUES ($1, $2, $3, $4)";
    tx.execute(entry, &[number, from, to, amount]).await?;
    Ok(())
}

/// Handles a receipt in a transaction: marks the order as confirmed.
///
/// # Errors
/// PostgreSQL's errors.
pub async fn confirm(tx: Tx, receipt: Arc<Received<Receipt>>) -> Result<Ended, Failure> {
    let confirm = "UPDATE orders SET confirmed = confirmed + 1 WHERE number = $1";
    tx.execute(confirm, &[&receipt.number]).await?;
    Ok(tx.end(Disposition::complete()))
}

/// Returns the accounts with their balances, by name.
///
/// # Errors
/// PostgreSQL's errors.
pub async fn balances(client: &impl GenericClient) -> Result<Vec<(String, i64)>, Error> {
    let query = "SELECT name, balance FROM accounts ORDER BY name";
    let rows = client.query(query, &[]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}
