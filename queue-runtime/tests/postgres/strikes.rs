//! Deposits are entered once, whatever moment a connection ends at, or the server crashes: often within a commit.

use std::sync::Arc;
use std::time::Duration;

use queue_runtime::postgres::{self, Tx};
use queue_runtime::{Disposition, Failure, Received, RetryPolicy};
use queue_tests::postgres::PostgresServer;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::bank::{Bank, Deposit, Notice};

const DEPOSITS: usize = 300;

/// How many times connections are ended, and after each how many of them the server crashes.
const STRIKES: u32 = 60;
const CRASH: u32 = 20;

/// Ends connections and crashes the server, with pauses, until it is told to stop.
fn strike(mut server: PostgresServer, stop: watch::Receiver<()>) -> JoinHandle<PostgresServer> {
    tokio::task::spawn_blocking(move || {
        for strike in 1..=STRIKES {
            std::thread::sleep(Duration::from_millis(30));
            if strike % CRASH == 0 {
                server.crash().expect("it starts again");
            } else {
                server.end_a_connection();
            }
            if stop.has_changed().is_err() {
                break;
            }
        }
        server
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn each_deposit_is_entered_once_although_connections_end_and_the_server_crashes() {
    let server = PostgresServer::start().expect("it starts");
    let bank = Bank::on(&server).await;
    for number in 0..DEPOSITS {
        bank.submit(number as i32).await;
    }
    // Before the first strike, which may end a connection that is being opened.
    let services = [bank.other_service().await, bank.other_service().await];
    let (run, stop) = watch::channel(());
    let striking = strike(server, stop);
    let mut listeners = Vec::new();
    for service in services {
        let schema = bank.schema.clone();
        let enter = postgres::in_transaction(move |tx: Tx, deposit: Arc<Received<Deposit>>| {
            let insert = format!("INSERT INTO {schema}.account VALUES ($1, $2)");
            async move {
                tx.execute(&insert, &[&deposit.number, &deposit.amount])
                    .await?;
                let text = deposit.number.to_string();
                Ok::<_, Failure>(tx.end(Disposition::complete().then(&Notice { text })))
            }
        });
        let listener = service.listener(enter);
        let listener = listener.retry(RetryPolicy::fixed(Duration::ZERO));
        listeners.push(listener.start().expect("it starts"));
    }
    // A count that fails is that of a server that crashes.
    while bank.count("deposits").await != Some(0) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(run);
    let server = striking.await.expect("no panic");
    for listener in listeners {
        listener.shutdown(crate::bank::GUARD).await;
    }
    let bank = bank.again().await;
    bank.assert(DEPOSITS as i64, 0, DEPOSITS).await;
    drop(server);
}
