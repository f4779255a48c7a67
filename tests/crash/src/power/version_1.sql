-- A file as version 1 of the schema had it. It repeats much of schema.rs, and never changes with it.
PRAGMA journal_mode = WAL;
BEGIN;
CREATE TABLE queues (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    metadata TEXT NOT NULL
);
CREATE TABLE messages (
    seq INTEGER PRIMARY KEY,
    queue INTEGER NOT NULL,
    salt INTEGER NOT NULL,
    inserted_at INTEGER NOT NULL,
    expires_at INTEGER,
    body BLOB NOT NULL
);
CREATE TABLE schedule (
    queue INTEGER NOT NULL,
    visible_at INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    nonce INTEGER NOT NULL,
    dequeue_count INTEGER NOT NULL,
    expires_at INTEGER,
    PRIMARY KEY (queue, visible_at, seq)
) WITHOUT ROWID;
CREATE INDEX expiry ON schedule (expires_at) WHERE expires_at IS NOT NULL;
CREATE TABLE dropped (queue INTEGER PRIMARY KEY);
CREATE TABLE store (
    single INTEGER PRIMARY KEY CHECK (single = 1),
    latest INTEGER NOT NULL
);
INSERT INTO store VALUES (1, 0);
INSERT INTO queues VALUES (1, 'orders', '{}');
PRAGMA application_id = 0x514d5347;
PRAGMA user_version = 1;
COMMIT;
