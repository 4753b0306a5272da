-- Queues, their live messages, parked failures and history.
--
-- Times are milliseconds since the epoch by this server's clock. A live message is `ready` or `in_flight`; one that
-- has ended leaves `messages` for `history` in the statement that ends it, so the indexes of `messages` stay small.

CREATE FUNCTION {schema}.now_ms() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
    AS $$ SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint $$;

CREATE TABLE {schema}.queues (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    policy json NOT NULL,
    max_attempts integer NOT NULL CHECK (max_attempts > 0),
    retention_ms bigint NOT NULL CHECK (retention_ms >= 0),
    ttl_ms bigint CHECK (ttl_ms > 0),
    dead_letter_queue text CHECK (dead_letter_queue <> name),
    strict boolean NOT NULL,
    lifo boolean NOT NULL,
    paused boolean NOT NULL DEFAULT false,
    waiting_until bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

COMMENT ON COLUMN {schema}.queues.waiting_until IS 'Somebody waits for messages until then: enqueue notifies.';

CREATE SEQUENCE {schema}.message_ids;

CREATE TABLE {schema}.messages (
    id bigint PRIMARY KEY DEFAULT nextval('{schema}.message_ids'),
    due_at bigint NOT NULL,
    enqueued_at bigint NOT NULL,
    batch bigint NOT NULL,
    lapse_at bigint,
    ttl_ms bigint CHECK (ttl_ms > 0),
    claimed_at bigint,
    expires_at bigint,
    size bigint NOT NULL CHECK (size >= 0),
    blob bigint,
    checksum bigint,
    queue_id integer NOT NULL,
    attempts integer NOT NULL DEFAULT 0,
    max_attempts integer CHECK (max_attempts > 0),
    version integer NOT NULL DEFAULT 0,
    priority smallint NOT NULL CHECK (priority BETWEEN 0 AND 9),
    derived boolean NOT NULL DEFAULT false,
    state text NOT NULL DEFAULT 'ready',
    token uuid,
    owner text,
    lane text,
    group_name text,
    own_id text,
    correlation_id text,
    content_type text NOT NULL,
    attributes json,
    failure json,
    log jsonb,
    payload bytea,
    CONSTRAINT known_state CHECK (state IN ('ready', 'in_flight')),
    CONSTRAINT a_lease_is_whole CHECK (
        CASE state
            WHEN 'ready' THEN num_nonnulls(token, owner, claimed_at, expires_at) = 0
            ELSE num_nulls(token, owner, claimed_at, expires_at) = 0 AND attempts > 0 AND version > 0
        END
    ),
    CONSTRAINT attempts_are_claims CHECK (attempts BETWEEN 0 AND version),
    CONSTRAINT a_payload_has_one_place CHECK ((payload IS NULL) = (blob IS NOT NULL))
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 200000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000,
    autovacuum_vacuum_cost_delay = 0
);

COMMENT ON COLUMN {schema}.messages.due_at IS 'When it may be claimed, and its place in the order of its priority.';
COMMENT ON COLUMN {schema}.messages.batch IS 'Names the enqueue that wrote it: tells whether a commit in doubt was made.';
COMMENT ON COLUMN {schema}.messages.derived IS 'A dead letter or a redriven message: the ttl of the queue is not for it.';

CREATE INDEX messages_ready ON {schema}.messages (queue_id, priority, due_at, id)
    WHERE state = 'ready' AND lane IS NULL;
CREATE INDEX messages_leased ON {schema}.messages (queue_id, expires_at)
    WHERE state = 'in_flight' AND lane IS NULL;
CREATE INDEX messages_lapsing ON {schema}.messages (queue_id, lapse_at)
    WHERE lapse_at IS NOT NULL AND state = 'ready' AND attempts = 0 AND lane IS NULL;

CREATE TABLE {schema}.parked (
    id bigint PRIMARY KEY,
    failed_at bigint NOT NULL,
    ttl_ms bigint,
    size bigint NOT NULL,
    blob bigint,
    checksum bigint,
    queue_id integer NOT NULL,
    max_attempts integer,
    priority smallint NOT NULL,
    group_name text,
    own_id text,
    correlation_id text,
    content_type text NOT NULL,
    attributes json,
    failure json NOT NULL,
    payload bytea
);

CREATE INDEX parked_in_order ON {schema}.parked (queue_id, failed_at, id);

CREATE TABLE {schema}.history (
    id bigint NOT NULL,
    finished_at bigint NOT NULL,
    enqueued_at bigint NOT NULL,
    due_at bigint NOT NULL,
    batch bigint NOT NULL,
    claimed_at bigint,
    size bigint NOT NULL,
    queue_id integer NOT NULL,
    attempts integer NOT NULL,
    max_attempts integer NOT NULL,
    version integer NOT NULL,
    priority smallint NOT NULL,
    outcome text NOT NULL,
    owner text,
    reason text,
    error text,
    dead_letter_queue text,
    group_name text,
    own_id text,
    correlation_id text,
    content_type text NOT NULL,
    attributes json,
    failure json,
    log jsonb,
    result json,
    CONSTRAINT known_outcome CHECK (outcome IN ('processed', 'failed', 'dead-lettered')),
    CONSTRAINT an_end_has_its_reason CHECK (
        CASE outcome
            WHEN 'processed' THEN reason IS NULL AND attempts > 0
            ELSE reason IN ('failed', 'rejected', 'lease expired', 'expired') AND result IS NULL
        END
    ),
    CONSTRAINT a_dead_letter_went_somewhere CHECK ((outcome = 'dead-lettered') = (dead_letter_queue IS NOT NULL))
) PARTITION BY RANGE (finished_at);

CREATE INDEX history_ids ON {schema}.history (id);
CREATE TABLE {schema}.history_rest PARTITION OF {schema}.history DEFAULT;

CREATE TABLE {schema}.counts (
    queue_id integer NOT NULL,
    day integer NOT NULL,
    slot bigint NOT NULL,
    succeeded bigint NOT NULL DEFAULT 0,
    dead_lettered bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (queue_id, day, slot)
) WITH (fillfactor = 50);

COMMENT ON TABLE {schema}.counts IS 'What history holds, by queue and day; slots keep writers out of each other''s way.';

CREATE TABLE {schema}.own_ids (
    queue_id integer NOT NULL,
    own_id text NOT NULL,
    message_id bigint NOT NULL,
    taken_at bigint NOT NULL,
    correlation_id text NOT NULL,
    PRIMARY KEY (queue_id, own_id)
);
