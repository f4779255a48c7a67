//! Opens accounts in a new file, orders transfers between them, and prints the balances.

use ledger::{Transfer, balances, confirm, create, order, transfer};
use queue_runtime::{QueueService, in_transaction};

const ACCOUNTS: [&str; 3] = ["ada", "bob", "eve"];

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite:{}", folder.path().join("ledger.db").display());
    let service = QueueService::connect(&url).await?;
    let mut connection = queue_runtime::sqlite::connect(service.backend())?;
    create(&connection, &ACCOUNTS, 100)?;
    for number in 1..=10 {
        let account = |at: usize| ACCOUNTS[at % ACCOUNTS.len()].to_owned();
        let transfer = Transfer {
            number: number as i64,
            from: account(number),
            to: account(number * number + 1),
            amount: 7 * number as i64,
        };
        order(&service, &mut connection, &transfer).map_err(|failure| failure.chain())?;
    }

    let entering = service.listener(in_transaction(transfer)).until_empty();
    let entered = entering.start()?.drained().await;
    let confirming = service.listener(in_transaction(confirm)).until_empty();
    let confirmed = confirming.start()?.drained().await;
    let (entered, confirmed) = (entered.info.completed, confirmed.info.completed);
    println!("{entered} transfers entered, {confirmed} confirmed");
    for (account, balance) in balances(&connection)? {
        println!("{account} {balance}");
    }
    Ok(())
}
