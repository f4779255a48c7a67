use std::path::Path;

use rusqlite::Connection;

use super::judge::FILE;

/// More rows than a page holds.
const ROWS: i64 = 400;

/// Creates a database of an application, in which there are no queues.
///
/// # Panics
/// If the database cannot be written.
pub fn create_application(folder: &Path) {
    let connection = Connection::open(folder.join(FILE)).expect("a new file");
    let rows = format!(
        "CREATE TABLE messages (id INTEGER PRIMARY KEY, text TEXT NOT NULL);
        WITH RECURSIVE row (id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM row LIMIT {ROWS})
            INSERT INTO messages SELECT id, 'message ' || id FROM row;
        PRAGMA user_version = 7"
    );
    connection.execute_batch(&rows).expect("written");
}

/// Asserts that the application's rows and its version are what they were.
///
/// # Panics
/// If rows or version differ.
pub fn assert_application(folder: &Path) {
    let connection = Connection::open(folder.join(FILE)).expect("it opens");
    let version = connection.pragma_query_value(None, "user_version", |row| row.get(0));
    assert_eq!(version, Ok(7));
    let rows = "SELECT count(*) FROM messages WHERE text = 'message ' || id";
    assert_eq!(connection.query_row(rows, [], |row| row.get(0)), Ok(ROWS));
}
