-- Who may use a server in front of this database, by hashes of their tokens, and which keys a queue is sealed with.

CREATE TABLE {schema}.tokens (
    id text PRIMARY KEY,
    value bytea NOT NULL
);

ALTER TABLE {schema}.queues ADD COLUMN sealed json;

COMMENT ON COLUMN {schema}.queues.sealed IS 'By key id a sealed nothing: shows whether somebody has the right key.';
