-- Since when a tracked message is held, and by which client: empty before its first receive, and since it was put back.
ALTER TABLE queue_tracked ADD COLUMN received_at INTEGER;
ALTER TABLE queue_tracked ADD COLUMN client TEXT;
