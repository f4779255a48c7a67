CREATE TABLE queue_queues (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE CHECK (
        length(name) BETWEEN 3 AND 63 AND name NOT GLOB '*[^a-z0-9-]*' AND instr(name, char(0)) = 0
        AND name NOT GLOB '-*' AND name NOT GLOB '*-' AND name NOT GLOB '*--*'
    ),
    metadata TEXT NOT NULL
) STRICT;

CREATE TABLE queue_messages (
    seq INTEGER PRIMARY KEY,
    queue INTEGER NOT NULL,
    salt INTEGER NOT NULL,
    inserted_at INTEGER NOT NULL,
    expires_at INTEGER,
    body BLOB NOT NULL,
    checksum INTEGER NOT NULL
) STRICT;

CREATE TABLE queue_schedule (
    queue INTEGER NOT NULL,
    visible_at INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    nonce INTEGER NOT NULL,
    dequeue_count INTEGER NOT NULL,
    expires_at INTEGER,
    PRIMARY KEY (queue, visible_at, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE queue_counts (
    queue INTEGER PRIMARY KEY,
    messages INTEGER NOT NULL,
    expiring INTEGER NOT NULL
) STRICT;

CREATE TABLE queue_dropped (queue INTEGER PRIMARY KEY) STRICT;

CREATE TABLE queue_store (
    single INTEGER PRIMARY KEY CHECK (single = 1),
    latest INTEGER NOT NULL,
    boot BLOB,
    anchor_elapsed INTEGER,
    anchor_time INTEGER
) STRICT;
INSERT INTO queue_store (single, latest) VALUES (1, 0);

CREATE TABLE queue_damage (
    id INTEGER PRIMARY KEY,
    found_at INTEGER NOT NULL,
    queue TEXT NOT NULL,
    what TEXT NOT NULL,
    messages INTEGER NOT NULL
) STRICT;
CREATE TABLE queue_moved (old INTEGER PRIMARY KEY, queue INTEGER NOT NULL) STRICT;
CREATE TABLE queue_discarded (seq INTEGER PRIMARY KEY) STRICT;

CREATE TABLE queue_consumers (
    token INTEGER PRIMARY KEY,
    port INTEGER NOT NULL,
    renewed_at INTEGER NOT NULL
) STRICT;

CREATE TABLE queue_results (
    id INTEGER PRIMARY KEY,
    scope TEXT NOT NULL,
    key BLOB NOT NULL,
    owner INTEGER NOT NULL,
    ends_at INTEGER NOT NULL,
    result BLOB,
    checksum INTEGER,
    UNIQUE (scope, key)
) STRICT;
CREATE INDEX queue_results_by_end ON queue_results (ends_at);

CREATE VIEW queue_outbox (message) AS SELECT NULL WHERE 0;

-- Does what `messages` and `queues` do for a put. Times are in microseconds since 1970.
CREATE TRIGGER queue_outbox_put INSTEAD OF INSERT ON queue_outbox BEGIN
    SELECT RAISE(ABORT, 'not a message that this file can take: encode it with the library that has opened the file')
        WHERE CASE WHEN json_valid(NEW.message) THEN json_extract(NEW.message, '$.format') END IS NOT 1;
    INSERT INTO queue_queues (name, metadata) SELECT json_extract(NEW.message, '$.queue'), '{}'
        WHERE NOT EXISTS (SELECT 1 FROM queue_queues WHERE name = json_extract(NEW.message, '$.queue'));
    INSERT INTO queue_counts SELECT id, 0, 0 FROM queue_queues WHERE name = json_extract(NEW.message, '$.queue')
        AND NOT EXISTS (SELECT 1 FROM queue_counts WHERE queue = id);
    INSERT INTO queue_messages (queue, salt, inserted_at, expires_at, body, checksum)
        SELECT id, json_extract(NEW.message, '$.salt'), json_extract(NEW.message, '$.inserted_at'),
            json_extract(NEW.message, '$.expires_at'), unhex(json_extract(NEW.message, '$.body')),
            json_extract(NEW.message, '$.checksum')
        FROM queue_queues WHERE name = json_extract(NEW.message, '$.queue');
    INSERT INTO queue_schedule
        SELECT queue, json_extract(NEW.message, '$.visible_at'), seq, json_extract(NEW.message, '$.nonce'), 0, expires_at
        FROM queue_messages WHERE seq = last_insert_rowid();
    UPDATE queue_counts SET messages = messages + 1,
            expiring = max(expiring, json_extract(NEW.message, '$.expires_at') IS NOT NULL)
        WHERE queue = (SELECT id FROM queue_queues WHERE name = json_extract(NEW.message, '$.queue'));
    UPDATE queue_store SET latest = max(latest, json_extract(NEW.message, '$.inserted_at'));
END;
