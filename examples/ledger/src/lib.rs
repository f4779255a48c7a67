//! Money moved between accounts whose balances are in the SQLite file of the queues, or in their database.
//!
//! ```text
//! order ──── one transaction ──► table orders, queue transfers
//! transfer ─ one transaction ──► table accounts, table entries, queue receipts, message completed
//! confirm ── one transaction ──► table orders, message completed
//! ```
//!
//! Each step is done once, whatever is killed when: its rows are committed together with the acknowledgement of the
//! message that asks for it and with the message that it sends. [`postgres`] does the same on PostgreSQL.

pub mod postgres;

use queue_runtime::sqlite::rusqlite::{self, Connection, Transaction, TransactionBehavior};
use queue_runtime::{Disposition, Failure, Message, QueueService, Received};
use serde::{Deserialize, Serialize};

/// Asks for money to be moved.
#[derive(Debug, Clone, Serialize, Deserialize, Message)]
#[message(queue = "transfers")]
pub struct Transfer {
    /// The number of the order.
    #[message(key)]
    pub number: i64,
    /// The account that pays.
    pub from: String,
    /// The account that is paid.
    pub to: String,
    /// What is paid, in cents.
    pub amount: i64,
}

/// Says that a transfer was entered, or refused.
#[derive(Debug, Clone, Serialize, Deserialize, Message)]
#[message(queue = "receipts")]
pub struct Receipt {
    /// The number of the order.
    #[message(key)]
    pub number: i64,
}

/// Creates the tables, with the same balance in each account.
///
/// # Errors
/// SQLite's errors, for example because the tables exist.
pub fn create(connection: &Connection, accounts: &[&str], balance: i64) -> rusqlite::Result<()> {
    connection.execute_batch(
        "CREATE TABLE accounts (name TEXT PRIMARY KEY, balance INTEGER NOT NULL CHECK (balance >= 0));
         CREATE TABLE orders (number INTEGER PRIMARY KEY, confirmed INTEGER NOT NULL DEFAULT 0);
         CREATE TABLE entries (number INTEGER NOT NULL, debit TEXT, credit TEXT, amount INTEGER);",
    )?;
    for account in accounts {
        let open = "INSERT INTO accounts VALUES (?1, ?2)";
        connection.execute(open, (account, balance))?;
    }
    Ok(())
}

/// Records an order and asks for its transfer.
///
/// # Errors
/// The errors of SQLite and of the submission. Unless the commit itself failed, nothing was written.
pub fn order(
    service: &QueueService,
    connection: &mut Connection,
    transfer: &Transfer,
) -> Result<(), Failure> {
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let record = "INSERT INTO orders (number) VALUES (?1)";
    tx.execute(record, [transfer.number])?;
    service.submit_within(&tx, transfer.clone())?;
    Ok(tx.commit()?)
}

/// Handles a transfer in a transaction: enters it, and sends its receipt.
///
/// # Errors
/// The errors of [`enter`].
pub fn transfer(
    tx: &Transaction<'_>,
    transfer: &Received<Transfer>,
) -> Result<Disposition, Failure> {
    enter(tx, transfer)?;
    let number = transfer.number;
    Ok(Disposition::complete().then(&Receipt { number }))
}

/// Moves the money, unless the account that pays has too little or does not exist, and makes an entry.
///
/// # Errors
/// SQLite's errors. If the account that is paid does not exist, the transfer is rejected, and the transaction must be
/// rolled back: the other account may have paid.
pub fn enter(tx: &Transaction<'_>, transfer: &Transfer) -> Result<(), Failure> {
    let Transfer {
        number,
        from,
        to,
        amount,
    } = transfer;
    let pay = "UPDATE accounts SET balance = balance - ?2 WHERE name = ?1 AND balance >= ?2";
    if tx.execute(pay, (from, amount))? == 0 {
        tx.execute("INSERT INTO entries (number) VALUES (?1)", [number])?;
        return Ok(());
    }
    let receive = "UPDATE accounts SET balance = balance + ?2 WHERE name = ?1";
    if tx.execute(receive, (to, amount))? == 0 {
        return Err(Failure::reject(format!(
            "there is no account `{to}` to be paid"
        )));
    }
    let entry = "INSERT INTO entries VALUES (?1, ?2, ?3, ?4)";
    tx.execute(entry, (number, from, to, amount))?;
    Ok(())
}

/// Handles a receipt in a transaction: marks the order as confirmed.
///
/// # Errors
/// SQLite's errors.
pub fn confirm(tx: &Transaction<'_>, receipt: &Received<Receipt>) -> rusqlite::Result<()> {
    let confirm = "UPDATE orders SET confirmed = confirmed + 1 WHERE number = ?1";
    tx.execute(confirm, [receipt.number]).map(drop)
}

/// Returns the accounts with their balances, by name.
///
/// # Errors
/// SQLite's errors.
pub fn balances(connection: &Connection) -> rusqlite::Result<Vec<(String, i64)>> {
    let mut query = connection.prepare("SELECT name, balance FROM accounts ORDER BY name")?;
    let rows = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    rows.collect()
}

#[cfg(test)]
mod tests {
    use queue_runtime::in_transaction;

    use super::*;

    #[tokio::test]
    async fn a_transfer_to_an_unknown_account_is_rejected_and_costs_nobody_money() {
        let folder = tempfile::tempdir().expect("a folder");
        let url = format!("sqlite:{}", folder.path().join("ledger.db").display());
        let service = QueueService::connect(&url).await.expect("connects");
        let mut connection =
            queue_runtime::sqlite::connect(service.backend()).expect("a connection");
        create(&connection, &["ada", "bob"], 100).expect("created");
        for (number, to) in [(1, "nobody"), (2, "bob")] {
            let transfer = Transfer {
                number,
                from: "ada".to_owned(),
                to: to.to_owned(),
                amount: 30,
            };
            order(&service, &mut connection, &transfer).expect("ordered");
        }
        let listener = service.listener(in_transaction(transfer)).until_empty();
        let drained = listener.start().expect("it starts").drained().await;
        assert_eq!((drained.info.completed, drained.info.poisoned), (1, 1));
        let found = balances(&connection).expect("read");
        assert_eq!(found, [("ada".to_owned(), 70), ("bob".to_owned(), 130)]);
    }
}
