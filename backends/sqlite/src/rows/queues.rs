//! The SQL statements on queues: the cache of their ids, and the numbers of messages of each, stored and ever put, so
//! that reads need not count.

use std::collections::{BTreeMap, HashMap, HashSet};

use queue_core::QueueName;
use queue_core::backend::{Created, GroupLimit, Metadata};
use rusqlite::{Connection, OptionalExtension, params};

use crate::failure::{Failure, Result};
use crate::rows::schema::Lazy;

/// Access to queues by name, within a transaction or a read.
///
/// Ids are never reused, and the cache is emptied whenever another connection has committed. An operation
/// on a queue that another process has deleted is therefore refused.
pub(crate) struct Queues<'c> {
    known: HashMap<QueueName, Known>,
    seen: Option<i64>,
    data_version: Lazy<'c>,
    find: Lazy<'c>,
    insert: Lazy<'c>,
    remove: Lazy<'c>,
    set_metadata: Lazy<'c>,
    drop_messages: Lazy<'c>,
    count: Lazy<'c>,
    put: Lazy<'c>,
    stop_counting: Lazy<'c>,
}

/// What is cached of a queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known {
    pub(crate) id: i64,
    pub(crate) group_limit: GroupLimit,
}

impl<'c> Queues<'c> {
    pub(crate) fn new(connection: &'c Connection) -> Self {
        let prepare = |sql| Lazy::new(connection, sql);
        Self {
            known: HashMap::new(),
            seen: None,
            data_version: prepare("PRAGMA data_version"),
            find: prepare("SELECT id, metadata FROM queue_queues WHERE name = ?1"),
            insert: prepare("INSERT INTO queue_queues (name, metadata) VALUES (?1, ?2)"),
            remove: prepare("DELETE FROM queue_queues WHERE id = ?1"),
            set_metadata: prepare("UPDATE queue_queues SET metadata = ?2 WHERE id = ?1"),
            drop_messages: prepare("INSERT INTO queue_dropped VALUES (?1)"),
            count: prepare(
                "INSERT INTO queue_counts (queue, messages, expiring, put) VALUES (?1, 0, 0, ?2)",
            ),
            put: prepare("SELECT put FROM queue_counts WHERE queue = ?1"),
            stop_counting: prepare("DELETE FROM queue_counts WHERE queue = ?1"),
        }
    }

    /// Whether another connection has committed since the last call: if so, the cache is emptied.
    pub(crate) fn changed_elsewhere(&mut self) -> Result<bool> {
        let version = self.data_version.query_row([], |row| row.get(0))?;
        let changed = self.seen.replace(version) != Some(version);
        if changed {
            self.known.clear();
        }
        Ok(changed)
    }

    /// Empties the cache, which may hold queues of a transaction that was rolled back.
    pub(crate) fn forget(&mut self) {
        self.known.clear();
        self.seen = None;
    }

    pub(crate) fn id(&mut self, queue: &QueueName) -> Result<i64> {
        Ok(self.known(queue)?.id)
    }

    pub(crate) fn known(&mut self, queue: &QueueName) -> Result<Known> {
        if let Some(&known) = self.known.get(queue) {
            return Ok(known);
        }
        let (id, metadata) = self.find(queue)?.ok_or(Failure::QueueNotFound)?;
        Ok(self.learn(queue, id, &metadata))
    }

    fn learn(&mut self, queue: &QueueName, id: i64, metadata: &str) -> Known {
        let group_limit = group_limit(metadata);
        let known = Known { id, group_limit };
        self.known.insert(queue.clone(), known);
        known
    }

    pub(crate) fn create(&mut self, queue: &QueueName, metadata: &str) -> Result<Created> {
        match self.find(queue)? {
            Some((_, present)) if present == metadata => Ok(Created::Existed),
            Some(_) => Err(Failure::QueueExists),
            None => self.add(queue, metadata, 0).map(|()| Created::New),
        }
    }

    /// Creates a queue on which this many messages were put before.
    fn add(&mut self, queue: &QueueName, metadata: &str, put: i64) -> Result<()> {
        let id = self.insert.insert(params![queue.as_str(), metadata])?;
        self.count.execute([id, put])?;
        self.learn(queue, id, metadata);
        Ok(())
    }

    pub(crate) fn remove(&mut self, queue: &QueueName) -> Result<()> {
        let id = self.id(queue)?;
        self.known.remove(queue);
        self.remove.execute([id])?;
        self.stop_counting.execute([id])?;
        self.drop_messages.execute([id])?;
        Ok(())
    }

    /// Gives the queue a new id, under which there are no messages. What was put on the queue must be counted before.
    pub(crate) fn clear(&mut self, queue: &QueueName) -> Result<()> {
        let (id, metadata) = self.find(queue)?.ok_or(Failure::QueueNotFound)?;
        let put = self.put.query_row([id], |row| row.get(0)).optional()?;
        self.remove(queue)?;
        self.add(queue, &metadata, put.unwrap_or(0))
    }

    pub(crate) fn metadata(&mut self, queue: &QueueName) -> Result<Metadata> {
        let (_, metadata) = self.find(queue)?.ok_or(Failure::QueueNotFound)?;
        parse_metadata(&metadata)
    }

    pub(super) fn set_metadata(&mut self, queue: &QueueName, metadata: &str) -> Result<()> {
        let id = self.id(queue)?;
        self.set_metadata.execute(params![id, metadata])?;
        self.learn(queue, id, metadata);
        Ok(())
    }

    fn find(&mut self, queue: &QueueName) -> Result<Option<(i64, String)>> {
        let found = self
            .find
            .query_row([queue.as_str()], |row| Ok((row.get(0)?, row.get(1)?)));
        Ok(found.optional()?)
    }
}

/// Formats metadata as it is stored: equal metadata has equal text.
pub(crate) fn format_metadata(metadata: &Metadata) -> String {
    let entries: BTreeMap<&str, &str> = metadata.iter().collect();
    serde_json::to_string(&entries).expect("a map of strings is JSON")
}

/// Returns the limit of groups that metadata sets. What is damaged sets none.
pub(super) fn group_limit(metadata: &str) -> GroupLimit {
    let limit = parse_metadata(metadata).map(|metadata| GroupLimit::of(&metadata));
    limit
        .ok()
        .and_then(Result::ok)
        .flatten()
        .unwrap_or_default()
}

pub(crate) fn parse_metadata(text: &str) -> Result<Metadata> {
    const DAMAGED: Failure = Failure::Corrupt("the metadata of a queue is invalid");
    let entries: BTreeMap<String, String> = serde_json::from_str(text).map_err(|_| DAMAGED)?;
    let mut metadata = Metadata::new();
    for (name, value) in &entries {
        metadata.insert(name, value).map_err(|_| DAMAGED)?;
    }
    Ok(metadata)
}

/// The changes of a transaction to the counts, written once before the commit.
pub(crate) struct Counts<'c> {
    changes: Vec<Counted>,
    expiring: HashSet<i64>,
    add: Lazy<'c>,
    expect_expiry: Lazy<'c>,
}

/// What a transaction changes of one queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counted {
    queue: i64,
    put: i64,
    removed: i64,
}

impl<'c> Counts<'c> {
    pub(crate) fn new(connection: &'c Connection) -> Self {
        Self {
            changes: Vec::new(),
            expiring: HashSet::new(),
            add: Lazy::new(
                connection,
                "UPDATE queue_counts SET messages = messages + ?2 - ?3, put = put + ?2 WHERE queue = ?1",
            ),
            expect_expiry: Lazy::new(
                connection,
                "UPDATE queue_counts SET expiring = 1 WHERE queue = ?1",
            ),
        }
    }

    pub(crate) fn put(&mut self, queue: i64) {
        self.change(queue).put += 1;
    }

    pub(crate) fn removed(&mut self, queue: i64) {
        self.change(queue).removed += 1;
    }

    fn change(&mut self, queue: i64) -> &mut Counted {
        let known = self.changes.iter().position(|change| change.queue == queue);
        let at = known.unwrap_or_else(|| {
            let (put, removed) = (0, 0);
            self.changes.push(Counted {
                queue,
                put,
                removed,
            });
            self.changes.len() - 1
        });
        &mut self.changes[at]
    }

    /// Has the sweep visit a queue from now on, because it holds messages that expire.
    pub(super) fn expect_expiry(&mut self, queue: i64) -> Result<()> {
        if self.expiring.insert(queue) {
            self.expect_expiry.execute([queue])?;
        }
        Ok(())
    }

    /// Writes the changes.
    pub(crate) fn write(&mut self) -> Result<()> {
        for change in self.changes.drain(..) {
            let Counted {
                queue,
                put,
                removed,
            } = change;
            self.add.execute(params![queue, put, removed])?;
        }
        Ok(())
    }

    /// Returns the changes so far, to be given to [`roll_back`](Self::roll_back).
    pub(super) fn save(&self) -> Vec<Counted> {
        self.changes.clone()
    }

    /// Undoes the changes since `saved`.
    pub(crate) fn roll_back(&mut self, saved: Vec<Counted>) {
        self.changes = saved;
        self.expiring.clear();
    }
}
