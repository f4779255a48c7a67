use rusqlite::{CachedStatement, Connection, Params, Row, Rows, Statement};

/// A statement that is prepared when it is first used. A transaction of the application's uses few of them, which its
/// connection keeps for the next one.
pub(crate) struct Lazy<'c> {
    connection: &'c Connection,
    sql: &'static str,
    statement: Option<CachedStatement<'c>>,
}

impl<'c> Lazy<'c> {
    pub(crate) fn new(connection: &'c Connection, sql: &'static str) -> Self {
        Self {
            connection,
            sql,
            statement: None,
        }
    }

    pub(crate) fn execute(&mut self, params: impl Params) -> rusqlite::Result<usize> {
        self.prepared()?.execute(params)
    }

    pub(crate) fn insert(&mut self, params: impl Params) -> rusqlite::Result<i64> {
        self.prepared()?.insert(params)
    }

    pub(crate) fn exists(&mut self, params: impl Params) -> rusqlite::Result<bool> {
        self.prepared()?.exists(params)
    }

    pub(crate) fn query(&mut self, params: impl Params) -> rusqlite::Result<Rows<'_>> {
        self.prepared()?.query(params)
    }

    pub(crate) fn query_row<T>(
        &mut self,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        self.prepared()?.query_row(params, read)
    }

    fn prepared(&mut self) -> rusqlite::Result<&mut Statement<'c>> {
        let statement = match self.statement.take() {
            Some(statement) => statement,
            None => self.connection.prepare_cached(self.sql)?,
        };
        Ok(self.statement.insert(statement))
    }
}
