-- What was put before is not known, except for what is still there.
ALTER TABLE queue_counts ADD COLUMN put INTEGER NOT NULL DEFAULT 0;
UPDATE queue_counts SET put = messages;

DROP TRIGGER queue_outbox_put;
-- Does what `messages` and `queues` do for a put. Times are in microseconds since 1970.
CREATE TRIGGER queue_outbox_put INSTEAD OF INSERT ON queue_outbox BEGIN
    SELECT RAISE(ABORT, 'queue_outbox: this is not a message that `encode_for_outbox` returned')
        WHERE CASE WHEN json_valid(NEW.message) THEN json_type(NEW.message) END IS NOT 'object';

    SELECT RAISE(ABORT, 'queue_outbox: `format` must be 1: encode the message with the library that has opened this file')
        WHERE NOT (json_type(NEW.message, '$.format') IS 'integer' AND json_extract(NEW.message, '$.format') IS 1);

    SELECT RAISE(ABORT, 'queue_outbox: `queue` must be 3 to 63 lower-case letters, digits and single dashes, with a letter or digit at both ends')
        FROM (SELECT json_extract(NEW.message, '$.queue') AS name)
        WHERE json_type(NEW.message, '$.queue') IS NOT 'text'
            OR length(name) NOT BETWEEN 3 AND 63 OR name GLOB '*[^a-z0-9-]*' OR instr(name, char(0))
            OR name GLOB '-*' OR name GLOB '*-' OR name GLOB '*--*';
    SELECT RAISE(ABORT, 'queue_outbox: `queue` must not be a reply queue: dispositions and `complete_within` reply')
        FROM (SELECT json_extract(NEW.message, '$.queue') AS name)
        WHERE name GLOB 'queue-replies-*' AND length(name) = 46 AND substr(name, 15) NOT GLOB '*[^0-9a-f]*';

    SELECT RAISE(ABORT, 'queue_outbox: `salt` must be an integer of 64 bits')
        WHERE json_type(NEW.message, '$.salt') IS NOT 'integer'
            OR typeof(json_extract(NEW.message, '$.salt')) IS NOT 'integer';
    SELECT RAISE(ABORT, 'queue_outbox: `nonce` must be an integer of 64 bits')
        WHERE json_type(NEW.message, '$.nonce') IS NOT 'integer'
            OR typeof(json_extract(NEW.message, '$.nonce')) IS NOT 'integer';
    SELECT RAISE(ABORT, 'queue_outbox: `checksum` must be an integer from 0 to 4294967295')
        WHERE json_type(NEW.message, '$.checksum') IS NOT 'integer'
            OR json_extract(NEW.message, '$.checksum') NOT BETWEEN 0 AND 4294967295;

    -- The file's time may be ahead of the machine's clock, and its record lags while nothing is written.
    SELECT RAISE(ABORT, 'queue_outbox: `inserted_at` must be an integer, in microseconds since 1970, and at most 7 days from now')
        FROM (SELECT json_extract(NEW.message, '$.inserted_at') AS time)
        WHERE json_type(NEW.message, '$.inserted_at') IS NOT 'integer'
            OR time NOT BETWEEN 0 AND 253402207200000000
            OR time > 604800000000 + max((SELECT latest FROM queue_store), (julianday('now') - 2440587.5) * 86400000000);
    SELECT RAISE(ABORT, 'queue_outbox: `visible_at` must be an integer, from `inserted_at` to 7 days later, in microseconds since 1970')
        WHERE json_type(NEW.message, '$.visible_at') IS NOT 'integer'
            OR json_extract(NEW.message, '$.visible_at') - json_extract(NEW.message, '$.inserted_at')
                NOT BETWEEN 0 AND 604800000000;
    SELECT RAISE(ABORT, 'queue_outbox: `expires_at` must be null, or an integer from `visible_at` to the year 9999, in microseconds since 1970')
        WHERE NOT (json_type(NEW.message, '$.expires_at') IS 'null'
            OR json_type(NEW.message, '$.expires_at') IS 'integer'
                AND json_extract(NEW.message, '$.expires_at')
                    BETWEEN json_extract(NEW.message, '$.visible_at') AND 253402207200999999);

    SELECT RAISE(ABORT, 'queue_outbox: `body` must be an even number of hexadecimal digits, at most 16777216')
        WHERE json_type(NEW.message, '$.body') IS NOT 'text'
            OR length(json_extract(NEW.message, '$.body')) > 16777216
            OR unhex(json_extract(NEW.message, '$.body')) IS NULL;

    INSERT INTO queue_queues (name, metadata) SELECT json_extract(NEW.message, '$.queue'), '{}'
        WHERE NOT EXISTS (SELECT 1 FROM queue_queues WHERE name = json_extract(NEW.message, '$.queue'));
    INSERT INTO queue_counts (queue, messages, expiring) SELECT id, 0, 0 FROM queue_queues WHERE name = json_extract(NEW.message, '$.queue')
        AND NOT EXISTS (SELECT 1 FROM queue_counts WHERE queue = id);
    INSERT INTO queue_messages (queue, salt, inserted_at, expires_at, body, checksum)
        SELECT id, json_extract(NEW.message, '$.salt'), json_extract(NEW.message, '$.inserted_at'),
            json_extract(NEW.message, '$.expires_at'), unhex(json_extract(NEW.message, '$.body')),
            json_extract(NEW.message, '$.checksum')
        FROM queue_queues WHERE name = json_extract(NEW.message, '$.queue');
    INSERT INTO queue_schedule
        SELECT queue, json_extract(NEW.message, '$.visible_at'), seq, json_extract(NEW.message, '$.nonce'), 0, expires_at
        FROM queue_messages WHERE seq = last_insert_rowid();
    UPDATE queue_counts SET messages = messages + 1, put = put + 1,
            expiring = max(expiring, json_extract(NEW.message, '$.expires_at') IS NOT NULL)
        WHERE queue = (SELECT id FROM queue_queues WHERE name = json_extract(NEW.message, '$.queue'));
    -- No row moves the time of all beyond the machine's clock.
    UPDATE queue_store SET latest = max(latest, min(json_extract(NEW.message, '$.inserted_at'),
        CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)));
END;
