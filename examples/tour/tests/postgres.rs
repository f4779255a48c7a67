//! The program on PostgreSQL prints what its documentation says, and leaves nothing in the database.

mod expected;

use assert_cmd::Command;
use queue_runtime::QueueService;
use queue_runtime::postgres::connect;
use queue_tests::postgres::PostgresServer;

#[tokio::test]
async fn it_prints_what_its_documentation_says_and_cleans_up() {
    let server = PostgresServer::start().expect("it starts");
    for _ in 0..2 {
        let mut program = Command::new(env!("CARGO_BIN_EXE_transaction_postgres"));
        let run = program.arg(server.url()).assert().success();
        run.stdout(expected::output("transaction_postgres"));
    }
    let service = QueueService::connect(server.url()).await.expect("connects");
    let client = connect(&**service.backend()).await.expect("a connection");
    let tables = "SELECT to_regclass('tour_orders') IS NULL, (SELECT count(*) FROM queues.queues)";
    let row = client.query_one(tables, &[]).await.expect("asked");
    assert_eq!((row.get(0), row.get::<_, i64>(1)), (true, 0));
}
