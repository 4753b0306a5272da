-- Notes beside a queue: what a stream has leased.

CREATE TABLE {schema}.notes (
    queue_id integer NOT NULL,
    name text NOT NULL,
    saved_at bigint NOT NULL,
    value bytea NOT NULL,
    PRIMARY KEY (queue_id, name)
);
