-- What an application executes in its own transactions. A refusal is an answer, because an error would end the
-- transaction. Each function sets what it needs: the session is the application's.

CREATE OR REPLACE FUNCTION refusal(kind text, queue text, detail text) RETURNS jsonb LANGUAGE sql IMMUTABLE
    AS $$ SELECT jsonb_build_object('refused', kind, 'queue', queue, 'detail', detail) $$;

-- Whether a transaction has not ended. A number that was not given yet is that of a transaction on another server, which
-- this one took the place of.
CREATE OR REPLACE FUNCTION is_open(transaction text) RETURNS boolean LANGUAGE plpgsql AS $$
    BEGIN
        RETURN coalesce(pg_xact_status(transaction::xid8) = 'in progress', false);
    EXCEPTION WHEN invalid_parameter_value THEN
        RETURN false;
    END $$;

-- Locks the key of a record until the end of the transaction, or gives up after half a second.
CREATE OR REPLACE FUNCTION lock_record(scope bytea, key bytea) RETURNS boolean LANGUAGE plpgsql AS $$
    BEGIN
        FOR attempt IN 1..50 LOOP
            IF pg_try_advisory_xact_lock({lock_of_record}) THEN
                RETURN true;
            END IF;
            PERFORM pg_sleep(0.01);
        END LOOP;
        RETURN false;
    END $$;

-- Puts messages, and then completes a received one. Checks everything before it writes anything.
--
-- request: store, transaction, latest, puts: [{queue, delay, lifetime, group, tracked, is_reply}], completion: {queue, seq, nonce,
-- dequeue_count, visibility, token, item, of, finish: {scope, key, owner, lasts, value}, release: {scope, key, value}}.
-- Times are microseconds, and bytes are hexadecimal. Bodies and attachments are those of the puts.
CREATE OR REPLACE FUNCTION write_within(request jsonb, bodies bytea[], attachments bytea[]) RETURNS jsonb LANGUAGE plpgsql
    SET search_path = {schema}, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
    SET lock_timeout = '500ms' SET queues.next_of_group = ''
AS $$
<<own>>
DECLARE
    completion jsonb := nullif(request -> 'completion', 'null');
    finish jsonb := nullif(completion -> 'finish', 'null');
    release jsonb := nullif(completion -> 'release', 'null');
    puts jsonb := request -> 'puts';
    id bigint := (completion ->> 'seq')::bigint;
    item integer := (completion ->> 'item')::integer;
    target bigint;
    held messages;
    items bytea;
    found_record records;
    is_released boolean := false;
    at bigint;
    name text;
    one record;
    attachment bigint;
    receipts jsonb := '[]';
BEGIN
    IF (SELECT identity::text FROM version) IS DISTINCT FROM request ->> 'store' THEN
        RETURN refusal('unfit', NULL, 'the connection is to another database than that of the queues');
    ELSIF pg_current_xact_id()::text <> request ->> 'transaction' THEN
        RETURN refusal('unfit', NULL, 'the transaction is not open, or is another than the one that was begun');
    ELSIF current_setting('synchronous_commit') = 'off' THEN
        RETURN refusal('unfit', NULL, 'the setting `synchronous_commit` of the connection is `off`, so its commits may be '
            'lost; allowed is any other value');
    ELSIF current_setting('transaction_isolation') <> 'read committed' THEN
        -- Its snapshot may be older than a clear of the queue, or than the message.
        RETURN refusal('unfit', NULL, 'the isolation level of the transaction is `' || current_setting('transaction_isolation')
            || '`; allowed is `read committed`');
    END IF;

    FOR one IN SELECT put ->> 'queue' AS queue, (put ->> 'is_reply')::boolean AS is_reply FROM jsonb_array_elements(puts) put LOOP
        IF one.is_reply AND NOT EXISTS (SELECT FROM queues WHERE queues.name = one.queue) THEN
            RETURN refusal('queue_not_found', one.queue, NULL);
        END IF;
    END LOOP;

    IF completion IS NOT NULL THEN
        name := completion ->> 'queue';
        SELECT queues.id INTO target FROM queues WHERE queues.name = completion ->> 'queue';
        IF target IS NULL THEN
            RETURN refusal('queue_not_found', name, NULL);
        END IF;
        FOR attempt IN 1..50 LOOP
            SELECT * INTO held FROM messages WHERE seq = id AND queue = target FOR UPDATE SKIP LOCKED;
            EXIT WHEN FOUND OR NOT EXISTS (SELECT FROM messages WHERE seq = id AND queue = target);
            PERFORM pg_sleep(0.01);
        END LOOP;
        at := greatest((request ->> 'latest')::bigint, now_us());
        items := coalesce(held.deleted_items, '');
        IF held.seq IS NULL AND EXISTS (SELECT FROM messages WHERE seq = id AND queue = target) THEN
            RETURN refusal('busy', name, NULL);
        ELSIF held.seq IS NULL OR held.expires_at <= at THEN
            RETURN refusal('message_not_found', name, NULL);
        ELSIF item < 8 * octet_length(items) AND get_bit(items, item) = 1 THEN
            RETURN refusal('message_not_found', name, NULL);
        ELSIF held.nonce::text <> completion ->> 'nonce' AND (held.dequeue_count <> (completion ->> 'dequeue_count')::bigint
            -- An update of this consumer whose answer has not arrived has changed the receipt, but not for so long.
            OR held.visible_at > at + (completion ->> 'visibility')::bigint) THEN
            RETURN refusal('receipt_mismatch', name, NULL);
        END IF;
    END IF;
    IF finish IS NOT NULL THEN
        IF NOT lock_record(decode(finish ->> 'scope', 'hex'), decode(finish ->> 'key', 'hex')) THEN
            RETURN refusal('busy', name, NULL);
        END IF;
        SELECT * INTO found_record FROM records
            WHERE scope = decode(finish ->> 'scope', 'hex') AND key = decode(finish ->> 'key', 'hex');
        IF found_record.owner IS DISTINCT FROM (finish ->> 'owner')::bigint THEN
            RETURN refusal('claim_lost', NULL, NULL);
        END IF;
    END IF;
    IF release IS NOT NULL THEN
        IF NOT lock_record(decode(release ->> 'scope', 'hex'), decode(release ->> 'key', 'hex')) THEN
            RETURN refusal('busy', name, NULL);
        END IF;
        is_released := EXISTS (
            SELECT FROM records WHERE scope = decode(release ->> 'scope', 'hex') AND key = decode(release ->> 'key', 'hex')
                AND value = decode(release ->> 'value', 'hex') AND ends_at > at);
    END IF;

    FOR name IN SELECT DISTINCT put ->> 'queue' AS queue FROM jsonb_array_elements(puts) put
        WHERE NOT EXISTS (SELECT FROM queues WHERE queues.name = put ->> 'queue') ORDER BY queue
    LOOP
        BEGIN
            INSERT INTO queues (name, metadata) VALUES (own.name, '{}') ON CONFLICT DO NOTHING;
        EXCEPTION WHEN lock_not_available THEN
            -- Another transaction creates it.
            RETURN refusal('busy', name, NULL);
        END;
    END LOOP;
    FOR one IN SELECT * FROM put_all(
        (request ->> 'latest')::bigint,
        ARRAY(SELECT put ->> 'queue' FROM jsonb_array_elements(puts) WITH ORDINALITY AS of (put, place) ORDER BY place),
        bodies,
        ARRAY(SELECT (put ->> 'delay')::bigint FROM jsonb_array_elements(puts) WITH ORDINALITY AS of (put, place) ORDER BY place),
        ARRAY(SELECT (put ->> 'lifetime')::bigint FROM jsonb_array_elements(puts) WITH ORDINALITY AS of (put, place) ORDER BY place),
        ARRAY(SELECT put ->> 'group' FROM jsonb_array_elements(puts) WITH ORDINALITY AS of (put, place) ORDER BY place),
        ARRAY(SELECT put ->> 'tracked' FROM jsonb_array_elements(puts) WITH ORDINALITY AS of (put, place) ORDER BY place)
    ) WITH ORDINALITY AS of (now, is_put, seq, nonce, visible_at, expires_at, place) LOOP
        IF NOT one.is_put THEN
            RAISE EXCEPTION 'a queue was deleted meanwhile' USING ERRCODE = 'serialization_failure';
        END IF;
        IF attachments[one.place] IS NOT NULL THEN
            attachment := nextval('attachment_ids');
            INSERT INTO attachments SELECT own.attachment, part, octet_length(attachments[one.place]),
                substring(attachments[one.place] FROM part * {part} + 1 FOR {part})
                FROM generate_series(0, greatest(octet_length(attachments[one.place]) - 1, 0) / {part}) part;
            UPDATE messages SET attachment = own.attachment WHERE messages.seq = one.seq;
        END IF;
        receipts := receipts || jsonb_build_array(
            jsonb_build_array(one.seq, one.nonce, one.now, one.visible_at, one.expires_at));
    END LOOP;

    IF completion IS NOT NULL THEN
        IF item IS NOT NULL THEN
            items := items || decode(repeat('00', greatest(item / 8 + 1 - octet_length(items), 0)), 'hex');
            items := set_bit(items, item, 1);
        END IF;
        IF item IS NULL OR bit_count(items) >= (completion ->> 'of')::bigint THEN
            DELETE FROM messages WHERE seq = id;
            INSERT INTO totals VALUES (target, 0, 1);
        ELSE
            UPDATE messages SET deleted_items = items WHERE seq = id;
        END IF;
        INSERT INTO tokens VALUES ((completion ->> 'token')::bigint, at);
    END IF;
    -- What was finished before stays as it is.
    IF finish IS NOT NULL AND found_record.value IS NULL THEN
        UPDATE records SET value = decode(finish ->> 'value', 'hex'), ends_at = at + (finish ->> 'lasts')::bigint, message = NULL
            WHERE scope = decode(finish ->> 'scope', 'hex') AND key = decode(finish ->> 'key', 'hex');
    END IF;
    IF is_released THEN
        DELETE FROM records WHERE scope = decode(release ->> 'scope', 'hex') AND key = decode(release ->> 'key', 'hex');
    END IF;
    RETURN jsonb_build_object('receipts', receipts);
END $$;

-- Submits a message from SQL, such as a trigger's, in the transaction that is open. Returns the id of the message. Creates
-- the queue if it is missing. What is wrong is an error, so that nothing is lost.
CREATE OR REPLACE FUNCTION submit(
    queue text, kind text, payload jsonb, delay interval DEFAULT '0', request_id text DEFAULT NULL, version integer DEFAULT 1,
    "group" text DEFAULT NULL
) RETURNS text LANGUAGE plpgsql SET search_path = {schema}, pg_temp AS $$
DECLARE
    id text := gen_random_uuid();
    at bigint := now_us();
    wait bigint := (extract(epoch FROM delay) * 1000000)::bigint;
    event text;
BEGIN
    IF queue IS NULL OR queue !~ '^[a-z0-9](-?[a-z0-9])*$' OR length(queue) NOT BETWEEN 3 AND 63
        OR starts_with(queue, 'queue-replies-') THEN
        RAISE EXCEPTION 'the name of the queue is %', coalesce(quote_literal(queue), 'NULL') USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Allowed are 3 to 63 lower-case letters, digits and single hyphens between them, but no reply queue.';
    ELSIF kind IS NULL OR kind = '' OR octet_length(kind) > 1024 THEN
        RAISE EXCEPTION 'the kind has % bytes', coalesce(octet_length(kind), 0) USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Allowed are 1 to 1024: the `kind` of the type that handles the message.';
    ELSIF payload IS NULL THEN
        RAISE EXCEPTION 'the payload is NULL' USING ERRCODE = 'null_value_not_allowed', HINT = 'Allowed is JSON, also `null`.';
    ELSIF wait IS NULL OR wait NOT BETWEEN 0 AND 604800000000 THEN
        RAISE EXCEPTION 'the delay is %', coalesce(delay::text, 'NULL') USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Allowed are 0 to 7 days.';
    ELSIF octet_length(coalesce(request_id, id)) NOT BETWEEN 1 AND 1024 THEN
        RAISE EXCEPTION 'the request id has % bytes', octet_length(request_id) USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Allowed are 1 to 1024.';
    ELSIF octet_length("group") NOT BETWEEN 1 AND {longest_group} OR "group" ~ '[[:cntrl:]]' THEN
        RAISE EXCEPTION 'the group has % bytes', octet_length("group") USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Allowed are 1 to {longest_group} without control characters.';
    ELSIF version IS NULL OR version < 1 THEN
        RAISE EXCEPTION 'the version is %', coalesce(version::text, 'NULL') USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Allowed are numbers from 1.';
    END IF;
    event := jsonb_build_object(
        'specversion', '1.0', 'id', id, 'source', 'postgresql', 'type', kind, 'datacontenttype', 'application/json',
        'time', to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
        'dataversion', version, 'requestid', coalesce(request_id, id), 'queueuri', 'postgres:///{schema}/' || queue, 'data', payload);
    IF "group" IS NOT NULL THEN
        event := jsonb_set(event::jsonb, '{messagegroup}', to_jsonb("group"));
    END IF;
    IF octet_length(event) > 49152 THEN
        RAISE EXCEPTION 'the message has % bytes', octet_length(event) USING ERRCODE = 'program_limit_exceeded',
            HINT = 'Allowed are 49152: store large data in a table of your own, and submit its key.';
    END IF;
    INSERT INTO queues (name, metadata) VALUES (submit.queue, '{}') ON CONFLICT DO NOTHING;
    IF NOT (SELECT is_put FROM put_all(at, ARRAY[queue], ARRAY[convert_to(event, 'UTF8')], ARRAY[wait], ARRAY[NULL::bigint],
        ARRAY["group"], ARRAY[NULL::text])) THEN
        RAISE EXCEPTION 'the queue was deleted meanwhile' USING ERRCODE = 'serialization_failure';
    END IF;
    PERFORM pg_notify(channel(queue), json_build_object(
        'messages', 1, 'bytes', octet_length(event), 'visible_in_ms', (wait + 999) / 1000)::text);
    RETURN id;
END $$;
