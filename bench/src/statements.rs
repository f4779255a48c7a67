//! What clients of a PostgreSQL server execute, by the server's log.
//!
//! The server's counters of transactions are no measure: a process adds its own only now and then.

use std::collections::BTreeMap;
use std::time::Duration;

use queue_runtime::postgres::tokio_postgres::{Client, NoTls, connect};
use queue_tests::postgres::PostgresServer;

use crate::Outcome;

/// Each line of a client begins with its name, which `queue-postgres` sets, and this mark.
const MARK: &str = "queues|LOG:  ";

/// What a statement begins with, by the protocol that sent it; the name of a prepared one follows.
const KINDS: [&str; 2] = ["statement: ", "execute "];

/// The statements of a server that was started, all of which are logged.
pub(crate) struct Statements {
    client: Client,
}

impl Statements {
    /// Has the server log all statements of connections to it.
    pub(crate) async fn log(url: &str) -> Outcome<Self> {
        let (client, connection) = connect(url, NoTls).await?;
        tokio::spawn(connection);
        for sql in [
            "ALTER SYSTEM SET log_line_prefix = '%a|'",
            "ALTER SYSTEM SET log_statement = 'all'",
            "SELECT pg_reload_conf()",
        ] {
            client.batch_execute(sql).await?;
        }
        Ok(Self { client })
    }

    /// Returns the statements of this time, each with how often it was executed.
    pub(crate) async fn during(&self, span: Duration) -> Outcome<BTreeMap<String, u32>> {
        let size = format!("SELECT (pg_stat_file({})).size", PostgresServer::LOG);
        let start: i64 = self.client.query_one(&size, &[]).await?.get(0);
        tokio::time::sleep(span).await;
        let end: i64 = self.client.query_one(&size, &[]).await?.get(0);
        let read = format!("SELECT pg_read_file({}, $1, $2)", PostgresServer::LOG);
        let length = end - start;
        let row = self.client.query_one(&read, &[&start, &length]).await?;
        Ok(statements(row.get(0)))
    }
}

/// Returns the statements in a part of the log, as one line each.
fn statements(log: &str) -> BTreeMap<String, u32> {
    let mut statements = BTreeMap::new();
    let mut current: Option<String> = None;
    // After the last line comes the end of its statement.
    for line in log.lines().map(Some).chain([None]) {
        match (line.and_then(|line| line.strip_prefix('\t')), &mut current) {
            (Some(more), Some(statement)) => {
                statement.push(' ');
                statement.push_str(more.trim());
            }
            _ => {
                if let Some(statement) = current.take() {
                    *statements.entry(statement).or_default() += 1;
                }
                let line = line.and_then(|line| line.strip_prefix(MARK));
                current = line.and_then(sql).map(str::to_owned);
            }
        }
    }
    statements
}

/// Returns the first line of a statement, without how it was sent.
fn sql(line: &str) -> Option<&str> {
    let is_statement = KINDS.iter().any(|kind| line.starts_with(kind));
    let (_, sql) = line.split_once(": ").filter(|_| is_statement)?;
    Some(sql)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_of_our_connections_are_counted() {
        let log = "queues|LOG:  statement: BEGIN\n\
            psql|LOG:  statement: SELECT 'of another client'\n\
            queues|LOG:  execute s1: SELECT $1\n\
            \t    FROM clock\n\
            queues|DETAIL:  Parameters: $1 = 'a'\n\
            queues|LOG:  execute s1: SELECT $1\n\
            \t    FROM clock\n\
            queues|DETAIL:  Parameters: $1 = 'b'\n\
            |LOG:  checkpoint starting: time\n\
            queues|LOG:  statement: SELECT; COMMIT";
        let expected = [
            ("BEGIN", 1),
            ("SELECT $1 FROM clock", 2),
            ("SELECT; COMMIT", 1),
        ];
        let expected = expected.map(|(sql, times)| (sql.to_owned(), times));
        assert_eq!(statements(log), BTreeMap::from(expected));
    }
}
