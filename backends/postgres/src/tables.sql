-- All times are microseconds since the Unix epoch, on the server's clock.
CREATE TABLE version (version integer NOT NULL, identity uuid NOT NULL DEFAULT gen_random_uuid());
CREATE FUNCTION now_us() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
    AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- The channel of a queue's notifications.
CREATE FUNCTION channel(queue text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT 'queue_' || md5('{schema}/' || queue) $$;

-- The id of a queue is never given again, not even to the same name: a clear gives a queue another id, and its messages,
-- then no queue's, are removed later.
CREATE SEQUENCE queue_ids;
CREATE TABLE queues (
    name text COLLATE "C" PRIMARY KEY,
    id bigint NOT NULL DEFAULT nextval('queue_ids'),
    -- The id at its creation.
    first bigint NOT NULL DEFAULT currval('queue_ids'),
    metadata text[] NOT NULL
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
    -- The message's group, and when the message becomes visible once it is the first of its group. Until then, it is visible
    -- in the year 9999.
    "group" text COLLATE "C",
    place bigint,
    body bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE messages ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE INDEX messages_schedule ON messages (queue, visible_at, seq);

CREATE INDEX messages_group ON messages (queue, "group", visible_at, seq) WHERE "group" IS NOT NULL;

-- The groups in which a message came or went, so that the next one may be the first. Receives make it visible, because a
-- put and a settlement that are not committed do not see each other, and an application's transaction must hold no lock
-- of a group.
CREATE TABLE groups_due (queue bigint NOT NULL, "group" text COLLATE "C" NOT NULL)
    WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX groups_due_queue ON groups_due (queue, "group");
-- The fence numbers of receives: from the time at which a program has opened the tables last, so that they go on after others.
CREATE SEQUENCE fences;
CREATE FUNCTION leave_group() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO {schema}.groups_due SELECT id, OLD."group" FROM {schema}.queues WHERE id = OLD.queue;
        RETURN NULL;
    END $$;
CREATE TRIGGER leave_group AFTER DELETE ON messages FOR EACH ROW WHEN (OLD."group" IS NOT NULL)
    EXECUTE FUNCTION leave_group();
-- Looks at groups that are due, each once, and makes the first message visible of those that have none that is. Returns how
-- many groups it has looked at. Two transactions do not do so for one group at a time, and each sees what the other has done.
CREATE FUNCTION advance_groups(target bigint, at bigint, most bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    name text := '';
    first record;
    looked_at bigint := 0;
BEGIN
    WHILE looked_at < most LOOP
        SELECT "group" INTO name FROM groups_due WHERE queue = target AND "group" > name
            ORDER BY queue, "group" LIMIT 1;
        EXIT WHEN NOT FOUND;
        looked_at := looked_at + 1;
        CONTINUE WHEN NOT pg_try_advisory_xact_lock(hashtextextended('{schema}/' || target || '/' || name, 1));
        DELETE FROM groups_due WHERE queue = target AND "group" = name;
        CONTINUE WHEN (SELECT true FROM messages
            WHERE queue = target AND "group" = name AND visible_at < {behind} LIMIT 1);
        -- The group of a message that is deleted is due again.
        FOR expired IN 1..200 LOOP
            SELECT seq, coalesce(expires_at <= at, false) AS is_over INTO first FROM messages
                WHERE queue = target AND "group" = name AND visible_at = {behind}
                ORDER BY queue, "group", visible_at, seq LIMIT 1;
            EXIT WHEN NOT FOUND;
            IF NOT first.is_over THEN
                UPDATE messages SET visible_at = place WHERE seq = first.seq;
                EXIT;
            END IF;
            DELETE FROM messages WHERE seq = first.seq;
            INSERT INTO totals VALUES (target, 0, 1);
        END LOOP;
    END LOOP;
    RETURN looked_at;
END $$;

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
CREATE FUNCTION leave_attachment() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO {schema}.left_behind VALUES (OLD.attachment);
        RETURN NULL;
    END $$;
CREATE TRIGGER leave_attachment AFTER DELETE ON messages FOR EACH ROW WHEN (OLD.attachment IS NOT NULL)
    EXECUTE FUNCTION leave_attachment();

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
