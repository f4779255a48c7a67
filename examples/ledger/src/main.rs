//! Opens accounts, orders transfers between them, and prints the balances: in a new SQLite file, or in the PostgreSQL
//! database of a URL.

use ledger::{Transfer, balances, confirm, create, order, transfer};
use queue_runtime::{QueueService, in_transaction};

const ACCOUNTS: [&str; 3] = ["ada", "bob", "eve"];

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> Outcome {
    let balances = match std::env::args().nth(1) {
        None => in_a_file().await?,
        Some(url) => in_a_database(&url).await?,
    };
    for (account, balance) in balances {
        println!("{account} {balance}");
    }
    Ok(())
}

fn transfers() -> impl Iterator<Item = Transfer> {
    let account = |at: usize| ACCOUNTS[at % ACCOUNTS.len()].to_owned();
    (1..=10).map(move |number| Transfer {
        number: number as i64,
        from: account(number),
        to: account(number * number + 1),
        amount: 7 * number as i64,
    })
}

async fn in_a_file() -> Outcome<Vec<(String, i64)>> {
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite:{}", folder.path().join("ledger.db").display());
    let service = QueueService::connect(&url).await?;
    let mut connection = queue_runtime::sqlite::connect(service.backend())?;
    create(&connection, &ACCOUNTS, 100)?;
    for transfer in transfers() {
        order(&service, &mut connection, &transfer).map_err(|failure| failure.chain())?;
    }
    let entering = service.listener(in_transaction(transfer)).until_empty();
    let entered = entering.start()?.drained().await.info.completed;
    let confirming = service.listener(in_transaction(confirm)).until_empty();
    let confirmed = confirming.start()?.drained().await.info.completed;
    println!("{entered} transfers entered, {confirmed} confirmed");
    Ok(balances(&connection)?)
}

async fn in_a_database(url: &str) -> Outcome<Vec<(String, i64)>> {
    use ledger::postgres::{balances, confirm, create, order, transfer};
    use queue_runtime::postgres::{connect, in_transaction};

    let service = QueueService::connect(url).await?;
    let mut client = connect(&**service.backend()).await?;
    create(&client, &ACCOUNTS, 100).await?;
    for transfer in transfers() {
        let ordered = order(&service, &mut client, &transfer).await;
        ordered.map_err(|failure| failure.chain())?;
    }
    let entering = service.listener(in_transaction(transfer)).until_empty();
    let entered = entering.start()?.drained().await.info.completed;
    let confirming = service.listener(in_transaction(confirm)).until_empty();
    let confirmed = confirming.start()?.drained().await.info.completed;
    println!("{entered} transfers entered, {confirmed} confirmed");
    Ok(balances(&client).await?)
}
