CREATE TABLE queue_attachments (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    size INTEGER NOT NULL,
    messages INTEGER NOT NULL,
    staged_until INTEGER
) STRICT;
CREATE INDEX queue_attachments_unused ON queue_attachments (id) WHERE messages = 0;

CREATE TABLE queue_attachment_parts (
    id INTEGER PRIMARY KEY,
    checksum INTEGER NOT NULL,
    data BLOB NOT NULL
) STRICT;

CREATE TABLE queue_attached (
    seq INTEGER PRIMARY KEY,
    attachment INTEGER NOT NULL
) STRICT;
