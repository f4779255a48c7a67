-- The messages that have a group. In a queue whose groups keep their order, the first of each group, by number, is in the
-- schedule as any message is, and the others are scheduled for the year 9999: they lie behind.
CREATE TABLE queue_grouped (
    seq INTEGER PRIMARY KEY,
    queue INTEGER NOT NULL,
    name TEXT NOT NULL,
    -- When the message becomes visible once it does not lie behind others.
    place INTEGER NOT NULL,
    -- Of a queue whose groups take turns: 0 if the message waits in the schedule, 1 if it lies behind, 2 since a receive.
    state INTEGER
) STRICT;
CREATE INDEX queue_grouped_by_name ON queue_grouped (queue, name);
CREATE INDEX queue_grouped_in_turns ON queue_grouped (queue, name, state, place) WHERE state IS NOT NULL;

CREATE TABLE queue_fence (single INTEGER PRIMARY KEY CHECK (single = 1), last INTEGER NOT NULL) STRICT;
INSERT INTO queue_fence VALUES (1, 0);

-- Whatever removes a message, a program that knows no groups among it, makes the next of its group visible. The second bit
-- of the salt is set if the message may have a group.
CREATE TRIGGER queue_grouped_removed AFTER DELETE ON queue_messages WHEN OLD.salt & 2 BEGIN
    DELETE FROM queue_grouped WHERE seq = OLD.seq;
END;
CREATE TRIGGER queue_grouped_discarded AFTER INSERT ON queue_discarded BEGIN
    DELETE FROM queue_grouped WHERE seq = NEW.seq;
END;
CREATE TRIGGER queue_grouped_next AFTER DELETE ON queue_grouped WHEN OLD.state IS NULL BEGIN
    UPDATE queue_schedule
        SET visible_at = (SELECT place FROM queue_grouped WHERE seq = queue_schedule.seq)
        WHERE queue = OLD.queue AND visible_at = 253402207200000000
            AND seq = (SELECT min(seq) FROM queue_grouped WHERE queue = OLD.queue AND name = OLD.name)
            -- The messages of a queue that was deleted or cleared stay where the removal has found them.
            AND EXISTS (SELECT 1 FROM queue_queues WHERE id = OLD.queue);
END;

-- How many messages of each group of a queue may be received at once, if groups take turns.
CREATE VIEW queue_group_limits AS SELECT id AS queue, CASE metadata ->> '$.grouplimit'
    WHEN 'unlimited' THEN 4294967296
    ELSE max(1, CAST(coalesce(metadata ->> '$.grouplimit', '1') AS INTEGER)) END AS at_once FROM queue_queues;

-- To insert into this view is to decide, as of a time, whose turn it is in a group. One message waits at most, unless the
-- leases of others have ended, and it becomes visible after those that are visible at that time.
CREATE VIEW queue_turns AS SELECT 0 AS queue, '' AS name, 0 AS at;
CREATE TRIGGER queue_turns_decided INSTEAD OF INSERT ON queue_turns
WHEN EXISTS (SELECT 1 FROM queue_queues WHERE id = NEW.queue) BEGIN
    -- What is delayed yields to what is not, and what waits above a limit that was lowered, to nobody. What a program has
    -- received that knows no groups does not yield.
    UPDATE queue_grouped SET state = 1 WHERE
        seq = (SELECT seq FROM queue_grouped WHERE queue = NEW.queue AND name = NEW.name AND state = 0
            ORDER BY place DESC, seq DESC LIMIT 1)
        AND (place > NEW.at AND place > (SELECT min(place) FROM queue_grouped
                WHERE queue = NEW.queue AND name = NEW.name AND state = 1)
            OR (SELECT at_once FROM queue_group_limits WHERE queue = NEW.queue) < (SELECT count(*) FROM (
                SELECT 1 FROM queue_grouped WHERE queue = NEW.queue AND name = NEW.name AND state IN (0, 2)
                LIMIT (SELECT iif(at_once = 4294967296, 0, at_once + 1) FROM queue_group_limits WHERE queue = NEW.queue))))
        AND EXISTS (SELECT 1 FROM queue_schedule s
            WHERE s.queue = NEW.queue AND s.visible_at = queue_grouped.place AND s.seq = queue_grouped.seq);
    UPDATE queue_grouped SET state = 0, place = max(place, NEW.at) WHERE
        seq = (SELECT seq FROM queue_grouped WHERE queue = NEW.queue AND name = NEW.name AND state = 1
            ORDER BY place, seq LIMIT 1)
        AND NOT EXISTS (SELECT 1 FROM queue_grouped WHERE queue = NEW.queue AND name = NEW.name AND state = 0)
        AND (SELECT at_once FROM queue_group_limits WHERE queue = NEW.queue) > (SELECT count(*) FROM (
            SELECT 1 FROM queue_grouped WHERE queue = NEW.queue AND name = NEW.name AND state = 2
            LIMIT (SELECT iif(at_once = 4294967296, 0, at_once) FROM queue_group_limits WHERE queue = NEW.queue)));
END;
CREATE TRIGGER queue_turns_stand AFTER UPDATE OF state ON queue_grouped WHEN OLD.state = 1 AND NEW.state = 0 BEGIN
    UPDATE queue_schedule SET visible_at = NEW.place
        WHERE queue = NEW.queue AND visible_at = 253402207200000000 AND seq = NEW.seq;
END;
CREATE TRIGGER queue_turns_yield AFTER UPDATE OF state ON queue_grouped WHEN OLD.state = 0 AND NEW.state = 1 BEGIN
    UPDATE queue_schedule SET visible_at = 253402207200000000
        WHERE queue = NEW.queue AND visible_at = OLD.place AND seq = NEW.seq;
END;
CREATE TRIGGER queue_turns_received AFTER UPDATE OF state ON queue_grouped WHEN NEW.state = 2 BEGIN
    INSERT INTO queue_turns VALUES (NEW.queue, NEW.name, NEW.place);
END;
-- The place of a message that a program removes is set to the time before, unless the program knows no groups.
CREATE TRIGGER queue_turns_next AFTER DELETE ON queue_grouped WHEN OLD.state IS NOT NULL BEGIN
    INSERT INTO queue_turns VALUES (OLD.queue, OLD.name, max(
        OLD.place,
        coalesce((SELECT latest FROM queue_store), 0),
        coalesce((SELECT max(place) FROM queue_grouped WHERE queue = OLD.queue AND name = OLD.name AND state = 0), 0)));
END;

-- The messages that are found by their ids, and where they were last seen in the schedule. The third bit of the salt is set if
-- the message may be tracked.
CREATE TABLE queue_tracked (seq INTEGER PRIMARY KEY, id TEXT NOT NULL, visible_at INTEGER NOT NULL) STRICT;
CREATE INDEX queue_tracked_by_id ON queue_tracked (id);
CREATE TRIGGER queue_tracked_removed AFTER DELETE ON queue_messages WHEN OLD.salt & 4 BEGIN
    DELETE FROM queue_tracked WHERE seq = OLD.seq;
END;
CREATE TRIGGER queue_tracked_discarded AFTER INSERT ON queue_discarded BEGIN
    DELETE FROM queue_tracked WHERE seq = NEW.seq;
END;
