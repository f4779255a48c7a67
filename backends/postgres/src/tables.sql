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
    body bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE messages ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE INDEX messages_schedule ON messages (queue, visible_at, seq);

CREATE INDEX messages_tracked ON messages (tracked) WHERE tracked IS NOT NULL;
CREATE INDEX messages_group ON messages (queue, "group", visible_at, seq) WHERE "group" IS NOT NULL;

-- The groups in which a message came or went, or was received, so that it may be another one's turn. Receives make it visible, because a
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
-- The messages of a group are found by comparisons of rows, which this index alone can answer: by equality, the messages of a
-- queue in the order of their schedule would seem as good, where most are of one group.
-- Looks at groups that are due, from the one after a name on and then from the first, and makes the next message visible of
-- those in which it is its turn. Answers how many groups it has looked at, and the name of the last. Two transactions do not
-- do so for one group at a time, and each sees what the other has done: a statement after the locks.
CREATE FUNCTION advance_groups(target bigint, at bigint, most bigint, after text, OUT looked_at bigint, OUT last text)
    LANGUAGE plpgsql AS $$
DECLARE
    names text[];
    at_once bigint;
    one text;
    over bigint;
BEGIN
    looked_at := 0;
    last := after;
    FOR pass IN 1..2 LOOP
        names := ARRAY(
            WITH RECURSIVE due AS (
                (SELECT "group", 1 AS number FROM groups_due WHERE queue = target AND "group" > last
                    ORDER BY queue, "group" LIMIT 1)
                UNION ALL
                SELECT next."group", number + 1 FROM due CROSS JOIN LATERAL (
                    SELECT "group" FROM groups_due WHERE queue = target AND "group" > due."group"
                    ORDER BY queue, "group" LIMIT 1
                ) AS next WHERE number < most - looked_at
            ) SELECT "group" FROM due);
        looked_at := looked_at + cardinality(names);
        last := coalesce(names[cardinality(names)], last);
        names := ARRAY(SELECT name FROM unnest(names) AS name
            WHERE pg_try_advisory_xact_lock(hashtextextended('{schema}/' || target || '/' || name, 1)));
        DELETE FROM groups_due WHERE queue = target AND "group" = ANY (names);
        -- The group of a message that is deleted is due again.
        FOR expired IN 1..200 LOOP
            DELETE FROM messages USING unnest(names) AS name CROSS JOIN LATERAL (
                SELECT seq, expires_at FROM messages
                WHERE queue = target AND ("group", visible_at) >= (name, {in_turns}) AND "group" <= name
                ORDER BY "group", visible_at, seq LIMIT 1
            ) AS first WHERE messages.seq = first.seq AND first.expires_at <= at;
            GET DIAGNOSTICS over = ROW_COUNT;
            EXIT WHEN over = 0;
            INSERT INTO totals VALUES (target, 0, over);
        END LOOP;
        SELECT group_limit INTO at_once FROM queues WHERE id = target;
        IF at_once IS NULL THEN
            UPDATE messages SET visible_at = place FROM unnest(names) AS name CROSS JOIN LATERAL (
                SELECT seq, expires_at, visible_at >= {in_turns} AS is_behind FROM messages
                WHERE queue = target AND "group" >= name AND "group" <= name ORDER BY "group", visible_at, seq LIMIT 1
            ) AS first WHERE messages.seq = first.seq AND is_behind AND coalesce(first.expires_at > at, true);
        ELSE
            -- What was put in a transaction that began when groups were in order.
            UPDATE messages SET visible_at = {in_turns} + place
                WHERE queue = target AND "group" = ANY (names) AND visible_at = {behind};
            FOREACH one IN ARRAY names LOOP
                PERFORM decide_turn(target, one, at_once, at);
            END LOOP;
        END IF;
        EXIT WHEN looked_at >= most OR after = '';
        last := '';
    END LOOP;
END $$;
-- Decides whose turn it is in a group that is locked, of which the first message behind has not expired.
CREATE FUNCTION decide_turn(target bigint, name text, at_once bigint, at bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    -- One more than that at most; of no interest if there is no limit.
    standing bigint := (SELECT count(*) FROM (SELECT FROM messages
        WHERE queue = target AND "group" >= name AND ("group", visible_at) < (name, {in_turns})
        ORDER BY "group", visible_at, seq LIMIT CASE WHEN at_once < 9223372036854775807 THEN at_once + 1 ELSE 0 END) found);
    first record;
    waits record;
BEGIN
    SELECT seq, place, expires_at INTO first FROM messages
        WHERE queue = target AND ("group", visible_at) >= (name, {in_turns}) AND "group" <= name
        ORDER BY "group", visible_at, seq LIMIT 1;
    SELECT seq, place INTO waits FROM messages
        WHERE queue = target AND "group" >= name AND ("group", visible_at) < (name, {in_turns}) AND visible_at = place
        ORDER BY "group" DESC, visible_at DESC, seq DESC LIMIT 1;
    -- What is delayed yields to what is not, and what waits above a limit that was lowered, to nobody.
    IF FOUND THEN
        IF standing <= at_once AND (waits.place <= at OR first.seq IS NULL OR first.place >= waits.place) THEN
            RETURN;
        END IF;
        UPDATE messages SET visible_at = {in_turns} + place WHERE seq = waits.seq AND visible_at = waits.place;
        IF NOT FOUND THEN
            RETURN;
        END IF;
        standing := standing - 1;
    END IF;
    UPDATE messages SET visible_at = greatest(place, at), place = greatest(place, at)
        WHERE seq = first.seq AND coalesce(first.expires_at > at, true) AND standing < at_once;
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
