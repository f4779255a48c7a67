-- The messages that have a group. All but the first of each group, by number, are scheduled for the year 9999.
CREATE TABLE queue_grouped (
    seq INTEGER PRIMARY KEY,
    queue INTEGER NOT NULL,
    name TEXT NOT NULL,
    -- When the message becomes visible once it is the first.
    place INTEGER NOT NULL
) STRICT;
CREATE INDEX queue_grouped_by_name ON queue_grouped (queue, name);

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
CREATE TRIGGER queue_grouped_next AFTER DELETE ON queue_grouped BEGIN
    UPDATE queue_schedule
        SET visible_at = (SELECT place FROM queue_grouped WHERE seq = queue_schedule.seq)
        WHERE queue = OLD.queue AND visible_at = 253402207200000000
            AND seq = (SELECT min(seq) FROM queue_grouped WHERE queue = OLD.queue AND name = OLD.name)
            -- The messages of a queue that was deleted or cleared stay where the removal has found them.
            AND EXISTS (SELECT 1 FROM queue_queues WHERE id = OLD.queue);
END;
