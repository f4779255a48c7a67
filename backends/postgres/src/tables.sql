-- All times are microseconds since the Unix epoch, on the server's clock.
-- Programs can use the tables whose own version is at least `readable_since`.
CREATE TABLE version (
    version integer NOT NULL,
    identity uuid NOT NULL DEFAULT gen_random_uuid(),
    readable_since integer NOT NULL DEFAULT {readable_since}
);
CREATE FUNCTION now_us() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
    AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- The channel of a queue's notifications.
CREATE FUNCTION channel(queue text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT 'queue_' || md5('{schema}/' || queue) $$;

-- The id of a queue is never given again, not even to the same name: a clear gives a queue another id, and its messages,
-- then no queue's, are removed later.
CREATE SEQUENCE queue_ids;
-- How many messages of each group may be received at once, if the groups of a queue take turns.
CREATE FUNCTION group_limit(metadata text[]) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN value = 'unlimited' THEN 9223372036854775807 WHEN value ~ '^[1-9][0-9]{0,9}$' THEN value::bigint END
    FROM (SELECT metadata[2 * n] AS value FROM generate_series(1, cardinality(metadata) / 2) n
        WHERE metadata[2 * n - 1] = 'grouplimit') entry $$;
CREATE TABLE queues (
    name text COLLATE "C" PRIMARY KEY,
    id bigint NOT NULL DEFAULT nextval('queue_ids'),
    -- The id at its creation.
    first bigint NOT NULL DEFAULT currval('queue_ids'),
    metadata text[] NOT NULL,
    group_limit bigint GENERATED ALWAYS AS ({schema}.group_limit(metadata)) STORED
);
CREATE UNIQUE INDEX queues_id ON queues (id);
-- The ids that are no queue's any more. An id that a clear has replaced counts for the queue's totals.
CREATE TABLE dropped (
    queue bigint PRIMARY KEY,
    first bigint,
    at bigint NOT NULL DEFAULT now_us(),
    transaction xid8 NOT NULL DEFAULT pg_current_xact_id()
);
CREATE INDEX dropped_first ON dropped (first) WHERE first IS NOT NULL;

CREATE SEQUENCE message_ids;
CREATE TABLE messages (
    seq bigint PRIMARY KEY,
    queue bigint NOT NULL,
    visible_at bigint NOT NULL,
    nonce uuid NOT NULL,
    dequeue_count integer NOT NULL DEFAULT 0,
    inserted_at bigint NOT NULL,
    expires_at bigint,
    deleted_items bytea,
    attachment bigint,
    -- The message's group, and when the message becomes visible once it does not lie behind others. Until then, it is visible
    -- in the year 9999; in a queue whose groups take turns, so much later than in the year 9860 as its place is after 1970.
    "group" text COLLATE "C",
    place bigint,
    -- The id by which the message is found.
    tracked text COLLATE "C",
    -- Of a tracked message, since when and by which client it is held: empty before its first receive, and since it was put back.
    received_at bigint,
    client text COLLATE "C",
    body bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE messages ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE INDEX messages_schedule ON messages (queue, visible_at, seq);

CREATE INDEX messages_tracked ON messages (tracked) WHERE tracked IS NOT NULL;
CREATE INDEX messages_group ON messages (queue, "group", visible_at, seq) WHERE "group" IS NOT NULL;

-- The groups in which it may be another message's turn, of which no settlement has made one visible. Receives do, because a put and a
-- settlement that are not committed do not see each other, and an application's transaction must hold no lock of a group.
CREATE TABLE groups_due (queue bigint NOT NULL, "group" text COLLATE "C" NOT NULL)
    WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX groups_due_queue ON groups_due (queue, "group");
-- The fence numbers of receives: from the time at which a program has opened the tables last, so that they go on after others.
CREATE SEQUENCE fences;

-- How many messages came and went, in changes that are added up now and then.
CREATE TABLE totals (queue bigint NOT NULL, put bigint NOT NULL, gone bigint NOT NULL)
    WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX totals_queue ON totals (queue);

-- Data of messages, in parts of one MiB. What a message leaves is removed later, unless another message has it.
CREATE SEQUENCE attachment_ids;
CREATE TABLE attachments (
    id bigint NOT NULL,
    part integer NOT NULL,
    size bigint NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (id, part)
);
ALTER TABLE attachments ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE INDEX messages_attachment ON messages (attachment) WHERE attachment IS NOT NULL;
CREATE TABLE left_behind (attachment bigint NOT NULL);

CREATE TABLE records (
    scope bytea NOT NULL,
    key bytea NOT NULL,
    owner bigint NOT NULL,
    ends_at bigint NOT NULL,
    value bytea,
    message bigint,
    PRIMARY KEY (scope, key)
);
ALTER TABLE records ALTER COLUMN value SET STORAGE EXTERNAL;
CREATE INDEX records_ends ON records (ends_at);

-- The completions within transactions of applications: who looks for a token after the end of its transaction learns
-- whether it was committed.
CREATE TABLE tokens (token bigint PRIMARY KEY, at bigint NOT NULL);
CREATE INDEX tokens_at ON tokens (at);
