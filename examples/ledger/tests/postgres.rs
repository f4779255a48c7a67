//! The ledger on a real PostgreSQL server of its own.

use ledger::Transfer;
use ledger::postgres::{balances, confirm, create, order, transfer};
use queue_runtime::QueueService;
use queue_runtime::postgres::{connect, in_transaction};
use queue_tests::postgres::PostgresServer;

const ACCOUNTS: [&str; 3] = ["ada", "bob", "eve"];
const ORDERS: i64 = 200;

/// One in ten is paid to nobody; of others, an account may have too little.
fn transfer_of(number: i64) -> Transfer {
    let account = |at: i64| ACCOUNTS[at as usize % ACCOUNTS.len()].to_owned();
    let to = match number % 10 {
        0 => "nobody".to_owned(),
        _ => account(number * number + 1),
    };
    Transfer {
        number,
        from: account(number),
        to,
        amount: 7 * (number % 5),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_transfer_is_entered_and_confirmed_once() {
    let server = PostgresServer::start().expect("it starts");
    let service = QueueService::connect(server.url()).await.expect("connects");
    let mut client = connect(&**service.backend()).await.expect("a connection");
    create(&client, &ACCOUNTS, 100).await.expect("created");
    for number in 1..=ORDERS {
        let ordered = order(&service, &mut client, &transfer_of(number)).await;
        ordered.expect("ordered");
    }

    let entering = service.listener(in_transaction(transfer)).until_empty();
    let entered = entering.start().expect("it starts").drained().await.info;
    let to_nobody = ORDERS as usize / 10;
    let ended = (entered.completed, entered.poisoned);
    assert_eq!(ended, (ORDERS as usize - to_nobody, to_nobody));
    let confirming = service.listener(in_transaction(confirm)).until_empty();
    let confirmed = confirming.start().expect("it starts").drained().await.info;
    assert_eq!(confirmed.completed, ORDERS as usize - to_nobody);

    let counts = "SELECT (SELECT count(*) FROM orders WHERE confirmed = 1), (SELECT count(*) FROM entries),
        (SELECT count(DISTINCT number) FROM entries), (SELECT count(*) FROM entries WHERE amount IS NULL)";
    let row = client.query_one(counts, &[]).await.expect("counted");
    let of_confirmed = ORDERS - to_nobody as i64;
    let found: [i64; 3] = [row.get(0), row.get(1), row.get(2)];
    assert_eq!(
        found, [of_confirmed; 3],
        "orders that are confirmed, entries, and numbers of entries"
    );
    assert!(row.get::<_, i64>(3) > 0, "some accounts had too little");
    let money: i64 = balances(&client)
        .await
        .expect("read")
        .iter()
        .map(|(_, balance)| balance)
        .sum();
    assert_eq!(money, 300, "none is lost or made");
}
