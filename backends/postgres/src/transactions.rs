//! Messages in transactions of the application's own connections to the database.
//!
//! Whatever the driver, a write is one call of the function `write_within`, with a text and bytes, and its answer a text.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use queue_core::backend::{
    Attachment, Capabilities, Completion, Limits, Mark, NewMessage, PutReceipt, Swap, SwapIf,
    Token, TransactionOutcome, Transactions, Writes, Written,
};
use queue_core::clock::BoxFuture;
use queue_core::internal::{LockExt as _, debug_fields, to_hex};
use queue_core::store_clock::{after, lifespan, timestamp};
use queue_core::{Error, ErrorKind, Operation, QueueName, Result};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{GenericClient, Row};

use crate::asker::Asker;
use crate::failure::{self, Failure};
use crate::messages::{Handle, parse_id, pop_receipt, storage_id};
use crate::session::{Server, Session, column};

/// How long the end of transactions is waited for, and the pauses between two looks.
const PATIENCE: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// The most tokens that wait to be removed. Others are removed when they are old.
const FORGOTTEN: usize = 10_000;

/// How long a token is kept, in microseconds.
pub(crate) const KEPT: i64 = queue_core::backend::RECORD_RETENTION.as_micros() as i64;

/// The number of the transaction that is open.
pub(crate) const NUMBER: &str = "SELECT pg_current_xact_id()::text";
/// Whether transactions are open.
const OPEN: &str = "SELECT is_open(number) FROM unnest($1::text[]) WITH ORDINALITY AS given (number, place) ORDER BY place";
/// Looks for tokens in a snapshot that is taken after the transactions were found to be over.
const COMMITTED: &str = "SELECT token FROM tokens WHERE token = ANY ($1)";
const FORGET: &str = "DELETE FROM tokens WHERE token = ANY ($1)";
const FORGET_OLD: &str = "DELETE FROM tokens WHERE at < (SELECT now_us() - $1)";

/// Transactions of the application's own connections to the database of a [`PostgresBackend`](crate::PostgresBackend): the
/// engine of which a `&tokio_postgres::Transaction` is a [`StorageTransaction`](queue_core::backend::StorageTransaction).
#[derive(Clone)]
pub struct PostgresTransactions {
    pub(crate) server: Arc<Server>,
    pub(crate) reader: Asker,
    pub(crate) capabilities: Arc<Capabilities>,
    pub(crate) forgotten: Forgotten,
}

/// Completions whose tokens can be removed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Forgotten(Arc<Mutex<Vec<i64>>>);

/// A connection of the application's, of whatever driver.
pub(crate) trait Connection: Send {
    /// Executes a statement that answers with one text.
    fn text<'c>(&'c mut self, sql: &'c str) -> BoxFuture<'c, failure::Result<String>>;

    /// Executes a statement with a text and bytes, which answers with one text.
    fn call<'c>(&'c mut self, sql: &'c str, call: Call) -> BoxFuture<'c, failure::Result<String>>;

    /// The number of the transaction that was begun, if that is known: another is not written in.
    fn begun(&self) -> Option<&str> {
        None
    }
}

/// The parameters of a call.
pub(crate) struct Call {
    pub(crate) request: String,
    pub(crate) bodies: Vec<Vec<u8>>,
    pub(crate) attachments: Vec<Option<Vec<u8>>>,
}

/// The answer of `write_within`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Answer {
    Refused {
        refused: String,
        queue: Option<QueueName>,
        detail: Option<String>,
    },
    Written {
        receipts: Vec<Receipt>,
    },
}

/// The number and the receipt of a message, when it was put, when it becomes visible, and when it expires.
#[derive(Deserialize)]
struct Receipt(i64, String, i64, i64, Option<i64>);

const UNREADABLE: Failure = Failure::Corrupt("the answer of a write cannot be read");

impl Receipt {
    fn read(self) -> Option<PutReceipt> {
        let Self(seq, nonce, now, visible_at, expires_at) = self;
        let receipt = pop_receipt(nonce.parse().ok()?);
        let (now, visible_at) = (timestamp(now), timestamp(visible_at));
        let mut put = PutReceipt::new(storage_id(seq), receipt, now, visible_at);
        put.expires_at = expires_at.map(timestamp);
        Some(put)
    }
}

/// What is written in a transaction.
struct Prepared {
    puts: Vec<Value>,
    completion: Option<Value>,
    bodies: Vec<Vec<u8>>,
    attachments: Vec<Option<Vec<u8>>>,
    /// The queue and the token of the completion.
    completes: Option<(QueueName, Token)>,
}

impl PostgresTransactions {
    fn prepare(&self, writes: &impl Writes) -> Result<Prepared> {
        let puts = writes.puts();
        for (queue, message) in puts {
            self.check(queue, message)?;
        }
        let put = |(queue, message): &(QueueName, NewMessage)| {
            let (delay, lifetime) = lifespan(0, message);
            let is_reply = queue.is_reply_queue();
            json!({
                "queue": queue.as_str(),
                "delay": delay,
                "lifetime": lifetime,
                "group": message.group,
                "tracked": message.tracked.as_ref().map(|id| id.as_str()),
                "is_reply": is_reply,
            })
        };
        let attachment = |(_, message): &(_, NewMessage)| match &message.attachment {
            Some(Attachment::New(data)) => Some(data.to_vec()),
            _ => None,
        };
        let completion = writes.completion();
        let completes = |completion: &Completion<'_>| (completion.queue.clone(), completion.token);
        Ok(Prepared {
            puts: puts.iter().map(put).collect(),
            bodies: puts.iter().map(|(_, put)| put.body.to_vec()).collect(),
            attachments: puts.iter().map(attachment).collect(),
            completes: completion.as_ref().map(completes),
            completion: completion.as_ref().map(described).transpose()?,
        })
    }

    /// Writes within the transaction that is open on the connection.
    async fn write(&self, connection: &mut impl Connection, prepared: Prepared) -> Result<Written> {
        let (queue, token) = prepared.completes.unzip();
        let queue = queue.as_ref();
        let failed = |failure: Failure| failure.not_done().into_error(Operation::Apply, queue);
        let number = match connection.begun() {
            Some(number) => number.to_owned(),
            None => connection.text(NUMBER).await.map_err(failed)?,
        };
        let request = json!({
            "store": self.server.store().to_string(),
            "transaction": number,
            "latest": self.server.latest(),
            "puts": prepared.puts,
            "completion": prepared.completion,
        });
        let call = Call {
            request: request.to_string(),
            bodies: prepared.bodies,
            attachments: prepared.attachments,
        };
        let schema = self.server.schema();
        let sql = format!("SELECT \"{schema}\".write_within($1::text::jsonb, $2, $3)::text");
        let answer = connection.call(&sql, call).await.map_err(failed)?;
        match serde_json::from_str(&answer) {
            Ok(Answer::Refused {
                refused,
                queue: named,
                detail,
            }) => Err(refusal(&refused, named.as_ref().or(queue), detail)),
            Ok(Answer::Written { receipts }) => number
                .parse()
                .ok()
                .zip(receipts.into_iter().map(Receipt::read).collect())
                .map(|(number, receipts)| Written::new(receipts, Mark::new(number, token)))
                .ok_or_else(|| failed(UNREADABLE)),
            Err(_) => Err(failed(UNREADABLE)),
        }
    }

    fn check(&self, queue: &QueueName, message: &NewMessage) -> Result<()> {
        let limits = Limits {
            capabilities: &self.capabilities,
            operation: Operation::Put,
            queue,
        };
        limits.check_put(message)?;
        match message.attachment {
            Some(Attachment::Of { .. }) => {
                let error = Error::new(ErrorKind::Unsupported, Operation::Put).with_queue(queue);
                Err(error
                    .with_detail("a message is not moved in a transaction of the application's"))
            }
            _ => Ok(()),
        }
    }

    /// Returns what became of the transactions by now.
    async fn look(&self, marks: &[Mark]) -> failure::Result<Vec<TransactionOutcome>> {
        let numbers: Vec<String> = marks
            .iter()
            .map(|it| it.transaction().to_string())
            .collect();
        let tokens = marks.iter().filter_map(Mark::token).map(as_number);
        let tokens: Vec<i64> = tokens.collect();
        let asked = self.reader.ask(move |session: &mut Session| {
            Box::pin(async move {
                let open = session.query(OPEN, &[&numbers]).await?;
                let open = open.iter().map(|row| column(row, 0));
                let open = open.collect::<failure::Result<Vec<bool>>>()?;
                let committed = session.query(COMMITTED, &[&tokens]).await?;
                let committed = committed.iter().map(|row| column(row, 0));
                Ok((open, committed.collect::<failure::Result<Vec<i64>>>()?))
            })
        });
        let (open, committed) = asked.await?;
        if open.len() != marks.len() {
            return Err(Failure::Corrupt("not every transaction was answered"));
        }
        let outcome = |(mark, is_open): (&Mark, bool)| match mark.token().map(as_number) {
            _ if is_open => TransactionOutcome::Open,
            Some(token) if !committed.contains(&token) => TransactionOutcome::RolledBack,
            _ => TransactionOutcome::Committed,
        };
        Ok(marks.iter().zip(open).map(outcome).collect())
    }
}

/// Returns what the function has to know of a completion.
fn described(completion: &Completion<'_>) -> Result<Value> {
    let Completion {
        queue,
        id,
        receipt,
        dequeue_count,
        visibility,
        token,
        finish,
        item,
        release,
        ..
    } = completion;
    let handle = Handle::parse(id, receipt);
    let unknown = || {
        let error = Error::new(ErrorKind::Unsupported, Operation::Delete).with_queue(queue);
        error.with_detail("the engine does not know this swap of a completion")
    };
    let key = |swap: &Swap| {
        let (scope, key) = (swap.key.scope(), swap.key.key());
        (to_hex(scope.as_bytes()), to_hex(key.as_bytes()))
    };
    let finish = finish.as_ref().map(|finish| {
        let (scope, key) = key(finish);
        let record = finish.record.as_ref().ok_or_else(unknown)?;
        let value = record.value.as_ref().ok_or_else(unknown)?;
        match finish.condition {
            SwapIf::Owner(owner) if owner == record.owner => Ok(json!({
                "scope": scope,
                "key": key,
                "owner": owner.to_u64().cast_signed(),
                "lasts": after(0, record.duration),
                "value": to_hex(value),
            })),
            _ => Err(unknown()),
        }
    });
    let release = release.as_ref().map(|release| {
        let (scope, key) = key(release);
        match (&release.condition, &release.record) {
            (SwapIf::Value(value), None) => {
                Ok(json!({ "scope": scope, "key": key, "value": to_hex(value) }))
            }
            _ => Err(unknown()),
        }
    });
    Ok(json!({
        "queue": queue.as_str(),
        "seq": parse_id(id),
        "nonce": handle.nonce.to_string(),
        "dequeue_count": dequeue_count,
        "visibility": after(0, *visibility),
        "token": as_number(*token),
        "item": item.map(|item| item.number),
        "of": item.map(|item| item.of),
        "finish": finish.transpose()?,
        "release": release.transpose()?,
    }))
}

fn as_number(token: Token) -> i64 {
    token.to_u64().cast_signed()
}

/// Returns the error of a refusal, after which the transaction can go on.
fn refusal(refused: &str, queue: Option<&QueueName>, detail: Option<String>) -> Error {
    let failure = match refused {
        "queue_not_found" => Failure::QueueNotFound,
        "message_not_found" => Failure::MessageNotFound,
        "receipt_mismatch" => Failure::ReceiptMismatch,
        "busy" => Failure::Busy,
        "unfit" => Failure::Invalid(detail.unwrap_or_default()),
        "claim_lost" => {
            let error = Error::new(ErrorKind::ReceiptMismatch, Operation::Results);
            return error.with_detail("the claim of the message's key is not held any more");
        }
        _ => Failure::Corrupt("an unknown refusal"),
    };
    failure.not_done().into_error(Operation::Apply, queue)
}

#[async_trait]
impl Transactions for PostgresTransactions {
    async fn outcomes(&self, marks: &[Mark]) -> Result<Vec<TransactionOutcome>> {
        let until = Instant::now() + PATIENCE;
        let mut pause = FIRST_PAUSE;
        loop {
            let outcomes = self.look(marks).await;
            let outcomes =
                outcomes.map_err(|failure| failure.into_error(Operation::Apply, None))?;
            let is_open = |outcome: &TransactionOutcome| *outcome == TransactionOutcome::Open;
            if !outcomes.iter().all(is_open) || Instant::now() >= until {
                return Ok(outcomes);
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn forget(&self, token: Token) {
        let mut forgotten = self.forgotten.0.hold();
        if forgotten.len() < FORGOTTEN {
            forgotten.push(as_number(token));
        }
    }

    fn encode(&self, queue: &QueueName, _: &NewMessage) -> Result<String> {
        let error = Error::new(ErrorKind::Unsupported, Operation::Put).with_queue(queue);
        Err(error
            .with_detail("PostgreSQL has no outbox table: use `submit_within`")
            .unsent())
    }
}

impl Forgotten {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.hold().is_empty()
    }

    /// Removes the tokens.
    pub(crate) async fn remove(&self, session: &mut Session) -> failure::Result<()> {
        let tokens = std::mem::take(&mut *self.0.hold());
        if !tokens.is_empty() {
            session.query(FORGET, &[&tokens]).await?;
        }
        session.query(FORGET_OLD, &[&KEPT]).await?;
        Ok(())
    }
}

impl Connection for &tokio_postgres::Transaction<'_> {
    fn text<'c>(&'c mut self, sql: &'c str) -> BoxFuture<'c, failure::Result<String>> {
        Box::pin(text(*self, sql))
    }

    fn call<'c>(&'c mut self, sql: &'c str, call: Call) -> BoxFuture<'c, failure::Result<String>> {
        Box::pin(call_by(*self, sql, call))
    }
}

pub(crate) async fn text(client: &impl GenericClient, sql: &str) -> failure::Result<String> {
    one(client.query_typed(sql, &[]).await?)
}

pub(crate) async fn call_by(
    client: &impl GenericClient,
    sql: &str,
    call: Call,
) -> failure::Result<String> {
    let Call {
        request,
        bodies,
        attachments,
    } = call;
    // Not prepared: a pooler may give the transaction a session that others had before.
    let parameters: [(&(dyn ToSql + Sync), Type); 3] = [
        (&request, Type::TEXT),
        (&bodies, Type::BYTEA_ARRAY),
        (&attachments, Type::BYTEA_ARRAY),
    ];
    one(client.query_typed(sql, &parameters).await?)
}

fn one(rows: Vec<Row>) -> failure::Result<String> {
    column(rows.first().ok_or(UNREADABLE)?, 0)
}

/// Makes a [`Connection`] a transaction in which messages are put and completed.
macro_rules! storage_transaction {
    ($t:lifetime, $transaction:ty) => {
        impl<$t> queue_core::backend::StorageTransaction<$crate::PostgresTransactions>
            for $transaction
        {
            type Output<T: Send + 'static> = queue_core::clock::BoxFuture<$t, T>;

            fn write<W: queue_core::backend::Writes>(
                mut self,
                engine: std::sync::Arc<$crate::PostgresTransactions>,
                writes: W,
            ) -> queue_core::clock::BoxFuture<$t, W::Output> {
                Box::pin(
                    async move { $crate::transactions::write(&mut self, &engine, writes).await },
                )
            }

            fn ready<T: Send + 'static>(value: T) -> queue_core::clock::BoxFuture<$t, T> {
                Box::pin(std::future::ready(value))
            }
        }
    };
}
pub(crate) use storage_transaction;

storage_transaction!('t, &'t tokio_postgres::Transaction<'_>);

pub(crate) async fn write<W: Writes>(
    connection: &mut impl Connection,
    engine: &PostgresTransactions,
    mut writes: W,
) -> W::Output {
    loop {
        let written = match engine.prepare(&writes) {
            Ok(prepared) => engine.write(connection, prepared).await,
            Err(error) => Err(error),
        };
        match writes.written(written) {
            ControlFlow::Break(output) => return output,
            ControlFlow::Continue(changed) => writes = changed,
        }
    }
}

debug_fields!(PostgresTransactions { server });
