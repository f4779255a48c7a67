use std::path::Path;

use rusqlite::{Connection, params};

use super::judge::FILE;
use crate::ledger::{Event, Lease, Ledger};

/// Creates a file of version 1 of the schema with this many orders, and the ledger of the process that
/// submitted them. Returns the name of the ledger.
///
/// # Panics
/// If it cannot be written.
#[must_use]
pub fn older_file(folder: &Path, orders: i64) -> String {
    let file = "older.ledger";
    let ledger = Ledger::create(&folder.join(file));
    let mut connection = Connection::open(folder.join(FILE)).expect("a new file");
    connection
        .execute_batch(include_str!("version_1.sql"))
        .expect("version 1");
    let transaction = connection.transaction().expect("a transaction");
    for order in 1..=orders {
        let name = format!("older-{order}-p");
        ledger.write(Event::Submitting, &name, Lease::default());
        let body = format!(
            r#"{{"specversion":"1.0","id":"{name}","source":"/older","type":"crash.order","data":{{"name":"{name}"}}}}"#
        );
        let message = "INSERT INTO messages VALUES (?1, 1, 7, 0, NULL, CAST(?2 AS BLOB))";
        transaction
            .execute(message, params![order, body])
            .expect("inserted");
        let schedule = "INSERT INTO schedule VALUES (1, 0, ?1, 5, 0, NULL)";
        transaction.execute(schedule, [order]).expect("inserted");
        ledger.write(Event::Submitted, &name, Lease::default());
    }
    transaction.commit().expect("committed");
    file.to_owned()
}
