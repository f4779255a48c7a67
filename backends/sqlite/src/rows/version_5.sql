-- The message with which a value ends: its number and salt.
ALTER TABLE queue_results ADD COLUMN message INTEGER;
ALTER TABLE queue_results ADD COLUMN message_salt INTEGER;
