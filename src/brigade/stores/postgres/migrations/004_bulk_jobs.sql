-- Bulk jobs: messages that nobody sees until their job is published, and the jobs that were.

CREATE TABLE {schema}.staged (
    part bigint NOT NULL,
    place bigint NOT NULL,
    staged_at bigint NOT NULL,
    due_at bigint NOT NULL,
    ttl_ms bigint CHECK (ttl_ms > 0),
    size bigint NOT NULL CHECK (size >= 0),
    queue_id integer NOT NULL,
    max_attempts integer CHECK (max_attempts > 0),
    priority smallint NOT NULL CHECK (priority BETWEEN 0 AND 9),
    lane text,
    group_name text,
    own_id text,
    correlation_id text,
    content_type text NOT NULL,
    attributes json,
    payload bytea NOT NULL,
    PRIMARY KEY (part, place)
);

COMMENT ON COLUMN {schema}.staged.part IS 'Names what one call has staged.';
COMMENT ON COLUMN {schema}.staged.due_at IS 'When it may be claimed; 0 is when it is published.';

CREATE INDEX staged_by_age ON {schema}.staged (queue_id, staged_at);

CREATE TABLE {schema}.jobs (
    queue_id integer NOT NULL,
    job text NOT NULL,
    epoch bigint NOT NULL,
    token bigint NOT NULL,
    published_at bigint NOT NULL,
    keep boolean NOT NULL,
    PRIMARY KEY (queue_id, job)
);

COMMENT ON COLUMN {schema}.jobs.epoch IS 'The last batch of a stream that was published; none is twice, or after a later one.';
