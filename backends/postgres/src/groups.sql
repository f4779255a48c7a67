-- How messages of groups come to their turns.

-- The messages of a group are found by comparisons of rows, which this index alone can answer: by equality, the messages of a
-- queue in the order of their schedule would seem as good, where most are of one group.
-- Looks at groups that are due, from the one after a name on and then from the first, and makes the next message visible of
-- those in which it is its turn. Answers how many groups it has looked at, and the name of the last. Two transactions do not
-- do so for one group at a time, and each sees what the other has done: a statement after the locks.
CREATE OR REPLACE FUNCTION advance_groups(target bigint, at bigint, most bigint, after text, OUT looked_at bigint, OUT last text)
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
            ) AS first WHERE messages.seq = first.seq AND is_behind AND coalesce(first.expires_at > at, true)
                -- A settlement may have made it visible meanwhile.
                AND visible_at >= {in_turns};
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
CREATE OR REPLACE FUNCTION decide_turn(target bigint, name text, at_once bigint, at bigint) RETURNS void LANGUAGE plpgsql AS $$
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
