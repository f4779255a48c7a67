-- What a message leaves that is deleted: its group, for receives, and its attachment, for upkeep.

-- A settlement of the engine makes the next message of the group visible itself, or records the group, and says so by the
-- setting.
CREATE OR REPLACE FUNCTION leave_group() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO {schema}.groups_due SELECT id, OLD."group" FROM {schema}.queues WHERE id = OLD.queue;
        RETURN NULL;
    END $$;
CREATE OR REPLACE TRIGGER leave_group AFTER DELETE ON messages FOR EACH ROW
    WHEN (OLD."group" IS NOT NULL AND current_setting('queues.next_of_group', true) IS DISTINCT FROM 'settled')
    EXECUTE FUNCTION leave_group();

CREATE OR REPLACE FUNCTION leave_attachment() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO {schema}.left_behind VALUES (OLD.attachment);
        RETURN NULL;
    END $$;
CREATE OR REPLACE TRIGGER leave_attachment AFTER DELETE ON messages FOR EACH ROW WHEN (OLD.attachment IS NOT NULL)
    EXECUTE FUNCTION leave_attachment();
