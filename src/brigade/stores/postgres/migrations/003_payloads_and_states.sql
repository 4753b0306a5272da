-- Payloads too large for a row, in chunks, and workflow states.

CREATE TABLE {schema}.blobs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    made_at bigint NOT NULL
);

CREATE TABLE {schema}.chunks (
    blob bigint NOT NULL REFERENCES {schema}.blobs ON DELETE CASCADE,
    place integer NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (blob, place)
);

ALTER TABLE {schema}.chunks ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE INDEX messages_blobs ON {schema}.messages (blob) WHERE blob IS NOT NULL;
CREATE INDEX parked_blobs ON {schema}.parked (blob) WHERE blob IS NOT NULL;

CREATE TABLE {schema}.states (
    message_id bigint PRIMARY KEY,
    queue_id integer NOT NULL,
    etag bigint NOT NULL,
    saved_at bigint NOT NULL,
    value bytea NOT NULL
);

CREATE INDEX states_of_queues ON {schema}.states (queue_id, saved_at);
