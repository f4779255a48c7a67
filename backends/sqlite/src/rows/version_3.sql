CREATE TABLE queue_deleted_items (
    seq INTEGER PRIMARY KEY,
    salt INTEGER NOT NULL,
    items BLOB NOT NULL
) STRICT;
